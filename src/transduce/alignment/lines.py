"""Lines of a text as CTC tokens, and the words that these belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.decoding.speech.timing import words_of
from transduce.errors import DataError, ModelError
from transduce.synthesis.espeak import espeak
from transduce.tasks.speech import SpeechModel

ENOUGH = 0.9  # share of a text in phones that the model must know


@dataclass(frozen=True)
class Line:
    text: str
    ids: tuple[int, ...]
    words: tuple[tuple[str, int, int], ...]
    """Each word, and the range of its tokens."""
    phones: tuple[str, ...] = ()
    """The phones, if the tokens are phones."""
    unknown: tuple[str, ...] = ()
    """Out-of-vocabulary words, which cannot be aligned."""


def read_text(path: Path) -> list[str]:
    """One utterance in each line; of "NAME TAB text", the text. Empty lines keep their numbers."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8: save it again as such") from None
    if not any(line.strip() for line in lines):
        raise DataError(f"{path} holds no text: write one utterance in each line")
    named = all(line.count("\t") == 1 for line in lines if line.strip())
    return [line.split("\t")[1] if named and line.strip() else line.strip() for line in lines]


def spell(model: SpeechModel, texts: Sequence[str], language: str | None = None) -> list[Line]:
    """The CTC tokens of each line. For a phone model, espeak converts text to phones if the
    language is given (BCP 47); else lines are phones separated by spaces. Unknown tokens are
    left out.

    Raises DataError if a text without a language is not in the model's phones.
    """
    if model.network.ctc is None:
        raise ModelError("aligning needs a model with CTC: train one with model.ctc_weight=0.3")
    tokens = model.source_tokens
    if language is not None and tokens.level == "symbol":
        lines = _pronounced(tokens, texts, language)
    else:
        if strange := strange_phones(model, texts):
            raise DataError(
                f"the model's tokens are phones, and this text is not written in phones: there "
                f"is no phone {strange[0][:40]!r}; name the language of the text, as in --language "
                f"en, or write the text in phones"
            )
        lines = [_written(tokens, text) for text in texts]
    if not any(line.ids for line in lines):
        raise DataError(
            "none of the characters of this text are in the model's vocabulary; "
            "check that it is the right model"
        )
    return lines


def strange_phones(model: SpeechModel, texts: Sequence[str]) -> list[str]:
    """Unknown phones in texts that are not written in phones, for a phone model; else nothing.

    Words are not phones, though a few of them ("a") are spelt like one.
    """
    if model.source_tokens.level != "symbol":
        return []
    symbols = [symbol for text in texts for symbol in text.split()]
    known = set(model.source_tokens.names())
    strange = [symbol for symbol in symbols if symbol not in known]
    return strange if len(strange) > (1 - ENOUGH) * len(symbols) else []


def _pronounced(tokens: Tokens, texts: Sequence[str], language: str) -> list[Line]:
    voice = espeak().voice_of(language)
    if voice is None:
        raise DataError(f"espeak does not know the language {language}; name one as in en or pt-BR")
    lines = []
    for text in texts:
        phones = espeak().read(text, voice).phones if text.strip() else ()
        encoded = tokens.encode_batch([phone.symbol for phone in phones])
        known = [(p, i[0]) for p, i in zip(phones, encoded, strict=True) if i and i[0] != UNKNOWN]
        words, unknown = [], []
        for number, word in enumerate(text.split()):
            mine = [place for place, (phone, _) in enumerate(known) if phone.word == number]
            if mine:
                words.append((word, mine[0], mine[-1] + 1))
            elif _sounds(word):
                unknown.append(word)
        symbols = tuple(phone.symbol for phone, _ in known)
        ids = tuple(number for _, number in known)
        lines.append(Line(text, ids, tuple(words), symbols, tuple(unknown)))
    return lines


def _sounds(word: str) -> bool:
    """Whether a word is more than punctuation."""
    return any(sign.isalnum() for sign in word)


def _written(tokens: Tokens, text: str) -> Line:
    ids = [number for number in tokens.encode(_folded(tokens, text)) if number != UNKNOWN]
    spans = words_of(tokens, ids)
    words = tuple((tokens.decode(ids[start:end]).strip(), start, end) for start, end in spans)
    phones: tuple[str, ...] = ()
    if tokens.level == "symbol":
        phones = tuple(tokens.decode([number]) for number in ids)
    return Line(text, tuple(ids), words, phones, _unknown(tokens, text))


def _folded(tokens: Tokens, text: str) -> str:
    """A text in the characters of the vocabulary, lower-cased if it has no capitals; for other
    tokens unchanged.
    """
    if tokens.level != "character":
        return text
    known = set(tokens.names())
    signs = (sign if sign in known else sign.lower() for sign in text)
    return " ".join("".join(sign for sign in signs if sign in known or sign == " ").split())


def _unknown(tokens: Tokens, text: str) -> tuple[str, ...]:
    """The out-of-vocabulary words."""
    words = [word for word in text.split() if _sounds(word)]
    encoded = tokens.encode_batch([_folded(tokens, word) for word in words])
    return tuple(
        word
        for word, ids in zip(words, encoded, strict=True)
        if not any(number != UNKNOWN and tokens.decode([number]).strip() for number in ids)
    )
