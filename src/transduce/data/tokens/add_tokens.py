"""Tokens that a user names, and tags, added to a vocabulary: each is one token wherever it stands.

A unigram vocabulary takes them among its pieces, with a score above that of any other way to cut a
text. BPE that writes spaces as ▁ takes them as words, which are not merged: cut out after the space
before a text is added, so that no other space comes or goes. Other vocabularies take them as added
tokens, which are cut out before all else. Either way the file says it all, so that Hugging Face's
tokenizers cut texts alike.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from transduce.data.tokens.learn import SPACE, SPECIALS, byte_letters
from transduce.data.tokens.sentencepiece import HIDDEN
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import TokensError

BEST = 100.0  # times the square of its length: the score of a piece that is never cut
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
AROUND = ("{}", "a {} b", "a{}b", "({}) {}.")  # where a token must be found, and come back


def add_tokens(tokens: Tokens, names: Sequence[str]) -> Tokens:
    """Tokens with these further ones, after all others but the tags of a unigram vocabulary.

    Raises TokensError where one cannot be added so that texts are cut and put together exactly.
    """
    if not names:
        return tokens
    if tokens.level != "subword":
        raise TokensError(
            f"train.start.add_tokens is for vocabularies of subwords, and this one has "
            f"{tokens.level}s; leave it out"
        )
    names = list(dict.fromkeys(_normal(tokens, name) for name in names))
    known = set(tokens.names())
    names = [name for name in names if name not in known]
    parts = json.loads(tokens.to_json())
    if parts["model"]["type"] == "Unigram":
        grown = with_pieces(parts, [(name, BEST * len(name) ** 2) for name in names])
    elif _prepends(parts):
        grown = _with_words(parts, tokens, names)
    else:
        _cut_out(parts, len(tokens), names)
        grown = rebuilt(parts)
    for name in names:
        _check(tokens, grown, name)
    return grown


def add_tags(tokens: Tokens, tags: Sequence[str]) -> Tokens:
    """Tokens with these further tags at the end."""
    tags = [tag for tag in tags if tag not in tokens.tags]
    if not tags:
        return tokens
    parts = json.loads(tokens.to_json())
    names = [f"<{tag}>" for tag in tags]
    if parts["model"]["type"] == "Unigram":
        place = len(tokens)
        parts["added_tokens"] += [_added(place + n, name, True) for n, name in enumerate(names)]
    else:
        _cut_out(parts, len(tokens), names, special=True)
    return rebuilt(parts)


def with_pieces(parts: dict[str, Any], pieces: Sequence[tuple[str, float]]) -> Tokens:
    """A unigram tokenizer's JSON with further pieces; the tags, which come last, move behind them.

    Changes `parts`.
    """
    listed = parts["model"]["vocab"]
    first = len(listed)
    listed += [[name, score] for name, score in pieces]
    for added in parts["added_tokens"]:
        if added["id"] >= first:
            added["id"] += len(pieces)
    return rebuilt(parts)


def _prepends(parts: dict[str, Any]) -> bool:
    """Whether a space is put before each part of a text that has an added token in it."""
    steps = (parts["normalizer"] or {}).get("normalizers", [])
    return parts["model"]["type"] == "BPE" and any(step["type"] == "Prepend" for step in steps)


def _with_words(parts: dict[str, Any], tokens: Tokens, names: Sequence[str]) -> Tokens:
    """A tokenizer of BPE whose texts are cut around these names, each a word of the vocabulary.

    Words that are in the vocabulary are then not merged from their letters: checked, as the same
    must come out.
    """
    model = Tokenizer.from_str(tokens.to_json()).model
    silent = {added["content"] for added in parts["added_tokens"]}
    for number, name in enumerate(tokens.names()):
        if name in silent or name.startswith(HIDDEN):
            continue
        if [one.id for one in model.tokenize(name)] != [number]:
            raise TokensError(
                f"train.start.add_tokens cannot be used with the vocabulary of the start model: "
                f"its merges do not lead to its subword {name!r}; leave it out"
            )
    first = len(tokens)
    vocabulary = parts["model"]["vocab"]
    vocabulary |= {added["content"]: added["id"] for added in parts["added_tokens"]}
    vocabulary |= {name: first + place for place, name in enumerate(names)}
    parts["model"]["ignore_merges"] = True
    step = parts["pre_tokenizer"]
    steps = step["pretokenizers"] if step and step["type"] == "Sequence" else [step] if step else []
    cuts = [
        {"type": "Split", "pattern": {"String": name}, "behavior": "Isolated", "invert": False}
        for name in names
    ]
    parts["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*cuts, *steps]}
    return rebuilt(parts)


def _cut_out(
    parts: dict[str, Any], first: int, names: Sequence[str], *, special: bool = False
) -> None:
    """Add tokens that are cut out of a text. All have a place in the vocabulary proper, as their
    ids would otherwise be counted anew when the file is read."""
    vocabulary = parts["model"]["vocab"]
    vocabulary |= {added["content"]: added["id"] for added in parts["added_tokens"]}
    vocabulary |= {name: first + place for place, name in enumerate(names)}
    parts["added_tokens"] += [
        _added(first + place, name, special) for place, name in enumerate(names)
    ]
    if not special:
        _prepend_once(parts["pre_tokenizer"])


def _added(number: int, name: str, special: bool) -> dict[str, Any]:
    return {"id": number, "content": name, **FLAGS, "special": special}


def _prepend_once(step: dict[str, Any] | None) -> None:
    """The space that is put before a text is not put before what follows an added token."""
    for one in (step or {}).get("pretokenizers", [step] if step else []):
        if one["type"] == "Metaspace" and one.get("prepend_scheme") == "always":
            one["prepend_scheme"] = "first"


def _normal(tokens: Tokens, name: str) -> str:
    """A token as the vocabulary writes it: where it is one of its pieces, after normalization."""
    if not name.strip() or any(sign.isspace() or sign == SPACE for sign in name):
        raise TokensError(
            f"train.start.add_tokens has {name!r}; a token is a text without spaces: take them out"
        )
    if name in SPECIALS:
        raise TokensError(f"train.start.add_tokens has {name}, which every vocabulary has; omit it")
    parts = json.loads(tokens.to_json())
    if '"ByteLevel"' in json.dumps(parts["pre_tokenizer"]):
        odd = [sign for sign in name if not sign.isascii() and sign in byte_letters()]
        if odd:
            raise TokensError(
                f"train.start.add_tokens has {name!r}, but the vocabulary of the start model is of "
                f"bytes and writes one of them as {odd[0]}; leave it out"
            )
    if parts["model"]["type"] != "Unigram" and not _prepends(parts):
        return name
    return tokens.normalized(f"x{name}").partition("x")[2]


def _check(old: Tokens, new: Tokens, name: str) -> None:
    """Raise TokensError unless the token is found wherever it stands, and texts come back."""
    number = new.names().index(name)
    for around in AROUND:
        text = around.format(*[name] * around.count("{}"))
        ids = new.encode(text)
        if ids.count(number) != around.count("{}"):
            raise TokensError(
                f"train.start.add_tokens has {name!r}, which the tokenizer of the start model cuts "
                f"apart in {text!r}; name another token, or leave it out"
            )
        plain = around.format(*["b"] * around.count("{}"))
        kept = old.decode(old.encode(plain)).strip() == plain
        back = new.decode(ids)
        if back.count(name) != around.count("{}") or (kept and back.strip() != text):
            raise TokensError(
                f"train.start.add_tokens has {name!r}, but with the tokenizer of the start model "
                f"{text!r} would come back as {back!r}; leave it out"
            )


def rebuilt(parts: dict[str, Any]) -> Tokens:
    """The tokens of a JSON whose added tokens may have other ids than before."""
    template = parts.get("post_processor") or {}
    numbers = {added["content"]: added["id"] for added in parts["added_tokens"]}
    for one in template.get("special_tokens", {}).values():
        one["ids"] = [numbers[name] for name in one["tokens"]]
    return Tokens(Tokenizer.from_str(json.dumps(parts)))
