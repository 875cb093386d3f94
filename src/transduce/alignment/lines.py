"""Lines of a text as the tokens that CTC knows, and the words that these belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.decoding.speech.timing import words_of
from transduce.errors import DataError, ModelError
from transduce.synthesis.espeak import espeak
from transduce.tasks.speech import SpeechModel

ENOUGH = 0.9  # of a text in phones, the share that the model must know


@dataclass(frozen=True)
class Line:
    text: str
    ids: tuple[int, ...]
    words: tuple[tuple[str, int, int], ...]
    """Each word, and its tokens, from the first to the one after its last."""
    phones: tuple[str, ...] = ()
    """What the tokens are, where they are phones."""
    unknown: tuple[str, ...] = ()
    """Words of which CTC knows no token: they cannot be found."""


def read_text(path: Path) -> list[str]:
    """One utterance a line; of "NAME TAB text", the text. Empty lines keep their numbers."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8: save it again as such") from None
    if not any(line.strip() for line in lines):
        raise DataError(f"{path} holds no text: give it one utterance a line")
    named = all(line.count("\t") == 1 for line in lines if line.strip())
    return [line.split("\t")[1] if named and line.strip() else line.strip() for line in lines]


def spell(model: SpeechModel, texts: Sequence[str], language: str | None = None) -> list[Line]:
    """What CTC is to look for. Of a model of phones, espeak says them, if it is told the language
    (BCP 47); else lines are phones with spaces between them. What CTC does not know is left out.

    Raises DataError where a text without a language is not in the model's phones.
    """
    if model.network.ctc is None:
        raise ModelError("aligning needs a model with CTC: train one with model.ctc_weight=0.3")
    tokens = model.source_tokens
    if language is not None and tokens.level == "symbol":
        lines = _pronounced(tokens, texts, language)
    else:
        if strange := strange_phones(model, texts):
            raise DataError(
                f"the model has learnt phones, and this text is not written in them: it has no "
                f"phone {strange[0][:40]!r}; name the language of the text, as in --language en, "
                f"or write the text in phones"
            )
        lines = [_written(tokens, text) for text in texts]
    if not any(line.ids for line in lines):
        raise DataError("the model knows none of the signs of this text; is it the right model?")
    return lines


def strange_phones(model: SpeechModel, texts: Sequence[str]) -> list[str]:
    """What is no phone of a model of phones, in texts that are not written in them; else nothing.

    Words are no phones, though a few of them ("a") are spelt like one.
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
    """A text in the letters that a model of letters knows, in small ones where it knows no others;
    for other tokens, as it is."""
    if tokens.level != "character":
        return text
    known = set(tokens.names())
    signs = (sign if sign in known else sign.lower() for sign in text)
    return " ".join("".join(sign for sign in signs if sign in known or sign == " ").split())


def _unknown(tokens: Tokens, text: str) -> tuple[str, ...]:
    """The words of which the model knows no token."""
    words = [word for word in text.split() if _sounds(word)]
    encoded = tokens.encode_batch([_folded(tokens, word) for word in words])
    return tuple(
        word
        for word, ids in zip(words, encoded, strict=True)
        if not any(number != UNKNOWN and tokens.decode([number]).strip() for number in ids)
    )
