"""What training needs of a network, whatever its task."""

from __future__ import annotations

from torch import Tensor, nn

from transduce.data.batches import Batch
from transduce.data.packing import Packed
from transduce.nn.losses import Loss


class Learner(nn.Module):
    """A network that says how wrong it is about pairs of token ids."""

    def loss(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        smoothing: float = 0.0,
        agreement: float = 0.0,
    ) -> Loss:
        """Cross-entropy of target_BT (BEGIN …, padded), summed; lengths_B stays on the CPU.

        With `agreement`, the batch holds everything twice (see nn/agreement.py).
        """
        raise NotImplementedError

    def batch_loss(self, batch: Batch, smoothing: float = 0.0, agreement: float = 0.0) -> Loss:
        """The loss of a batch that is where the network is."""
        assert batch.target_BT is not None
        source = (batch.source_BS, batch.source_lengths_B)
        return self.loss(*source, batch.target_BT, smoothing, agreement)

    def packs(self, longest: int) -> bool:
        """Whether `packed_loss` can take the place of `loss`, on a GPU in bfloat16."""
        return False

    def packed_loss(self, packed: Packed, smoothing: float = 0.0, agreement: float = 0.0) -> Loss:
        """The same of sequences laid one after the other, nothing padded."""
        raise NotImplementedError
