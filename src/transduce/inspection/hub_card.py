"""The head of a model card as the Hugging Face hub reads it: YAML between two lines of dashes.

https://huggingface.co/docs/hub/model-cards. Only what was measured or stands in the recipe.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from transduce.evaluation.metrics import TITLES
from transduce.recipe import Corpus, Mixture, Named, Recipe
from transduce.tasks.transduce import Model

# What the hub calls a task, of text and of audio.
TASKS = {
    "transduce": ("text2text-generation", "automatic-speech-recognition"),
    "classify": ("text-classification", "audio-classification"),
    "tag": ("token-classification", "token-classification"),
    "language_modeling": ("text-generation", "text-generation"),
}
OTHER = "other"  # the hub's name for what it has no name for, such as a task of your own
NOT_RESULTS = ("training", "pruning")
CODE = re.compile("[a-z]{2,3}")


def front_matter(model: Model, metrics: dict[str, Any]) -> list[str]:
    """The lines of the head; what is not known is said to be so, or left out."""
    recipe = model.recipe
    task = TASKS.get(recipe.task, (OTHER, OTHER))[recipe.audio is not None]
    results = [
        result
        for split, entry in metrics.items()
        if split not in NOT_RESULTS
        for result in _results(recipe, task, split, entry)
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


def _results(recipe: Recipe, task: str, split: str, entry: Any) -> list[dict[str, Any]]:
    """One of each metric; an entry that is none of ours gives none."""
    measured = entry.get("metrics") if isinstance(entry, dict) else None
    found = []
    for name, metric in measured.items() if isinstance(measured, dict) else ():
        value = metric.get("value") if isinstance(metric, dict) else None
        if not isinstance(value, int | float) or not math.isfinite(value):
            continue
        about = {"type": name, "value": round(float(value), 4), "name": TITLES.get(name, name)}
        data = {"type": recipe.name, "name": f"{recipe.name} ({split})", "split": split}
        found.append({"task": {"type": task}, "dataset": data, "metrics": [about]})
    return found
