"""What a person gives to `network.logits`, checked: one sentence instead of an error of torch's."""

from __future__ import annotations

from torch import Tensor

from transduce.errors import ModelError


def check_ids(name: str, ids: Tensor, vocabulary: int) -> None:
    """Raise ModelError for ids that are no token of a vocabulary of this size."""
    if ids.ndim != 2:
        raise ModelError(
            f"{name} has the shape {tuple(ids.shape)}; it must have two dimensions, batch and "
            f"length"
        )
    if not ids.numel():
        return
    minimum, maximum = (int(one) for one in ids.aminmax())
    if minimum < 0 or maximum >= vocabulary:
        wrong = minimum if minimum < 0 else maximum
        raise ModelError(
            f"{name} has the id {wrong}; the vocabulary has {vocabulary:,} tokens, 0 to "
            f"{vocabulary - 1:,}"
        )


def check_lengths(source_BS: Tensor, lengths_B: Tensor) -> None:
    """Raise ModelError for lengths that are not those of a batch of sources."""
    B, S = source_BS.shape[:2]
    if lengths_B.shape != (B,):
        raise ModelError(
            f"lengths_B has the shape {tuple(lengths_B.shape)}, but there are {B} sources: it must "
            f"have the length of each"
        )
    minimum, maximum = (int(one) for one in lengths_B.aminmax()) if B else (0, 0)
    if minimum < 0 or maximum > S:
        wrong = minimum if minimum < 0 else maximum
        raise ModelError(
            f"lengths_B has the length {wrong}; source_BS is {S} long, so that each length must be "
            f"from 0 to {S}"
        )


def check_pairs(source_BS: Tensor, target_BT: Tensor) -> None:
    """Raise ModelError where there are not as many targets as sources."""
    if len(source_BS) != len(target_BT):
        raise ModelError(
            f"there are {len(source_BS)} sources, but {len(target_BT)} targets; give one for each"
        )
