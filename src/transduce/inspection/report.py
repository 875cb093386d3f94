"""The model card: what a model folder's README.md says of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transduce.data.corpus import called
from transduce.folder import read_metrics
from transduce.recipe import Corpus, RecurrentDecoder, RecurrentEncoder
from transduce.storage import write_text
from transduce.transducer import Transducer


def write_card(model: Transducer, folder: Path) -> None:
    """Write README.md from the recipe, the weights and metrics.json; nothing in it is typed in."""
    recipe = model.recipe
    parameters = sum(p.numel() for p in model.network.parameters())
    metrics = read_metrics(folder)
    lines = [
        f"# {recipe.name}",
        "",
        f"A sequence-to-sequence model of {parameters:,} parameters, trained with transduce.",
        "",
        "## Use",
        "",
        f'    transduce run {folder} "..."',
        "",
        "    import transduce",
        f'    model = transduce.load("{folder}")',
        '    model("...")',
        "",
        "## What it is",
        "",
        f"- Encoder: {_part(recipe.model.encoder)}",
        f"- Decoder: {_part(recipe.model.decoder)}",
        f"- Width {recipe.model.width}, dropout {recipe.model.dropout}, "
        f"tied embeddings: {recipe.model.tie}",
        f"- Source tokens: {len(model.source_tokens):,} ({model.source_tokens.level}), "
        f"target tokens: {len(model.target_tokens):,} ({model.target_tokens.level})",
        f"- Trained on {_corpus(recipe.data.train)}, chosen by {recipe.validation.metric} on "
        f"{_corpus(recipe.data.valid)}",
        *_training(metrics.get("training", {})),
        "",
        "## How good it is",
        "",
        *_scores(metrics),
        "",
        "## What to keep in mind",
        "",
        "It has seen its training corpus and nothing else: other domains, spellings and scripts "
        "are unknown to it, and it answers all the same. Measure it on your own data "
        "(`transduce evaluate --source FILE --target FILE`) before you rely on it.",
    ]
    write_text(folder / "README.md", "\n".join(lines) + "\n")


def _part(part: Any) -> str:
    kind = "recurrent" if isinstance(part, RecurrentEncoder | RecurrentDecoder) else "Transformer"
    plain = part.model_dump(exclude={"kind"})
    return f"{kind}, " + ", ".join(f"{key} {_word(value)}" for key, value in plain.items())


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _corpus(corpus: Corpus) -> str:
    first = f"the first {corpus.limit:,} pairs of " if corpus.limit else ""
    return f"{first}{called(corpus)}"


def _training(facts: dict[str, Any]) -> list[str]:
    if not facts:
        return []
    return [
        f"- {facts['steps']:,} updates in {facts['seconds'] / 60:.1f} minutes on {facts['device']} "
        f"({facts['precision']}), best at update {facts['best_step']:,}"
    ]


def _scores(metrics: dict[str, Any]) -> list[str]:
    rows = ["| set | items | metric | value | 95 % interval |", "| --- | --- | --- | --- | --- |"]
    for split, result in metrics.items():
        beam = f", beam {result['beam']}" if "beam" in result else ""
        for name, metric in result.get("metrics", {}).items():
            low, high = metric.get("low"), metric.get("high")
            interval = "" if low is None else f"{low:.2f} to {high:.2f}"
            better = "higher" if metric["higher_is_better"] else "lower"
            rows.append(
                f"| {split}{beam} | {result['items']:,} | {name} ({better} is better) "
                f"| {metric['value']:.2f} | {interval} |"
            )
    if len(rows) == 2:
        return ["Not measured yet: run `transduce evaluate` on this folder."]
    return rows
