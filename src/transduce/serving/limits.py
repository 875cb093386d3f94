"""Limits of the service: each size, count, length and time that a client controls, declared once.

A limit is a field with its default, its command-line option and its help: `transduce serve` has an
option for each, and the table of docs/guides/serving.md is made from them. A request above one is
refused before anything is done for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from transduce.serving.errors import TooLarge

Number = TypeVar("Number", int, float)
MEBIBYTE = 1 << 20


def _limit(default: Number, option: str, help: str, minimum: float = 0) -> Number:
    """A limit with an option of the command line; `minimum`: the smallest sensible value."""
    found: Number = field(
        default=default, metadata={"option": option, "help": help, "minimum": minimum}
    )
    return found


@dataclass(frozen=True)
class Limits:
    """Work is counted in source tokens times hypotheses, in whole numbers, as estimated before
    tokenization."""

    # ------------------------------------------------------------------------ a request
    body_bytes: int = _limit(8 * MEBIBYTE, "--max-body", "Bytes of a JSON or form body.", 1)
    keyless_bytes: int = _limit(
        MEBIBYTE,
        "--max-keyless-body",
        "Bytes of a body that are read to find its API key, where the headers have none.",
        1,
    )
    upload_bytes: int = _limit(1 << 30, "--max-upload", "Bytes of a body with files.", 1)
    head_bytes: int = _limit(1 << 16, "--max-head", "Bytes of the head of a request.", 1000)
    parts: int = _limit(2000, "--max-parts", "Fields and files of a form.", 1)
    field_bytes: int = _limit(
        MEBIBYTE, "--max-field-bytes", "Bytes of all fields of a form with files.", 1
    )
    document_bytes: int = _limit(
        8 * MEBIBYTE, "--max-document", "Bytes of a file to be translated.", 1
    )
    document_entries: int = _limit(
        2000, "--max-document-entries", "Files inside an office document (.docx, .odt).", 1
    )
    unpacked_bytes: int = _limit(
        64 * MEBIBYTE, "--max-unpacked", "Bytes of an office document when it is unpacked.", 1
    )
    converted_bytes: int = _limit(
        2 << 30, "--max-converted", "Bytes of a recording that ffmpeg has converted to WAV.", 1
    )
    json_depth: int = _limit(64, "--max-json-depth", "Nesting of JSON.", 1)
    texts: int = _limit(1000, "--max-texts", "Texts or recordings of a request.", 1)
    characters: int = _limit(
        20_000, "--max-characters", "Characters of one text, a prefix or a phrase.", 1
    )
    inspected_characters: int = _limit(
        2000, "--max-look-characters", "Characters of a text that is looked into (/api/look).", 1
    )
    audio_seconds: float = _limit(2 * 3600.0, "--max-audio-seconds", "Seconds of one recording.", 1)
    outputs: int = _limit(
        5000, "--max-outputs", "Outputs of a request: texts or prompts, times n or nbest.", 1
    )
    beam: int = _limit(100, "--max-beam", "Beam size, and groups of diverse beam search.", 1)
    nbest: int = _limit(100, "--max-nbest", "Outputs for one text: nbest, or n of OpenAI.", 1)
    samples: int = _limit(
        128, "--max-samples", "Samples for minimum Bayes risk decoding of one text.", 2
    )
    length: int = _limit(
        2000, "--max-length", "What min_length, max_length and max_tokens may be, in tokens.", 1
    )
    phrases: int = _limit(
        1000,
        "--max-phrases",
        "Phrases that one output must or may not have; its hotwords; texts of only.",
    )
    included_characters: int = _limit(
        200, "--max-included", "Characters of all phrases that one output must have."
    )
    glossary_entries: int = _limit(
        10_000, "--max-glossary-entries", "Terms of a glossary, of all its language pairs.", 1
    )
    combined: int = _limit(16, "--max-models", "Models that one request combines.", 1)
    stops: int = _limit(4, "--max-stops", "Stop sequences.", 0)
    stop_characters: int = _limit(
        1000, "--max-stop-characters", "Characters of a stop sequence.", 1
    )
    alternatives: int = _limit(
        50, "--max-alternatives", "Alternatives of each token of a stream.", 0
    )

    alternative_translations: int = _limit(
        10, "--max-alternative-translations", "Alternatives of a translation (LibreTranslate)."
    )

    # ------------------------------------------------------------------------------ time
    queue_seconds: float = _limit(
        30.0,
        "--max-wait",
        "Seconds until a request is done, at the speed measured so far; one that would take longer "
        "is refused.",
    )
    seconds: float = _limit(
        120.0, "--max-seconds", "Seconds of one request, from its arrival to its answer.", 0.01
    )
    idle_seconds: float = _limit(
        20.0,
        "--max-idle",
        "Seconds in which a client must send the head of a request, or the next part of its body, "
        "or read the next part of its answer.",
        0.01,
    )
    keep_alive_seconds: int = _limit(
        30, "--max-keep-alive", "Seconds for which a connection without a request stays open.", 1
    )
    bytes_a_second: int = _limit(
        1000, "--min-rate", "Bytes a second that a body must arrive with, on average.", 0
    )

    # ------------------------------------------------------------------ all requests together
    connections: int = _limit(
        1000, "--max-connections", "Requests that are open at the same time.", 1
    )
    memory_bytes: int = _limit(
        256 * MEBIBYTE, "--max-memory", "Bytes of bodies in memory, over all requests.", 1
    )
    disk_bytes: int = _limit(
        8 << 30,
        "--max-disk",
        "Bytes of uploaded files, and of what ffmpeg made of them, over all requests; and of live "
        "audio that waits, over all connections.",
        1,
    )
    results_bytes: int = _limit(
        1 << 30, "--max-results", "Bytes of translated files that wait for their download.", 1
    )
    results_seconds: float = _limit(
        30 * 60.0, "--max-results-seconds", "Seconds for which a translated file is kept.", 0.01
    )

    glossaries: int = _limit(
        1000, "--max-glossaries", "Glossaries that are kept for one API key (DeepL)."
    )
    glossary_characters: int = _limit(
        20_000_000,
        "--max-glossary-characters",
        "Characters of all glossaries that are kept (DeepL).",
    )

    # ----------------------------------------------------------------------- live speech
    live_sessions: int = _limit(
        200, "--live-sessions", "Live sessions that are open at the same time, at most."
    )
    live_load: float = _limit(
        0.9,
        "--max-live-load",
        "Share of its time that live recognition may be busy, as measured; sessions that would "
        "need more are refused. 0: only --live-sessions counts.",
    )
    live_seconds: float = _limit(
        4 * 3600.0, "--max-live-seconds", "Seconds of a live connection.", 0.01
    )
    live_idle_seconds: float = _limit(
        60.0,
        "--max-live-idle",
        "Seconds in which the client of a live connection must send something.",
        0.01,
    )
    live_backlog: float = _limit(
        10.0,
        "--max-live-backlog",
        "Seconds of audio of a live session that wait in memory; what is above them waits on disk.",
        0.01,
    )
    live_message_bytes: int = _limit(
        4 * MEBIBYTE, "--max-live-message", "Bytes of one message of a live connection.", 1
    )

    live_ahead_bytes: int = _limit(
        1 << 30,
        "--max-live-ahead",
        "Bytes that a live connection may send ahead of recognition, kept on disk; above, no more "
        "is read from its client.",
        1,
    )
    live_chunk_ms: float = _limit(
        60_000.0, "--max-live-chunk", "Milliseconds of a chunk that a live session may ask for.", 1
    )
    live_unread: int = _limit(
        200,
        "--max-live-unread",
        "Transcripts that may wait for a client that does not read them; above, no more of its "
        "audio is recognised.",
        1,
    )

    # --------------------------------------------------- how work is cut: no client decides it
    queue_tokens: int = 200_000
    """Work that may wait as long as the speed is not known yet."""
    batch_tokens: int = 4096
    """Work of one batch on a CPU."""
    batch_seconds: float = 0.5
    """Time of one batch on a CPU, at the speed measured so far. All outputs of a batch come at its
    end, so a request also waits for those that came after it into the same batch."""
    batch_tokens_on_gpu: int = 1 << 16

    @property
    def longest_batch(self) -> float:
        """batch_seconds, or less where little time may pass in the queue."""
        return min(self.batch_seconds, self.queue_seconds / 4)

    def check(self, name: str, value: float, what: str) -> None:
        """Raise TooLarge where a value is above the limit of a name; `what` has the value, as in
        "the request has 2,000 inputs"."""
        maximum = getattr(self, name)
        if value > maximum:
            raise TooLarge(f"{what}; the maximum is {shown(maximum)}")


def shown(value: float) -> str:
    """A number for people: 20,000; 0.5."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


@dataclass(frozen=True)
class Option:
    """A limit as an option of the command line."""

    name: str
    """Of the field."""
    flag: str
    help: str
    default: int | float
    minimum: float


def options() -> list[Option]:
    """The options of all limits that have one, in order."""
    found: list[Option] = []
    for one in fields(Limits):
        about: Any = one.metadata
        if "option" in about:
            assert isinstance(one.default, int | float)
            found.append(
                Option(one.name, about["option"], about["help"], one.default, about["minimum"])
            )
    return found
