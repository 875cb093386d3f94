"""The model card of an export: README.md as the Hugging Face hub reads it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

from transduce.data.tokens.languages import language_pair
from transduce.evaluation.metrics import TITLES
from transduce.storage import write_text
from transduce.tasks.folder import CARD, read_metrics
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.model import Model

NOT_RESULTS = ("training", "pruning")


def write_card(model: Model, folder: Path, architecture: str) -> None:
    """Write README.md: what the model is, how it is used, what was measured of it."""
    alone = isinstance(model, LanguageModel)
    pair = None if alone else language_pair(model.recipe)
    head: dict[str, Any] = {"language": list(pair)} if pair else {}
    head |= {
        "license": "unknown",
        "library_name": "transformers",
        "pipeline_tag": "text-generation" if alone else "translation",
        "tags": ["transduce", architecture],
    }
    loader = "AutoModelForCausalLM" if alone else "AutoModelForSeq2SeqLM"
    parameters = sum(weight.numel() for weight in model.network.parameters())
    shown = yaml.safe_dump(head, sort_keys=False, allow_unicode=True)
    lines = [
        f"---\n{shown}---\n",
        f"# {model.recipe.name}\n",
        f"{parameters:,} parameters, trained with transduce and exported as {architecture}.\n",
        "```python",
        f"from transformers import AutoTokenizer, {loader}\n",
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
        f'model = {loader}.from_pretrained("FOLDER")',
        'inputs = tokenizer(["..."], return_tensors="pt", padding=True)',
        "outputs = model.generate(**inputs)",
        "tokenizer.batch_decode(outputs, skip_special_tokens=True)",
        "```\n",
        "How its outputs were compared with those of the model itself is in PARITY.md. The length "
        "penalty of transformers is another one: a score is divided by the length to the power of "
        "`length_penalty`, in transduce by ((5 + length) / 6) to that power. So greedy outputs are "
        "equal; of a beam they are with `length_penalty=0`.",
    ]
    if not alone:
        decode = model.recipe.decode
        ratio, extra = f"{decode.max_ratio:g}", decode.max_extra
        lines.append(
            f"\nThe maximum length of an output is {ratio} times the tokens of its source, with "
            f"its end token, and {extra} more. The generation config has one number for all: that "
            f"of the longest source of training. To end earlier: `model.generate(**inputs, "
            f'max_length=int({ratio} * inputs["input_ids"].shape[1]) + {extra + 1})`.'
        )
    results = _results(model)
    if results:
        lines += ["\n## Results\n", "Measured before the export, by transduce.\n", *results]
    write_text(folder / CARD, "\n".join(lines) + "\n")


def _results(model: Model) -> list[str]:
    metrics = {} if model.origin is None else read_metrics(model.origin.folder)
    found = []
    for split, entry in metrics.items():
        measured = entry.get("metrics") if isinstance(entry, dict) else None
        if split in NOT_RESULTS or not isinstance(measured, dict):
            continue
        for name, metric in measured.items():
            value = metric.get("value") if isinstance(metric, dict) else None
            if isinstance(value, int | float) and math.isfinite(value):
                found.append(f"- {TITLES.get(name, name)} on {split}: {value:.2f}")
    return found
