"""Join the transcripts of the segments of a long recording."""

from __future__ import annotations

import math
from dataclasses import replace

from transduce.decoding.output import Output, TimedWord
from transduce.decoding.speech.confidence import Calibration, geometric_mean
from transduce.tasks.audio_input import SegmentedRecording

LENGTH = "length_penalty"  # joined outputs have none: each segment is searched by itself
MAX_NAMED = 3  # segments listed in a warning


def with_times(output: Output, start: float, end: float) -> Output:
    """The output of a segment, with times from the start of the recording."""
    words = [
        replace(word, start=min(start + word.start, end), end=min(start + word.end, end))
        for word in output.words
    ]
    confidence = output.confidence
    if confidence is None:
        confidence = geometric_mean(output.log_probability, len(output.ids) + 1)
    if output.score == float("-inf"):  # nothing was found
        confidence = 0.0
    segments = [TimedWord(output.text, start, end, confidence)]
    return replace(output, words=words, segments=segments, confidence=confidence)


def join_segments(
    recording: SegmentedRecording, calibration: Calibration | None, times: bool
) -> Output:
    """The output of a recording: those of its segments, concatenated; times: with words."""
    if recording.error:
        return Output("", float("-inf"), warning=recording.error, failed=True)
    output = _join(recording.outputs)
    warnings = [*recording.remarks, *(one.warning for one in recording.outputs if one.warning)]
    if calibration is not None:
        warnings += [f"{recording.source}: {one}" for one in _low_confidence(output, calibration)]
    listed = ("segments", "words") if times else ("segments",)
    return replace(output, warning="; ".join(dict.fromkeys(warnings)), listed=listed)


def _join(outputs: list[Output]) -> Output:
    if len(outputs) == 1:
        return outputs[0]
    names = dict.fromkeys(name for output in outputs for name in output.parts)
    # Confidence is averaged over tokens: long segments count more.
    sizes = [len(output.ids) + 1 for output in outputs]
    logs = [_log(output.confidence or 0.0) * n for output, n in zip(outputs, sizes, strict=True)]
    return Output(
        text=" ".join(output.text for output in outputs if output.text),
        score=sum(output.score for output in outputs),
        tokens=[token for output in outputs for token in output.tokens],
        log_probability=sum(output.log_probability for output in outputs),
        probabilities=[value for output in outputs for value in output.probabilities],
        confidence=geometric_mean(sum(logs), sum(sizes)) if outputs else None,
        ids=[number for output in outputs for number in output.ids],
        parts={n: sum(o.parts.get(n, 0.0) for o in outputs) for n in names if n != LENGTH},
        segments=[one for output in outputs for one in output.segments],
        words=[word for output in outputs for word in output.words],
    )


def _log(confidence: float) -> float:
    return math.log(confidence) if confidence > 0 else -math.inf


def _low_confidence(output: Output, calibration: Calibration) -> list[str]:
    """Warnings for low confidence in the whole output, or in some of its segments."""
    if output.confidence is None:
        return []
    if whole := calibration.warning(output.confidence):
        return [whole]
    low = [one for one in output.segments if one.text and calibration.warning(one.confidence)]
    if not low:
        return []
    spans = [f"{one.start:.1f} to {one.end:.1f} s" for one in low[:MAX_NAMED]]
    more = f" and {len(low) - MAX_NAMED} more" if len(low) > MAX_NAMED else ""
    return [
        f"low confidence in {len(low)} of {len(output.segments)} segments "
        f"({', '.join(spans)}{more}); this audio differs from the training data"
    ]
