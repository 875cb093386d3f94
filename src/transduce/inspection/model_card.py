"""The model card: README.md of a model folder."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

from transduce.checksums import is_ours, write_listed
from transduce.data.text.pairs import corpus_name, text_of
from transduce.evaluation.metrics import TITLES, decimals
from transduce.evaluation.results import STRANGE, StoredResult, stored_results
from transduce.recipe import Corpus, Mixture, Named, Recipe
from transduce.recipe.tasks import TASK_RULES
from transduce.tasks import AudioInputModel, LanguageModel
from transduce.tasks.folder import CARD, CARD_BESIDE, read_metrics
from transduce.tasks.transduce import Model

# Exceptions that a foreign entry of metrics.json may cause.


def write_card(model: Model, folder: Path) -> str:
    """Write README.md from the recipe, the weights and metrics.json.

    A README.md that a person wrote or edited is kept: then the card is written beside it, and the
    returned sentence says so.
    """
    text = card_text(model, folder, str(folder))
    for name in (CARD, CARD_BESIDE):
        path = folder / name
        if not path.exists() or is_ours(path):
            write_listed(path, text)
            beside = (
                f"{folder / CARD} was written or edited by you and is kept; the model card is "
                f"{path}."
            )
            return "" if name == CARD else beside
    return (
        f"{folder / CARD} and {CARD_BESIDE} were written or edited by you and are kept: no model "
        f"card was written."
    )


def card_text(model: Model, folder: Path, place: str) -> str:
    """The model card of the model in a folder; `place` is what it is called in its examples."""
    recipe = model.recipe
    parameters = sum(p.numel() for p in model.network.parameters())
    metrics = read_metrics(folder)
    alone = isinstance(model, LanguageModel | AudioInputModel)
    files = "" if alone else " --target FILE"
    source = '"recording.wav"' if isinstance(model, AudioInputModel) else '"..."'
    lines = [
        *front_matter(model, metrics),
        f"# {recipe.name}",
        "",
        f"A {TASK_RULES[recipe.task].about} of {parameters:,} parameters, trained with transduce.",
        "",
        "## Use",
        "",
        f"    transduce run {place} {source}",
        "",
        "    import transduce",
        f'    model = transduce.load("{place}")',
        f"    model({source})",
        "",
        "## What it is",
        "",
        *(f"- {name.title()}: {_part(part)}" for name, part in recipe.model.parts.items()),
        f"- {_whole(recipe)}",
        *_tokens(model),
        f"- Trained on {_corpus(recipe.data.train)}, chosen by {recipe.validation.metric} on "
        f"{_corpus(recipe.data.valid)}",
        *_training(metrics.get("training", {})),
        "",
        *_started(metrics.get("training", {})),
        "## How good it is",
        "",
        *_scores(metrics),
        "",
        "## What to keep in mind",
        "",
        "It has seen its training corpus and nothing else: other domains, spellings and scripts "
        "are unknown to it, and it answers all the same. Measure it on your own data "
        f"(`transduce evaluate --source FILE{files}`) before you rely on it.",
        "",
        "## What is not known",
        "",
        *_unknown(model, metrics),
    ]
    return "\n".join(lines) + "\n"


def _tokens(model: Model) -> list[str]:
    if isinstance(model, AudioInputModel):
        tokens = f"- Tokens: {len(model.target_tokens):,} ({model.target_tokens.level})"
        return [f"- Audio: {_part(model.recordings.settings)}", tokens]
    source, target = (f"{len(t):,} ({t.level})" for t in (model.source_tokens, model.target_tokens))
    if isinstance(model, LanguageModel):
        return [f"- Tokens: {target}; reads {model.window} of them at once"]
    return [f"- Source tokens: {source}, target tokens: {target}"]


def _part(part: Any) -> str:
    kind = getattr(part, "kind", "")
    parts = [{"transformer": "Transformer"}.get(kind, kind)] if kind else []
    plain = part.model_dump(exclude={"kind"}, exclude_none=True)
    return ", ".join([*parts, *(f"{key} {_word(value)}" for key, value in plain.items())])


def _whole(recipe: Recipe) -> str:
    """The model's own keys that apply to its task."""
    names = {
        "width": "width",
        "dropout": "dropout",
        "word_dropout": "word dropout",
        "tie_embeddings": "tied embeddings:",
        "ctc_weight": "CTC weight",
        "pooling": "pooling:",
    }
    without = TASK_RULES[recipe.task].unused_keys
    parts = [
        f"{name} {getattr(recipe.model, key)}"
        for key, name in names.items()
        if f"model.{key}" not in without and (key != "ctc_weight" or recipe.model.ctc_weight)
    ]
    if recipe.model.transducer is not None:
        parts.append("transducer, whose prediction network is the decoder")
    if recipe.model.characters is not None:
        parts.append(f"letters: {_part(recipe.model.characters)}")
    return ", ".join(parts).capitalize()


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _corpus(corpus: Corpus) -> str:
    unit = "lines" if text_of(corpus) else "pairs"
    first = f"the first {corpus.limit:,} {unit} of " if corpus.limit else ""
    return f"{first}{corpus_name(corpus)}"


def _training(training: dict[str, Any]) -> list[str]:
    try:
        return [
            f"- {training['steps']:,} updates in {training['seconds'] / 60:.1f} minutes on "
            f"{training['device']} ({training['precision']}), "
            f"best at update {training['best_step']:,}"
        ]
    except STRANGE:
        return []


def _started(training: dict[str, Any]) -> list[str]:
    """The model that training started from, and what it trained of it."""
    try:
        start = training["start"]
        how = f"an adapter ({start['adapter']})" if "adapter" in start else "fine-tuned"
        lines = [
            "## What it started from",
            "",
            f"It is {how}: training started from the model {start['name']} (`{start['from']}`, "
            f"SHA-256 of its weights {start['fingerprint'][:12]}) and trained "
            f"{start['trained_parameters']:,} parameters.",
            "",
            "| part | parameters | loaded | trained |",
            "| --- | --- | --- | --- |",
        ]
        keys = ("part", "parameters", "loaded", "trained")
        lines += [f"| {' | '.join(str(row[key]) for key in keys)} |" for row in start["parts"]]
        return [*lines, ""]
    except STRANGE:
        return []


def _unknown(model: Model, metrics: dict[str, Any]) -> list[str]:
    """What nobody has told or measured."""
    measured = {name: one for name, one in metrics.items() if _is_result(one)}
    lines = [
        "- The licence of the weights, and of the data that they were trained on: not known to "
        "transduce.",
        "- Who made the training data, whom it speaks of, and whether they agreed: not known.",
    ]
    if not languages_of(model.recipe):
        lines.append("- The languages: not stated in the recipe.")
    if not measured:
        lines.append("- How good it is: not measured yet.")
    if not any("slices" in one or "groups" in one for one in measured.values()):
        lines.append(
            "- Whether it serves all alike: no slices were measured (`transduce evaluate --by`)."
        )
    return lines


def _is_result(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("metrics"), dict)


def _scores(metrics: dict[str, Any]) -> list[str]:
    rows = ["| set | items | metric | value | 95 % interval |", "| --- | --- | --- | --- | --- |"]
    for one in stored_results(metrics):
        beam = "" if one.beam is None else f", beam {one.beam}"
        interval = "" if one.low is None else f"{one.low:.2f} to {one.high:.2f}"
        rows.append(
            f"| {one.split}{beam} | {one.items:,} | {one.metric} ({one.better} is better) "
            f"| {one.value:.{decimals(one.metric)}f} | {interval} |"
        )
    if len(rows) == 2:
        return ["Not measured yet: run `transduce evaluate` on this folder."]
    return rows


# ----------------------------------------------------------------------------------------------
# The head of a model card as the Hugging Face hub reads it: YAML between two lines of dashes.
#
# https://huggingface.co/docs/hub/model-cards. Only what was measured or stands in the recipe.

# What the hub calls a task, of text and of audio.
TASKS = {
    "transduce": ("text2text-generation", "automatic-speech-recognition"),
    "classify": ("text-classification", "audio-classification"),
    "tag": ("token-classification", "token-classification"),
    "language_modeling": ("text-generation", "text-generation"),
}
OTHER = "other"  # the hub's name for what it has no name for, such as a task of your own
CODE = re.compile("[a-z]{2,3}")


def front_matter(model: Model, metrics: dict[str, Any]) -> list[str]:
    """The lines of the head; what is not known is said to be so, or left out."""
    recipe = model.recipe
    task = TASKS.get(recipe.task, (OTHER, OTHER))[recipe.audio is not None]
    results = [
        _result(recipe, task, one) for one in stored_results(metrics) if math.isfinite(one.value)
    ]
    head: dict[str, Any] = {}
    if languages := languages_of(recipe):
        head["language"] = languages
    started = metrics.get("training", {}).get("start") if _is_mapping(metrics) else None
    if isinstance(started, dict) and isinstance(started.get("from"), str):
        head |= _base_model(started)
    head |= {
        "license": "unknown",
        "library_name": "transduce",
        "pipeline_tag": task,
        "tags": ["transduce", *_kinds(recipe)],
    }
    if results:
        head["metrics"] = sorted({one["metrics"][0]["type"] for one in results})
        head["model-index"] = [{"name": recipe.name, "results": results}]
    text = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return ["---", *text.rstrip().splitlines(), "---", ""]


def _is_mapping(metrics: dict[str, Any]) -> bool:
    return isinstance(metrics.get("training"), dict)


def _base_model(started: dict[str, Any]) -> dict[str, str]:
    """The model that training started from: on the hub by its address there, else by its name."""
    address = str(started["from"])
    named = address.removeprefix("hf://").partition("@")[0]
    base = named if address.startswith("hf://") else str(started.get("name", named))
    relation = "adapter" if "adapter" in started else "finetune"
    return {"base_model": base, "base_model_relation": relation}


def languages_of(recipe: Recipe) -> list[str]:
    """The codes of languages that the recipe names, sources first; none where it names none."""
    return list(dict.fromkeys(_languages(recipe.data.train)))


def _languages(corpus: Corpus) -> list[str]:
    if isinstance(corpus, Mixture):
        return [code for one in corpus.of for code in _languages(one)]
    if not isinstance(corpus, Named):
        return []
    codes = [*(corpus.pair or "").split("-"), corpus.language or ""]
    return [code for code in codes if CODE.fullmatch(code) and code != "all"]


def _kinds(recipe: Recipe) -> list[str]:
    return list(dict.fromkeys(part.kind for part in recipe.model.parts.values()))


def _result(recipe: Recipe, task: str, one: StoredResult) -> dict[str, Any]:
    name = TITLES.get(one.metric, one.metric)
    about = {"type": one.metric, "value": round(one.value, 4), "name": name}
    data = {"type": recipe.name, "name": f"{recipe.name} ({one.split})", "split": one.split}
    return {"task": {"type": task}, "dataset": data, "metrics": [about]}
