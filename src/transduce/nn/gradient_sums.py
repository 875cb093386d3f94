"""Row sums of gradients, passed from one backward kernel to the next.

The gradient of a bias is the sum of the rows of the output's gradient. The kernel that computes
that gradient (attention, residual norm) has the sum at hand; the linear layer before it would have
to read the whole gradient again. PyTorch passes only the gradient itself from one backward
function to the next, so the sums travel beside it, in one registry: `GRADIENT_SUMS`.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from transduce.nn.torch_private import version_of


class GradientSums:
    """Sums over rows, by the gradient that they are of.

    An entry ends with its gradient. It is ignored if the gradient was changed in place after
    `put`, for example when autograd adds a second gradient to it.
    """

    def __init__(self) -> None:
        self._entries: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def put(self, gradient: Tensor, sums_F: Tensor) -> None:
        """Record the sum of a gradient's rows."""
        self._entries[gradient] = (sums_F, version_of(gradient))

    def get(self, gradient: Tensor) -> Tensor | None:
        """The sum of a gradient's rows; None if unknown or out of date."""
        sums_F, version = self._entries.get(  # type: ignore[no-untyped-call]
            gradient, (None, None)
        )
        return sums_F if version == version_of(gradient) else None

    def clear(self) -> None:
        """Forget all sums; the next backward pass computes what it needs."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


#: Shared by all backward functions of this process; empty between backward passes.
GRADIENT_SUMS = GradientSums()
