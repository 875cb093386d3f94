"""Whisper's vocabulary in our order: the four special tokens first, then all others as they were.

<|startoftranscript|> is BEGIN and <|endoftext|> is END. PAD and UNKNOWN are new; no text has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transduce.data.tokens.tokenizer import SPECIALS, Tokens
from transduce.errors import ModelError, TokensError
from transduce.interop.imports.configuration import check_vocabulary, read_json
from transduce.interop.imports.tokenizer_file import (
    JSON,
    check_tokenizer,
    read_tokenizer_file,
    tokens_of,
)

BEGIN_NAME, END_NAME = "<|startoftranscript|>", "<|endoftext|>"
NEW = 2  # tokens of ours that Whisper does not have: PAD and UNKNOWN
STEP = 0.02  # seconds from one timestamp to the next

Added = dict[str, Any]


def original_order(begin: int, end: int, size: int) -> list[int]:
    """Whisper's id of each of our tokens from BEGIN on."""
    return [begin, end, *(number for number in range(size) if number not in (begin, end))]


def our_tokens(tokenizer: Mapping[str, Any], size: int) -> tuple[Tokens, list[int]]:
    """Tokens with our ids from a tokenizer.json, and Whisper's id of each from BEGIN on.

    size: how many tokens the model has; timestamps that the file leaves out are added. Raises
    ModelError for a tokenizer that is not Whisper's.
    """
    names = _names(tokenizer, size)
    by_name = {name: number for number, name in enumerate(names)}
    if BEGIN_NAME not in by_name or END_NAME not in by_name:
        raise ModelError(
            f"the tokenizer has no {BEGIN_NAME} or no {END_NAME}; it is not one of Whisper"
        )
    order = original_order(by_name[BEGIN_NAME], by_name[END_NAME], size)
    place = {number: NEW + ours for ours, number in enumerate(order)}
    inner = tokenizer["model"]
    text = {name: place[number] for name, number in inner["vocab"].items() if number in place}
    # A name of ours that a text token has, such as "<s>", would be two tokens of one name.
    clash = set(SPECIALS) & (set(names) - {BEGIN_NAME, END_NAME})
    if clash:
        raise ModelError(f"the tokenizer has a token {min(clash)}, which is a special token here")
    special = [name for name in names if name not in inner["vocab"] or _is_special(name)]
    vocabulary = {name: number for name, number in text.items() if name not in special}
    vocabulary |= {name: number for number, name in enumerate(SPECIALS)}
    added = [_added(number, name) for number, name in enumerate(SPECIALS)]
    added += [
        _added(place[by_name[name]], name) for name in special if name not in (BEGIN_NAME, END_NAME)
    ]
    parts = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(added, key=lambda token: token["id"]),
        "normalizer": None,
        # Outputs begin with a space, as all words do.
        "pre_tokenizer": {**BYTES, "add_prefix_space": True},
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [BYTES, {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
        },
        "model": {**inner, "vocab": vocabulary, "unk_token": None},
    }
    try:
        tokens = tokens_of(json.dumps(parts))
    except TokensError as error:
        raise ModelError(f"the tokenizer cannot be used: {error}") from None
    if len(tokens) != size + NEW:
        raise ModelError(f"the tokenizer has {len(tokens) - NEW} tokens, the model {size}")
    return tokens, order


def whisper_tokenizer(tokens: Tokens, order: list[int]) -> dict[str, Any]:
    """A tokenizer.json with Whisper's ids: the inverse of `our_tokens`."""
    parts: dict[str, Any] = json.loads(tokens.to_json())
    old = {NEW + ours: number for ours, number in enumerate(order)}
    renamed = {SPECIALS[2]: BEGIN_NAME, SPECIALS[3]: END_NAME}
    text = {
        name: old[number]
        for name, number in parts["model"]["vocab"].items()
        if number >= len(SPECIALS)
    }
    parts["model"]["vocab"] = dict(sorted(text.items(), key=lambda item: item[1]))
    parts["added_tokens"] = sorted(
        (
            {
                **token,
                "id": old[token["id"]],
                "content": renamed.get(token["content"], token["content"]),
                "special": not _is_timestamp(token["content"]),
            }
            for token in parts["added_tokens"]
            if token["id"] in old
        ),
        key=lambda token: token["id"],
    )
    parts["pre_tokenizer"] = {**BYTES, "add_prefix_space": False}
    parts["decoder"] = BYTES
    ids = {token["content"]: token["id"] for token in parts["added_tokens"]}
    around = [BEGIN_NAME, "<|notimestamps|>", None, END_NAME]
    around = [name for name in around if name is None or name in ids]
    parts["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [_template(name, 0) for name in around],
        "pair": [_template(name, 0) for name in around[:-1]]
        + [{"Sequence": {"id": "B", "type_id": 1}}, _template(END_NAME, 1)],
        "special_tokens": {
            name: {"id": name, "ids": [ids[name]], "tokens": [name]}
            for name in around
            if name is not None
        },
    }
    return parts


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """The tokenizer.json of a folder, or one made of vocab.json and merges.txt.

    Raises ModelError.
    """
    path = folder / JSON
    if not path.is_file() and not (folder / "vocab.json").is_file():
        raise ModelError(
            f"{folder} has no tokenizer: neither {JSON} nor vocab.json and merges.txt; download it "
            f"too"
        )
    parts = read_tokenizer_file(path) if path.is_file() else _of_two_files(folder)
    if parts["model"]["type"] != "BPE" or not isinstance(parts["model"]["vocab"], dict):
        raise ModelError(f"the tokenizer of {folder} is no byte-level BPE; download it again")
    return parts


def _of_two_files(folder: Path) -> dict[str, Any]:
    path, added = folder / "vocab.json", dict[str, int]()
    vocabulary = check_vocabulary(read_json(path), path)
    try:
        lines = (folder / "merges.txt").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        raise ModelError(f"{folder} has no merges.txt that can be read; download it too") from None
    if (more := folder / "added_tokens.json").is_file():
        added = check_vocabulary(read_json(more), more)
    parts = {
        "added_tokens": [_added(number, name) for name, number in added.items()],
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "vocab": vocabulary,
            "merges": [line.split(" ") for line in lines if line and not line.startswith("#")],
        },
    }
    return check_tokenizer(parts, path)


BYTES: dict[str, Any] = {
    "type": "ByteLevel",
    "add_prefix_space": True,
    "trim_offsets": True,
    "use_regex": True,
}


def _names(tokenizer: Mapping[str, Any], size: int) -> list[str]:
    """The names of Whisper's tokens by id."""
    names: dict[int, str] = {number: name for name, number in tokenizer["model"]["vocab"].items()}
    names |= {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    first = max(names, default=-1) + 1
    for number in range(first, size):
        names[number] = f"<|{(number - first) * STEP:.2f}|>"
    if missing := [number for number in range(size) if number not in names]:
        raise ModelError(f"the tokenizer has no token {missing[0]}, but the model has {size}")
    return [names[number] for number in range(size)]


def _is_special(name: str) -> bool:
    return name.startswith("<|") and name.endswith("|>")


def _is_timestamp(name: str) -> bool:
    return _is_special(name) and name[2:-2].replace(".", "", 1).isdecimal()


def _added(number: int, name: str) -> Added:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": name, **flags, "special": True}


def _template(name: str | None, kind: int) -> dict[str, Any]:
    if name is None:
        return {"Sequence": {"id": "A", "type_id": kind}}
    return {"SpecialToken": {"id": name, "type_id": kind}}
