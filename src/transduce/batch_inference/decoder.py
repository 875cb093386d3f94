"""The model of a job with its settings, and one output or one reason for each source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transduce.batch_inference.job import Settings
from transduce.data.text.tags import unreadable_tag
from transduce.decoding.constraints.constraint import NEG_INF
from transduce.decoding.output import Output
from transduce.decoding.source_limit import TRUNCATED
from transduce.errors import ModelError
from transduce.hardware import pick_device
from transduce.interop.engine import open_model
from transduce.tasks import Model
from transduce.tasks.transduce import load_others


@dataclass(slots=True)
class Decoded:
    """What becomes of one source."""

    text: str = ""
    score: float | None = None
    nbest: list[dict[str, Any]] | None = None
    problem: str = ""
    """Why the output is empty."""
    warning: str = ""
    """What is unusual about an output that is there."""

    def values(self, names: Sequence[str]) -> list[Any]:
        """The values of the added columns."""
        known = {"score": self.score, "nbest": self.nbest}
        return [self.text, *(known[name] for name in names[1:])]


class Decoder:
    """A model and everything that `run` is given."""

    def __init__(self, model: Model, given: dict[str, Any]) -> None:
        self.model = model
        self.given = given

    @property
    def needs_source(self) -> bool:
        """Whether a blank source has an empty output; a language model continues it."""
        return bool(getattr(self.model, "needs_source", True))

    def problem_of(self, tags: Sequence[str]) -> str:
        """Why it cannot read the tags of a row; empty: it can."""
        return unreadable_tag(tags, self.model.source_tokens.tags)

    def check(self) -> None:
        """Raise an error for settings that the model does not have, before there is any work."""
        self.model.run([], **self.given)

    def decode(self, sources: Sequence[str]) -> list[Decoded]:
        """One result for each source; an error that only some sources cause costs only these.

        Raises the error where every single source causes it.
        """
        try:
            return [self._decoded(output) for output in self.model.run(sources, **self.given)]
        except Exception as error:
            if len(sources) == 1:
                return [Decoded(problem=_sentence(error))]
            found = [self._alone(source) for source in sources]
            if all(isinstance(one, Exception) for one in found):
                raise
            return [
                Decoded(problem=_sentence(one)) if isinstance(one, Exception) else one
                for one in found
            ]

    def _alone(self, source: str) -> Decoded | Exception:
        try:
            (output,) = self.model.run([source], **self.given)
        except Exception as error:
            return error
        return self._decoded(output)

    def _decoded(self, output: Output) -> Decoded:
        lost = output.failed or TRUNCATED in output.warning or output.score == NEG_INF
        if lost and output.warning:
            return Decoded(problem=output.warning.replace(f"; {TRUNCATED}", ""))
        nbest = [
            {"text": self.model.show(one), "score": _finite(one.score)}
            for one in output.alternatives or [output]
        ]
        text, score = self.model.show(output), _finite(output.score)
        return Decoded(text, score, nbest, warning=output.warning)


def open_decoder(model: Path, settings: Settings, device: str) -> Decoder:
    """Load the models of a job, and check its settings. Raises ModelError."""
    place = str(pick_device(device))
    main = open_model(model, None, device, settings.precision, members=settings.ensemble is None)
    main.freeze()
    folders = {name: getattr(settings, name) for name in ("ensemble", "rerank", "language_model")}
    named = {name: folder for name, folder in folders.items() if folder}
    given = load_others(settings.decode | named, place, settings.precision)
    if settings.tags:
        given["tags"] = settings.tags
    if main.engine:
        given |= {"scores": settings.scores or settings.decode.get("nbest", 1) > 1}
    decoder = Decoder(main, given)
    decoder.check()
    return decoder


def _finite(score: float) -> float | None:
    return score if math.isfinite(score) else None


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())[:500]
    if isinstance(error, ModelError):
        return text
    return f"the model failed on it ({type(error).__name__}: {text})"
