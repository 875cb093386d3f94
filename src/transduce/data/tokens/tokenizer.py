"""Tokens: text to numbers and back, as characters, subwords, words, symbols, bytes or labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from transduce import recipe
from transduce.data.text.tags import without_tags
from transduce.data.tokens.learn import (
    BEGIN,
    END,
    HALF_CHARACTER,
    JOINER,
    PAD,
    SPACE,
    SPECIALS,
    UNKNOWN,
    check_patterns,
    form_of_texts,
    joins_subwords,
    learn,
    level_of,
)
from transduce.errors import CheckpointError, TokensError
from transduce.storage import write_text

__all__ = ["BEGIN", "END", "PAD", "SPACE", "SPECIALS", "UNKNOWN", "Tokens"]


class Tokens:
    """A vocabulary and the way text is cut into it; the four specials have the ids 0 to 3.

    Lossless are characters, subwords and bytes (for characters seen in training; a literal ▁ is
    read as a space by subwords). Words are not: they come back with one space between any two.
    Symbols come back with one space between them, however many there were. A label is a whole text,
    whatever it holds.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        found = tuple(tokenizer.id_to_token(number) for number in range(len(SPECIALS)))
        if found != SPECIALS:
            raise TokensError(
                f"the first four tokens are {', '.join(map(str, found))}, but transduce needs "
                f"{', '.join(SPECIALS)} there; train the tokens with transduce"
            )
        # Not kept in the file, so it is set here: specials within a text are text.
        tokenizer.encode_special_tokens = True
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self.level = level_of(tokenizer)
        self.form = form_of_texts(tokenizer)
        """The Unicode form of texts, where that of tokens is another one."""
        self._vocabulary: dict[str, int] = (
            tokenizer.get_vocab() if self.level == "character" else {}
        )
        self._fused = joins_subwords(tokenizer)
        self._pieces, self._texts = _Known(self._piece), _Known(self._text)
        added = tokenizer.get_added_tokens_decoder()
        self.tags: dict[str, int] = {
            token.content[1:-1]: number
            for number, token in sorted(added.items())
            if number >= len(SPECIALS) and token.special
        }
        """Words that a source may begin with as one token each, such as <fre>; their ids."""

    @classmethod
    def train(
        cls,
        settings: recipe.Tokens,
        texts: Iterable[str],
        tags: Iterable[str] = (),
        written: Iterable[str] | None = None,
    ) -> Tokens:
        """Learn a vocabulary from texts; the same texts give the same vocabulary. Tags come on top.

        With `size`, the rarest characters, words or symbols are left out; subwords cannot be made
        with fewer tokens than there are different characters. What is rarer than `min_count` is
        unknown. Texts are read twice where `min_count` matters to subwords, or where they are
        normalised: what is decoded comes back in the Unicode form, NFC or NFD, that most of them
        have (of `written`, where these are not all of them). Raises TokensError
        where there is no text, or the size is too small.
        """
        return cls(learn(settings, texts, tags, written))

    @classmethod
    def load(cls, path: str | Path) -> Tokens:
        """Tokens from a file that `save` wrote. Raises TokensError."""
        try:
            text = Path(path).read_text(encoding="utf-8")
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
                raise  # only a library in Rust that fails is no Exception
            raise TokensError(
                f"the tokens file {path} is not a tokenizers JSON file, or is damaged ({error}); "
                "take it from the model folder again, or train it anew"
            ) from None

    def save(self, path: str | Path) -> None:
        """Write a tokenizers JSON file, whole or not at all."""
        try:
            write_text(Path(path), self.to_json())
        except CheckpointError as error:
            raise TokensError(str(error)) from None

    @classmethod
    def from_json(cls, text: str) -> Tokens:
        """What `to_json` gave."""
        return cls(Tokenizer.from_str(text))

    def to_json(self) -> str:
        """All there is to these tokens, as `save` writes it."""
        return str(self._tokenizer.to_str(pretty=True))

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without specials."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, cut in parallel; tags that they begin with are one id each."""
        if not texts:
            return []
        if self.tags:
            parted = [without_tags(text, self.tags) for text in texts]
            rest = self._encode_plain([text for _, text in parted])
            heads = [[self.tags[tag] for tag in tags] for tags, _ in parted]
            return [head + ids for head, ids in zip(heads, rest, strict=True)]
        return self._encode_plain(texts)

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        if self.level in ("character", "byte"):
            return [self._one_by_one(text) for text in texts]
        try:
            found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:
            raise TokensError(HALF_CHARACTER) from None
        return [encoding.ids for encoding in found]

    def encode_lines(self, lines: Sequence[tuple[str, bool]]) -> list[list[int]]:
        """The ids of lines of running text, line breaks included, and whether each begins a text.

        Joined, they are the ids of the joined text: only a text's first line has a space put
        before it, where tokens are subwords.
        """
        whole = self.encode_batch([line for line, begins in lines if begins])
        following = self._going_on.encode_batch([line for line, begins in lines if not begins])
        sides = (iter(following), iter(whole))
        return [next(sides[begins]) for _, begins in lines]

    @cached_property
    def _going_on(self) -> Tokens:
        """The same tokens for what goes on where another text ended."""
        if self.level != "subword":
            return self
        parts = json.loads(self.to_json())
        steps = (parts["normalizer"] or {}).get("normalizers", [])
        if not any(step["type"] == "Prepend" for step in steps):
            return self
        parts["normalizer"]["normalizers"] = [s for s in steps if s["type"] != "Prepend"]
        return Tokens.from_json(json.dumps(parts))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, in the form of texts; the four specials and tags are dropped."""
        text = self.decode_as_cut(ids)
        return text if self.form is None else normalize(self.form, text)

    def decode_as_cut(self, ids: Iterable[int]) -> str:
        """The same in the form of tokens, in which the text of more tokens begins with it."""
        if not self._fused:
            return str(self._tokenizer.decode(list(map(int, ids))))
        # What the tokenizer would say, several times faster.
        text = "".join(map(self._texts.__getitem__, ids))
        return text[1:] if text.startswith(" ") else text

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each token as a person would read it in a plot; spaces are ▁, odd bytes like <C3>."""
        return list(map(self._pieces.__getitem__, ids))

    def halves(self) -> NDArray[np.int32]:
        """[V, 2]: of each token the two that BPE made it of, or -1."""
        found = np.full((len(self), 2), -1, np.int32)
        merges = json.loads(self.to_json())["model"].get("merges") or []
        numbers = self._tokenizer.get_vocab()
        for one, other in merges:
            whole = numbers[one + other]
            if found[whole, 0] < 0:
                found[whole] = numbers[one], numbers[other]
        return found

    def names(self) -> list[str]:
        """What the tokens file itself calls each token, by id: no two are the same."""
        return [self._tokenizer.id_to_token(number) or f"<{number}>" for number in range(len(self))]

    def normalized(self, text: str) -> str:
        """The text as it is before it is cut: lower-cased and so on, as was asked for."""
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def unknowns(self, texts: Iterable[str]) -> Counter[str]:
        """The characters (at the level of words and symbols: the words) that have no token."""
        found: Counter[str] = Counter()
        whole = self.level in ("word", "symbol", "label")
        remaining = iter(texts)
        while some := [without_tags(text, self.tags)[1] for text in islice(remaining, 1024)]:
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
        """What the tokenizer would say, twenty times faster: one look for each letter or byte."""
        text = self.normalized(text)
        if self.level == "character":
            return [self._vocabulary.get(letter, UNKNOWN) for letter in text]
        try:
            return [byte + len(SPECIALS) for byte in text.encode("utf-8")]
        except UnicodeEncodeError:
            raise TokensError(HALF_CHARACTER) from None

    def _text(self, number: int) -> str:
        """Of a subword, as it stands inside a text."""
        silent = number < len(SPECIALS) or number in self.tags.values()
        piece = None if silent else self._tokenizer.id_to_token(number)
        return str(piece or "").replace(SPACE, " ")

    def _piece(self, number: int) -> str:
        piece = self._tokenizer.id_to_token(number)
        if piece is None or number < len(SPECIALS):
            return str(piece or SPECIALS[UNKNOWN])
        if piece[1:-1] in self.tags:
            return str(piece)
        if self.level == "byte":
            byte = number - len(SPECIALS)
            shown = chr(byte) if 0x20 < byte < 0x7F else f"<{byte:02X}>"
            return SPACE if byte == 0x20 else shown
        if self.level == "character":
            return SPACE if piece == " " else str(piece)
        if self.level not in ("symbol", "label"):
            return str(piece)
        whole = str(piece).replace(JOINER, "")  # such as a label, which is read as it was written
        return whole if self.form is None else normalize(self.form, whole)


class _Known(dict[int, str]):
    """What was asked of a token once is known."""

    def __init__(self, make: Callable[[int], str]) -> None:
        self._make = make

    def __missing__(self, number: int) -> str:
        plain = int(number)  # it may be numpy's or torch's
        if plain not in self:
            self[plain] = self._make(plain)
        return self[plain]
