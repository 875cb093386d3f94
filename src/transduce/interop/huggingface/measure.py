"""Measure an export with transformers itself, in a process of its own; see interop/parity.py."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.errors import load_package
from transduce.interop.huggingface.ids import Renumbered, Shifted
from transduce.interop.imports.huggingface import read_config, read_origin
from transduce.interop.parity import WARMING, Measurement, parity_beam
from transduce.tasks.folder import ModelDefinition, read_definition

BATCH = 32


def ids_there(folder: Path, definition: ModelDefinition) -> Shifted | Renumbered:
    """The ids of target tokens in the export of a model folder."""
    origin = read_origin(folder)
    if origin is not None and "target_ids" in origin:
        return Renumbered.from_json(origin["target_ids"])
    shared = definition.recipe.model.tie_embeddings == "all"
    return Shifted(0 if shared else len(definition.source_tokens))


def measure(
    exported: Path, model_folder: Path, given: tuple[list[str], list[str]], sources: list[str]
) -> Measurement:
    """Score the pairs, decode the sources twice, and time the second decoding.

    Sources are tokenized by `AutoTokenizer`, targets by the model's own tokenizer.
    """
    transformers = load_package("transformers", "huggingface")
    definition = read_definition(model_folder)
    ids = ids_there(model_folder, definition)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(exported).float().eval()
    languages = (read_origin(model_folder) or {}).get("languages")
    if languages and definition.source_tokens.prefix:
        (language,) = definition.source_tokens.pieces(definition.source_tokens.prefix)
        tokenizer.src_lang = language[1:-1]
    start = read_config(exported).whole("decoder_start_token_id", minimum=0)
    with torch.inference_mode():
        found = []
        for source, target in zip(*given, strict=True):
            written = ids.theirs([*definition.target_tokens.encode(target), END])
            inputs = tokenizer([source], return_tensors="pt")
            decoder_T = torch.tensor([[start, *written[:-1]]])
            logits_1TV = model(
                input_ids=inputs.input_ids,
                attention_mask=inputs.attention_mask,
                decoder_input_ids=decoder_T,
            ).logits
            log_probs_TV = logits_1TV[0].float().log_softmax(dim=-1)
            found.append(log_probs_TV[torch.arange(len(written)), written].tolist())
        decode = definition.recipe.decode
        search: dict[str, Any] = {}
        if isinstance(ids, Renumbered):  # an export of our own says so in its own settings
            never = set(ids.theirs([PAD, BEGIN])) - {ids.end}
            search["suppress_tokens"] = sorted(never)
        if first := definition.target_tokens.prefix:
            search["forced_bos_token_id"] = ids.theirs(first)[0]

        def run(some: list[str], beam: int) -> list[list[int]]:
            return _generate(transformers, model, tokenizer, some, beam, decode, search)

        greedy = run(sources, 1)
        beam = parity_beam(decode)
        run(sources[:WARMING], beam)
        began = time.perf_counter()
        searched = run(sources, beam)
        seconds = time.perf_counter() - began
    tokens = definition.target_tokens
    return Measurement(
        found,
        [tokens.pieces(ids.ours(row)) for row in greedy],
        [tokens.pieces(ids.ours(row)) for row in searched],
        tokenizer.batch_decode(greedy, skip_special_tokens=True),
        tokenizer.batch_decode(searched, skip_special_tokens=True),
        seconds,
    )


def _generate(
    transformers: Any,
    model: Any,
    tokenizer: Any,
    sources: Sequence[str],
    beam: int,
    decode: Any,
    search: dict[str, Any],
) -> list[list[int]]:
    """The ids of each output up to its END; empty sources give empty outputs, as ours."""
    rows: list[list[int]] = [[] for _ in sources]
    order = sorted((i for i, text in enumerate(sources) if text), key=lambda i: len(sources[i]))
    for first in range(0, len(order), BATCH):
        some = order[first : first + BATCH]
        inputs = tokenizer([sources[i] for i in some], return_tensors="pt", padding=True)
        lengths_B = inputs.attention_mask.sum(dim=1)
        limits = [int(int(length) * decode.max_ratio) + decode.max_extra for length in lengths_B]
        end = model.generation_config.eos_token_id
        ending = transformers.LogitsProcessorList([EndAt(limits, beam, end)])
        found = model.generate(
            input_ids=inputs.input_ids,
            attention_mask=inputs.attention_mask,
            num_beams=beam,
            do_sample=False,
            max_length=max(limits) + 1,
            logits_processor=ending,
            **search,
        ).tolist()
        for place, row in zip(some, found, strict=True):
            written = row[1:]
            rows[place] = written[: written.index(end) + 1] if end in written else written
    return rows


class EndAt:
    """A source's outputs end at its own limit, as in our search."""

    def __init__(self, limits: list[int], beam: int, end: int) -> None:
        self.limits_R = torch.tensor(limits).repeat_interleave(beam)
        self.end = end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        last_R = self.limits_R <= input_ids.shape[1]
        going_on_V = torch.arange(scores.shape[1]) != self.end
        return scores.masked_fill(last_R[:, None] & going_on_V, float("-inf"))


def _main(exported: str, model_folder: str, request_path: str, result_path: str) -> None:
    given, targets, sources = json.loads(Path(request_path).read_text("utf-8"))
    found = measure(Path(exported), Path(model_folder), (given, targets), sources)
    Path(result_path).write_text(json.dumps(asdict(found)), "utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
