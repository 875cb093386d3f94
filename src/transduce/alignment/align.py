"""Forced alignment: segments of a long recording for the lines of its text, with words and phones.

The CTC Viterbi path (nn/ctc/alignment.py) gives the time of each token. CTC outputs are peaky, with
one frame for a sound, so the start and end of an utterance are refined by loudness: the pause
before its first sound, and after its last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.audio.corpus import Wave, to_int16
from transduce.data.audio.intervals import Interval
from transduce.data.audio.read import audio_blocks, audio_info
from transduce.data.audio.recording import Samples
from transduce.data.audio.silence import HOP, loud_frames
from transduce.data.tokens.tokenizer import PAD, UNKNOWN, Tokens
from transduce.decoding.speech.timing import words_of
from transduce.errors import DataError, ModelError
from transduce.models.call_context import Call
from transduce.nn.ctc.alignment import Alignment, MismatchPenalties, align
from transduce.synthesis.espeak import espeak
from transduce.tasks.model import inference
from transduce.tasks.speech import SpeechModel

PAUSE = 0.12  # seconds: the closure of a plosive is shorter
REACH = 0.6  # seconds by which a sound may extend before or after its CTC peak
PENALTIES = MismatchPenalties(insertion=-2.0, deletion=-6.0, line_deletion=-4.0)
LONG_PAUSE = 0.8  # seconds: no sound of speech is so quiet for so long
MARGIN = 0.3  # seconds at its ends in which soft speech is possible
NOTHING = -20.0  # log p of a token in a pause
UNTOLD = 0.5  # seconds of sound without text that are worth telling
FITTING = 0.5  # of the lines are found where model, text and recording go together
LOW_CONFIDENCE = 0.4  # the median over the lines, below which they seem not to
MIN_CONFIDENCE = 0.1  # lowest confidence of a line that counts as read
ENOUGH_SPEECH = 0.5  # of the time that a line usually takes: so much may be a line not recognised


@dataclass(frozen=True)
class Utterance:
    """A line of the text, numbered from 1, and its times; NaN if it was not found."""

    number: int
    text: str
    start: float = math.nan
    end: float = math.nan
    confidence: float = 0.0
    """Confidence: the lowest geometric mean of probabilities over a second, times the share of the
    line's words that were found: what the model cannot spell or did not hear was not confirmed."""
    words: tuple[Interval, ...] = ()
    phones: tuple[Interval, ...] = ()

    @property
    def read(self) -> bool:
        return self.confidence >= MIN_CONFIDENCE


@dataclass(frozen=True)
class Aligned:
    audio: Path
    seconds: float
    utterances: tuple[Utterance, ...]
    untold: tuple[tuple[float, float], ...] = ()
    """From when to when there is speech, or another sound, of which the text has nothing."""

    @property
    def median_confidence(self) -> float:
        """Over the lines that have text; of one that is read more than once, the best."""
        best: dict[int, float] = {}
        for one in self.utterances:
            if one.text.strip():
                best[one.number] = max(best.get(one.number, 0.0), one.confidence)
        return median(best.values()) if best else 0.0

    @property
    def warning(self) -> str:
        """Why model, text and recording seem not to go together; empty: they do."""
        lines = len({one.number for one in self.utterances if one.text.strip()})
        read = len({one.number for one in self.read})
        causes = (
            f"the text may be of another recording, or the model of another language or kind of "
            f"speech (try it: transduce run MODEL {self.audio})"
        )
        if not read and not self.untold:
            return f"no speech was found in {self.audio}: it may be silence or noise"
        if read < FITTING * lines:
            return f"only {read:,} of {lines:,} lines were found in {self.audio}; {causes}"
        if self.median_confidence < LOW_CONFIDENCE:
            return (
                f"the confidence of the lines is low, {self.median_confidence:.2f} in the median; "
                f"{causes}"
            )
        return ""

    @property
    def read(self) -> list[Utterance]:
        return [utterance for utterance in self.utterances if utterance.read]

    @property
    def uncertain(self) -> dict[int, tuple[float, float]]:
        """Lines, by number, that were not found, but may be read: between the lines around them
        there is speech without text, long enough for theirs. The longest of it, in seconds."""
        read = self.read
        letters = sum(len(one.text) for one in read)
        if not letters:
            return {}
        pace = sum(one.end - one.start for one in read) / letters
        found: dict[int, tuple[float, float]] = {}
        for one in self.utterances:
            if one.read or not one.text.strip():
                continue
            start = max((o.end for o in read if o.number < one.number), default=0.0)
            end = min((o.start for o in read if o.number > one.number), default=self.seconds)
            near = [span for span in self.untold if span[1] > start and span[0] < end]
            if not near:
                continue
            first, last = max(near, key=lambda span: span[1] - span[0])
            if last - first >= ENOUGH_SPEECH * pace * len(one.text):
                found[one.number] = (first, last)
        return found


def align_recording(
    model: SpeechModel, audio: Path, lines: Sequence[Line], tags: Sequence[str] = ()
) -> Aligned:
    """Align the lines of a text with a recording. Lines may be missing in the audio, and audio may
    be missing in the text, between lines. Raises DataError if the recording cannot be used.
    """
    seconds = audio_info(audio).seconds
    log_probs_SV = ctc_emissions(model, audio, tags)
    loud = loud_frames(
        audio_blocks(audio, model.recordings.settings.sample_rate),
        model.recordings.settings.sample_rate,
    )
    _silence(log_probs_SV, model, loud)
    ids = torch.tensor([number for line in lines for number in line.ids], dtype=torch.int64)
    starts = np.cumsum([0, *(len(line.ids) for line in lines)])
    breaks_G = torch.zeros(len(ids) + 1, dtype=torch.bool)
    breaks_G[torch.from_numpy(starts)] = True
    try:
        path = align(log_probs_SV, ids, penalties=PENALTIES, breaks_G=breaks_G)
    except ValueError as error:
        raise DataError(f"{audio} cannot be aligned: {error}") from None
    clock = _Clock(model, path, loud, seconds)
    utterances = tuple(clock.utterances(lines, starts.tolist()))
    return Aligned(audio, seconds, utterances, tuple(_untold(loud, utterances)))


def _untold(
    loud: NDArray[np.bool_], utterances: Sequence[Utterance]
) -> Iterator[tuple[float, float]]:
    """Where it is loud for a while and no line is read, in seconds."""
    rest = loud.copy()
    for one in utterances:
        if one.read:
            rest[max(0, round((one.start - MARGIN) / HOP)) : round((one.end + MARGIN) / HOP)] = (
                False
            )
    begin = 0
    for start, end in [*_pauses(rest, LONG_PAUSE), (len(rest), len(rest))]:
        if rest[begin:start].sum() * HOP >= UNTOLD:
            yield round(begin * HOP, 2), round(start * HOP, 2)
        begin = end


def _silence(log_probs_SV: Tensor, model: SpeechModel, loud: NDArray[np.bool_]) -> None:
    """Set tokens to improbable in long pauses: noise that was normalised to the level of speech may
    look like tokens.
    """
    step = model.network.front.seconds_of(1) - model.network.front.seconds_of(0)
    first = model.network.front.seconds_of(0)
    margin = round(MARGIN / HOP)
    for start, end in _pauses(loud, LONG_PAUSE):
        states = [((frame * HOP) - first) / step for frame in (start + margin, end - margin)]
        there = slice(max(0, math.ceil(states[0])), max(0, math.floor(states[1])))
        log_probs_SV[there] = NOTHING
        log_probs_SV[there, PAD] = 0.0


class _Clock:
    """Times of tokens, words and lines, in seconds."""

    def __init__(
        self, model: SpeechModel, path: Alignment, loud: NDArray[np.bool_], seconds: float
    ) -> None:
        self.path = path
        self.loud = loud
        self.seconds = seconds
        place = model.network.front.seconds_of
        self.first = [place(state) for state in path.first_U.tolist()]
        self.last = [place(state + 1) for state in path.last_U.tolist()]

    def utterances(self, lines: Sequence[Line], starts: list[int]) -> list[Utterance]:
        found: list[Utterance] = []
        sure = [self._confidence(x, a) for x, a in zip(lines, starts, strict=False)]
        tokens = [
            [u for u in range(a, a + len(x.ids)) if not self.path.deleted_U[u]]
            if confidence >= MIN_CONFIDENCE
            else []
            for x, a, confidence in zip(lines, starts, sure, strict=False)
        ]
        reached = 0.0
        for number, line in enumerate(lines):
            mine = tokens[number]
            if not mine:
                found.append(Utterance(number + 1, line.text, confidence=0.0))
                continue
            later = [some[0] for some in tokens[number + 1 :] if some]
            limit = self.first[later[0]] if later else self.seconds
            start = self._begin(self.first[mine[0]], reached)
            end = self._end(self.last[mine[-1]], limit)
            reached = end
            edges = self._edges(mine, start, end)
            offset = starts[number]
            words = tuple(
                Interval(edges[span[0]][0], edges[span[-1]][1], word)
                for word, first, stop in line.words
                if (span := [u for u in range(offset + first, offset + stop) if u in edges])
            )
            phones = tuple(
                Interval(*edges[u], line.phones[u - offset]) for u in mine if line.phones
            )
            found.append(Utterance(number + 1, line.text, start, end, sure[number], words, phones))
        return found

    def _confidence(self, line: Line, start: int) -> float:
        end = start + len(line.ids)
        found_U = ~self.path.deleted_U[start:end]
        tokens = self.path.confidence_U[start:end][found_U]
        # A line that is not read may be aligned with a long pause, where no token is probable.
        if not len(tokens) or tokens.clamp(min=1e-30).log().mean() < math.log(MIN_CONFIDENCE):
            return 0.0
        confidence = math.exp(self.path.segment_confidence(start, end))
        # For each word, the share of its tokens; an out-of-vocabulary word has none.
        shares = [float(found_U[first:stop].float().mean()) for _, first, stop in line.words]
        words = len(shares) + len(line.unknown)
        return confidence * sum(shares) / words if words else confidence

    def _begin(self, at: float, earliest: float) -> float:
        """The end of the last pause before a sound."""
        first = max(0, round(max(earliest, at - REACH) / HOP))
        here = min(round(at / HOP), len(self.loud))
        pauses = _pauses(self.loud[first:here])
        if pauses:
            return max(earliest, (first + pauses[-1][1]) * HOP)
        return max(earliest, at if first * HOP > earliest else (earliest + at) / 2)

    def _end(self, at: float, latest: float) -> float:
        """The beginning of the first pause after a sound."""
        here = round(at / HOP)
        last = round(min(latest, at + REACH) / HOP)
        pauses = _pauses(self.loud[here:last])
        if pauses:
            return min(latest, (here + pauses[0][0]) * HOP)
        return (at + latest) / 2 if latest <= at + REACH else at

    def _edges(self, mine: list[int], start: float, end: float) -> dict[int, tuple[float, float]]:
        """Start and end of each token: up to a pause, or half-way to the next token."""
        edges: dict[int, tuple[float, float]] = {}
        begin = start
        for u, after in zip(mine, [*mine[1:], None], strict=True):
            if after is None:
                edges[u] = (min(begin, end), end)
                break
            last, following = self.last[u], self.first[after]
            here = round(last / HOP)
            pauses = _pauses(self.loud[here : round(following / HOP)])
            if pauses:
                stop, begin_next = (here + pauses[0][0]) * HOP, (here + pauses[-1][1]) * HOP
            else:
                stop = begin_next = (last + following) / 2
            edges[u] = (begin, max(begin, stop))
            begin = max(begin, begin_next)
        return edges


def _pauses(loud: NDArray[np.bool_], seconds: float = PAUSE) -> list[tuple[int, int]]:
    """Quiet intervals of at least `seconds`; those at the ends may be shorter."""
    steps = np.diff(np.concatenate(([True], loud, [True])).astype(np.int8))
    runs = zip(np.flatnonzero(steps < 0).tolist(), np.flatnonzero(steps > 0).tolist(), strict=True)
    shortest = round(seconds / HOP)
    return [
        (start, end)
        for start, end in runs
        if end - start >= shortest or ((start == 0 or end == len(loud)) and end - start > 2)
    ]


# ----------------------------------------------------------------------------------------------
# Lines of a text as CTC tokens, and the words that these belong to.

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


# ----------------------------------------------------------------------------------------------
# CTC emissions of a recording of any length: log-probabilities, window by window.
#
# Windows overlap, and only the middle of each is kept, so that none is affected by its borders.
# An hour has 90,000 frames in memory, some megabytes for a dozen tokens; of the audio, some
# minutes are in memory.

CORE = 8.0  # seconds that are kept of a window, or less if the model was trained on shorter audio
CONTEXT = 1.0  # seconds before and after
AT_ONCE = 16  # windows in one batch


def ctc_emissions(model: SpeechModel, path: Path, tags: Sequence[str] = ()) -> Tensor:
    """log p [S, V] of every encoder frame of a recording, on the CPU. Raises ModelError for tags
    that the model has not."""
    context = model.context_of(Call(tuple(model.tags_of(tags))))
    front = model.network.front
    step = front.subsampling.factor * front.mel.hop
    core = max(1.0, min(CORE, model.recordings.longest - 2 * CONTEXT)) * front.rate
    core_states, context_states = int(core) // step, int(CONTEXT * front.rate) // step
    cut = _windows(audio_blocks(path, front.rate), core_states * step, context_states * step)
    found = []
    with inference(model):
        while some := list(islice(cut, AT_ONCE)):
            lengths_B = torch.tensor([len(wave) for wave, _, _ in some])
            source_BW = np.zeros((len(some), int(lengths_B.max())), np.int16)
            for row, (wave, _, _) in zip(source_BW, some, strict=True):
                row[: len(wave)] = wave
            samples_BW = torch.from_numpy(source_BW).to(model.device)
            memory = model.network.encode(samples_BW, lengths_B, **context.keywords)
            log_probs_BSV = model.network.ctc_log_probs(memory).cpu()
            there = memory.lengths_B.tolist()
            for (_, start, end), log_probs_SV, count in zip(
                some, log_probs_BSV, there, strict=True
            ):
                stop = count if end is None else end // step
                found.append(log_probs_SV[start // step : stop].clone())
    return torch.cat(found)


def _windows(
    blocks: Iterable[Samples], core: int, context: int
) -> Iterator[tuple[Wave, int, int | None]]:
    """Samples of each window, and the part that is kept; for the last, up to its end."""
    kept = np.empty(0, np.int16)
    before = 0
    for block in blocks:
        kept = np.concatenate((kept, to_int16(block)))
        while len(kept) > before + core + context:
            yield kept[: before + core + context], before, before + core
            kept, before = kept[before + core - context :], context
    yield kept, before, None
