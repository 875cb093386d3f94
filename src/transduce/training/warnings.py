"""What a run says when something goes wrong, by update, file and line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transduce.data.batches.batch import Batch
from transduce.data.text.pairs import called
from transduce.decoding.speech.timing import MIN_DIAGONALITY
from transduce.errors import TrainingError
from transduce.recipe import Corpus, Recipe
from transduce.training.nan_guard import Guard
from transduce.training.run_directory.checkpoint import STATE, TrainingState

SHOWN_LINES = 10
MANY_ALARMS = 10.0  # percent of the recordings of a validation


class Watch:
    """Knows which lines of the corpus the latest updates came from."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe, self.folder = recipe, folder
        self.lines: dict[int, list[int]] = {}
        """Of each update since the last line of the log; not of those before a resume."""
        self._told: set[int] = set()

    def note(self, step: int, batches: Sequence[Batch]) -> None:
        self.lines[step] = [line for batch in batches for line in batch.lines]

    def look(self, standing: TrainingState, rate: float) -> None:
        """Learn which updates since the last look were skipped; a GPU is waited for.

        Raises TrainingError if the run cannot go on like this.
        """
        standing.guard.look(standing.window.look())
        if standing.guard.stuck:
            raise TrainingError(self._diagnosis(standing.guard, standing.step, rate))

    def _diagnosis(self, guard: Guard, step: int, rate: float) -> str:
        good = "never was" if guard.loss is None else f"last was, at {guard.loss:.4g}"
        saved = (self.folder / STATE).exists()
        return (
            f"the loss or its gradient was not a finite number {guard.in_a_row} times in a row, up "
            f"to update {step}{self._where(step)}, at a learning rate of {rate:.3g}; the loss "
            f"{good}; {'the last saved state is untouched' if saved else 'no state was saved yet'}"
            f": try a lower rate (train.lr={self.recipe.train.lr / 4:g}), more warm-up or "
            f"train.precision=float32, and `transduce check` on the data"
        )

    def _where(self, step: int) -> str:
        lines = self.lines.get(step)
        return f" ({place(self.recipe.data.train, lines)})" if lines else ""

    def warnings(self, standing: TrainingState, record: Mapping[str, Any]) -> Iterator[str]:
        """What to say under a line of the log."""
        seen, guard = standing.window.seen, standing.guard
        if record["skipped"]:
            yield (
                f"warning: {record['skipped']} of the last {len(seen)} updates were skipped, as "
                f"their loss or gradient was not a finite number; the learning rate is now "
                f"{guard.factor:g} of the recipe's"
            )
        if record["spike"]:
            used = [number for number, outcome in enumerate(seen) if outcome.usable]
            worst = max(used, key=lambda number: seen[number].objective_per_token)
            step = standing.step - len(seen) + 1 + worst
            yield (
                f"warning: the loss jumped to {record['objective']:.4g}, it was about "
                f"{guard.mean:.4g}; highest was update {step} with "
                f"{seen[worst].objective_per_token:.4g}{self._where(step)}"
            )
        self.lines = {}

    def listening(self, standing: TrainingState, values: Mapping[str, float]) -> Iterator[str]:
        """What to say of a validation that shows that audio is not followed."""
        if standing.step < self.recipe.train.warmup:
            return
        if (moved := values.get("diagonal", 100.0)) < 100 * MIN_DIAGONALITY:
            by_ctc = (
                "; what CTC hears may be right all the same" if self.recipe.model.ctc_weight else ""
            )
            yield (
                f"warning: attention does not move along the audio as the text grows (diagonal "
                f"{moved:.0f}, of at most 100): the decoder has not learnt to listen{by_ctc}; if "
                f"it stays so, try another seed, a lower rate (train.lr="
                f"{self.recipe.train.lr / 2:g}), more train.warmup or model.ctc_weight=0.5"
            )
        elif (share := values.get("alarms", 0.0)) > MANY_ALARMS:
            yield (
                f"warning: {share:.0f} % of what was written has an alarm: the same words over and "
                f"over, or nothing of a stretch of audio; `transduce run {self.folder} FILE "
                f"--format json` says where"
            )

    def shortage(self, split: Sequence[Batch], left_out: Sequence[Batch]) -> Iterator[str]:
        """What to say of batches that did not fit: of the first, and of each pair once."""
        if split and 0 not in self._told:
            self._told.add(0)
            yield (
                f"warning: a batch of {_shape(split[0])} tokens did not fit into memory; such "
                f"batches are done in halves, which is slower but else the same: with half of "
                f"train.batch_tokens and twice the train.accumulate they would fit"
            )
        for batch in left_out:
            if batch.lines[0] not in self._told:
                self._told.add(batch.lines[0])
                yield (
                    f"warning: {place(self.recipe.data.train, batch.lines)} does not fit into "
                    f"memory even alone ({_shape(batch)} tokens) and is left out"
                )


def place(corpus: Corpus, lines: Sequence[int]) -> str:
    """Lines of a corpus in words: `lines 3, 17, 20 and 41 more of train.tsv`."""
    noun = "line" if len(lines) == 1 else "lines"
    shown = ", ".join(str(line) for line in sorted(lines)[:SHOWN_LINES])
    more = f" and {len(lines) - SHOWN_LINES} more" if len(lines) > SHOWN_LINES else ""
    return f"{noun} {shown}{more} of {called(corpus)}"


def _shape(batch: Batch) -> str:
    target = 0 if batch.target_BT is None else batch.target_BT.shape[1] - 1
    side = "source" if batch.said_BT is None else "samples of audio"
    return f"{len(batch)} x {batch.source_BS.shape[1]} {side} and {target} target"
