"""What training needs of a network, whatever its task."""

from __future__ import annotations

from typing import NamedTuple, Self

from torch import Tensor, nn

from transduce.data.batches.batch import Batch
from transduce.data.batches.packing import Packed
from transduce.nn.loss import Loss


class SpeechLosses(NamedTuple):
    """Losses of speech beside cross-entropy and CTC, by their weights; 0: off."""

    cr_ctc: float = 0.0
    """Of the consistency of two views (CR-CTC, see nn/ctc/loss.py): the batch holds everything
    twice."""
    time_mask_ratio: float = 1.0
    """With CR-CTC, how many times as many time masks there are."""
    guided_attention: float = 0.0
    """Of attention to the audio that is far from the diagonal (see nn/attention/guided.py)."""


NO_SPEECH_LOSSES = SpeechLosses()


def modules_of(network: nn.Module) -> list[nn.Module]:
    """All modules, those used twice twice: what `modules()` gives takes several times as long."""
    found = [network]
    for module in found:
        found += [child for child in vars(module)["_modules"].values() if child is not None]
    return found


class TrainableNetwork(nn.Module):
    """A network that says how wrong it is about pairs of token ids."""

    _kinds: tuple[type[nn.Module], ...] = ()

    def built(self) -> Self:
        """Remember of which modules it was built; the last thing that a builder does."""
        self._kinds = tuple(map(type, modules_of(self)))
        return self

    @property
    def as_built(self) -> bool:
        """Whether every module is still the one that the recipe asks for.

        What computes a network's numbers without calling its modules (packed batches, packed
        weights, the steps in C) is for such networks alone: it would leave out any change.
        """
        modules = modules_of(self)
        unchanged = all("forward" not in vars(module) for module in modules)
        return unchanged and self._kinds == tuple(map(type, modules))

    def loss(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        smoothing: float = 0.0,
        r_drop: float = 0.0,
    ) -> Loss:
        """Cross-entropy of target_BT (BEGIN …, padded), summed; lengths_B stays on the CPU.

        With `r_drop`, the batch holds everything twice (see nn/loss.py).
        """
        raise NotImplementedError

    def batch_loss(
        self,
        batch: Batch,
        smoothing: float = 0.0,
        r_drop: float = 0.0,
        losses: SpeechLosses = NO_SPEECH_LOSSES,
    ) -> Loss:
        """The loss of a batch that is where the network is; `losses` are of speech alone."""
        assert batch.target_BT is not None
        source = (batch.source_BS, batch.source_lengths_B)
        return self.loss(*source, batch.target_BT, smoothing, r_drop)

    def packs(self, longest: int) -> bool:
        """Whether `packed_loss` can take the place of `loss`, on a GPU in bfloat16."""
        return False

    def packed_loss(self, packed: Packed, smoothing: float = 0.0, r_drop: float = 0.0) -> Loss:
        """The same of sequences laid one after the other, nothing padded."""
        raise NotImplementedError
