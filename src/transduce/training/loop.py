"""The training loop: batches in, a better model out, nothing lost on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from transduce.data.batches.batch import Portion
from transduce.data.cache.tokenised import Encoded
from transduce.evaluation.metrics import HIGHER_IS_BETTER
from transduce.hardware import pick_precision, seed_everything
from transduce.models.weights import set_weights, weights_of
from transduce.recipe import Recipe, dump_recipe
from transduce.storage import make_folder, read_tensors, write_tensors
from transduce.tasks.folder import WEIGHTS
from transduce.tasks.model import Change
from transduce.tasks.transduce import Model, create
from transduce.training.distributed.fsdp import ShardedUpdate, fill, sharded
from transduce.training.distributed.processes import Processes
from transduce.training.log_window import Window
from transduce.training.memory.auto_batch import fitting_budget, longest_pair
from transduce.training.optimizer import (
    MovingAverage,
    build_optimizer,
    learning_rate,
    mean_of,
    set_learning_rate,
)
from transduce.training.prepare import Prepared
from transduce.training.progress import Progress, StepRecord
from transduce.training.run_directory.best_model import Stored
from transduce.training.run_directory.checkpoint import TrainingState, load_state, save_state
from transduce.training.run_directory.signals import StopSignals
from transduce.training.update import Update, build_update
from transduce.training.validate import validate
from transduce.training.warnings import Watch

LOOKS_AT_ONCE = ("cpu",)  # where to look at a number is not to wait for it


@dataclass(frozen=True)
class Trained:
    """How a run ended: the best model it found, and where it stands."""

    folder: Path
    model: Model
    standing: TrainingState
    interrupted: bool
    first: bool = True
    """Whether this is the process, of several, that speaks for the run."""


class Run:
    """One training run. What changes while it goes is in the network, the optimizer, `standing`."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        prepared: Prepared,
        ranks: Processes | None = None,
        change: Change | None = None,
    ) -> None:
        seed_everything(recipe.seed)
        self.recipe, self.folder = recipe, folder
        self.ranks = ranks or Processes()
        self.device = self.ranks.device(recipe.train.device)
        self.precision = pick_precision(recipe.train.precision, self.device, recipe.model.width)
        self.model = create(recipe, prepared.source_tokens, prepared.target_tokens)
        if change is not None:
            self.model.change(change)
        self.model.survey(prepared.train.corpus)
        valid = self.model.adopt(prepared.valid, prepared.valid_sources)
        self.prepared = replace(prepared, valid=valid)
        self.sharded = recipe.train.fsdp and self.ranks.count > 1
        # Where the weights are cut into parts, the model is a whole copy for validation; decoding
        # could not be done in parts, as processes decode unequally many tokens.
        self.network = (
            sharded(self.model.network, self.device, self.ranks)
            if self.sharded
            else self.model.to(self.device).network
        )
        self.optimizer = build_optimizer(self.network, recipe.train)
        ema = recipe.train.ema
        self.average = None if ema is None else MovingAverage(self.network, ema)
        self.update = self._build_update()
        self.standing = TrainingState(corpus=_extent(self.prepared), changed=self.model.changed)
        self._corpus_before = self.standing.corpus
        self._kept_before: list[tuple[int, float]] = []
        self._saved_at = 0.0
        self.stored = Stored(folder, recipe.validation.metric, _better, self.ranks)
        self.rate = 0.0
        self.watch = Watch(recipe, folder)
        self.interrupted = False
        if not self.ranks.first:  # all drew the same weights; what they drop out must differ
            seed_everything(self.ranks.seed(recipe.seed, 0))

    def _build_update(self) -> Update:
        parts = (self.network, self.optimizer, self.recipe.train, self.precision, self.ranks)
        return ShardedUpdate(*parts) if self.sharded else build_update(*parts)

    @property
    def batches_an_update(self) -> int:
        """Every process has at least one."""
        return max(self.recipe.train.accumulate, self.ranks.count)

    def about(self) -> list[str]:
        """What to say before it begins: of its end, its rate, and the processes that share it."""
        settings, count = self.recipe.train, self.ranks.count
        said = []
        if (end := self._end()) is not None:
            said.append(
                f"This run has come to its end, at update {self.standing.step:,}: to train it "
                f"longer, resume it with a larger {end}."
            )
        elif settings.warmup >= settings.steps:
            said.append(
                f"warning: the run ends after {settings.steps:,} updates, and the rate rises over "
                f"{settings.warmup:,}: it stays below train.lr; try "
                f"train.warmup={settings.steps // 10}."
            )
        if self._corpus_before not in (self.standing.corpus, ""):
            said.append(
                f"warning: the training corpus had {self._corpus_before} when this run was stopped "
                f"and has {self.standing.corpus} now: it goes on, but not as it would have."
            )
        if count == 1:
            alone = "train.fsdp cuts nothing: this run has one process."
            return [*said, alone] if settings.fsdp else said
        asked = f" (train.accumulate is {settings.accumulate})"
        more = asked if settings.accumulate < count else ""
        shared = f"{count} processes share the {self.batches_an_update} batches of an update{more}."
        return [*said, shared]

    def resume(self) -> None:
        """Go on from the state in the folder."""
        self.standing = load_state(
            self.folder,
            self.network,
            self.optimizer,
            self.average,
            self.ranks,
            self.recipe.seed,
            self.model.changed,
        )
        self._kept_before = self.standing.kept
        self._saved_at = self.standing.seconds
        self.stored.read()
        self._corpus_before, self.standing.corpus = self.standing.corpus, _extent(self.prepared)

    def go(self, progress: Progress) -> Trained:
        """Update and validate until the recipe's end, patience or an interrupt."""
        self.progress = progress
        self._settle_budget()
        settings, ranks = self.recipe.train, self.ranks
        updates = self.prepared.train.updates(
            self.batches_an_update, self.standing.position, ranks.rank, ranks.count
        )
        self.network.train()
        with StopSignals() as interrupt, ranks.together():
            while not self._ended() and not self.interrupted:
                ranks.update = self.standing.step + 1
                self._update(updates)
                self._agree(interrupt)
                if self.standing.step % settings.log_every == 0:
                    self._log()
                    self._agree(interrupt)
                if self.standing.step % self.recipe.validation.every == 0 or self._ended():
                    self._validate()
                    self._save()
                    self._agree(interrupt)
                elif self._save_is_due() and not self.interrupted:
                    self._save()
            if self.interrupted:
                self._save()
            else:
                self._finish()
        return Trained(self.folder, self.model, self.standing, self.interrupted, ranks.first)

    def _settle_budget(self) -> None:
        """Fix the tokens of a batch: the recipe's, the state's, or as many as memory holds."""
        batches, standing = self.prepared.train, self.standing
        if self.recipe.train.batch_tokens != "auto":
            standing.tokens = self.recipe.train.batch_tokens
        elif not standing.tokens:
            longest = longest_pair(batches.corpus, self.recipe.data.max_length)
            longest = longest if batches.block is None else (0, batches.block)
            fits = fitting_budget(self.update, longest)
            standing.tokens = int(min(least for (least,) in self.ranks.share([fits])))
            self.progress.say(f"Batches have up to {standing.tokens:,} tokens, which fit here.")
        batches.tokens = standing.tokens

    # ------------------------------------------------------------------------- one update

    def _update(self, updates: Iterator[Portion]) -> None:
        began = time.perf_counter()
        portion = next(updates)
        standing, settings = self.standing, self.recipe.train
        self.rate = learning_rate(standing.step + 1, settings, standing.seconds)
        self.rate *= standing.guard.factor
        set_learning_rate(self.optimizer, self.rate)
        passed = self.update(portion.batches, portion.tokens)
        self.update.apply()
        standing.step += 1
        standing.position = portion.position
        if self.average is not None:
            self.average.update(self.network, standing.step, self.update.applied)
        tokens = portion.tokens - self._count_shortage()
        seconds = time.perf_counter() - began
        standing.seconds += seconds
        window = standing.window
        window.add(passed, tokens)
        window.padding += sum(self.update.padding_share(batch) for batch in portion.batches)
        window.seconds += seconds
        window.batches += len(portion.batches)
        self.watch.note(standing.step, portion.batches)
        self.progress.step(StepRecord(standing.step, tokens, self.rate, seconds=standing.seconds))
        if self.device.type in LOOKS_AT_ONCE:
            self.watch.look(standing, self.rate)

    def _count_shortage(self) -> int:
        """Count and say what did not fit into memory; the target tokens that were left out."""
        split, left_out = self.update.shortage.asked()
        self.standing.window.split += len(split)
        self.standing.window.left_out += len(left_out)
        for sentence in self.watch.shortage(split, left_out):
            self.progress.say(sentence)
        return sum(batch.target_tokens for batch in left_out)

    def _agree(self, interrupt: StopSignals) -> None:
        """The first process's clock, and anyone's wish to stop, become those of all.

        Here a process that is gone is noticed, before anyone waits for a device in vain.
        """
        said = self.ranks.share([float(interrupt.asked), self.standing.seconds])
        self.interrupted = any(asked for asked, _ in said)
        self.standing.seconds = said[0][1]

    def _ended(self) -> bool:
        return self._end() is not None

    def _end(self) -> str | None:
        """The key of the recipe whose end the run has come to."""
        standing, settings = self.standing, self.recipe.train
        patience = self.recipe.validation.patience
        if standing.step >= settings.steps:
            return "train.steps"
        if settings.epochs is not None and standing.position.epoch >= settings.epochs:
            return "train.epochs"
        if settings.minutes is not None and standing.seconds >= 60 * settings.minutes:
            return "train.minutes"
        if patience is not None and standing.worse >= patience:
            return "validation.patience"
        return None

    def _log(self) -> None:
        standing = self.standing
        began = time.perf_counter()
        # It waits for the device: that time belongs to the updates.
        self.watch.look(standing, self.rate)
        waited = time.perf_counter() - began
        standing.seconds += waited
        standing.window.seconds += waited
        record: dict[str, Any] = {
            "step": standing.step,
            "lr": self.rate,
            "seconds": standing.seconds,
            **standing.window.record(),
        }
        record["spike"] = standing.guard.jumps(record["objective"])
        self.progress.log(record)
        for sentence in self.watch.warnings(standing, record):
            self.progress.say(sentence)
        standing.window = Window()

    # ------------------------------------------------------------------------- validation

    def _validate(self) -> None:
        """Measure what would be kept: the moving average where there is one, else the weights."""
        current = self._swap_in()
        values = self._measure()
        standing = self.standing
        metric = self.recipe.validation.metric
        best = standing.best is None or _better(metric, values[metric], standing.best)
        if best:
            standing.best, standing.best_step, standing.worse = values[metric], standing.step, 0
            self._store(values[metric])
        else:
            standing.worse += 1
        self._keep_for_averaging(values[metric])
        self._swap_back(current)
        self.progress.validation(standing.step, values, best)
        for sentence in self.watch.listening(standing, values):
            self.progress.say(sentence)

    def _measure(self) -> dict[str, float]:
        budget = self.standing.tokens
        return validate(self.model, self.recipe, self.prepared, budget, self.ranks)

    def _store(self, value: float) -> None:
        if not self.stored.offer(self.model, value) and value != self.stored.value:
            self.progress.say(
                f"The model in {self.folder} stays: it has {self.stored.metric} "
                f"{self.stored.value:.4g}, which is better."
            )

    def _swap_in(self) -> dict[str, Tensor] | None:
        """Give the model what would be kept; what it had, where that must be given back."""
        average = None if self.average is None else self.average.weights
        if self.sharded:
            fill(self.model.to(self.device).network, average or weights_of(self.network))
            return None
        if average is None:
            return None
        current = {name: w.clone() for name, w in weights_of(self.network).items()}
        set_weights(self.network, average, self.folder)
        return current

    def _swap_back(self, current: dict[str, Tensor] | None) -> None:
        if current is not None:
            set_weights(self.network, current, self.folder)
        if self.sharded:
            self.model.to("cpu")

    def _keep_for_averaging(self, value: float) -> None:
        """Keep this checkpoint's weights if it is among the last or best `average.count`."""
        average = self.recipe.train.average
        if average is None:
            return
        kept = [*self.standing.kept, (self.standing.step, value)]
        if average.of == "best":
            metric = self.recipe.validation.metric
            kept.sort(key=lambda entry: _badness(metric, entry[1]))
            kept = kept[: average.count]
        self.standing.kept = kept[-average.count :]
        kept_now = any(step == self.standing.step for step, _ in self.standing.kept)
        if kept_now and self.ranks.first:
            path = self._kept_path(self.standing.step)
            make_folder(path.parent)
            write_tensors(path, weights_of(self.model.network), {"step": self.standing.step})

    def _kept_path(self, step: int) -> Path:
        return self.folder / "state" / f"kept-{step}.safetensors"

    # ------------------------------------------------------------------------ save and end

    def _save_is_due(self) -> bool:
        """By the first process's clock, which all have agreed on."""
        return self.standing.seconds - self._saved_at >= 60 * self.recipe.train.save_every

    def _save(self) -> None:
        self._saved_at = self.standing.seconds
        save_state(
            self.folder,
            self.standing,
            self.network,
            self.optimizer,
            self.average,
            dump_recipe(self.recipe),
            self.ranks,
        )
        if not self.ranks.first:
            return
        # Not what the state before this one had kept: the run may have to go back to it.
        kept = [*self.standing.kept, *self._kept_before]
        wanted = {self._kept_path(step) for step, _ in kept}
        for path in (self.folder / "state").glob("kept-*.safetensors"):
            if path not in wanted:
                path.unlink(missing_ok=True)
        self._kept_before = self.standing.kept

    def _finish(self) -> None:
        """Leave the best model in the folder: the best checkpoint, or an average that beats it."""
        standing, metric = self.standing, self.recipe.validation.metric
        self.model.to(self.device)
        if self.recipe.train.average is not None and len(standing.kept) > 1:
            several = [read_tensors(self._kept_path(step))[0] for step, _ in standing.kept]
            set_weights(self.model.network, mean_of(several), self.folder)
            value = self._measure()[metric]
            assert standing.best is not None
            better = _better(metric, value, standing.best)
            self.progress.say(
                f"The average of {len(several)} checkpoints has {metric} {value:.4g} on the "
                f"validation set, the best single one {standing.best:.4g}: "
                f"the {'average' if better else 'single one'} is kept."
            )
            if better:
                self._store(value)
        if self.stored.value is not None:
            standing.best = self.stored.value
        self.ranks.wait()
        self.model.load_weights(self.folder / WEIGHTS)
        self.model.network.eval()


def _badness(metric: str, value: float) -> float:
    """By which the best value comes first; NaN comes last."""
    if math.isnan(value):
        return math.inf
    return -value if HIGHER_IS_BETTER[metric] else value


def _better(metric: str, value: float, than: float) -> bool:
    return _badness(metric, value) < _badness(metric, than)


def _extent(prepared: Prepared) -> str:
    """How much there is to learn from; a stream is not counted."""
    corpus = prepared.train.corpus
    if not isinstance(corpus, Encoded):
        return ""
    return f"{len(corpus):,} pairs with {corpus.target_ids.size:,} target tokens"
