"""Attribution for models: which words of a source, and of what is written already, an output hangs
on, token by token.

A value is the log-probability of a token; with a contrast, the difference to that of another token:
why this and not that (Yin and Neubig 2022, https://arxiv.org/abs/2202.10419). It is attributed to
the embeddings, summed over their width; positions are the same in the baseline.

Beware of zero as the baseline: a norm gives a vector and a hundredth of it the same direction, so
that all that happens on the way happens next to zero, where no sum over steps sees it. Hence
unknown words, unless asked otherwise; `gap` tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.errors import ModelError
from transduce.inspection.analysis.attribution import (
    STEPS,
    erasure,
    gradient_norm,
    gradient_x_input,
    integrated_gradients,
)
from transduce.inspection.analysis.subject import Subject, subject_of
from transduce.inspection.drawings import heat_map
from transduce.inspection.page import document, framed, section, visible
from transduce.tasks.model import Model

Method = Literal["integrated_gradients", "gradient_x_input", "gradient_norm", "erasure"]
METHODS = ("integrated_gradients", "gradient_x_input", "gradient_norm", "erasure")
PLACES = 8192  # positions of all rows of a pass

Contrast = bool | str
Baseline = Literal["zero", "mean", "unknown"]
BASELINES = ("zero", "mean", "unknown")


@dataclass(frozen=True)
class Attribution:
    """How much each input token has to do with each output token."""

    method: str
    source_tokens: list[str]
    target_tokens: list[str]
    """What is explained: of a text every token, END included; of a classifier the label."""
    prefix_tokens: list[str]
    """What the decoder had read; at step t the first t + 1 of these (of a language model, those
    before the token)."""
    source: NDArray[np.float64] | None
    """[target tokens, source tokens]; None where nothing but a prefix is read."""
    prefix: NDArray[np.float64] | None
    """[target tokens, prefix tokens]; None without a decoder."""
    values: NDArray[np.float64]
    """[target tokens]: the log-probabilities that are explained, less those of the contrast."""
    foils: list[str]
    """The tokens they are contrasted with; empty without a contrast."""
    gap: NDArray[np.float64] | None
    """[target tokens]: of integrated gradients, by how much they fail to add up to the difference
    between the value and that of the baseline. Where it is large, take more steps."""
    times: list[float]
    """Of audio: the second at which each position of the source begins."""

    def _repr_html_(self) -> str:
        source_names = self.source_tokens or [f"{second:.2f}" for second in self.times]
        maps = []
        sides = (("source", self.source, source_names), ("prefix", self.prefix, self.prefix_tokens))
        for side, values_TS, columns in sides:
            if values_TS is None or not values_TS.size:
                continue
            largest = float(np.abs(values_TS).max()) or 1.0
            rows = [visible(token) for token in self.target_tokens]
            names = [visible(name) for name in columns]
            caption = f"to the {side}; the strongest is {largest:.3f}"
            maps.append(heat_map(values_TS / largest, rows, names, caption))
        lead = (
            "How much each column raises the log-probability of the row's token; green: lowers it."
        )
        title = f"Attribution by {self.method.replace('_', ' ')}"
        return framed(document(title, lead, [section("", *maps)]))


def attribute(
    model: Model,
    source: Any,
    target: str | None = None,
    *,
    method: Method = "integrated_gradients",
    contrast: Contrast = False,
    baseline: Baseline = "unknown",
    steps: int = STEPS,
    **settings: Any,
) -> Attribution:
    """Which inputs an output depends on.

    target: the text that is explained, or the label; without one, what the model itself gives, for
    which there may be settings of `run`. Of a language model, source is the prompt. contrast: True
    for the likeliest other token at each step, or a token. baseline: what inputs are compared with:
    unknown words between the same BEGIN and END; the mean of all embeddings; zero. Of audio it is
    always a sound of average features. steps: of integrated gradients. Raises ModelError where the
    model cannot tell.
    """
    if method not in METHODS:
        raise ModelError(f"method is {method}; it must be one of {', '.join(METHODS)}")
    if model.engine:
        raise ModelError(f"{model.engine.name} has no gradients: leave out the engine")
    if baseline not in BASELINES:
        raise ModelError(f"baseline is {baseline}; it must be one of {', '.join(BASELINES)}")
    with _fit_for_gradients():
        subject = subject_of(model, source, target, baseline, settings)
        foils = _foils(subject, contrast)
        parts = [
            _rows(subject, rows, foils, method, steps)
            for rows in torch.split(torch.arange(len(subject.wanted)), _rows_at_once(subject))
        ]
    found, values, gaps = zip(*parts, strict=True)
    by_input = dict(
        zip(subject.names, (np.concatenate(one) for one in zip(*found, strict=True)), strict=True)
    )
    return Attribution(
        method=method,
        source_tokens=subject.source_tokens,
        target_tokens=subject.target_tokens,
        prefix_tokens=subject.prefix_tokens,
        source=by_input.get("source"),
        prefix=by_input.get("prefix"),
        values=np.concatenate(values),
        foils=[] if foils is None else [subject.piece(foil) for foil in foils],
        gap=np.concatenate(gaps) if method == "integrated_gradients" else None,
        times=subject.times,
    )


def _rows(
    subject: Subject, rows: Tensor, foils: list[int] | None, method: Method, steps: int
) -> tuple[list[NDArray[np.float64]], NDArray[np.float64], NDArray[np.float64]]:
    """Attributions [rows, positions] of each input, the values and the gaps of some of the steps.

    Each row is the whole input once more, and has the value of one step.
    """
    wanted_N = torch.tensor([subject.wanted[row] for row in rows.tolist()])
    foil_N = None if foils is None else torch.tensor([foils[row] for row in rows.tolist()])

    def function(inputs: Sequence[Tensor]) -> Tensor:
        features_NTD = subject.features(inputs)
        at_N = torch.arange(len(rows))
        steps_N = (rows + subject.first).to(features_NTD.device)
        logits_NV = subject.head(features_NTD[at_N, steps_N])
        exact = torch.promote_types(logits_NV.dtype, torch.float32)
        log_probs_NV = torch.log_softmax(logits_NV.to(exact), dim=-1)
        values_N = log_probs_NV[at_N, wanted_N]
        return values_N if foil_N is None else values_N - log_probs_NV[at_N, foil_N]

    inputs, bases = (
        [one.expand(len(rows), *one.shape[1:]).contiguous() for one in some]
        for some in (subject.inputs, subject.baselines)
    )
    gap_N = torch.zeros(len(rows))
    if method == "integrated_gradients":
        integrated = integrated_gradients(function, inputs, bases, steps)
        found = [one.sum(dim=-1) for one in integrated.attributions]
        values_N, gap_N = integrated.values_N, integrated.gap_N
    else:
        with torch.no_grad():
            values_N = function(inputs)
        if method == "gradient_x_input":
            found = [one.sum(dim=-1) for one in gradient_x_input(function, inputs, bases)]
        elif method == "gradient_norm":
            found = gradient_norm(function, inputs)
        else:
            found = erasure(function, inputs, bases)
    return [_numbers(one) for one in found], _numbers(values_N), _numbers(gap_N)


def _foils(subject: Subject, contrast: Contrast) -> list[int] | None:
    """What each wanted token is contrasted with."""
    if contrast is False:
        return None
    if isinstance(contrast, str):
        return [subject.number(contrast)] * len(subject.wanted)
    with torch.no_grad():
        features_1TD = subject.features(subject.inputs)
        logits_TV = subject.head(features_1TD[0, subject.first :]).clone()
    logits_TV[torch.arange(len(subject.wanted)), torch.tensor(subject.wanted)] = -torch.inf
    best: list[int] = logits_TV.argmax(dim=-1).tolist()
    return best


def _rows_at_once(subject: Subject) -> int:
    return max(1, PLACES // max(1, sum(one.shape[1] for one in subject.inputs)))


def _numbers(x: Tensor) -> NDArray[np.float64]:
    return np.asarray(x.detach().double().cpu().numpy())


@contextmanager
def _fit_for_gradients() -> Iterator[None]:
    """With the kernels of recurrent networks that know gradients without dropout."""
    with (
        torch.inference_mode(False),
        torch.backends.cudnn.flags(enabled=not torch.cuda.is_available()),
    ):
        yield
