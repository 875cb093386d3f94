"""Our tokenizers as files that `AutoTokenizer` loads.

transformers has one tokenizer for source and target. Where these have embeddings of their own, the
ids of the target follow those of the source, and each token of the target has a letter of the
private use area before its name, which no text has and the decoder removes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transduce.data.tokens.learn import JOINER
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, SPECIALS, UNKNOWN, Tokens
from transduce.errors import ModelError
from transduce.storage import write_json

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
