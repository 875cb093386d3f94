"""KV cache: the keys and values of past decoding steps, so that each step computes only its own."""

from __future__ import annotations

from torch import Tensor


class KVCache:
    """Keys and values of earlier steps, for decoding step by step with `MultiHeadAttention`.

        cache = KVCache()
        for x_B1D in steps:
            y_B1D = attention(x_B1D, mask=causal(), cache=cache)

    It grows by doubling, so that n appended steps copy O(n) and not O(n²) values. It is written in
    place: decode under `torch.no_grad()` or `torch.inference_mode()`. `append` returns views of the
    buffers, not copies.
    """

    smallest_capacity = 16

    def __init__(self) -> None:
        self.length = 0
        self._keys_BHCK: Tensor | None = None
        self._values_BHCK: Tensor | None = None

    def append(self, keys_BHTK: Tensor, values_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Add T steps; returns all keys and all values so far, each [B, H, S, K]."""
        start, end = self.length, self.length + keys_BHTK.shape[2]
        self._keys_BHCK = _with_capacity(self._keys_BHCK, keys_BHTK, start)
        self._values_BHCK = _with_capacity(self._values_BHCK, values_BHTK, start)
        self._keys_BHCK[:, :, start:end] = keys_BHTK
        self._values_BHCK[:, :, start:end] = values_BHTK
        self.length = end
        return self._keys_BHCK[:, :, :end], self._values_BHCK[:, :, :end]

    def stored(self) -> tuple[Tensor, Tensor]:
        """All keys and all values so far, each [B, H, S, K]; there must be some."""
        assert self._keys_BHCK is not None
        assert self._values_BHCK is not None
        return self._keys_BHCK[:, :, : self.length], self._values_BHCK[:, :, : self.length]

    def reorder(self, index_B: Tensor) -> None:
        """Row b becomes the old row index_B[b]; the batch takes the length of the index.

        An empty cache has no rows yet and stays as it is.
        """
        if self._keys_BHCK is None or self._values_BHCK is None:
            return
        self._keys_BHCK = self._keys_BHCK.index_select(0, index_B)
        self._values_BHCK = self._values_BHCK.index_select(0, index_B)


def _with_capacity(buffer_BHCK: Tensor | None, new_BHTK: Tensor, start: int) -> Tensor:
    B, H, T, K = new_BHTK.shape
    if buffer_BHCK is None:
        return new_BHTK.new_empty(B, H, max(start + T, KVCache.smallest_capacity), K)
    if buffer_BHCK.shape[0] != B:
        raise ValueError(
            f"The KV cache holds {buffer_BHCK.shape[0]} sequences, but the step has {B}: call "
            f"reorder(index_B) first to make the batch grow or shrink."
        )
    capacity = buffer_BHCK.shape[2]
    if start + T <= capacity:
        return buffer_BHCK
    grown_BHCK = buffer_BHCK.new_empty(B, H, max(start + T, 2 * capacity), K)
    grown_BHCK[:, :, :start] = buffer_BHCK[:, :, :start]
    return grown_BHCK
