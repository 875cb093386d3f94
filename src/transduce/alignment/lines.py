"""Lines of a text as the tokens that CTC knows, and the words that these belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transduce.data.tokens import UNKNOWN, Tokens
from transduce.decoding.spoken import words_of
from transduce.errors import DataError, ModelError
from transduce.synthesis.espeak import espeak
from transduce.tasks.hearing import Hearing


@dataclass(frozen=True)
class Line:
    text: str
    ids: tuple[int, ...]
    words: tuple[tuple[str, int, int], ...]
    """Each word, and its tokens, from the first to the one after its last."""
    phones: tuple[str, ...] = ()
    """What the tokens are, where they are phones."""


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


def spell(model: Hearing, texts: Sequence[str], language: str | None = None) -> list[Line]:
    """What CTC is to look for. Of a model of phones, espeak says them, if it is told the language
    (BCP 47); else lines are phones with spaces between them. What CTC does not know is left out.
    """
    if model.network.ctc is None:
        raise ModelError("aligning needs a model with CTC: train one with model.ctc=0.3")
    tokens = model.source_tokens
    if language is not None and tokens.level == "symbol":
        lines = _pronounced(tokens, texts, language)
    else:
        lines = [_written(tokens, text) for text in texts]
    if not any(line.ids for line in lines):
        hint = "name its --language" if tokens.level == "symbol" else "is it the right model?"
        raise DataError(f"the model knows none of the signs of this text; {hint}")
    return lines


def _pronounced(tokens: Tokens, texts: Sequence[str], language: str) -> list[Line]:
    voice = espeak().voice_of(language)
    if voice is None:
        raise DataError(f"espeak does not know the language {language}; name one as in en or pt-BR")
    lines = []
    for text in texts:
        phones = espeak().read(text, voice).phones if text.strip() else ()
        ids = tokens.encode_batch([phone.symbol for phone in phones])
        known = [(p, i[0]) for p, i in zip(phones, ids, strict=True) if i and i[0] != UNKNOWN]
        words = []
        for number, word in enumerate(text.split()):
            mine = [place for place, (phone, _) in enumerate(known) if phone.word == number]
            if mine:
                words.append((word, mine[0], mine[-1] + 1))
        symbols = tuple(phone.symbol for phone, _ in known)
        lines.append(Line(text, tuple(number for _, number in known), tuple(words), symbols))
    return lines


def _written(tokens: Tokens, text: str) -> Line:
    if tokens.level == "character":
        known = set(tokens.names())
        signs = (sign if sign in known else sign.lower() for sign in text)
        text_known = " ".join("".join(s for s in signs if s in known or s == " ").split())
    else:
        text_known = text
    ids = [number for number in tokens.encode(text_known) if number != UNKNOWN]
    spans = words_of(tokens, ids)
    words = tuple((tokens.decode(ids[start:end]).strip(), start, end) for start, end in spans)
    phones = tuple(text_known.split()) if tokens.level == "symbol" else ()
    if tokens.level == "symbol":
        phones = tuple(tokens.decode([number]) for number in ids)
    return Line(text, tuple(ids), words, phones)
