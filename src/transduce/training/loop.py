"""The training loop: updates, validation, early stopping, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.data.batches.bucketing import RankBatches, prefetched
from transduce.data.batches.streaming_dataset import StreamingDataset
from transduce.data.cache.tokenised import Report, report_json, report_of
from transduce.errors import RecipeError
from transduce.hardware import pick_precision, seed_everything
from transduce.models.weights import set_weights, weights_of
from transduce.nn.checkpointing import set_checkpointing
from transduce.recipe import Recipe, dump_recipe
from transduce.tasks.model import Change
from transduce.tasks.transduce import Model, create
from transduce.terminal import duration
from transduce.training.auto_batch import fitting_budget, longest_pair
from transduce.training.distillation import Distillation, load_teachers
from transduce.training.distributed.agreement import check_weights
from transduce.training.distributed.fsdp import ShardedUpdate, fill, sharded
from transduce.training.distributed.processes import Processes
from transduce.training.fine_tuning.start import StartModel
from transduce.training.fine_tuning.tuning import Tuning
from transduce.training.log_window import LogWindow
from transduce.training.optimizer import (
    MovingAverage,
    build_optimizer,
    learning_rate,
    set_learning_rate,
)
from transduce.training.prepare import Prepared
from transduce.training.progress import Progress, StepRecord
from transduce.training.run_directory.best_model import (
    BestModel,
    KeptCheckpoints,
    Validated,
    choose,
    is_better,
)
from transduce.training.run_directory.checkpoint import TrainingState, load_state, save_state
from transduce.training.run_directory.signals import StopSignals
from transduce.training.update import Update, build_update, capture_notice
from transduce.training.validate import validate
from transduce.training.warnings import TrainingMonitor, changes, long_warmup

wall_clock = time.monotonic
processor_clock = time.process_time  # of all threads together
SYNCHRONOUS = ("cpu",)  # devices on which reading a value does not wait
# Updates whose batches are made ahead, on other devices: a GPU goes on while an epoch is planned.
AHEAD, LEAST_AHEAD = 64, 4
TOKENS_AHEAD = 1 << 19  # of text; the samples of audio take more memory

Pause = Callable[[TrainingState], bool]
"""Whether a run is to stop here, after a validation and with a checkpoint; asked after every
update, and after every validation."""


@dataclass(frozen=True)
class Trained:
    """How a run ended: the best model and its folder; whether it was interrupted."""

    folder: Path
    model: Model
    state: TrainingState
    interrupted: bool
    first: bool = True
    """Whether this is rank 0."""
    ensemble: tuple[Trained, ...] = ()
    """Further runs, whose models are better together with this one; `model.run` uses them."""
    by_tag: Mapping[str, Trained] = field(default_factory=dict)
    """Further runs, each for the sources of one tag; `model.run` uses them."""


def end_of(state: TrainingState, recipe: Recipe) -> str | None:
    """The recipe key whose limit a run has reached; None: it goes on."""
    settings, patience = recipe.train, recipe.validation.patience
    if state.step >= settings.steps:
        return "train.steps"
    if settings.epochs is not None and state.position.epoch >= settings.epochs:
        return "train.epochs"
    # The last validation belongs to the time: it is expected to take as long as the longest.
    needed = state.elapsed + state.validation
    if settings.minutes is not None and needed >= 60 * settings.minutes:
        return "train.minutes"
    if patience is not None and state.worse >= patience:
        return "validation.patience"
    return None


class Run:
    """One training run. Its changing state is in the network, the optimizer and `state`."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        prepared: Prepared,
        ranks: Processes | None = None,
        change: Change | None = None,
        start: StartModel | None = None,
        began: float | None = None,
    ) -> None:
        """began: when the command began, by `wall_clock`; train.minutes counts from there."""
        self._began = wall_clock() if began is None else began
        self._startup, self._worked_before = wall_clock() - self._began, processor_clock()
        self._elapsed_before = 0.0
        seed_everything(recipe.seed)
        self.recipe, self.folder, self._recipe_text = recipe, folder, dump_recipe(recipe)
        self.ranks = ranks or Processes()
        self.device = self.ranks.device(recipe.train.device)
        if recipe.train.clock == "processor" and self.device.type != "cpu":
            raise RecipeError(
                f"train.clock is processor, which is for training on a CPU, and this is "
                f"{self.device.type}; leave it out"
            )
        self.precision = pick_precision(recipe.train.precision, self.device, recipe.model.width)
        self.model = create(recipe, prepared.source_tokens, prepared.target_tokens)
        if change is not None:
            self.model.change(change)
        set_checkpointing(self.model.network, recipe.train.checkpoint_activations)
        self.model.set_feature_statistics(prepared.train.corpus)
        valid = self.model.prepare_corpus(prepared.valid, prepared.valid_sources)
        self.prepared = replace(prepared, valid=valid)
        self.tuning = Tuning(self.model, start)
        self.sharded = recipe.train.fsdp and self.ranks.grouped
        # With FSDP, the model is a full copy for validation; decoding with shards is not possible,
        # as ranks decode different numbers of tokens.
        if self.sharded:
            self.network = sharded(self.model.network, self.device, self.ranks)
        else:
            self.model.to(self.device)
            self.network = self.tuning.network.to(self.device)
        self.optimizer = build_optimizer(self.network, recipe.train, self.tuning.factors)
        ema = recipe.train.ema
        self.average = None if ema is None else MovingAverage(self.network, ema)
        self.update = self._build_update()
        self.state = TrainingState(
            corpus=self.prepared.extent,
            changed=self.model.changed,
            start=self.tuning.metadata,
            teacher="" if self.distillation is None else self.distillation.fingerprint,
        )
        self._corpus_before, self._teacher_before = self.state.corpus, self.state.teacher
        self._kept_before: list[tuple[int, float]] = []
        self._saved_at = 0.0
        self.stored = BestModel(folder, recipe.validation.metric, self.ranks)
        self.checkpoints = KeptCheckpoints(folder)
        self.rate = 0.0
        self.monitor = TrainingMonitor(recipe, folder)
        self.interrupted = False
        self._stream_reported = False
        # all ranks initialised the same weights; their dropout must differ
        if not self.ranks.first:
            seed_everything(self.ranks.seed(recipe.seed, 0))

    def _build_update(self) -> Update:
        settings = self.recipe.train
        parts = (self.network, self.optimizer, settings, self.precision, self.ranks)
        self.distillation: Distillation | None = None
        if settings.teacher is not None:
            tokens = (self.prepared.source_tokens, self.prepared.target_tokens)
            teachers = load_teachers(self.recipe, tokens, self.device)
            self.distillation = Distillation(self.network, teachers, settings)
        if self.sharded:
            return ShardedUpdate(*parts, average=self.average)
        return build_update(*parts, average=self.average, objective=self.distillation)

    @property
    def batches_an_update(self) -> int:
        """Gradient accumulation: the batches of an update; every rank has at least one."""
        return max(self.recipe.train.accumulate, self.ranks.count)

    def about(self) -> list[str]:
        """Messages before training starts: about its end, its learning rate, and its processes."""
        settings, count = self.recipe.train, self.ranks.count
        messages = [] if self.state.step else self.tuning.about()
        if (end := self._end()) is not None:
            messages.append(
                f"This run is finished, at update {self.state.step:,}: to train it "
                f"longer, resume it with a larger {end}."
            )
        else:
            messages += long_warmup(settings)
            if settings.minutes is not None:
                gone = self._elapsed()
                left = f"{duration(max(60 * settings.minutes - gone, 0.0))} of train.minutes"
                messages.append(f"{left} are left: {duration(gone)} went before the first update.")
        messages += capture_notice(self.network, settings, self.sharded)
        messages += changes(
            settings,
            corpus=(self._corpus_before, self.state.corpus),
            teacher=(self._teacher_before, self.state.teacher),
        )
        if not self.ranks.grouped:
            alone = "train.fsdp has no effect: this run has one process."
            return [*messages, alone] if settings.fsdp else messages
        asked = f" (train.accumulate is {settings.accumulate})"
        more = asked if settings.accumulate < count else ""
        messages.append(
            f"{count} processes share the {self.batches_an_update} batches of an update{more}."
        )
        if count > 1 and settings.device.startswith("cuda:"):
            messages.append(
                f"They share {settings.device} too, and communicate by gloo, which is slow: with "
                f"train.device=auto each takes a GPU of its own."
            )
        return messages

    def resume(self) -> None:
        """Load the checkpoint in the run directory."""
        parts = (self.network, self.optimizer, self.average, self.ranks)
        teacher = self.state.teacher
        self.state = load_state(self.folder, *parts, self.recipe.seed, self.model.changed)
        self._kept_before, self._saved_at = self.state.kept, self.state.seconds
        self._elapsed_before = self.state.elapsed
        self.stored.read()
        self._corpus_before, self.state.corpus = self.state.corpus, self.prepared.extent
        self._teacher_before, self.state.teacher = self.state.teacher, teacher
        self.tuning.metadata = self.state.start

    def run(self, progress: Progress, pause: Pause | None = None) -> Trained:
        """Update and validate until the recipe's end, early stopping or an interrupt."""
        self.progress = progress
        self._set_batch_tokens()
        settings, ranks = self.recipe.train, self.ranks
        updates = self.prepared.train.updates(
            self.batches_an_update, self.state.position, ranks.rank, ranks.count
        )
        if self.device.type not in SYNCHRONOUS:
            updates = prefetched(map(self._lay_out, updates), self._ahead())
        self.network.train()
        with StopSignals() as interrupt, ranks.together():
            if self._ended() and self.state.best is None:  # stopped before the first validation
                self._validate()
                self._save()
            while not self._ended() and not self.interrupted:
                ranks.update = self.state.step + 1
                self._update(updates)
                self._agree(interrupt)
                if self.state.step % settings.log_every == 0:
                    self._log()
                    self._agree(interrupt)
                paused = self._pauses(pause)
                due = self.state.step % self.recipe.validation.every == 0
                if due or paused or self._ended():
                    before = self._elapsed()
                    self._validate()
                    self.state.elapsed = self._elapsed()
                    self._save()
                    took = self._elapsed() - before
                    self.state.validation = max(self.state.validation, took)
                    self._agree(interrupt)
                    paused = paused or self._pauses(pause)  # by the time that this took
                    self.interrupted |= paused and not self._ended()
                elif self._save_is_due() and not self.interrupted:
                    self._save()
            if self.interrupted:
                self._save()
            else:
                self._finish()
        return Trained(self.folder, self.model, self.state, self.interrupted, ranks.first)

    def _set_batch_tokens(self) -> None:
        """Set the tokens of a batch: the recipe's, the checkpoint's, or what fits into memory."""
        batches, state = self.prepared.train, self.state
        if self.recipe.train.batch_tokens != "auto":
            state.tokens = self.recipe.train.batch_tokens
        elif not state.tokens:
            longest = longest_pair(batches.corpus, self.recipe.data.max_length)
            longest = longest if batches.block is None else (0, batches.block)
            fits = fitting_budget(self.update, longest)
            state.tokens = int(min(minimum for (minimum,) in self.ranks.all_gather_numbers([fits])))
            self.progress.print_line(f"Batches have up to {state.tokens:,} tokens, which fit here.")
        batches.tokens = state.tokens

    def _ahead(self) -> int:
        """How many updates have their batches made ahead."""
        if self.recipe.audio is not None:
            return LEAST_AHEAD
        fitting = TOKENS_AHEAD // (self.state.tokens * self.batches_an_update)
        return max(LEAST_AHEAD, min(AHEAD, fitting))

    # ------------------------------------------------------------------------- one update

    def _lay_out(self, portion: RankBatches) -> RankBatches:
        """Batches in the shape and memory that the update copies to the device; in a thread."""
        for batch in portion.batches:
            batch.ready = self.update.lay_out(batch)
        return portion

    def _update(self, updates: Iterator[RankBatches]) -> None:
        began = time.perf_counter()
        portion = next(updates)
        state, settings = self.state, self.recipe.train
        # What the last validation will take is not for updates.
        self.rate = learning_rate(state.step + 1, settings, state.elapsed + state.validation)
        self.rate *= state.guard.factor
        set_learning_rate(self.optimizer, self.rate)
        if self.average is not None:
            self.average.set_step(state.step + 1)
        passed = self.update(portion.batches)
        self.update.apply()
        state.step += 1
        ended = portion.position.epoch > state.position.epoch
        state.position = portion.position
        if ended:
            self._report_stream()
        self._count_out_of_memory()
        while self.update.notices:
            self.progress.print_line(self.update.notices.pop(0))
        seconds = time.perf_counter() - began
        state.seconds += seconds
        window = state.window
        window.add(passed)
        window.padding += sum(self.update.padding_fraction(batch) for batch in portion.batches)
        window.seconds += seconds
        window.batches += len(portion.batches)
        self.monitor.note(state.step, portion.batches)
        state.elapsed = self._elapsed()
        self.progress.step(StepRecord(state.step, portion.tokens, self.rate, seconds=state.elapsed))
        if self.device.type in SYNCHRONOUS:
            self.monitor.look(state, self.rate)

    def _report_stream(self) -> None:
        """Say, once, what was skipped in an epoch of a stream; what is in memory said so before."""
        corpus = self.prepared.train.corpus
        if not isinstance(corpus, StreamingDataset) or self._stream_reported:
            return
        whole = Report()
        for read in self.ranks.all_gather(report_json(corpus.whole_epoch)):
            if read is None:  # resumed within the epoch
                return
            whole.add(report_of(read))
        self._stream_reported = True
        for sentence in whole.sentences():
            self.progress.print_line(f"  warning: in an epoch of the stream, {sentence}")

    def _count_out_of_memory(self) -> None:
        """Count and report what ran out of memory."""
        split, left_out = self.update.splitter.take_counts()
        self.state.window.split += len(split)
        self.state.window.left_out += len(left_out)
        for sentence in self.monitor.out_of_memory(split, left_out):
            self.progress.print_line(sentence)

    def _agree(self, interrupt: StopSignals) -> None:
        """Synchronise the ranks: rank 0's clock, and any rank's request to stop.

        A dead process is noticed here, before another waits for a device in vain.
        """
        state = self.state
        own = [float(interrupt.asked), state.seconds, self._elapsed(), state.validation]
        shared_values = self.ranks.all_gather_numbers(own)
        self.interrupted = any(asked for asked, *_ in shared_values)
        _, state.seconds, state.elapsed, state.validation = shared_values[0]

    def _pauses(self, pause: Pause | None) -> bool:
        """Whether any rank says so."""
        if pause is None:
            return False
        return any(asked for (asked,) in self.ranks.all_gather_numbers([float(pause(self.state))]))

    def _elapsed(self) -> float:
        """Seconds since the command began, by train.clock, and of earlier commands of this run."""
        if self.recipe.train.clock == "processor":
            worked = (processor_clock() - self._worked_before) / torch.get_num_threads()
            return self._elapsed_before + self._startup + worked
        return self._elapsed_before + wall_clock() - self._began

    def _ended(self) -> bool:
        return self._end() is not None

    def _end(self) -> str | None:
        return end_of(self.state, self.recipe)

    def _check_weights(self) -> None:
        """Raise TrainingError where the weights of a rank differ; shards are no copies."""
        if not self.sharded:
            check_weights(self.ranks, weights_of(self.network), self.state.step)

    def _log(self) -> None:
        self._check_weights()
        state = self.state
        began = time.perf_counter()
        # It synchronises with the device: that time belongs to the updates.
        self.monitor.look(state, self.rate)
        waited = time.perf_counter() - began
        state.seconds += waited
        state.window.seconds += waited
        record: dict[str, Any] = {
            "step": state.step,
            "lr": self.rate,
            "seconds": state.seconds,
            **state.window.record(),
        }
        record["spike"] = state.guard.jumps(record["objective"])
        self.progress.log(record)
        for sentence in self.monitor.warnings(state, record):
            self.progress.print_line(sentence)
        state.window = LogWindow()

    # ------------------------------------------------------------------------- validation

    def _validate(self) -> None:
        """Validate the weights that would be saved: the moving average if there is one, else the
        current weights.
        """
        current = self._swap_in()
        values = self._measure()
        state = self.state
        metric = self.recipe.validation.metric
        found = Validated(values[metric], values["loss"])
        higher = state.best is None or is_better(metric, found.value, state.best)
        state.worse = 0 if higher else state.worse + 1
        best = found.replaces(metric, self._best())
        if best:
            (state.best, state.best_loss), state.best_step = found, state.step
            self._store(found)
        self._keep_for_averaging(values[metric])
        self._swap_back(current)
        self.progress.validation(state.step, values, best)
        for sentence in self.monitor.attention_warnings(state, values):
            self.progress.print_line(sentence)

    def _best(self) -> Validated | None:
        """What the best validation so far has found."""
        state = self.state
        return None if state.best is None else Validated(state.best, state.best_loss)

    def _measure(self) -> dict[str, float]:
        budget = self.state.tokens
        return validate(self.model, self.recipe, self.prepared, budget, self.ranks)

    def _store(self, found: Validated) -> None:
        if self.stored.offer(self.tuning, found):
            return
        kept = self.stored.kept
        assert kept is not None
        if found.value != kept.value:
            self.progress.print_line(
                f"The model in {self.folder} is kept: it has {self.stored.metric} "
                f"{kept.value:.4g}, which is better."
            )

    def _swap_in(self) -> dict[str, Tensor] | None:
        """Load the weights that would be saved into the model; returns its own weights, to restore
        them.
        """
        average = None if self.average is None else self.average.weights
        if self.sharded:
            fill(self.model.to(self.device).network, average or weights_of(self.network))
            return None
        self.tuning.merge(average)
        if average is None or self.tuning.adapted is not None:
            return None
        current = {name: w.clone() for name, w in weights_of(self.network).items()}
        set_weights(self.network, average, self.folder)
        return current

    def _swap_back(self, current: dict[str, Tensor] | None) -> None:
        self.tuning.unmerge()
        if current is not None:
            set_weights(self.network, current, self.folder)
        if self.sharded:
            self.model.to("cpu")

    def _keep_for_averaging(self, value: float) -> None:
        """Save this checkpoint for averaging if it is among the last or best `average.count`."""
        average = self.recipe.train.average
        if average is None:
            return
        state, metric = self.state, self.recipe.validation.metric
        state.kept = choose(state.kept, state.step, value, average, metric)
        kept_now = any(step == state.step for step, _ in state.kept)
        if kept_now and self.ranks.first:
            averaged = None if self.average is None else self.average.weights
            self.checkpoints.write(state.step, self.tuning.kept(averaged))

    # ------------------------------------------------------------------------ save and end

    def _save_is_due(self) -> bool:
        """By rank 0's clock, which all ranks share."""
        return self.state.seconds - self._saved_at >= 60 * self.recipe.train.save_every

    def _save(self) -> None:
        self._saved_at = self.state.seconds
        self._check_weights()
        save_state(
            self.folder,
            self.state,
            self.network,
            self.optimizer,
            self.average,
            self._recipe_text,
            self.ranks,
        )
        if not self.ranks.first:
            return
        # Not the files of the previous checkpoint: the run may have to go back to it.
        self.checkpoints.remove_all_but([*self.state.kept, *self._kept_before])
        self._kept_before = self.state.kept

    def _finish(self) -> None:
        """Leave the best model in the folder: the best checkpoint, or a better average of
        several.
        """
        state, metric = self.state, self.recipe.validation.metric
        self.model.to(self.device)
        if self.recipe.train.average is not None and len(state.kept) > 1:
            self.tuning.load_mean(self.checkpoints.mean(state.kept), self.folder)
            values, single = self._measure(), self._best()
            assert single is not None
            average = Validated(values[metric], values["loss"])
            better = average.rank(metric) < single.rank(metric)
            self.progress.print_line(
                f"The average of {len(state.kept)} checkpoints has {metric} {average.value:.4g} on "
                f"the validation set, the best single one {single.value:.4g}: "
                f"the {'average' if better else 'single one'} is kept"
                f"{', by the loss' if average.value == single.value else ''}."
            )
            if better:
                self._store(average)
        if self.stored.kept is not None:
            state.best, state.best_loss = self.stored.kept
        self.ranks.barrier()
        self.tuning.load_best(self.folder)
        self.model.network.eval()
