"""Prompt comparison: the continuation of each prompt, and how prompts change the predictions.

Two prompts are compared by their distributions over the next token, when both are followed by the
same tokens: the Jensen-Shannon divergence (Lin 1991, https://doi.org/10.1109/18.61115) in bits,
from 0 for equal distributions to 1 for distributions without overlap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from transduce.decoding.output import perplexity
from transduce.errors import DataError, ModelError
from transduce.inspection.page import Markup, html_page, visible
from transduce.storage import make_folder, write_text
from transduce.tasks import LanguageModel
from transduce.tasks.language_model import Continuation
from transduce.tasks.transduce import load
from transduce.terminal import console as make_console
from transduce.terminal import plain

TOP = 8  # most probable tokens that are kept for every step

Likely = list[tuple[str, float]]


@dataclass(frozen=True)
class PromptContinuation:
    """The continuation that a model generated for a prompt."""

    prompt: str
    tokens: list[str]
    """Tokens as shown in tables: a space is ␣, a line break ↵."""
    texts: list[str]
    """The text that each token adds; joined they are the continuation."""
    log_probability: float

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def perplexity(self) -> float:
        return perplexity(self.log_probability, len(self.tokens))


@dataclass(frozen=True)
class ScoredContinuation:
    """The continuation of one prompt, scored after every prompt; K steps, P prompts."""

    tokens: list[str]
    probabilities_PK: NDArray[np.float64]
    """Log-probabilities of its tokens after each prompt."""
    divergence_KPP: NDArray[np.float64]
    """Jensen-Shannon divergence between each two prompts, in bits."""
    top: list[list[Likely]]
    """The most probable tokens, by prompt and step."""

    @property
    def mean_PP(self) -> NDArray[np.float64]:
        """The divergence of each two prompts, averaged over the steps."""
        prompts = len(self.probabilities_PK)
        if not self.tokens:
            return np.zeros((prompts, prompts))
        return np.asarray(self.divergence_KPP.mean(axis=0))


@dataclass(frozen=True)
class Comparison:
    """Prompts with their continuations, and each continuation scored after all prompts."""

    model: str
    how: str
    continuations: list[PromptContinuation]
    scored: list[ScoredContinuation]


def compare_folder(
    folder: Path, prompts: Sequence[str], device: str, precision: str, **settings: Any
) -> Comparison:
    """`compare` with the model in a folder. Raises ModelError if it is not a language model."""
    model = load(folder, device, precision, members=False)
    if not isinstance(model, LanguageModel):
        raise ModelError(
            f"{folder} is a model of the task {model.recipe.task}; prompts need a language model, "
            f"of the task language_modeling"
        )
    return compare(model, prompts, **settings)


def compare(model: LanguageModel, prompts: Sequence[str], **settings: Any) -> Comparison:
    """Continue each prompt as `run` does with these settings, and score each continuation after
    every prompt. Raises DataError if there is no prompt.
    """
    if not prompts:
        raise DataError("there is no prompt; write one in each line")
    outputs = model.run(prompts, **settings)
    ids = model.target_tokens.encode_batch(list(prompts))
    continuations = [
        PromptContinuation(
            prompt,
            _shown(model, output.ids),
            _texts(model, prompt_ids, output.ids),
            output.log_probability,
        )
        for prompt, prompt_ids, output in zip(prompts, ids, outputs, strict=True)
    ]
    scored = [score(model, ids, output.ids) for output in outputs]
    return Comparison(model.recipe.name, _how(model, settings), continuations, scored)


def score(model: LanguageModel, prompts: list[list[int]], tokens: list[int]) -> ScoredContinuation:
    """Score one continuation after every prompt."""
    log_probs_PKV = np.stack(
        model.distributions([Continuation(prompt, tokens) for prompt in prompts])
    )
    likely_PKV = np.argsort(-log_probs_PKV, axis=2, kind="stable")[:, :, :TOP]
    steps_K = np.arange(len(tokens))
    return ScoredContinuation(
        tokens=_shown(model, tokens),
        probabilities_PK=np.exp(log_probs_PKV[:, steps_K, tokens]),
        divergence_KPP=jensen_shannon(log_probs_PKV),
        top=[
            [
                list(
                    zip(
                        _shown(model, likely_V.tolist()),
                        np.exp(log_probs_V[likely_V]).tolist(),
                        strict=True,
                    )
                )
                for likely_V, log_probs_V in zip(likely_KV, log_probs_KV, strict=True)
            ]
            for likely_KV, log_probs_KV in zip(likely_PKV, log_probs_PKV, strict=True)
        ],
    )


def jensen_shannon(log_probs_PKV: NDArray[np.float64]) -> NDArray[np.float64]:
    """½ KL(p ‖ m) + ½ KL(q ‖ m) with m = ½ (p + q), in bits, of each two of P distributions at each
    of K steps: [K, P, P]."""
    prompts, steps, _ = log_probs_PKV.shape
    found_KPP = np.zeros((steps, prompts, prompts))
    for one in range(prompts):
        for other in range(one + 1, prompts):
            middle_KV = np.logaddexp(log_probs_PKV[one], log_probs_PKV[other]) - math.log(2)
            bits_K = 0.5 * sum(
                _kullback_leibler(log_probs_PKV[place], middle_KV) for place in (one, other)
            )
            found_KPP[:, one, other] = found_KPP[:, other, one] = np.clip(bits_K, 0.0, 1.0)
    return found_KPP


def _kullback_leibler(
    log_p_KV: NDArray[np.float64], log_q_KV: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Kullback-Leibler divergence Σ p log2(p / q); terms with p = 0 count nothing."""
    possible_KV = np.isfinite(log_p_KV)
    ratio_KV = np.where(possible_KV, log_p_KV, 0.0) - np.where(possible_KV, log_q_KV, 0.0)
    return np.asarray((np.exp(log_p_KV) * ratio_KV).sum(axis=1) / math.log(2))


def _shown(model: LanguageModel, ids: Sequence[int]) -> list[str]:
    return [visible(piece) for piece in model.target_tokens.pieces(ids)]


def _texts(model: LanguageModel, prompt: list[int], tokens: list[int]) -> list[str]:
    """The text that each token adds; an incomplete character adds nothing yet."""
    decode = model.target_tokens.decode
    before, last = decode(prompt), len(tokens)
    found = []
    for count in range(1, last + 1):
        after = decode([*prompt, *tokens[:count]])
        whole = count == last or not after.endswith("\ufffd")
        found.append(after[len(before) :] if whole else "")
        before = after if whole else before
    return found


def _how(model: LanguageModel, settings: dict[str, Any]) -> str:
    """The settings in a few words."""
    if not settings.get("sample"):
        beam = settings.get("beam") or model.recipe.decode.beam
        return "greedy" if beam == 1 else f"beam {beam}"
    usual = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": None}
    chosen = [
        f"{name.replace('_', '-')} {settings[name]:g}"
        for name, value in usual.items()
        if settings.get(name, value) != value
    ]
    return ", ".join(["drawn", *chosen])


# ----------------------------------------------------------------------------------------------
# Prompt comparison, shown: as tables on a terminal, and as a page.

SPACE = "␣"
BESIDE, COLUMN = 22, 18  # characters of the first columns, and of each prompt's


def print_comparison(comparison: Comparison) -> None:
    """Print the continuation of each prompt; then, for each step of the first one's continuation,
    the next tokens that each prompt predicts, and the divergence between prompts.
    """
    console = make_console(highlight=False)
    continuations, scored = comparison.continuations, comparison.scored[0]
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("", "prompt and continuation", "log-prob.", "perplexity"):
        table.add_column(column, justify="right" if "-" in column or "x" in column else "left")
    for number, one in enumerate(continuations, start=1):
        written = Text(plain(one.prompt), style="bold")
        written.append(plain(one.text), style="not bold")
        table.add_row(f"{number}", written, f"{one.log_probability:.2f}", f"{one.perplexity:.2f}")
    console.print(table)

    console.print("Each prompt with the continuation of prompt 1: the most probable next tokens")
    several = len(continuations) > 1
    fits = console.width >= BESIDE + COLUMN * len(continuations) + several * 5 * len(continuations)
    (_print_beside if fits else _print_below)(console, continuations, scored)
    if any(SPACE in token for token in scored.tokens):
        console.print(f"{SPACE} is a space.")
    if not several:
        return

    mean = Table(box=box.SIMPLE, pad_edge=False)
    mean.add_column("mean bits apart")
    for number in range(len(continuations)):
        mean.add_column(f"{number + 1}", justify="right")
    for number, (one, row) in enumerate(zip(continuations, scored.mean_PP, strict=True)):
        values = ["" if other == number else f"{bits:.3f}" for other, bits in enumerate(row)]
        mean.add_row(Text(f"{number + 1} {_short(one.prompt)}"), *values)
    console.print(mean)


def _print_beside(
    console: Console, continuations: Sequence[PromptContinuation], scored: ScoredContinuation
) -> None:
    """A row for each step, a column for each prompt."""
    steps = Table(box=box.SIMPLE, pad_edge=False)
    several = len(continuations) > 1
    bits = "bits 1–" + "/".join(str(number) for number in range(2, len(continuations) + 1))
    for column in ("step", "token", *([bits] if several else [])):
        steps.add_column(column, justify="left" if column == "token" else "right", no_wrap=True)
    for number, one in enumerate(continuations, start=1):
        steps.add_column(Text(f"{number} {_short(one.prompt)}"), no_wrap=True, overflow="ellipsis")
    width = console.width - 20 - several * max(len(bits), 5 * len(continuations) - 6)
    shown = max(
        1, min(3, width // (10 * len(continuations)))
    )  # tokens of each prompt that a line holds
    for step, token in enumerate(scored.tokens):
        apart = "/".join(f"{bits:.2f}" for bits in scored.divergence_KPP[step][0, 1:])
        likely = [_likely(of_one[step][:shown]) for of_one in scored.top]
        between = [apart] if several else []
        steps.add_row(f"{step + 1}", Text(plain(token)), *between, *map(Text, likely))
    console.print(steps)


def _print_below(
    console: Console, continuations: Sequence[PromptContinuation], scored: ScoredContinuation
) -> None:
    """A row for each prompt at each step, if the terminal is too narrow for columns."""
    steps = Table(box=box.SIMPLE, pad_edge=False)
    several = len(continuations) > 1
    names = [
        Text(f"{number} {_short(one.prompt, 18)}")
        for number, one in enumerate(continuations, start=1)
    ]
    first = min(12, max(cell_len(token) for token in [*scored.tokens, "token"]))
    widths = {"step": 4, "token": first, "prompt": max(name.cell_len for name in names)}
    widths |= {"bits": 4} if several else {}
    remaining = max(10, console.width - sum(widths.values()) - 3 * (len(widths) + 1))
    for name, width in [*widths.items(), ("most probable next tokens", remaining)]:
        right = name in ("step", "bits")
        steps.add_column(name, justify="right" if right else "left", width=width, no_wrap=True)
    for step, token in enumerate(scored.tokens):
        for number, (prompt, of_one) in enumerate(zip(names, scored.top, strict=True)):
            counted = [f"{step + 1}", Text(plain(token))] if number == 0 else ["", ""]
            apart = f"{scored.divergence_KPP[step][0, number]:.2f}" if number else ""
            counts = [n for n in (3, 2) if cell_len(_likely(of_one[step][:n])) <= remaining]
            steps.add_row(
                *counted,
                prompt,
                *([apart] if several else []),
                Text(_likely(of_one[step][: next(iter(counts), 1)])),
                end_section=number == len(continuations) - 1,
            )
    console.print(steps)
    if several:
        console.print("bits: Jensen-Shannon divergence from the predictions of prompt 1, 0 to 1")


def _likely(tokens: Likely) -> str:
    return plain("  ".join(f"{piece} {probability:.2f}" for piece, probability in tokens))


def _short(prompt: str, maximum: int = 24) -> str:
    """A prompt as the name of a column: its end differs from others more than its start."""
    shown = plain(prompt.replace("\n", "↵")) or "(nothing)"
    return shown if len(shown) <= maximum else f"…{shown[1 - maximum :]}"


# ------------------------------------------------------------------------------------- as a page


def write_prompts(comparison: Comparison, path: Path) -> None:
    """Write the comparison as an HTML page: the steps of every continuation."""
    continuations = [
        {
            "prompt": one.prompt,
            "tokens": one.tokens,
            "texts": one.texts,
            "log_probability": one.log_probability,
            "perplexity": one.perplexity,
            "probabilities": _rounded(scored.probabilities_PK.tolist()),
            "divergence": _rounded(scored.divergence_KPP.tolist()),
            "mean": _rounded(scored.mean_PP.tolist()),
            "top": _rounded(scored.top),
        }
        for one, scored in zip(comparison.continuations, comparison.scored, strict=True)
    ]
    data = {
        "model": comparison.model,
        "how": comparison.how,
        "continuations": continuations,
    }
    make_folder(path.parent)
    page = html_page(
        f"Prompts: {comparison.model}",
        Markup('<div id="prompts"></div>'),
        styles=("prompts.css",),
        scripts=("controls.js", "colors.js", "prompts.js"),
        data=data,
    )
    write_text(path, page)


def _rounded(values: Any) -> Any:
    """Numbers to four digits, in nested lists, to keep the page small."""
    if isinstance(values, float):
        return float(f"{values:.4g}")
    return [_rounded(value) for value in values] if isinstance(values, list | tuple) else values
