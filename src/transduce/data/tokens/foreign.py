"""Tokenizers of others as tokenizers of ours: SentencePiece models and Hugging Face's JSON.

They cut texts as they did; only ids change, as our four special tokens have the ids 0 to 3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transduce.data.tokens.learn import SPECIALS
from transduce.data.tokens.sentencepiece import as_tokenizer, read_sentencepiece
from transduce.errors import TokensError

# What others call our special tokens, the likeliest first.
NAMES = {
    "<pad>": ("<pad>", "[PAD]", "<|pad|>", "__null__"),
    "<unk>": ("<unk>", "[UNK]", "<|unk|>", "__unk__"),
    "<s>": ("<s>", "[CLS]", "<bos>", "<|bos|>", "__start__"),
    "</s>": ("</s>", "[SEP]", "<eos>", "<|eos|>", "<|endoftext|>", "__end__"),
}
BOS = "<bos>"
"""A token <s> of others that is not our BEGIN."""


def read_foreign(path: Path) -> str | None:
    """The JSON of our tokenizer for a file of others; None where it is one of ours already.

    Raises TokensError where it cannot be used as it is.
    """
    if path.suffix == ".model":
        return as_tokenizer(read_sentencepiece(path))
    try:
        parts = json.loads(path.read_text("utf-8"))
        names = token_names(parts)
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None  # the reader of our own says what is wrong
    if tuple(names[: len(SPECIALS)]) == SPECIALS:
        return None
    known = {ours: next((n for n in NAMES[ours] if n in names), None) for ours in SPECIALS}
    unknown = parts["model"].get("unk_id")
    named = names[unknown] if unknown is not None else parts["model"].get("unk_token")
    known["<unk>"] = named or known["<unk>"]
    silent = {added["content"] for added in parts["added_tokens"] if added.get("special")}
    taken = {name for name in known.values() if name is not None}
    rest = [name for name in names if name and name not in taken and name not in silent]
    tags = {name: tag_of(name) for name in names if name in silent and name not in taken}
    return with_ids(parts, known, rest, tags)


def token_names(parts: Mapping[str, Any]) -> list[str]:
    """The name of each token of a tokenizer's JSON, by id; empty where no token has the id."""
    vocabulary = parts["model"]["vocab"]
    if isinstance(vocabulary, list):
        numbers = {name: number for number, (name, _) in enumerate(vocabulary)}
    else:
        numbers = dict(vocabulary)
    numbers |= {added["content"]: added["id"] for added in parts.get("added_tokens") or []}
    names = [""] * (max(numbers.values()) + 1)
    for name, number in numbers.items():
        names[number] = name
    return names


def tag_of(name: str) -> str:
    """A special token of others as the name of a tag."""
    if name in SPECIALS:
        return BOS[1:-1] if name == "<s>" else f"{name[1:-1]}_"
    plain = name.removeprefix(">>").removesuffix("<<") if name.startswith(">>") else name
    plain = plain.strip("_") if plain.startswith("__") else plain
    inner = plain[1:-1] if plain[:1] in "<[" and plain[-1:] in ">]" else plain
    return "".join("_" if letter in "<> \t\n" else letter for letter in inner) or "tag"


def with_ids(
    parts: Mapping[str, Any],
    special: Mapping[str, str | None],
    rest: Sequence[str],
    tags: Mapping[str, str],
) -> str:
    """A tokenizer's JSON with other ids: our four special tokens, `rest`, then the tags.

    special: what each of ours is called there, if at all. tags: special tokens there, and their
    names of ours.
    """
    model = dict(parts["model"])
    renamed = {old: new for new, old in special.items() if old is not None}
    if clash := set(rest) & set(SPECIALS) - set(renamed):
        raise TokensError(f"the token {min(clash)} is no special token there, but is one of ours")
    listed = [*SPECIALS, *rest]
    if model["type"] == "Unigram":
        scores = dict(model["vocab"])
        model["vocab"] = [
            *([name, 0.0] for name in SPECIALS),
            *([name, scores.get(name, 0.0)] for name in rest),
        ]
        model["unk_id"] = SPECIALS.index("<unk>")
    else:
        model["vocab"] = {name: number for number, name in enumerate(listed)}
        if model.get("unk_token") is not None:
            model["unk_token"] = "<unk>"
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": i, "content": n, **flags, "special": True} for i, n in enumerate(SPECIALS)]
    places = {name: number for number, name in enumerate(listed)}
    added += [
        {**one, "id": places[one["content"]]}
        for one in parts.get("added_tokens") or []
        if not one.get("special") and one["content"] in places
    ]
    added += [
        {"id": len(listed) + place, "content": f"<{tag}>", **flags, "special": True}
        for place, tag in enumerate(tags.values())
    ]
    whole = {**parts, "added_tokens": added, "model": model, "post_processor": None}
    return json.dumps({**whole, "truncation": None, "padding": None}, ensure_ascii=False)


def with_prefix(text: str, tag: str | None) -> str:
    """The JSON of one of our tokenizers, whose texts begin with a tag; None: with nothing."""
    parts = json.loads(text)
    parts["post_processor"] = None
    if tag is not None:
        name = f"<{tag}>"
        number = next(one["id"] for one in parts["added_tokens"] if one["content"] == name)
        sequences = [{"Sequence": {"id": one, "type_id": 0}} for one in "AB"]
        head = {"SpecialToken": {"id": name, "type_id": 0}}
        parts["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [head, sequences[0]],
            "pair": [head, *sequences],
            "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]}},
        }
    return json.dumps(parts, ensure_ascii=False)


def prefix_of(parts: Mapping[str, Any]) -> list[int]:
    """The ids that all texts begin with, of a tokenizer's JSON."""
    template = parts.get("post_processor") or {}
    if template.get("type") != "TemplateProcessing":
        return []
    found: list[int] = []
    for piece in template["single"]:
        if "SpecialToken" not in piece:
            break
        found += template["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
    return [number for number in found if number >= len(SPECIALS)]
