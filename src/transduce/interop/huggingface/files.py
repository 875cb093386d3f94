"""Files of a folder that transformers loads: weights, tokenizer, model card."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from transduce.data.tokens.languages import language_pair
from transduce.data.tokens.learn import JOINER
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, SPECIALS, UNKNOWN, Tokens
from transduce.errors import ModelError
from transduce.evaluation.metrics import TITLES
from transduce.evaluation.results import stored_results
from transduce.interop.imports.huggingface import CONFIG, KEPT_FILES
from transduce.storage import write_json, write_safetensors, write_text
from transduce.tasks.folder import CARD, read_metrics
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.model import Model

# ----------------------------------------------------------------------------------------------
# model.safetensors as transformers reads it.

NAME = "model.safetensors"
FORMAT = {"format": "pt"}  # without it, transformers refuses the file


def write_weights(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by their names there, each with its own memory."""
    ready = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_safetensors(folder / NAME, ready, FORMAT)


def put_back(
    folder: Path, tensors: Mapping[str, Tensor], origin: Mapping[str, Any], kept: Path
) -> None:
    """Write weights, and what `write_origin` kept in the folder `kept`: configuration, files."""
    write_weights(folder, tensors)
    write_json(folder / CONFIG, origin["config"])
    for name in origin["files"]:
        shutil.copyfile(kept / KEPT_FILES / name, folder / name)


# ----------------------------------------------------------------------------------------------
# Our tokenizers as files that `AutoTokenizer` loads.
#
# transformers has one tokenizer for source and target. Where these have embeddings of their own,
# the ids of the target follow those of the source, and each token of the target has a letter of
# the private use area before its name, which no text has and the decoder removes.

OF_TARGET = "\ue000"
BANNED_SCORE = -1e6  # the score of a subword of the target in a unigram model of the source


def write_tokenizer(
    folder: Path, source: Tokens, target: Tokens | None, longest: int, *, ends: bool = True
) -> None:
    """Write tokenizer.json and tokenizer_config.json; `target`: where it has ids of its own.

    ends: texts get END after them, as sources of an encoder; otherwise BEGIN before them, as
    prompts of a language model. Raises ModelError for what a tokenizer there cannot do.
    """
    for side, tokens in (("source", source), ("target", target)):
        if tokens is not None and tokens.form is not None:
            raise ModelError(
                f"the {side} texts are written in Unicode's {tokens.form}, but tokens in another "
                f"form, and tokenizers of Hugging Face cannot convert decoded text: train with "
                f"data.tokens: {{normalize: none}} to export"
            )
    parts = json.loads(source.to_json())
    if target is not None:
        _add_target(parts, json.loads(target.to_json()), len(source), target)
    for added in parts["added_tokens"]:
        if added["content"][1:-1] in source.tags:
            added["rstrip"] = True  # as a tag and its space are read as one
    special = SPECIALS[END] if ends else SPECIALS[BEGIN]
    ours = {"SpecialToken": {"id": special, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    other = {"Sequence": {"id": "B", "type_id": 1}}
    parts["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [text, ours] if ends else [ours, text],
        "pair": [text, other, ours] if ends else [ours, text, other],
        "special_tokens": {
            special: {"id": special, "ids": [END if ends else BEGIN], "tokens": [special]}
        },
    }
    write_json(folder / "tokenizer.json", parts)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": SPECIALS[PAD],
            "unk_token": SPECIALS[UNKNOWN],
            "bos_token": SPECIALS[BEGIN],
            "eos_token": SPECIALS[END],
            "clean_up_tokenization_spaces": False,
            # A text may hold "</s>"; but tags are read at its beginning.
            "split_special_tokens": not source.tags,
            "model_max_length": longest,
            "model_input_names": ["input_ids", "attention_mask"],
            "padding_side": "right" if ends else "left",
        },
    )


def _add_target(parts: dict[str, Any], theirs: dict[str, Any], first: int, target: Tokens) -> None:
    names = [OF_TARGET + name for name in target.names()]
    model = parts["model"]
    if model["type"] == "Unigram":
        known = len(model["vocab"])
        if known < first:  # tags have no place in a unigram model but as added tokens
            raise ModelError(
                "a unigram vocabulary of the source with tags, and a vocabulary of the target "
                "besides, are not exported: train with algorithm: bpe, or tie_embeddings: all"
            )
        model["vocab"] += [[name, BANNED_SCORE] for name in names]
    else:
        model["vocab"] |= {name: first + number for number, name in enumerate(names)}
        by_added = {added["content"] for added in parts["added_tokens"]}
        assert len(set(model["vocab"]) | by_added) == first + len(names)
    silent = [*range(len(SPECIALS)), *target.tags.values()]
    parts["added_tokens"] += [
        {
            "id": first + number,
            "content": names[number],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number in sorted(silent)
    ]
    parts["decoder"] = _without_prefix(theirs["decoder"])


def _without_prefix(decoder: dict[str, Any] | None) -> dict[str, Any]:
    """A decoder that removes the letter before each token first."""
    remove = {"type": "Replace", "pattern": {"String": OF_TARGET}, "content": ""}
    if decoder is None:  # tokens are joined by spaces; WordPiece does so for a prefix that none has
        joined = {"type": "WordPiece", "prefix": JOINER * 2, "cleanup": False}
        return {"type": "Sequence", "decoders": [remove, joined, {"type": "Fuse"}]}
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return {"type": "Sequence", "decoders": [remove, *steps]}


# ----------------------------------------------------------------------------------------------
# The model card of an export: README.md as the Hugging Face hub reads it.


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
            f'max_length=int({ratio} * inputs["input_ids"].shape[1]) + {extra})`.'
        )
    results = _results(model)
    if results:
        lines += ["\n## Results\n", "Measured before the export, by transduce.\n", *results]
    write_text(folder / CARD, "\n".join(lines) + "\n")


def _results(model: Model) -> list[str]:
    metrics = {} if model.origin is None else read_metrics(model.origin.folder)
    return [
        f"- {TITLES.get(one.metric, one.metric)} on {one.split}: {one.value:.2f}"
        for one in stored_results(metrics)
        if math.isfinite(one.value)
    ]
