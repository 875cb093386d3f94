"""What was heard in the pieces of a recording, put together."""

from __future__ import annotations

import math
from dataclasses import replace

from transduce.decoding.output import Output, TimedWord
from transduce.decoding.speech.confidence import Calibration, geometric_mean
from transduce.tasks.audio_input import CutRecording

LENGTH = "length_penalty"  # of a whole there is none: its pieces are found one by one
MOST_NAMED = 3  # stretches in a warning


def placed(output: Output, start: float, end: float) -> Output:
    """The output of a piece, with times that count from the recording's beginning."""
    words = [
        replace(word, start=min(start + word.start, end), end=min(start + word.end, end))
        for word in output.words
    ]
    sure = output.confidence
    if sure is None:
        sure = geometric_mean(output.log_probability, len(output.ids) + 1)
    if output.score == float("-inf"):  # nothing was found
        sure = 0.0
    stretches = [TimedWord(output.text, start, end, sure)]
    return replace(output, words=words, stretches=stretches, confidence=sure)


def joined(recording: CutRecording, calibration: Calibration | None) -> Output:
    """What is said in all pieces, one after the other."""
    if recording.trouble:
        return Output("", float("-inf"), warning=recording.trouble, failed=True)
    output = _joined(recording.outputs)
    told = [*recording.remarks, *(one.warning for one in recording.outputs if one.warning)]
    if calibration is not None:
        told += [f"{recording.source}: {one}" for one in _unsure(output, calibration)]
    return replace(output, warning="; ".join(dict.fromkeys(told)))


def _joined(outputs: list[Output]) -> Output:
    if len(outputs) == 1:
        return outputs[0]
    names = dict.fromkeys(name for output in outputs for name in output.parts)
    # A sure stretch of many tokens outweighs an unsure one of few.
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
        stretches=[one for output in outputs for one in output.stretches],
        words=[word for output in outputs for word in output.words],
    )


def _log(confidence: float) -> float:
    return math.log(confidence) if confidence > 0 else -math.inf


def _unsure(output: Output, calibration: Calibration) -> list[str]:
    """What to say where the model is unsure of all of it, or of some of its stretches."""
    if output.confidence is None:
        return []
    if whole := calibration.warning(output.confidence):
        return [whole]
    low = [one for one in output.stretches if one.text and calibration.warning(one.confidence)]
    if not low:
        return []
    spans = [f"{one.start:.1f} to {one.end:.1f} s" for one in low[:MOST_NAMED]]
    more = f" and {len(low) - MOST_NAMED} more" if len(low) > MOST_NAMED else ""
    return [
        f"the model is unsure of {len(low)} of {len(output.stretches)} stretches "
        f"({', '.join(spans)}{more}): they do not sound like what the model learnt"
    ]
