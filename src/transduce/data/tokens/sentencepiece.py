"""SentencePiece models (.model files) as tokenizers of ours.

The file is a protocol buffer, of which only the fields that matter are read here. Unigram and BPE
models are both rewritten for the `tokenizers` library, whose JSON our vocabulary files are.
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transduce.data.tokens.learn import FOREIGN_PATTERNS, PATTERNS, SPACE, SPECIALS
from transduce.errors import TokensError

HIDDEN = "\ue000"
"""Before the name of a token that this tokenizer does not cut texts into; no text has it."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
ALGORITHMS = {1: "Unigram", 2: "BPE", 3: "word", 4: "char"}
UNKNOWN_PENALTY = 10.0  # an unknown letter's score is that of the rarest piece, less this
PIECES, TRAINER, NORMALIZER = 1, 2, 3  # fields of the whole file
FIRST, LAST, SEVERAL = FOREIGN_PATTERNS[:3]  # spaces


@dataclass(frozen=True)
class SentencePiece:
    """What a .model file says."""

    pieces: dict[str, float]
    """The pieces that texts are cut into, in their order, with their scores."""
    algorithm: str
    charsmap: bytes = b""
    """Its normalization rules, compiled; empty: none."""
    dummy_prefix: bool = True
    """Whether a space is put before each text."""
    removes_spaces: bool = True
    """Whether spaces at the ends, and all but one between words, are removed."""
    byte_fallback: bool = False
    ids: dict[str, int] = field(default_factory=dict)
    """The number of each piece in the file, of control symbols too."""


def read_sentencepiece(path: Path) -> SentencePiece:
    """Read a .model file. Raises TokensError for what cannot be rewritten exactly."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TokensError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return _parse(content, path)
    except (IndexError, struct.error, UnicodeDecodeError, ValueError, TypeError):
        raise TokensError(f"{path} is not a SentencePiece model, or is damaged") from None


def _parse(content: bytes, path: Path) -> SentencePiece:
    pieces: dict[str, float] = {}
    ids: dict[str, int] = {}
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(content):
        if number == PIECES:
            entry = dict(_fields(value))
            piece, kind = entry[1].decode("utf-8"), entry.get(3, NORMAL)
            ids.setdefault(piece, len(ids))
            if kind == USER_DEFINED:
                raise TokensError(
                    f"{path} has user-defined symbols, such as {piece!r}, which SentencePiece cuts "
                    f"out of a text before all else: this is not supported"
                )
            if kind in (NORMAL, BYTE):
                pieces.setdefault(piece, struct.unpack("<f", entry.get(2, b"\0\0\0\0"))[0])
        elif number == TRAINER:
            trainer = dict(_fields(value))
        elif number == NORMALIZER:
            normalizer = dict(_fields(value))
    if not pieces:
        raise ValueError("no pieces")
    algorithm = ALGORITHMS.get(trainer.get(3, 1), "")
    if algorithm not in ("Unigram", "BPE"):
        raise TokensError(
            f"{path} cuts texts by {algorithm or 'a way of its own'}; only SentencePiece's unigram "
            f"and bpe models can be used"
        )
    if not normalizer.get(5, 1) or trainer.get(24, 0):
        raise TokensError(f"{path} writes spaces in another way than ▁ before words")
    return SentencePiece(
        pieces,
        algorithm,
        normalizer.get(2, b""),
        bool(normalizer.get(3, 1)),
        bool(normalizer.get(4, 1)),
        bool(trainer.get(35, 0)),
        ids,
    )


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protocol buffer: numbers, or bytes of whatever else it is."""
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = _varint(content, place)
            yield number, value
            continue
        if wire == 2:
            size, place = _varint(content, place)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError("an unknown kind of field")
        if place + size > len(content):
            raise IndexError("truncated")
        yield number, content[place : place + size]
        place += size


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not byte & 0x80:
            return value, place


# ------------------------------------------------------------------- for the tokenizers library


def as_tokenizer(
    model: SentencePiece,
    names: Sequence[str] | None = None,
    tags: Sequence[str] = (),
    without: Collection[str] = (),
) -> str:
    """The JSON of a tokenizer that cuts texts as the model does; ids are ours.

    names: of the tokens from id 4 on, pieces of the model or others, which texts are not cut into;
    the model's own where not given. A single letter that is no piece is found nevertheless, at the
    cost of an unknown one. Pieces that are not among them follow. tags: added at the end, one token
    each. without: pieces that texts are not cut into.
    """
    given = list(model.pieces) if names is None else list(names)
    pieces = {piece: score for piece, score in model.pieces.items() if piece not in set(without)}
    if model.algorithm == "Unigram":
        letters = {name for name in given if len(name) == 1} - set(pieces) - set(without)
        pieces |= dict.fromkeys(sorted(letters), min(pieces.values()) - UNKNOWN_PENALTY)
    model = replace(model, pieces=pieces)
    listed = [name if name in model.pieces else HIDDEN + name for name in given]
    listed += [piece for piece in model.pieces if piece not in set(given)]
    hides = any(name.startswith(HIDDEN) for name in listed)
    added = [*SPECIALS, *(f"<{tag}>" for tag in tags)]
    ids = [*range(len(SPECIALS)), *range(len(SPECIALS) + len(listed), len(added) + len(listed))]
    parts = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(number, name) for number, name in zip(ids, added, strict=True)],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _cuts(model)},
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": _decoders(model, hides)},
        "model": _model(model, listed),
    }
    return json.dumps(parts, ensure_ascii=False)


def _added(number: int, name: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": name, **flags, "special": True}


def _normalizers(model: SentencePiece) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        charsmap = base64.b64encode(model.charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})

    def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
        return {"type": "Replace", "pattern": pattern, "content": content}

    if model.removes_spaces:
        steps += [
            replace({"Regex": FIRST}, ""),
            replace({"Regex": LAST}, ""),
            replace({"Regex": SEVERAL}, " "),
        ]
    if model.dummy_prefix:
        steps.append({"type": "Prepend", "prepend": SPACE})
    return [*steps, replace({"String": " "}, SPACE)]


def _cuts(model: SentencePiece) -> list[dict[str, Any]]:
    """Words apart, which is faster, where no piece goes beyond one."""
    spelt = {"type": "Split", "pattern": {"Regex": PATTERNS[0]}, "behavior": "Isolated"}
    apart = SPACE in model.pieces and not any(SPACE in piece[1:] for piece in model.pieces)
    words = {"type": "Split", "pattern": {"String": SPACE}, "behavior": "MergedWithNext"}
    return [{**cut, "invert": False} for cut in ([words, spelt] if apart else [spelt])]


def _decoders(model: SentencePiece, hides: bool) -> list[dict[str, Any]]:
    def replace(pattern: str, content: str) -> dict[str, Any]:
        return {"type": "Replace", "pattern": {"String": pattern}, "content": content}

    steps = [replace(HIDDEN, "")] if hides else []
    steps.append(replace(SPACE, " "))
    steps += [{"type": "ByteFallback"}] if model.byte_fallback else []
    steps.append({"type": "Fuse"})
    if model.dummy_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return steps


def _model(model: SentencePiece, listed: list[str]) -> dict[str, Any]:
    if model.algorithm == "Unigram":
        return {
            "type": "Unigram",
            "unk_id": SPECIALS.index("<unk>"),
            "byte_fallback": model.byte_fallback,
            "vocab": [
                *([name, 0.0] for name in SPECIALS),
                *([name, model.pieces.get(name, 0.0)] for name in listed),
            ],
        }
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": False,
        "vocab": {name: number for number, name in enumerate([*SPECIALS, *listed])},
        "merges": _merges(model.pieces),
    }


def _merges(pieces: dict[str, float]) -> list[list[str]]:
    """Every way to make a piece of two others, those of the highest score first."""
    found = [
        (-score, len(piece[:cut]), piece[:cut], piece[cut:])
        for piece, score in pieces.items()
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    return [[first, second] for _, _, first, second in sorted(found, key=lambda one: one[:2])]


# ----------------------------------------------------------------------------------------------
# SentencePiece's compiled normalization rules, applied as SentencePiece applies them.
#
# At each place of a text the longest rule that fits is applied. The `tokenizers` library takes
# the shortest that fits a grapheme, which differs where one rule begins another: `Y` and `Y` with
# an accent, in rules that also lower-case.
#
# The rules are a trie over UTF-8 bytes, as an array of 32-bit units (a double array, Darts),
# before the replacements. https://github.com/google/sentencepiece/blob/master/src/normalizer.cc

LEAF = 1 << 31


class Charsmap:
    """The rules of a file; each step through the trie is remembered."""

    def __init__(self, compiled: bytes) -> None:
        """Raises ValueError where they are damaged."""
        if len(compiled) < 4:
            raise ValueError("the normalization rules are damaged")
        (size,) = struct.unpack_from("<I", compiled)
        if size % 4 or 4 + size > len(compiled) or not size:
            raise ValueError("the normalization rules are damaged")
        self._units = struct.unpack_from(f"<{size // 4}I", compiled, 4)
        self._texts = compiled[4 + size :]
        self._steps: dict[tuple[int, str], tuple[int, int]] = {}
        self._plain: set[str] = set()  # letters that no rule begins with

    def normalize(self, text: str) -> str:
        """The text with every rule applied."""
        new = set(text) - self._plain
        self._plain |= {letter for letter in new if self._step(0, letter)[0] < 0}
        if new <= self._plain:
            return text
        found: list[str] = []
        place = 0
        while place < len(text):
            length, value = self._longest(text, place)
            if length:
                found.append(self._replacement(value))
                place += length
            else:
                found.append(text[place])
                place += 1
        return "".join(found)

    def _longest(self, text: str, place: int) -> tuple[int, int]:
        """How many letters the longest rule from here covers, 0 for none, and its value."""
        node, best, value = 0, 0, -1
        for length, letter in enumerate(text[place : place + 32], start=1):
            node, reached = self._step(node, letter)
            if node < 0:
                break
            if reached >= 0:
                best, value = length, reached
        return best, value

    def _step(self, node: int, letter: str) -> tuple[int, int]:
        """The node after a letter, -1 where there is none, and the value that it has, if any."""
        key = (node, letter)
        if key not in self._steps:
            self._steps[key] = self._walk(node, letter.encode("utf-8", "surrogatepass"))
        return self._steps[key]

    def _walk(self, node: int, letter: bytes) -> tuple[int, int]:
        units = self._units
        unit = units[node]
        for byte in letter:
            node ^= _offset(unit) ^ byte
            if node >= len(units):
                return -1, -1
            unit = units[node]
            if unit & (LEAF | 0xFF) != byte:
                return -1, -1
        if not unit >> 8 & 1:
            return node, -1
        place = node ^ _offset(unit)
        return node, units[place] & (LEAF - 1) if place < len(units) else -1

    def _replacement(self, value: int) -> str:
        return self._texts[value : self._texts.index(b"\0", value)].decode("utf-8", "replace")


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & (1 << 9)) >> 6)
