"""Check the corpora of a recipe before a model is trained on them."""

from __future__ import annotations

from dataclasses import dataclass, field

from transduce.data.doctor.findings import (
    Finding,
    pairs_against,
    pairs_alone,
    text_against,
    text_alone,
)
from transduce.data.doctor.statistics import CorpusStatistics, Lengths
from transduce.data.text.pairs import check_kind
from transduce.data.tokens.sides import train_tokens
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import DataError, TokensError
from transduce.recipe import Recipe
from transduce.recipe.tasks import TASK_RULES


@dataclass
class Diagnosis:
    """All findings. `ok` unless there is an error."""

    pairs: dict[str, int] = field(default_factory=dict)
    """Number of pairs in each split; for text, lines."""
    noun: str = "pair"
    lengths: list[Lengths] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """One sentence."""
        errors = [finding.what for finding in self.findings if finding.severity == "error"]
        if errors:
            return f"Not fit to train: {errors[0]}{'' if errors[0].endswith(('.', '?')) else '.'}"
        warnings = sum(finding.severity == "warning" for finding in self.findings)
        if not warnings:
            return "Fit to train."
        return f"Fit to train, with {warnings} warning{'s' if warnings > 1 else ''}."


def examine(recipe: Recipe) -> Diagnosis:
    """Read train, valid and test once (and once more for excerpts) and list their problems.

    Tokenizers are trained as the recipe asks, for lengths and unknown tokens. Pairs are kept as
    hashes of eight bytes, not as text. A corpus that cannot be read is an error among the findings,
    not an exception.
    """
    data, diagnosis = recipe.data, Diagnosis()
    tokens: tuple[Tokens, Tokens] | None = None
    try:
        tokens = train_tokens(data)
    except DataError:
        pass  # reported below, with the corpus it concerns
    except TokensError as error:
        diagnosis.findings.append(Finding("error", str(error), 1, [], "Mend data.tokens."))
    corpora = {"train": data.train, "valid": data.valid, "test": data.test}
    splits: dict[str, CorpusStatistics] = {}
    for name, corpus in corpora.items():
        if corpus is None:
            continue
        split = CorpusStatistics(name, corpus, data.folder, recipe.audio)
        try:
            split.read(tokens)
            check_kind(corpus, recipe)
        except (DataError, TokensError) as error:
            diagnosis.findings.append(
                Finding("error", f"{name}: {error}", 1, [], "Correct the corpus, then check again.")
            )
            continue
        splits[name] = split
        diagnosis.noun = split.noun
        diagnosis.pairs[name] = split.counts.pairs
        diagnosis.lengths += split.length_table()
        alone = text_alone if split.is_text else pairs_alone
        diagnosis.findings += alone(split, recipe)
    if "train" in splits:
        for name in ("valid", "test"):
            if name in splits and splits[name].is_text:
                diagnosis.findings += text_against(splits["train"], splits[name])
            elif name in splits:
                labels = TASK_RULES[recipe.task].labels != "none"
                diagnosis.findings += pairs_against(splits["train"], splits[name], labels)
    order = ("error", "warning", "note")
    diagnosis.findings.sort(key=lambda finding: order.index(finding.severity))
    return diagnosis
