"""Tokenizer: text to ids and back, as characters, subwords, words, symbols, bytes or labels."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from transduce import recipe
from transduce.data.text.tags import without_tags
from transduce.data.tokens.foreign import prefix_of, read_foreign
from transduce.data.tokens.learn import (
    BEGIN,
    END,
    HALF_CHARACTER,
    JOINER,
    PAD,
    SPACE,
    SPECIALS,
    UNKNOWN,
    byte_letters,
    check_patterns,
    cuts_at_spaces,
    form_of_texts,
    joiner,
    joins_subwords,
    learn,
    level_of,
    merges_bytes,
    of_vocabulary,
    registered_level,
    splitter,
)
from transduce.data.tokens.sentencepiece import Charsmap
from transduce.data.tokens.word_edges import WordEdges
from transduce.data.tokens.word_pieces import WordPieces
from transduce.data.tokens.words import (
    Ids,
    Offsets,
    WordTable,
    flattened,
    side_by_side,
    word_table,
)
from transduce.errors import CheckpointError, TokensError
from transduce.storage import write_text

AT_ONCE = 1024  # texts in one call of the Rust library, which keeps much about each token

__all__ = ["BEGIN", "END", "PAD", "SPACE", "SPECIALS", "UNKNOWN", "Tokens"]


class Tokens:
    """A vocabulary and its tokenizer; the four special tokens have the ids 0 to 3.

    Characters, subwords and bytes are lossless (for characters seen in training; subwords read a
    literal ▁ as a space). Words and symbols are not: decoded, they have one space between any two.
    A label is a whole text, whatever it holds.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        found = tuple(tokenizer.id_to_token(number) for number in range(len(SPECIALS)))
        if found != SPECIALS:
            raise TokensError(
                f"the first four tokens are {', '.join(map(str, found))}, but transduce needs "
                f"{', '.join(SPECIALS)} there; train the tokens with transduce"
            )
        # Not stored in the file, so it is set here: special tokens within a text are text.
        tokenizer.encode_special_tokens = True
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._whole = tokenizer
        self._tokenizer, self._charsmap = _without_charsmap(tokenizer)
        self.registered = registered_level(tokenizer)
        """The name of a plugin's tokenizer, whose pieces the symbols are."""
        self._split = None if self.registered is None else splitter(self.registered)
        self._join = None if self.registered is None else joiner(self.registered)
        self.level = level_of(tokenizer)
        self.form = form_of_texts(tokenizer)
        """The Unicode form of texts, if tokens have another one."""
        self._vocabulary: dict[str, int] = (
            tokenizer.get_vocab() if self.level == "character" else {}
        )
        self._fused = joins_subwords(tokenizer)
        self._byte_level = byte_letters() if merges_bytes(tokenizer) else None
        self._pieces, self._texts = _TextCache(self._piece), _TextCache(self._text)
        added = tokenizer.get_added_tokens_decoder()
        self.tags: dict[str, int] = {
            token.content[1:-1]: number
            for number, token in sorted(added.items())
            if number >= len(SPECIALS) and token.special
        }
        """Ids of the tags that a source may begin with, such as <fre>, one token each."""
        self.added: frozenset[int] = frozenset(
            number for number, token in added.items() if not token.special
        )
        """Ids of other tokens that are cut out of a text before all else."""
        self.prefix = prefix_of(json.loads(tokenizer.to_str()))
        """Ids that all texts begin with, unless they begin with tags: the token of a language."""

    @classmethod
    def train(
        cls,
        settings: recipe.Tokens,
        texts: Iterable[str],
        tags: Iterable[str] = (),
        written: Iterable[str] | None = None,
    ) -> Tokens:
        """Train a vocabulary on texts; deterministic. Tags are added to it.

        With `size`, the rarest characters, words or symbols are left out; a subword vocabulary
        cannot be smaller than the number of different characters. What is rarer than `min_count` is
        unknown. Texts are read twice where `min_count` matters to subwords, or where they are
        normalised: decoded text is in the Unicode form, NFC or NFD, that most of them have (of
        `written`, where these are not all of them). Raises TokensError if there is no text, or the
        size is too small.
        """
        return cls(learn(settings, texts, tags, written))

    @classmethod
    def of_vocabulary(cls, settings: recipe.Tokens, names: Sequence[str]) -> Tokens:
        """Characters, words, symbols or labels with these names, after the special tokens; nothing
        is learned. Raises TokensError where a name is there twice.
        """
        return cls(of_vocabulary(settings, names))

    @classmethod
    def load(cls, path: str | Path, *, foreign: bool = False) -> Tokens:
        """Tokens from a file that `save` wrote; `foreign`: or a SentencePiece model, or a
        tokenizer.json of Hugging Face. Raises TokensError."""
        try:
            text = read_foreign(Path(path)) if foreign else None
            text = text or Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise TokensError(f"there is no tokens file {path}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise TokensError(f"the tokens file {path} cannot be read: {error}") from None
        try:
            check_patterns(json.loads(text))
            return cls(Tokenizer.from_str(text))
        except TokensError as error:
            raise TokensError(f"the tokens file {path} cannot be used: {error}") from None
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise  # a panic of the Rust library is not an Exception; all else is raised again
            raise TokensError(
                f"the tokens file {path} is not a tokenizers JSON file, or is damaged ({error}); "
                "copy it from the model folder again, or train it again"
            ) from None

    def save(self, path: str | Path) -> None:
        """Write a tokenizers JSON file, atomically."""
        try:
            write_text(Path(path), self.to_json())
        except CheckpointError as error:
            raise TokensError(str(error)) from None

    @classmethod
    def from_json(cls, text: str) -> Tokens:
        """The inverse of `to_json`."""
        return cls(Tokenizer.from_str(text))

    def to_json(self) -> str:
        """The whole tokenizer as JSON, as `save` writes it."""
        return str(self._whole.to_str(pretty=True))

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], *, prefixed: bool = True) -> list[list[int]]:
        """The ids of many texts, in parallel; tags that they begin with are one id each.

        prefixed: with `prefix` before those that begin with no tags; parts of a text have none.
        """
        if not texts:
            return []
        if len(texts) >= AT_ONCE and self._words is not None:  # many: a table of words pays
            rows: list[list[int]] = []
            for start in range(0, len(texts), AT_ONCE):
                ids, offsets = self.encode_flat(texts[start : start + AT_ONCE])
                each = ids.tolist()
                rows += [each[first:end] for first, end in pairwise(offsets.tolist())]
            return rows
        if self.tags:
            parted = [without_tags(text, self.tags) for text in texts]
            rest = self._encode_plain([text for _, text in parted])
            heads = [[self.tags[tag] for tag in tags] for tags, _ in parted]
            if prefixed and self.prefix:
                heads = [
                    head or (self.prefix if ids else [])
                    for head, ids in zip(heads, rest, strict=True)
                ]
            return [head + ids for head, ids in zip(heads, rest, strict=True)]
        return self._encode_plain(texts)

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        if self.level in ("character", "byte"):
            return [self._one_by_one(text) for text in texts]
        rows: list[list[int]] = []
        for start in range(0, len(texts), AT_ONCE):
            some = self._mapped(texts[start : start + AT_ONCE])
            try:
                found = self._tokenizer.encode_batch_fast(some, add_special_tokens=False)
            except TypeError:
                raise TokensError(HALF_CHARACTER) from None
            rows += [encoding.ids for encoding in found]
        return rows

    def encode_flat(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        """As `encode_batch`, all ids in one array, and the offsets of each text: for many texts."""
        words = self._words
        if words is None:
            return flattened(self.encode_batch(texts))
        heads, rest = flattened([]), texts
        if self.tags:
            parted = [without_tags(text, self.tags) for text in texts]
            rest = [text for _, text in parted]
            heads = flattened([[self.tags[tag] for tag in tags] for tags, _ in parted])
        try:
            found = words.encode(rest)
        except UnicodeEncodeError:
            raise TokensError(HALF_CHARACTER) from None
        return side_by_side(heads, found) if len(heads[0]) else found

    def encode_arrays(self, texts: Sequence[str]) -> list[Ids]:
        """As `encode_batch`, an array for each text."""
        if len(texts) < AT_ONCE:
            return [np.array(ids, np.int32) for ids in self.encode_batch(texts)]
        rows: list[Ids] = []
        for start in range(0, len(texts), AT_ONCE):
            ids, offsets = self.encode_flat(texts[start : start + AT_ONCE])
            rows += [ids[first:end] for first, end in pairwise(offsets.tolist())]
        return rows

    @cached_property
    def _words(self) -> WordTable | None:
        """Where the ids of a text are those of its words, a table of these."""
        letters = self.level in ("character", "byte")
        if self.added or self.prefix or self._split is not None or self._charsmap is not None:
            return None
        if not letters and not cuts_at_spaces(self._tokenizer):
            return None
        between = self._one_by_one(" ")[0] if letters else None
        return word_table(self._encode_words, self.level != "subword", between)

    def _encode_words(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        """As `_encode_plain`, in less time where the tokens are words or symbols; for many."""
        if self._cutter is None:
            return flattened(self._encode_plain(texts))
        return self._cutter.encode(texts, UNKNOWN)

    @cached_property
    def _cutter(self) -> WordPieces | None:
        return WordPieces.of(self._tokenizer)

    def encode_lines(self, lines: Sequence[tuple[str, bool]]) -> list[list[int]]:
        """The ids of lines of running text, line breaks included; each with whether it begins a
        text.

        Concatenated, they are the ids of the whole text: only the first line of a text gets a space
        put before it, if tokens are subwords.
        """
        whole = self.encode_batch([line for line, begins in lines if begins])
        following = self._continuation.encode_batch([line for line, begins in lines if not begins])
        sides = (iter(following), iter(whole))
        return [next(sides[begins]) for _, begins in lines]

    @cached_property
    def _continuation(self) -> Tokens:
        """The same tokenizer for the continuation of a text, without a space put before it."""
        if self.level != "subword":
            return self
        parts = json.loads(self.to_json())
        steps = (parts["normalizer"] or {}).get("normalizers", [])
        if not any(step["type"] == "Prepend" for step in steps):
            return self
        parts["normalizer"]["normalizers"] = [s for s in steps if s["type"] != "Prepend"]
        return Tokens.from_json(json.dumps(parts))

    def decode(self, ids: Iterable[int], copied: Sequence[str] = ()) -> str:
        """The text of ids, in the Unicode form of texts; special tokens and tags are dropped.

        copied: the spelling of tokens whose ids follow those of the vocabulary: see `spelt`.
        """
        text = self.decode_incremental(ids, copied)
        return text if self.form is None else normalize(self.form, text)

    def decode_incremental(self, ids: Iterable[int], copied: Sequence[str] = ()) -> str:
        """The same in the Unicode form of tokens, in which decoding more tokens only appends."""
        if copied:
            return self._decode_spelt(list(map(int, ids)), copied)
        if not self._fused:
            text = str(self._tokenizer.decode(list(map(int, ids))))
            return text if self._join is None else self._join(text)
        # The same result as the tokenizer's, several times faster.
        text = "".join(map(self._texts.__getitem__, ids))
        return text[1:] if text.startswith(" ") else text

    def _decode_spelt(self, ids: list[int], copied: Sequence[str]) -> str:
        silent = {*range(len(SPECIALS)), *self.tags.values()}
        spelt = [
            str(self._tokenizer.id_to_token(number))
            if number < len(self)
            else copied[number - len(self)]
            for number in ids
            if number not in silent
        ]
        decoder = self._tokenizer.decoder
        text = " ".join(spelt) if decoder is None else str(decoder.decode(spelt))
        return text if self._join is None else self._join(text)

    def spelt(self, text: str, ids: Sequence[int]) -> list[str]:
        """The name of each token of a text; of an unknown one, or of one with an id beyond the
        vocabulary, what stands in the text. ids: those of the text, or of its beginning.
        """
        tags, rest = without_tags(text, self.tags)
        before = [""] * (len(tags) or (len(self.prefix) if self.tags else 0))
        stand = before + self._cut(rest)
        return [
            str(self._tokenizer.id_to_token(number))
            if number != UNKNOWN and number < len(self)
            else standing
            for number, standing in zip(ids, stand, strict=False)
        ]

    def _cut(self, text: str) -> list[str]:
        """A text as its tokens stand in it, after normalisation."""
        if self.level in ("character", "byte"):
            return list(self.normalized(text))
        if self.level == "subword":
            (text,) = self._mapped([text])
            offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
            return [self.normalized(text[start:end]).removeprefix(SPACE) for start, end in offsets]
        pieces = self._tokenizer.pre_tokenizer.pre_tokenize_str(self.normalized(text))
        return [piece for piece, _ in pieces]

    def pieces(self, ids: Iterable[int], copied: Sequence[str] = ()) -> list[str]:
        """Each token as shown in a plot; spaces are ▁, bytes that are no character like <C3>.

        copied: as in `decode`.
        """
        if copied:
            size = len(self)
            return [self._pieces[i] if i < size else copied[i - size] for i in map(int, ids)]
        return list(map(self._pieces.__getitem__, ids))

    def pieces_of_rows(self, rows: Sequence[Ids]) -> list[list[str]]:
        """The `pieces` of many texts."""
        if sum(map(len, rows)) < len(self):
            return [self.pieces(row.tolist()) for row in rows]
        pieces = np.array([self._pieces[number] for number in range(len(self))], object)
        return [pieces[row].tolist() for row in rows]

    @cached_property
    def word_edges(self) -> WordEdges:
        """Which tokens begin a word, and which end inside one."""
        pieces, whole = self.pieces(range(len(self))), self.level in ("word", "symbol", "label")
        return WordEdges.of(pieces, whole, (*self.tags.values(), *self.added))

    def halves(self) -> NDArray[np.int32]:
        """[V, 2]: the two tokens that BPE merged into each token, or -1."""
        found = np.full((len(self), 2), -1, np.int32)
        merges = json.loads(self.to_json())["model"].get("merges") or []
        numbers = self._tokenizer.get_vocab()
        for one, other in merges:
            whole = numbers[one + other]
            if found[whole, 0] < 0:
                found[whole] = numbers[one], numbers[other]
        return found

    def names(self) -> list[str]:
        """The name of each token in the tokenizer file, by id: no two are the same."""
        return [self._tokenizer.id_to_token(number) or f"<{number}>" for number in range(len(self))]

    def normalized(self, text: str) -> str:
        """The text after normalisation (lower case and so on), before it is split."""
        normalizer = self._tokenizer.normalizer
        (text,) = self._mapped([text])
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def _mapped(self, texts: Sequence[str]) -> list[str]:
        """Texts after SentencePiece's rules, where the tokenizer has some."""
        if self._split is not None:
            return [self._split(text) for text in texts]
        if self._charsmap is None:
            return list(texts)
        return [self._charsmap.normalize(text) for text in texts]

    def unknowns(self, texts: Iterable[str]) -> Counter[str]:
        """The characters (for words and symbols: the words) that are out of vocabulary."""
        found: Counter[str] = Counter()
        whole = self.level in ("word", "symbol", "label")
        remaining = iter(texts)
        while some := [without_tags(text, self.tags)[1] for text in islice(remaining, 1024)]:
            some = self._mapped(some)
            try:
                encodings = self._tokenizer.encode_batch(some, add_special_tokens=False)
            except TypeError:
                raise TokensError(HALF_CHARACTER) from None
            for text, encoding in zip(some, encodings, strict=True):
                for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                    if number == UNKNOWN:
                        found.update([text[start:end]] if whole else text[start:end])
        return found

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def _one_by_one(self, text: str) -> list[int]:
        """The same result as the tokenizer's, twenty times faster: one look-up for each character
        or byte.
        """
        text = self.normalized(text)
        if self.level == "character":
            return [self._vocabulary.get(letter, UNKNOWN) for letter in text]
        try:
            return [byte + len(SPECIALS) for byte in text.encode("utf-8")]
        except UnicodeEncodeError:
            raise TokensError(HALF_CHARACTER) from None

    def _text(self, number: int) -> str:
        """The text of a subword inside a text."""
        silent = number < len(SPECIALS) or number in self.tags.values()
        piece = None if silent else self._tokenizer.id_to_token(number)
        return str(piece or "").replace(SPACE, " ")

    def _piece(self, number: int) -> str:
        piece = self._tokenizer.id_to_token(number)
        if piece is None or number < len(SPECIALS):
            return str(piece or SPECIALS[UNKNOWN])
        if piece[1:-1] in self.tags or number in self.added:
            return str(piece)
        if self.level == "byte":
            byte = number - len(SPECIALS)
            shown = chr(byte) if 0x20 < byte < 0x7F else f"<{byte:02X}>"
            return SPACE if byte == 0x20 else shown
        if self.level == "character":
            return SPACE if piece == " " else str(piece)
        if self._byte_level is not None:
            return self._of_bytes(str(piece))
        if self.level not in ("symbol", "label"):
            return str(piece)
        whole = str(piece).replace(JOINER, "")  # for example a label, which is shown unchanged
        return whole if self.form is None else normalize(self.form, whole)

    def _of_bytes(self, piece: str) -> str:
        """A token of byte-level BPE as text; bytes that are no character like <C3>."""
        assert self._byte_level is not None
        raw = bytes(self._byte_level.get(letter, 0x3F) for letter in piece)
        try:
            return raw.decode("utf-8").replace(" ", SPACE)
        except UnicodeDecodeError:
            return "".join(
                chr(byte) if 0x20 < byte < 0x7F else SPACE if byte == 0x20 else f"<{byte:02X}>"
                for byte in raw
            )


def _without_charsmap(tokenizer: Tokenizer) -> tuple[Tokenizer, Charsmap | None]:
    """A tokenizer without the rules of SentencePiece that it begins with, and these."""
    parts = json.loads(tokenizer.to_str())
    normalizer = parts["normalizer"] or {}
    steps = normalizer.get("normalizers") or [normalizer]
    if not steps or steps[0].get("type") != "Precompiled":
        return tokenizer, None
    try:
        rules = Charsmap(base64.b64decode(steps[0]["precompiled_charsmap"]))
    except ValueError as error:
        raise TokensError(str(error)) from None
    rest = {"type": "Sequence", "normalizers": steps[1:]} if steps[1:] else None
    other = Tokenizer.from_str(json.dumps({**parts, "normalizer": rest}))
    other.encode_special_tokens = True
    return other, rules


class _TextCache(dict[int, str]):
    """A cache of the text of each token, filled on demand."""

    def __init__(self, make: Callable[[int], str]) -> None:
        self._make = make

    def __missing__(self, number: int) -> str:
        plain = int(number)  # it may be a numpy or torch integer
        if plain not in self:
            self[plain] = self._make(plain)
        return self[plain]
