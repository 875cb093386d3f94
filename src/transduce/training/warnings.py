"""Training warnings: what went wrong, with update, file and line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transduce.data.batches.batch import Batch
from transduce.data.batches.streaming_dataset import STREAMED
from transduce.data.text.pairs import corpus_name
from transduce.decoding.speech.timing import MIN_DIAGONALITY
from transduce.errors import DivergedError
from transduce.recipe import Corpus, Recipe, Train
from transduce.training.nan_guard import NanGuard
from transduce.training.run_directory.checkpoint import STATE, TrainingState

SHOWN_LINES = 10
MANY_WARNINGS = 10.0  # percent of the recordings of a validation


def changes(settings: Train, corpus: tuple[str, str], teacher: tuple[str, str]) -> list[str]:
    """What has changed since a run was stopped. corpus, teacher: before and now; empty: unknown."""
    found = []
    if not corpus[0] and corpus[1].endswith(STREAMED):
        found.append(
            "warning: this run was begun by a version that read streams in another order: it goes "
            "on at the same place of the epoch in the order of this version, so that some pairs of "
            "this epoch come twice and some not at all."
        )
    if corpus[0] not in (corpus[1], ""):
        found.append(
            f"warning: the training corpus had {corpus[0]} when this run was stopped and has "
            f"{corpus[1]} now: the resumed run will differ."
        )
    if teacher[0] not in (teacher[1], "") and settings.teacher is not None:
        found.append(
            f"warning: the weights of the teacher {', '.join(settings.teacher.models)} have "
            f"changed since this run was stopped: the resumed run will differ."
        )
    return found


def long_warmup(settings: Train) -> list[str]:
    """A warning where the learning rate never reaches train.lr."""
    if settings.warmup < settings.steps:
        return []
    return [
        f"warning: the run ends after {settings.steps:,} updates, before the warm-up of "
        f"{settings.warmup:,} is over: the learning rate stays below train.lr; try "
        f"train.warmup={settings.steps // 10}."
    ]


class TrainingMonitor:
    """Remembers which lines of the corpus the latest updates used, for its warnings."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe, self.folder = recipe, folder
        self.lines: dict[int, list[int]] = {}
        """Lines of each update since the last line of the log; not of those before resuming."""
        self._warned: set[int] = set()
        self._advised = False
        """Whether it was said what to try where attention does not follow the audio."""

    def note(self, step: int, batches: Sequence[Batch]) -> None:
        self.lines[step] = [line for batch in batches for line in batch.lines]

    def look(self, state: TrainingState, rate: float) -> None:
        """Find out which updates since the last call were skipped; synchronises with a GPU.

        Raises DivergedError if training cannot continue.
        """
        state.guard.look(state.window.look())
        if state.guard.stuck:
            raise DivergedError(self._diagnosis(state.guard, state.step, rate))

    def _diagnosis(self, guard: NanGuard, step: int, rate: float) -> str:
        good = "never was finite" if guard.loss is None else f"was last finite at {guard.loss:.4g}"
        saved = (self.folder / STATE).exists()
        return (
            f"the loss or its gradient was NaN or infinite {guard.in_a_row} times in a row, up "
            f"to update {step}{self._where(step)}, at a learning rate of {rate:.3g}; the loss "
            f"{good}; {'the last checkpoint is intact' if saved else 'there is no checkpoint yet'}"
            f": try a lower rate (train.lr={self.recipe.train.lr / 4:g}), more warm-up or "
            f"train.precision=float32, and `transduce check` on the data"
        )

    def _where(self, step: int) -> str:
        lines = self.lines.get(step)
        return f" ({place(self.recipe.data.train, lines)})" if lines else ""

    def warnings(self, state: TrainingState, record: Mapping[str, Any]) -> Iterator[str]:
        """Warnings after a line of the log."""
        seen, guard = state.window.seen, state.guard
        if record["skipped"]:
            yield (
                f"warning: {record['skipped']} of the last {len(seen)} updates were skipped, as "
                f"their loss or gradient was NaN or infinite; the learning rate is now "
                f"{guard.factor:g} of the recipe's"
            )
        if record["spike"]:
            used = [number for number, outcome in enumerate(seen) if outcome.usable]
            worst = max(used, key=lambda number: seen[number].objective_per_token)
            step = state.step - len(seen) + 1 + worst
            yield (
                f"warning: the loss jumped to {record['objective']:.4g}, it was about "
                f"{guard.mean:.4g}; highest was update {step} with "
                f"{seen[worst].objective_per_token:.4g}{self._where(step)}"
            )
        self.lines = {}

    def attention_warnings(
        self, state: TrainingState, values: Mapping[str, float]
    ) -> Iterator[str]:
        """Warnings after a validation in which attention does not follow the audio."""
        if state.step < self.recipe.train.warmup:
            return
        listens = self.recipe.decode.ctc_weight < 1  # else outputs are CTC's alone
        moved = values.get("diagonal", 100.0) if listens else 100.0
        if moved < 100 * MIN_DIAGONALITY and self._advised:
            yield f"warning: attention still does not move along the audio (diagonal {moved:.0f})"
        elif moved < 100 * MIN_DIAGONALITY:
            self._advised = True
            weight = 2 * self.recipe.train.guided_attention or 1.0
            plain = getattr(self.recipe.model.decoder, "kind", "") in ("transformer", "recurrent")
            guided = f"train.guided_attention={weight:g}, " if plain else ""
            by_ctc = "; CTC may work all the same" if self.recipe.model.ctc_weight else ""
            yield (
                f"warning: attention does not move along the audio as the text grows (diagonal "
                f"{moved:.0f}, of at most 100): the decoder does not attend to the audio yet"
                f"{by_ctc}; if "
                f"it stays so, try {guided}another seed, a lower rate (train.lr="
                f"{self.recipe.train.lr / 2:g}), more train.warmup or model.ctc_weight=0.5"
            )
        elif (share := values.get("alarms", 0.0)) > MANY_WARNINGS:
            yield (
                f"warning: {share:.0f} % of the transcripts have a warning: repetitions, or audio "
                f"that was skipped; `transduce run {self.folder} FILE "
                f"--format json` says where"
            )

    def out_of_memory(self, split: Sequence[Batch], left_out: Sequence[Batch]) -> Iterator[str]:
        """Warnings about batches that ran out of memory: the first one, and each pair once."""
        if split and 0 not in self._warned:
            self._warned.add(0)
            yield (
                f"warning: a batch of {_shape(split[0])} tokens ran out of memory; such batches "
                f"are split in halves, with the same result but slower: use half of "
                f"train.batch_tokens and twice the train.accumulate"
            )
        for batch in left_out:
            if batch.lines[0] not in self._warned:
                self._warned.add(batch.lines[0])
                yield (
                    f"warning: {place(self.recipe.data.train, batch.lines)} does not fit into "
                    f"memory even alone ({_shape(batch)} tokens) and is left out"
                )


def place(corpus: Corpus, lines: Sequence[int]) -> str:
    """Lines of a corpus in words: `lines 3, 17, 20 and 41 more of train.tsv`."""
    noun = "line" if len(lines) == 1 else "lines"
    shown = ", ".join(str(line) for line in sorted(lines)[:SHOWN_LINES])
    more = f" and {len(lines) - SHOWN_LINES} more" if len(lines) > SHOWN_LINES else ""
    return f"{noun} {shown}{more} of {corpus_name(corpus)}"


def _shape(batch: Batch) -> str:
    target = 0 if batch.target_BT is None else batch.target_BT.shape[1] - 1
    side = "source" if batch.transcript_BT is None else "samples of audio"
    return f"{len(batch)} x {batch.source_BS.shape[1]} {side} and {target} target"
