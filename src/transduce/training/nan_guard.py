"""What a run does about bad numbers: it skips, slows down, and in the end says why it stops.

An update whose loss or gradient is not finite changes nothing: no weight, no moment, no average.
The optimizer itself skips it, by a flag on the device, so that no update waits to be told. When the
run looks (on a CPU after every update, on a GPU at every line of the log) and finds skipped
updates, it halves its learning rate, down to a sixteenth; a hundred good updates in a row double
it again. Ten bad ones in a row end the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from transduce.training.log_window import Outcome

MOST_IN_A_ROW = 10
LOWEST = 1 / 16
RECOVERED = 100  # good updates in a row until the rate is doubled again

MEMORY = 0.9  # of the running mean of the log's losses: about the last ten lines count
SETTLED = 5  # lines of the log before there is a mean to speak of
DEVIATIONS = 4.0
LEAST_RISE = 1.1  # a loss that hardly varies jumps by many deviations at nothing


def unusable(loss: Tensor, gradient_norm: Tensor) -> Tensor:
    """1.0 on the device if an update must be skipped, else 0.0: what `found_inf` of AdamW takes."""
    total = loss.double() + gradient_norm.double()
    return (total - total).ne(0.0).float()  # inf - inf and nan - nan are nan, which is not 0


@dataclass
class Guard:
    """What is remembered of bad numbers; part of a run's state, so that resuming is exact."""

    factor: float = 1.0
    """Of the learning rate."""
    good: int = 0
    """Updates since one was skipped or the rate was doubled."""
    in_a_row: int = 0
    """Skipped updates since the last good one."""
    skipped: int = 0
    """Skipped updates of the whole run."""
    loss: float | None = None
    """The last finite loss per token."""
    mean: float = 0.0
    variance: float = 0.0
    """Exponentially weighted, of the losses in the log."""
    logged: int = 0

    def look(self, outcomes: Sequence[Outcome]) -> None:
        """Take note of the updates since the last look, and set the factor of the rate."""
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
        return self.in_a_row >= MOST_IN_A_ROW

    def jumps(self, loss: float) -> bool:
        """Whether the objective of a line of the log lies far above those before it.

        A jump moves the mean and the deviation no further than the border of what is usual, so
        that it does not hide the next one; a loss that stays high becomes usual in time.
        """
        if not math.isfinite(loss):
            return False
        border = max(self.mean + DEVIATIONS * math.sqrt(self.variance), LEAST_RISE * self.mean)
        jumped = self.logged >= SETTLED and loss > border
        if self.logged == 0:
            self.mean = loss
        away = (min(loss, border) if jumped else loss) - self.mean
        self.mean += (1 - MEMORY) * away
        self.variance = MEMORY * (self.variance + (1 - MEMORY) * away**2)
        self.logged += 1
        return jumped
