"""espeak-ng through its C library: speech synthesis and phonemes (grapheme-to-phoneme), word by
word.

The library keeps random numbers and phases from one call to the next: output is reproducible only
for the same calls in the same order, in a process of their own.
"""

from __future__ import annotations

import ctypes
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import groupby
from typing import Any

import numpy as np

from transduce.data.audio.recording import Samples
from transduce.errors import DataError

# Constants of speak_lib.h.
RETRIEVAL = 1  # samples are passed to a callback
PHONE_EVENTS = 1
IPA = 2
STAY_ALIVE = 0x8000  # errors are returned, and do not end the process
UTF8 = 1
SPEED, PITCH = 1, 3
WORD, PHONE = 1, 7
BETWEEN = "_"  # separator of the phones of a word that is not synthesised

USUAL_SPEED = 175  # words a minute
USUAL_PITCH = 50
FULL_SCALE = 32768
SEED = 1

# Stress is removed, and marks by which espeak distinguishes what IPA writes alike. Length marks
# stay, and affricates and diphthongs stay whole: espeak treats them as one phone.
_MARKS = re.compile("[ˈˌ\\-\"'0-9|_]")
_SWITCH = re.compile(r"\(.*")  # such as (en): the rest is read as another language


@dataclass(frozen=True, slots=True)
class Phone:
    """A phone in IPA; the index of its word in the text; and its duration in seconds."""

    symbol: str
    word: int
    start: float
    end: float


@dataclass(frozen=True)
class Reading:
    """A text as it was read; its words are what white space separates."""

    samples: Samples
    rate: int
    phones: tuple[Phone, ...]
    foreign: bool = False
    """Whether part of it was read as another language: characters that the voice does not have."""

    @property
    def symbols(self) -> str:
        return " ".join(phone.symbol for phone in self.phones)


class _Name(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Name),
    )


class _Voice(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("languages", ctypes.c_void_p),
        ("identifier", ctypes.c_char_p),
        ("gender", ctypes.c_ubyte),
        ("age", ctypes.c_ubyte),
        ("variant", ctypes.c_ubyte),
        ("padding", ctypes.c_ubyte),
        ("score", ctypes.c_int),
        ("spare", ctypes.c_void_p),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


@cache
def espeak() -> Espeak:
    """The espeak engine of this process, made once. Raises DataError if it is not available."""
    return Espeak()


class Espeak:
    """The library and its voices; one instance for each process: `espeak()`."""

    def __init__(self) -> None:
        try:
            loader: Any = import_module("espeakng_loader")
            self._library = ctypes.CDLL(str(loader.get_library_path()))
            data = str(loader.get_data_path())
        except (ImportError, OSError) as error:
            raise DataError(
                f"speech is made by espeak, whose package espeakng-loader cannot be loaded here "
                f"({error}): pip install '.[speech]'"
            ) from None
        options = PHONE_EVENTS | IPA | STAY_ALIVE
        self.rate = int(self._library.espeak_Initialize(RETRIEVAL, 0, data.encode(), options))
        if self.rate <= 0:
            raise DataError(f"espeak cannot use its data in {data}: install espeakng-loader again")
        self._library.espeak_Info.restype = ctypes.c_char_p
        self._library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        self._library.espeak_ListVoices.restype = ctypes.POINTER(ctypes.POINTER(_Voice))
        self._samples: list[Samples] = []
        self._events: list[tuple[int, int, int, str]] = []
        # must be kept alive as long as the library may call it
        self._callback = _Callback(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)
        self.voices = self._list_voices()

    @property
    def version(self) -> str:
        return str(self._library.espeak_Info(None).decode())

    def voice_of(self, tag: str) -> str | None:
        """The voice of a language (BCP 47), such as en or de-1996; None if there is none."""
        parts = tag.lower().split("-")
        while parts and "-".join(parts) not in self.voices:
            parts.pop()
        return self.voices["-".join(parts)] if parts else None

    def read(
        self,
        text: str,
        voice: str,
        variant: str = "",
        speed: float = USUAL_SPEED,
        pitch: float = USUAL_PITCH,
    ) -> Reading:
        """A text in the voice of `voice_of`, or a variant of it (m3, f2, Andy)."""
        name = f"{voice}+{variant}" if variant else voice
        library = self._library
        if library.espeak_SetVoiceByName(name.encode()) != 0:
            raise DataError(f"espeak has no voice {name}; see its list of languages")
        library.espeak_SetParameter(SPEED, round(speed), 0)
        library.espeak_SetParameter(PITCH, round(pitch), 0)
        library.espeak_ng_SetRandSeed(ctypes.c_long(SEED))  # otherwise it is seeded by the clock
        self._samples, self._events = [], []
        spoken = " ".join(text.split())
        encoded = spoken.encode("utf-8").replace(b"\0", b"")
        trouble = library.espeak_Synth(encoded, len(encoded) + 1, 0, 0, 0, UTF8, None, None)
        if trouble != 0 or library.espeak_Synchronize() != 0:
            raise DataError(f"espeak could not read {spoken[:60]!r} aloud")
        samples = np.concatenate([np.empty(0, np.float32), *self._samples])
        foreign = any(_SWITCH.search(name) for *_, name in self._events)
        return Reading(samples, self.rate, self._phones(spoken), foreign)

    def _phones(self, text: str) -> tuple[Phone, ...]:
        """The phones of the last text, each with its word."""
        starts = [match.start() for match in re.finditer(r"\S+", text)]
        found: list[Phone] = []
        events = [event for event in self._events if event[0] == PHONE]
        ends = [event[2] for event in events[1:]] + [sum(map(len, self._samples))]
        for (_, place, sample, name), end in zip(events, ends, strict=True):
            symbol = _MARKS.sub("", _SWITCH.sub("", name))
            if symbol:  # else it is a pause
                word = max(0, bisect_right(starts, max(0, place - 1)) - 1)
                found.append(Phone(symbol, word, sample / self.rate, end / self.rate))
        return tuple(self._with_words(found, text.split()))

    def _with_words(self, phones: list[Phone], words: list[str]) -> Iterator[Phone]:
        """Distribute the phones of a group that is spoken as one ("was the") among its words."""
        groups = [(word, list(some)) for word, some in groupby(phones, key=lambda p: p.word)]
        ends = [*(word for word, _ in groups[1:]), len(words)]
        for (first, group), end in zip(groups, ends, strict=False):
            members = words[first:end]
            owners = [0] * len(group)
            if len(members) > 1:
                alone = [self._pronounced(word) for word in members]
                owners = assign_to_words([phone.symbol for phone in group], alone)
            for phone, owner in zip(group, owners, strict=True):
                yield replace(phone, word=first + owner)

    def _pronounced(self, word: str) -> list[str]:
        """The phones of a word by itself in the current voice; nothing is synthesised."""
        buffer = ctypes.create_string_buffer(word.encode("utf-8").replace(b"\0", b""))
        place = ctypes.c_void_p(ctypes.addressof(buffer))
        names = []
        while place.value:  # it reads clause by clause
            mode = IPA | ord(BETWEEN) << 8
            clause = self._library.espeak_TextToPhonemes(ctypes.byref(place), UTF8, mode)
            names += re.split(rf"[{BETWEEN}\s]", (clause or b"").decode("utf-8", "ignore"))
        symbols = [_MARKS.sub("", _SWITCH.sub("", name)) for name in names]
        return [symbol for symbol in symbols if symbol]

    def _receive(self, wave: Any, count: int, events: Any) -> int:
        if wave and count:
            block = np.ctypeslib.as_array(wave, (count,))
            self._samples.append(block.astype(np.float32) / np.float32(FULL_SCALE))
        number = 0
        while events[number].type:
            event = events[number]
            name = event.id.string.decode("utf-8", "ignore") if event.type == PHONE else ""
            self._events.append((event.type, event.text_position, event.sample, name))
            number += 1
        return 0

    def _list_voices(self) -> Mapping[str, str]:
        """The best voice of each language tag; several tags may have the same."""
        found: dict[str, tuple[int, str]] = {}
        listed = self._library.espeak_ListVoices(None)
        number = 0
        while listed[number]:
            voice = listed[number].contents
            for priority, tag in _tags(voice.languages):
                if tag not in found or priority < found[tag][0]:
                    found[tag] = (priority, voice.identifier.decode())
            number += 1
        return {tag: voice for tag, (_, voice) in sorted(found.items())}


def _tags(address: int) -> list[tuple[int, str]]:
    """A priority byte and a text, repeatedly until a zero byte."""
    found = []
    while priority := ctypes.string_at(address, 1)[0]:
        tag = ctypes.string_at(address + 1)
        found.append((priority, tag.decode("utf-8", "ignore").lower()))
        address += len(tag) + 2
    return found


# -------------------------------------------------------------------- words that are spoken as one


VOWELS = frozenset("aeiouyɑɐɒæəɘɵɞɛɜɝɚɨɪɔœøɶʉʊʌɯɤ")
# cost of substituting a vowel by a vowel, as in "the" before a vowel, or a consonant by a consonant
SAME_KIND = 0.6
GAP = 1.0


def assign_to_words(spoken: Sequence[str], words: Sequence[Sequence[str]]) -> list[int]:
    """The index of the word of each spoken phone, from 0.

    `words` are the phones of each word by itself. Words without phones get none; each of the others
    gets at least one, as long as there are enough.
    """
    sounding = [number for number, phones in enumerate(words) if phones]
    if not sounding or not spoken:
        return [0] * len(spoken)
    minimum = 1 if len(spoken) >= len(sounding) else 0
    count = len(spoken)
    # best[e]: the cost of the words so far with spoken[:e], and where each of them begins.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for number in sounding:
        following: dict[int, tuple[float, tuple[int, ...]]] = {}
        for start, (cost, starts) in best.items():
            distances = _distances(words[number], spoken[start:])
            for size in range(minimum, count - start + 1):
                total = cost + distances[size]
                if start + size not in following or total < following[start + size][0]:
                    following[start + size] = (total, (*starts, start))
        best = following
    _, starts = best[count]
    owners = [sounding[0]] * count
    for number, start in zip(sounding, starts, strict=True):
        owners[start:] = [number] * (count - start)
    return owners


def _distances(word: Sequence[str], spoken: Sequence[str]) -> list[float]:
    """The edit distance of a word's phones to spoken[:0], spoken[:1], … spoken[:n]."""
    row = [GAP * size for size in range(len(spoken) + 1)]
    for phone in word:
        above, row = row, [row[0] + GAP]
        for place, other in enumerate(spoken):
            row.append(
                min(above[place] + _exchange(phone, other), above[place + 1] + GAP, row[-1] + GAP)
            )
    return row


def _exchange(one: str, other: str) -> float:
    if one == other:
        return 0.0
    return SAME_KIND if _is_vowel(one) == _is_vowel(other) else 2 * GAP


def _is_vowel(phone: str) -> bool:
    return bool(phone) and phone[0] in VOWELS
