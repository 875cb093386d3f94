"""The training loop: batches in, a better model out, nothing lost on the way."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from torch import Tensor

from transduce.cookbook import dump_recipe
from transduce.data.batches import Batch, Position
from transduce.errors import TrainingError
from transduce.evaluation.evaluate import evaluate, loss_per_token
from transduce.evaluation.metrics import HIGHER_IS_BETTER
from transduce.hardware import pick_device, pick_precision, seed_everything
from transduce.models.weights import set_weights, weights_of
from transduce.recipe import Recipe
from transduce.storage import make_folder, read_tensors, write_tensors
from transduce.training.checkpoint import Standing, load_state, save_state
from transduce.training.interrupt import Interrupt
from transduce.training.optimizer import (
    MovingAverage,
    build_optimizer,
    learning_rate,
    mean_of,
    set_learning_rate,
)
from transduce.training.prepare import Prepared
from transduce.training.progress import Progress, StepRecord
from transduce.training.update import build_update
from transduce.training.window import Window
from transduce.transducer import WEIGHTS, Transducer


@dataclass(frozen=True)
class Trained:
    """How a run ended: the best model it found, and where it stands."""

    folder: Path
    model: Transducer
    standing: Standing
    interrupted: bool


class Run:
    """One training run. What changes while it goes is in the network, the optimizer, `standing`."""

    def __init__(self, recipe: Recipe, folder: Path, prepared: Prepared) -> None:
        seed_everything(recipe.seed)
        self.recipe, self.folder, self.prepared = recipe, folder, prepared
        self.device = pick_device(recipe.train.device)
        self.precision = pick_precision(recipe.train.precision, self.device, recipe.model.width)
        self.model = Transducer.create(recipe, prepared.source_tokens, prepared.target_tokens)
        self.network = self.model.to(self.device).network
        self.optimizer = build_optimizer(self.network, recipe.train)
        ema = recipe.train.ema
        self.average = None if ema is None else MovingAverage(self.network, ema)
        self.update = build_update(self.network, self.optimizer, recipe.train, self.precision)
        self.standing = Standing()
        self._kept_before: list[tuple[int, float]] = []
        self.rate = 0.0

    def resume(self) -> None:
        """Go on from the state in the folder."""
        self.standing = load_state(self.folder, self.network, self.optimizer, self.average)
        self._kept_before = self.standing.kept

    def go(self, progress: Progress) -> Trained:
        """Update and validate until the recipe's end, patience or an interrupt."""
        self.progress = progress
        self.model.save_frame(self.folder)  # also when resumed: its recipe may have changed
        settings = self.recipe.train
        batches = self.prepared.train.iterate(self.standing.position)
        self.network.train()
        with Interrupt() as interrupt:
            while not self._ended() and not interrupt.asked:
                self._update(list(islice(batches, settings.accumulate)))
                if self.standing.step % settings.log_every == 0:
                    self._log()
                if self.standing.step % self.recipe.validation.every == 0 or self._ended():
                    self._validate()
                    self._save()
            if interrupt.asked:
                self._save()
            else:
                self._finish()
        return Trained(self.folder, self.model, self.standing, interrupt.asked)

    # ------------------------------------------------------------------------- one update

    def _update(self, batches: list[tuple[Batch, Position]]) -> None:
        began = time.perf_counter()
        standing, settings = self.standing, self.recipe.train
        self.rate = learning_rate(standing.step + 1, settings, standing.seconds)
        set_learning_rate(self.optimizer, self.rate)
        loss, norm = self.update([batch for batch, _ in batches])
        if self.device.type == "cpu" and not math.isfinite(float(norm)):
            raise TrainingError(_not_finite(standing.step + 1, settings.lr))
        self.update.apply()
        standing.step += 1
        standing.position = batches[-1][1]
        if self.average is not None:
            self.average.update(self.network, standing.step)
        tokens = sum(batch.target_tokens for batch, _ in batches)
        seconds = time.perf_counter() - began
        standing.seconds += seconds
        window = standing.window
        window.loss = window.loss + loss
        window.gradient_norm = window.gradient_norm + norm.double()
        window.padding += sum(batch.padding_share for batch, _ in batches)
        window.seconds += seconds
        window.tokens += tokens
        window.batches += len(batches)
        window.updates += 1
        self.progress.step(StepRecord(standing.step, tokens, self.rate))

    def _ended(self) -> bool:
        standing, settings = self.standing, self.recipe.train
        patience = self.recipe.validation.patience
        return (
            standing.step >= settings.steps
            or (settings.epochs is not None and standing.position.epoch >= settings.epochs)
            or (settings.minutes is not None and standing.seconds >= 60 * settings.minutes)
            or (patience is not None and standing.worse >= patience)
        )

    def _log(self) -> None:
        standing = self.standing
        began = time.perf_counter()
        float(standing.window.loss)  # waits for the device: that time belongs to the updates
        waited = time.perf_counter() - began
        standing.seconds += waited
        standing.window.seconds += waited
        record = standing.window.record()
        if not math.isfinite(record["loss"]):
            raise TrainingError(_not_finite(standing.step, self.recipe.train.lr))
        self.progress.log(
            {"step": standing.step, "lr": self.rate, "seconds": standing.seconds, **record}
        )
        standing.window = Window()

    # ------------------------------------------------------------------------- validation

    def _validate(self) -> None:
        """Measure what would be kept: the moving average where there is one, else the weights."""
        current = self._swap_in_average()
        values = self._measure()
        standing = self.standing
        metric = self.recipe.validation.metric
        best = standing.best is None or _better(metric, values[metric], standing.best)
        if best:
            standing.best, standing.best_step, standing.worse = values[metric], standing.step, 0
            self.model.save_weights(self.folder)
        else:
            standing.worse += 1
        self._keep_for_averaging(values[metric])
        self._swap_back(current)
        self.progress.validation(standing.step, values, best)

    def _measure(self) -> dict[str, float]:
        recipe = self.recipe
        loss = loss_per_token(self.model, self.prepared.valid, recipe.train.tokens)
        if not recipe.metrics:
            return {"loss": loss}
        evaluation = evaluate(
            self.model,
            self.prepared.items,
            list(recipe.metrics),
            bootstrap=0,
            beam=recipe.validation.beam,
        )
        return {"loss": loss} | {name: m.value for name, m in evaluation.metrics.items()}

    def _swap_in_average(self) -> dict[str, Tensor] | None:
        if self.average is None:
            return None
        current = {name: w.clone() for name, w in weights_of(self.network).items()}
        set_weights(self.network, self.average.weights, self.folder)
        return current

    def _swap_back(self, current: dict[str, Tensor] | None) -> None:
        if current is not None:
            set_weights(self.network, current, self.folder)

    def _keep_for_averaging(self, value: float) -> None:
        """Keep this checkpoint's weights if it is among the last or best `average.count`."""
        average = self.recipe.train.average
        if average is None:
            return
        kept = [*self.standing.kept, (self.standing.step, value)]
        if average.of == "best":
            higher = HIGHER_IS_BETTER[self.recipe.validation.metric]
            kept.sort(key=lambda entry: entry[1], reverse=higher)
            kept = kept[: average.count]
        self.standing.kept = kept[-average.count :]
        if any(step == self.standing.step for step, _ in self.standing.kept):
            path = self._kept_path(self.standing.step)
            make_folder(path.parent)
            write_tensors(path, weights_of(self.network), {"step": self.standing.step})

    def _kept_path(self, step: int) -> Path:
        return self.folder / "state" / f"kept-{step}.safetensors"

    # ------------------------------------------------------------------------ save and end

    def _save(self) -> None:
        save_state(
            self.folder,
            self.standing,
            self.network,
            self.optimizer,
            self.average,
            dump_recipe(self.recipe),
        )
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
        if self.recipe.train.average is not None and len(standing.kept) > 1:
            several = [read_tensors(self._kept_path(step))[0] for step, _ in standing.kept]
            set_weights(self.network, mean_of(several), self.folder)
            value = self._measure()[metric]
            assert standing.best is not None
            better = _better(metric, value, standing.best)
            self.progress.say(
                f"The average of {len(several)} checkpoints has {metric} {value:.4g} on the "
                f"validation set, the best single one {standing.best:.4g}: "
                f"the {'average' if better else 'single one'} is kept."
            )
            if better:
                standing.best = value
                self.model.save_weights(self.folder)
        self.model.load_weights(self.folder / WEIGHTS)
        self.network.eval()


def _better(metric: str, value: float, than: float) -> bool:
    return value > than if HIGHER_IS_BETTER[metric] else value < than


def _not_finite(step: int, rate: float) -> str:
    return (
        f"the loss or its gradient is no longer a finite number at update {step}; the last saved "
        f"state is untouched: try a lower rate (train.lr={rate / 2:g}), more warm-up, or "
        f"`transduce check` on the data"
    )
