"""NaN and infinite losses or gradients: the update is skipped, the learning rate reduced.

An update whose loss or gradient is NaN or infinite changes nothing: no weight, no moment, no
average. The optimizer itself skips it, by a flag on the device, so that no update synchronises.
When the run reads the results (on a CPU after every update, on a GPU at every line of the log) and
finds skipped updates, it halves its learning rate, down to a sixteenth; a hundred good updates in a
row double it again. Ten bad ones in a row end the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from transduce.training.log_window import Outcome

MAX_IN_A_ROW = 10
LOWEST = 1 / 16
RECOVERED = 100  # good updates in a row until the rate is doubled again

DECAY = 0.9  # decay of the moving average of the log's losses: about the last ten lines count
FIRST_LINES = 5  # lines of the log before the average is used
DEVIATIONS = 4.0
MIN_RISE = 1.1  # smallest relative rise: a loss that hardly varies has a tiny deviation


def nonfinite(loss: Tensor, gradient_norm: Tensor) -> Tensor:
    """1.0 on the device if loss or gradient are NaN or infinite, else 0.0: AdamW's `found_inf`."""
    total = loss.double() + gradient_norm.double()
    return (total - total).ne(0.0).float()  # inf - inf and nan - nan are nan, which is not 0


@dataclass
class NanGuard:
    """Counts of NaN and infinite updates; part of the checkpoint, so that resuming is exact."""

    factor: float = 1.0
    """Factor of the learning rate."""
    good: int = 0
    """Updates since one was skipped or the rate was doubled."""
    in_a_row: int = 0
    """Skipped updates in a row, since the last good one."""
    skipped: int = 0
    """Skipped updates of the whole run."""
    loss: float | None = None
    """The last finite loss per token."""
    mean: float = 0.0
    variance: float = 0.0
    """Exponential moving average of the losses in the log."""
    logged: int = 0

    def look(self, outcomes: Sequence[Outcome]) -> None:
        """Record the updates since the last call, and set the factor of the learning rate."""
        before = self.skipped
        for outcome in outcomes:
            self._note(outcome)
        if self.skipped > before:
            self.factor = max(self.factor / 2, LOWEST)

    def _note(self, outcome: Outcome) -> None:
        if not outcome.usable:
            self.skipped += 1
            self.in_a_row += 1
            self.good = 0
            return
        self.loss = outcome.objective_per_token
        self.in_a_row = 0
        self.good += 1
        if self.factor < 1.0 and self.good >= RECOVERED:
            self.factor = min(2 * self.factor, 1.0)
            self.good = 0

    @property
    def stuck(self) -> bool:
        return self.in_a_row >= MAX_IN_A_ROW

    def jumps(self, loss: float) -> bool:
        """Whether the objective of a log line is far above those before it (a loss spike).

        A spike moves mean and deviation no further than the threshold, so that it does not hide the
        next one; a loss that stays high becomes normal in time.
        """
        if not math.isfinite(loss):
            return False
        border = max(self.mean + DEVIATIONS * math.sqrt(self.variance), MIN_RISE * self.mean)
        jumped = self.logged >= FIRST_LINES and loss > border
        if self.logged == 0:
            self.mean = loss
        away = (min(loss, border) if jumped else loss) - self.mean
        self.mean += (1 - DECAY) * away
        self.variance = DECAY * (self.variance + (1 - DECAY) * away**2)
        self.logged += 1
        return jumped
