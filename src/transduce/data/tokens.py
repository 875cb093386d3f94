"""Tokens: text to numbers and back, as characters, subwords, words, symbols, bytes or labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from transduce import recipe
from transduce.data.corpus import Pair, read_pairs, sound_of, tags_of
from transduce.data.files import locate
from transduce.data.tags import without_tags
from transduce.errors import CheckpointError, TokensError
from transduce.storage import write_text

PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
SPACE = "▁"  # U+2581, how SentencePiece writes a space inside a subword
LONGEST_SUBWORD = 16  # scripts without spaces would otherwise get whole phrases as one subword

# A text may spell a special out, as web pages do: "<s>". Cutting (or, for symbols, spelling) it
# apart at the first bracket keeps it text; otherwise a user could end a sentence from within.
_SPELT_SPECIAL = Regex(r"<(?=(?:pad|unk|s|/s)>)")
_JOINER = "\u2060"  # WORD JOINER, invisible
_SUBWORDS_JOINED = decoders.Sequence(
    [decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


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
        self.level = _level_of(tokenizer)
        self._vocabulary: dict[str, int] = (
            tokenizer.get_vocab() if self.level == "character" else {}
        )
        self._fused = _joins_subwords(tokenizer)
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
        cls, settings: recipe.Tokens, texts: Iterable[str], tags: Iterable[str] = ()
    ) -> Tokens:
        """Learn a vocabulary from texts; the same texts give the same vocabulary. Tags come on top.

        With `size`, the rarest characters, words or symbols are left out; subwords cannot be made
        with fewer tokens than there are different characters. What is rarer than `min_count` is
        unknown. Texts are read twice where `min_count` matters to subwords. Raises TokensError
        where there is no text, or the size is too small.
        """
        special = [f"<{tag}>" for tag in sorted(set(tags))]
        if settings.level == "byte":
            tokenizer = _byte_tokenizer(settings)
            tokenizer.add_special_tokens(special)
            return cls(tokenizer)
        if isinstance(texts, Iterator) and settings.level == "subword" and settings.min_count > 1:
            texts = list(texts)
        tokenizer, trainer = _untrained(settings)
        prepared = _without_rare(settings, texts) if settings.level == "subword" else texts
        filled = (text for text in prepared if text.strip())
        first = list(islice(filled, 1))
        if not first:
            raise TokensError(
                "there is no text to learn tokens from: all of the training text is empty; "
                "look at it with `transduce check`"
            )
        too_small = TokensError(
            f"a vocabulary of {settings.size} cannot hold the 4 specials and every character of "
            "the text; raise data.tokens' size, or its min_count so that rare characters are "
            "unknown"
        )
        try:
            tokenizer.train_from_iterator(chain(first, filled), trainer)
        except TypeError:
            raise TokensError(_HALF_CHARACTER) from None
        except Exception as error:  # the Rust side raises plain Exception
            if "not large enough" in str(error):
                raise too_small from None
            raise
        if tokenizer.get_vocab_size() > settings.size:
            raise too_small
        unigram = settings.level == "subword" and settings.algorithm == "unigram"
        tokenizer = _settled(tokenizer) if unigram else tokenizer
        tokenizer.add_special_tokens(special)
        return cls(tokenizer)

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
            return cls(Tokenizer.from_str(text))
        except TokensError as error:
            raise TokensError(f"the tokens file {path} cannot be used: {error}") from None
        except Exception as error:
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
            raise TokensError(_HALF_CHARACTER) from None
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
        """The text of ids; the four specials and tags are dropped."""
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
                raise TokensError(_HALF_CHARACTER) from None
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
            raise TokensError(_HALF_CHARACTER) from None

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
        return str(piece).replace(_JOINER, "") if self.level in ("symbol", "label") else str(piece)


class _Known(dict[int, str]):
    """What was asked of a token once is known."""

    def __init__(self, make: Callable[[int], str]) -> None:
        self._make = make

    def __missing__(self, number: int) -> str:
        plain = int(number)  # it may be numpy's or torch's
        if plain not in self:
            self[plain] = self._make(plain)
        return self[plain]


_HALF_CHARACTER = "the text holds half of a surrogate pair, which is no character; leave it out"


def train_tokens(data: recipe.Data) -> tuple[Tokens, Tokens]:
    """Source and target tokens as a recipe asks: loaded from files, or learnt from data.train.

    With `both`, the two are one and the same object.
    """
    tags = tags_of(data.train, data.folder)
    heard = sound_of(data.train) is not None

    def of_side(pair: Pair, side: str) -> str:
        if side == "target":
            return pair.target
        return pair.said if heard else without_tags(pair.source, pair.tags)[1]

    def texts(*sides: str) -> Iterable[str]:
        if heard:  # where there is one vocabulary, what is said is what is written
            sides = sides[-1:]
        return _Texts(
            lambda: (of_side(p, s) for p in read_pairs(data.train, data.folder) for s in sides)
        )

    def make(settings: recipe.Tokens, *sides: str) -> Tokens:
        needed = tags if "source" in sides else []
        if settings.file is None:
            return Tokens.train(settings, texts(*sides), needed)
        loaded = Tokens.load(locate(settings.file, data.folder))
        for tag in needed:
            if tag not in loaded.tags:
                raise TokensError(
                    f"the tokens file {settings.file} has no tag <{tag}>; train the tokens anew, "
                    f"or leave the tag out of data.train"
                )
        return loaded

    sides = data.tokens
    if sides.both is not None:
        shared = make(sides.both, "source", "target")
        return shared, shared
    assert sides.source is not None  # the recipe holds this
    assert sides.target is not None
    return make(sides.source, "source"), make(sides.target, "target")


class _Texts:
    """Texts that can be read more than once without being held."""

    def __init__(self, start: Callable[[], Iterator[str]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[str]:
        return self._start()


def _normalizers(settings: recipe.Tokens) -> list[Any]:
    forms: dict[str, list[Any]] = {
        "none": [],
        "nfc": [normalizers.NFC()],
        "nfkc": [normalizers.NFKC()],
        "nfd": [normalizers.NFD()],
        "nfkd": [normalizers.NFKD()],
    }
    return forms[settings.normalize] + ([normalizers.Lowercase()] if settings.lowercase else [])


def _untrained(settings: recipe.Tokens) -> tuple[Tokenizer, Any]:
    """A tokenizer with an empty vocabulary, and what trains it."""
    common: dict[str, Any] = {
        "vocab_size": settings.size,
        "special_tokens": list(SPECIALS),
        "show_progress": False,
    }
    steps = _normalizers(settings)
    if settings.level != "subword":
        tokenizer = Tokenizer(models.WordLevel(unk_token=SPECIALS[UNKNOWN]))
        trainer: Any = trainers.WordLevelTrainer(min_frequency=settings.min_count, **common)
    elif settings.algorithm == "bpe":
        tokenizer = Tokenizer(models.BPE(unk_token=SPECIALS[UNKNOWN]))
        trainer = trainers.BpeTrainer(
            min_frequency=settings.min_count, max_token_length=LONGEST_SUBWORD, **common
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(
            unk_token=SPECIALS[UNKNOWN], max_piece_length=LONGEST_SUBWORD, **common
        )
    if settings.level == "character":
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
    elif settings.level == "word":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")]
        )
    elif settings.level == "label":
        steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
        steps.append(normalizers.Replace(_SPELT_SPECIAL, "<" + _JOINER))
        tokenizer.decoder = decoders.Replace("<" + _JOINER, "<")
    elif settings.level == "symbol":
        steps.append(normalizers.Replace(_SPELT_SPECIAL, "<" + _JOINER))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        # WordPiece's decoder joins with one space; the prefix is one that no symbol has.
        join = decoders.WordPiece(prefix=_JOINER * 2, cleanup=False)
        tokenizer.decoder = decoders.Sequence(
            [join, decoders.Fuse(), decoders.Replace("<" + _JOINER, "<")]
        )
    else:
        # SentencePiece's manner spelt out: the Metaspace of this library would take a leading
        # space of the text for the one that it puts before every text.
        steps += [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(SPACE, "merged_with_next"),
                pre_tokenizers.Split("\n", "isolated"),
                pre_tokenizers.Split(_SPELT_SPECIAL, "isolated"),
            ]
        )
        tokenizer.decoder = _SUBWORDS_JOINED
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer, trainer


def _byte_tokenizer(settings: recipe.Tokens) -> Tokenizer:
    """Byte b has the id b + 4; nothing is learnt."""
    to_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    # ByteLevel writes each byte as one letter. Those that print stand for themselves, the others,
    # in their order, for the letters from U+0100 on.
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    letters = [chr(byte if byte in printing else next(others)) for byte in range(256)]
    vocabulary = {token: number for number, token in enumerate([*SPECIALS, *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIALS[UNKNOWN]))
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [to_letters, pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")]
    )
    tokenizer.decoder = decoders.ByteLevel()
    if steps := _normalizers(settings):
        tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def _without_rare(settings: recipe.Tokens, texts: Iterable[str]) -> Iterable[str]:
    """The texts with characters rarer than min_count made into spaces, so no subword holds one."""
    if settings.min_count == 1:
        return texts
    normal = normalizers.Sequence(_normalizers(settings)).normalize_str
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normal(text))
    rare = str.maketrans({c: " " for c, count in counts.items() if count < settings.min_count})
    return (normal(text).translate(rare) for text in texts)


def _settled(tokenizer: Tokenizer) -> Tokenizer:
    """A unigram tokenizer freed of what differs from one training to the next.

    The library sums in the order of a randomly seeded hash table: scores differ in their last
    digits, and single characters that it adds at the end get scores in that random order.
    """
    model = json.loads(tokenizer.to_str())["model"]
    pieces: list[tuple[str, float]] = [(p, s) for p, s in model["vocab"] if p not in SPECIALS]
    lowest = min(score for _, score in pieces)
    added_below = lowest + 1e-4 * (sum(len(piece) == 1 for piece, _ in pieces) + 1)
    settled = [
        (piece, round(lowest if len(piece) == 1 and score < added_below else score, 6))
        for piece, score in pieces
    ]
    settled.sort(key=lambda item: (-item[1], item[0]))
    vocabulary = [(special, 0.0) for special in SPECIALS] + settled
    tokenizer.model = models.Unigram(vocabulary, unk_id=UNKNOWN)
    return tokenizer


def _joins_subwords(tokenizer: Tokenizer) -> bool:
    """Whether texts are joined as ours are; a tokenizer from elsewhere may have other rules."""
    decoder = tokenizer.decoder
    return decoder is not None and decoder.__getstate__() == _SUBWORDS_JOINED.__getstate__()


def _level_of(tokenizer: Tokenizer) -> str:
    """The level, told by the parts, so that the file alone restores everything."""
    parts = json.loads(tokenizer.to_str())
    cut = json.dumps(parts["pre_tokenizer"])
    if '"ByteLevel"' in cut and parts["model"]["type"] == "WordLevel":
        return "byte"
    if parts["model"]["type"] != "WordLevel":
        return "subword"
    if parts["pre_tokenizer"] is None:
        return "label"
    if '"Punctuation"' in cut:
        return "word"
    return "character" if '"Split"' in cut else "symbol"
