"""Tokenizers of each level (character, byte pair encoding, unigram, word, ...) and their
training.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from transduce import recipe
from transduce.data.text.unicode import FORMS, Form, composed, form_of
from transduce.data.tokens.word_pieces import WordPieces, most_frequent
from transduce.errors import TokensError
from transduce.registry import load_installed, register

PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
SPACE = "▁"  # U+2581, SentencePiece's symbol for a space inside a subword
LONGEST_SUBWORD = 16  # otherwise whole phrases become one subword in scripts without spaces

# A text may contain the name of a special token, as web pages do: "<s>". Splitting it after the
# first bracket keeps it text; otherwise a user could end a sentence from within.
PATTERNS = (r"<(?=(?:pad|unk|s|/s)>)", r"[\s\S]", r"\s+")
# Of tokenizers of others, which are safe too. Older files have the last two, which also match at
# the ends of lines.
FOREIGN_PATTERNS = (r"\A +", r" +\z", r" {2,}", r"\n", r"^ +", r" +$")
# Words of Llama 3 and of Qwen 2, which differ in how many digits are one word.
WORD_PATTERNS = tuple(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    + digits
    + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in (r"\p{N}{1,3}", r"\p{N}")
)
KNOWN_PATTERNS = frozenset((*PATTERNS, *FOREIGN_PATTERNS, *WORD_PATTERNS))
_SPELT_SPECIAL, _SPELT = Regex(PATTERNS[0]), re.compile(PATTERNS[0])
_SPELT_PATTERN = {"Regex": PATTERNS[0]}
JOINER = "\u2060"  # WORD JOINER, invisible
_SUBWORDS_JOINED = decoders.Sequence(
    [decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
# White space inside the pieces of a plugin's tokenizer, which symbols cannot have.
_ESCAPED = {" ": "\u2420", "\n": "\u2424", "\t": "\u2409", "\r": "\u240d", "\u00a0": "\u237d"}
_RESTORED = {sign: space for space, sign in _ESCAPED.items()}
_MARK = "\u2060tokenizer:{}\u2060"
AT_ONCE = 256  # texts that are handed to the library as one
LONGEST_WORD = 1000  # characters without a space from which subwords are learned
HALF_CHARACTER = "the text holds half of a surrogate pair, which is not a character; remove it"


def learn(
    settings: recipe.Tokens,
    texts: Iterable[str],
    tags: Iterable[str] = (),
    written: Iterable[str] | None = None,
) -> Tokenizer:
    """Train the tokenizer of `Tokens.train`. Raises TokensError."""
    special = [f"<{tag}>" for tag in sorted({composed(tag) for tag in tags})]
    twice = settings.level == "subword" and settings.min_count > 1
    if isinstance(texts, Iterator) and (twice or settings.normalize != "none"):
        texts = list(texts)
    steps = _normalizers(settings)
    if settings.normalize != "none":
        steps = _mark_text_form(settings, form_of(texts if written is None else written)) + steps
    if settings.level in register.tokenizer:
        texts = list(map(splitter(settings.level), texts))
    if settings.level == "byte":
        tokenizer = _byte_tokenizer(steps)
        tokenizer.add_special_tokens(special)
        return tokenizer
    tokenizer, trainer = _untrained(settings, steps)
    prepared = _without_rare(settings, texts) if settings.level == "subword" else texts
    if settings.level == "subword":
        prepared = map(_in_short_words, prepared)
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
    cutter = WordPieces.of(tokenizer)
    try:
        if settings.level == "subword" and not _normalizers(settings):
            _train_on_words(tokenizer, trainer, settings, chain(first, filled))
        elif cutter is None:
            tokenizer.train_from_iterator(chain(first, filled), trainer)
        else:  # the same vocabulary in less time
            names = most_frequent(cutter.count(chain(first, filled)), settings.min_count)
            of_names = [*SPECIALS, *islice(names, settings.size - len(SPECIALS))]
            tokenizer.model = _word_level(of_names)
            tokenizer.add_special_tokens(list(SPECIALS))
    except (TypeError, UnicodeEncodeError):
        raise TokensError(HALF_CHARACTER) from None
    except Exception as error:  # the Rust side raises plain Exception
        if "not large enough" in str(error):
            raise too_small from None
        raise
    if tokenizer.get_vocab_size() > settings.size:
        raise too_small
    unigram = settings.level == "subword" and settings.algorithm == "unigram"
    tokenizer = _deterministic(tokenizer) if unigram else tokenizer
    tokenizer.add_special_tokens(special)
    return tokenizer


def _train_on_words(
    tokenizer: Tokenizer, trainer: Any, settings: recipe.Tokens, texts: Iterable[str]
) -> None:
    """Train subwords on texts that are cut here as the tokenizer cuts them, with a space between
    any two pieces: the same in half the time, as the library copies a text with every cut."""
    normal, whole = tokenizer.normalizer, tokenizer.pre_tokenizer
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.CharDelimiterSplit(" "), *_cut_apart(settings)]
    )
    remaining = iter(texts)
    blocks = iter(lambda: " ".join(map(_pieces_apart, islice(remaining, AT_ONCE))), "")
    tokenizer.train_from_iterator(blocks, trainer)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normal, whole


def _pieces_apart(text: str) -> str:
    """A text with a space between its pieces: words that begin with SPACE, and what is isolated."""
    text = SPACE + text.replace(SPACE, " ").replace(" ", f" {SPACE}")
    if "<" in text:
        text = _SPELT.sub(" < ", text)
    return text.replace("\n", " \n ") if "\n" in text else text


def of_vocabulary(settings: recipe.Tokens, names: Sequence[str]) -> Tokenizer:
    """A tokenizer of characters, words, symbols or labels with a given vocabulary, the specials
    first; nothing is learned. Raises TokensError where a name is there twice.
    """
    tokenizer, _ = _untrained(settings, _normalizers(settings))
    normal = tokenizer.normalizer
    # A name that holds a special token is written as a text that holds it.
    spelt = [name if normal is None else str(normal.normalize_str(name)) for name in names]
    seen = Counter([*SPECIALS, *spelt])
    if len(seen) != len(SPECIALS) + len(names):
        twice = next(name for name, count in seen.items() if count > 1)
        raise TokensError(f"the vocabulary has {twice!r} twice; a token must have its own name")
    tokenizer.model = _word_level([*SPECIALS, *spelt])
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def _word_level(names: Sequence[str]) -> models.WordLevel:
    vocabulary = {name: number for number, name in enumerate(names)}
    return models.WordLevel(vocabulary, unk_token=SPECIALS[UNKNOWN])


def _in_short_words(text: str) -> str:
    """The text with spaces inserted into very long words: learning BPE merges takes time quadratic
    in the length of a word.
    """
    if len(text) <= LONGEST_WORD or max(map(len, text.split())) <= LONGEST_WORD:
        return text
    return " ".join(
        word[start : start + LONGEST_WORD]
        for word in text.split(" ")
        for start in range(0, max(1, len(word)), LONGEST_WORD)
    )


def _normalizers(settings: recipe.Tokens) -> list[Any]:
    forms: dict[str, list[Any]] = {
        "none": [],
        "nfc": [normalizers.NFC()],
        "nfkc": [normalizers.NFKC()],
        "nfd": [normalizers.NFD()],
        "nfkd": [normalizers.NFKD()],
    }
    return forms[settings.normalize] + ([normalizers.Lowercase()] if settings.lowercase else [])


def _mark_text_form(settings: recipe.Tokens, form: Form | None) -> list[Any]:
    """Marks in the tokenizer file that texts have another Unicode form than tokens.

    A first step normalises to the form of the texts, which does not change any token. Decoded text
    is put into the form of that step: see `form_of_texts`.
    """
    own = "NFC" if settings.normalize in ("nfc", "nfkc") else "NFD"
    if form is None or form == own:
        return []
    return [normalizers.NFC() if form == "NFC" else normalizers.NFD()]


def form_of_texts(tokenizer: Tokenizer) -> Form | None:
    """NFC or NFD, if tokens have the other one, and decoded texts must be converted back."""
    parts = json.loads(tokenizer.to_str())
    steps = [step["type"] for step in (parts["normalizer"] or {}).get("normalizers", [])]
    if len(steps) < 2 or steps[1] not in ("NFC", "NFKC", "NFD", "NFKD"):
        return None
    return next((form for form in FORMS if form == steps[0]), None)


def _untrained(settings: recipe.Tokens, steps: list[Any]) -> tuple[Tokenizer, Any]:
    """A tokenizer with an empty vocabulary and these normalisation steps, and its trainer."""
    common: dict[str, Any] = {
        "vocab_size": settings.size,
        "special_tokens": list(SPECIALS),
        "show_progress": False,
    }
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
        steps.append(normalizers.Replace(_SPELT_SPECIAL, "<" + JOINER))
        tokenizer.decoder = decoders.Replace("<" + JOINER, "<")
    elif settings.level == "symbol" or settings.level in register.tokenizer:
        if settings.level != "symbol":  # named in the file, as what cuts texts is not in it
            steps.insert(0, normalizers.Replace(_MARK.format(settings.level), ""))
        steps.append(normalizers.Replace(_SPELT_SPECIAL, "<" + JOINER))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        # WordPiece's decoder joins with one space; its prefix is one that no symbol has.
        join = decoders.WordPiece(prefix=JOINER * 2, cleanup=False)
        tokenizer.decoder = decoders.Sequence(
            [join, decoders.Fuse(), decoders.Replace("<" + JOINER, "<")]
        )
    else:
        # SentencePiece's rules written out: Metaspace of this library would mistake a leading space
        # of the text for the one that it puts before every text.
        steps += [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        cuts: list[Any] = [
            pre_tokenizers.Split(SPACE, "merged_with_next"),
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.Split(_SPELT_SPECIAL, "isolated"),
        ]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, *_cut_apart(settings)])
        tokenizer.decoder = _SUBWORDS_JOINED
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer, trainer


def _cut_apart(settings: recipe.Tokens) -> list[Any]:
    """What else is cut out of the words that subwords are learned from."""
    return [pre_tokenizers.Punctuation("isolated")] if settings.punctuation == "apart" else []


def registered_level(tokenizer: Tokenizer) -> str | None:
    """The plugin's tokenizer that a file was learned with, if it was."""
    parts = json.loads(tokenizer.to_str())
    steps = (parts["normalizer"] or {}).get("normalizers", [])
    if not steps or steps[0]["type"] != "Replace":
        return None
    pattern = str(steps[0]["pattern"].get("String", ""))
    head, tail = _MARK.split("{}")
    if not (pattern.startswith(head) and pattern.endswith(tail)):
        return None
    return pattern[len(head) : -len(tail)]


def splitter(name: str) -> Callable[[str], str]:
    """From a text to the pieces of a plugin's tokenizer, as symbols with spaces between them.

    Raises TokensError where no plugin has registered it.
    """
    if name not in register.tokenizer and not (load_installed() and name in register.tokenizer):
        raise TokensError(
            f"its tokenizer {name} is of a plugin that is not loaded; give it with `transduce "
            f"--plugin FILE.py`, or import it in Python"
        )
    cut, origin = register.tokenizer[name].part, register.tokenizer[name].origin

    def split(text: str) -> str:
        try:
            pieces = [str(piece) for piece in cut(text)]
        except Exception as error:
            raise TokensError(
                f"the tokenizer {name} of {origin} failed at {text[:40]!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
        return " ".join("".join(_ESCAPED.get(c, c) for c in piece) for piece in pieces if piece)

    return split


def joiner(name: str) -> Callable[[str], str]:
    """The inverse of `splitter`."""
    join = register.tokenizer[name].options.get("join") or "".join

    def joined(symbols: str) -> str:
        return str(join(["".join(_RESTORED.get(c, c) for c in s) for s in symbols.split(" ")]))

    return joined


def _byte_tokenizer(steps: list[Any]) -> Tokenizer:
    """Byte b has the id b + 4; nothing is learned."""
    to_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = list(byte_letters())
    vocabulary = {token: number for number, token in enumerate([*SPECIALS, *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIALS[UNKNOWN]))
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [to_letters, pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")]
    )
    tokenizer.decoder = decoders.ByteLevel()
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def _without_rare(settings: recipe.Tokens, texts: Iterable[str]) -> Iterable[str]:
    """The texts with characters rarer than min_count replaced by spaces, so no subword has one."""
    if settings.min_count == 1:
        return texts
    normal = normalizers.Sequence(_normalizers(settings)).normalize_str
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normal(text))
    rare = str.maketrans({c: " " for c, count in counts.items() if count < settings.min_count})
    return (normal(text).translate(rare) for text in texts)


def _deterministic(tokenizer: Tokenizer) -> Tokenizer:
    """A unigram tokenizer without the differences from one training to the next.

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


def check_patterns(part: Any) -> None:
    """Raise TokensError for a regular expression in a tokens file that transduce does not write:
    some take forever, or crash the library.
    """
    if isinstance(part, dict):
        pattern = part.get("Regex")
        if isinstance(pattern, str) and pattern not in KNOWN_PATTERNS:
            raise TokensError(
                f"it has the regular expression {pattern[:40]!r}, which transduce does not know; "
                f"train the tokens with transduce"
            )
    if isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            if isinstance(inner, dict | list):
                check_patterns(inner)


def byte_letters() -> dict[str, int]:
    """The character by which ByteLevel represents each byte, in the order of bytes.

    Printable ones represent themselves, the others, in their order, the characters from U+0100 on.
    """
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return {chr(byte if byte in printing else next(others)): byte for byte in range(256)}


def merges_bytes(tokenizer: Tokenizer) -> bool:
    """Whether it is byte-level BPE, as of GPT-2: its tokens are written in `byte_letters`."""
    parts = json.loads(tokenizer.to_str())
    return parts["model"]["type"] == "BPE" and '"ByteLevel"' in json.dumps(parts["pre_tokenizer"])


def joins_subwords(tokenizer: Tokenizer) -> bool:
    """Whether decoding joins subwords as ours do; other tokenizers may have other rules."""
    decoder = tokenizer.decoder
    return decoder is not None and decoder.__getstate__() == _SUBWORDS_JOINED.__getstate__()


def cuts_at_spaces(tokenizer: Tokenizer) -> bool:
    """Whether the ids of a text are those of its words, one after the other: it cuts at spaces
    first, and nothing before that looks across one. Of subwords, where no word is empty.
    """
    parts = json.loads(tokenizer.to_str())
    steps = (parts["normalizer"] or {}).get("normalizers", [])
    cuts = (parts["pre_tokenizer"] or {}).get("pretokenizers", [parts["pre_tokenizer"]])
    if parts["model"]["type"] != "WordLevel":
        put_before, replace = {"type": "Prepend", "prepend": SPACE}, {"String": " "}
        if steps[-2:-1] != [put_before] or steps[-1].get("pattern") != replace:
            return False
        steps = steps[:-2]
    local = {"NFC", "NFKC", "NFD", "NFKD", "Lowercase"}
    marked = [s for s in steps if s["type"] == "Replace" and s["pattern"] == _SPELT_PATTERN]
    if not all(step["type"] in local or step in marked for step in steps):
        return False
    if parts["model"]["type"] == "WordLevel":
        return bool(cuts[0] == {"type": "WhitespaceSplit"})
    at_space = {"type": "Split", "pattern": {"String": SPACE}, "behavior": "MergedWithNext"}
    return bool(cuts[0] and cuts[0].items() >= at_space.items() and not cuts[0]["invert"])


def level_of(tokenizer: Tokenizer) -> str:
    """The level of a tokenizer, from its components, so that the file alone restores everything."""
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
