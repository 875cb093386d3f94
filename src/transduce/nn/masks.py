"""Attention masks: causal, windowed, padding, packed sequences, and any combination of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from transduce.nn.positions import ExplicitPositions

READABLE = ("cpu",)  # devices whose numbers can be read without waiting


def readable(tensor: Tensor) -> bool:
    """Whether the host may read numbers, such as lengths. Elsewhere it would wait for the device;
    and when a pass is captured as a CUDA graph, there are no numbers yet: what follows from lengths
    is then computed on the device, for as many steps as there could be.
    """
    return tensor.device.type in READABLE


@dataclass(frozen=True, eq=False)
class Segments:
    """Packed sequences: laid one after the other in a single row, rather than each padded in its
    own.

    The queries of sequence b are positions query_offsets[b] … query_offsets[b + 1] − 1, its keys
    likewise; offsets are int32 [B + 1]. No sequence is longer than `longest`.
    """

    query_offsets: Tensor
    key_offsets: Tensor
    longest: int

    def positions(self, T: int) -> ExplicitPositions:
        """The position of each of T queries in its own sequence."""
        starts_T = self.query_offsets[_sequence_of(self.query_offsets, T)]
        of_T = torch.arange(T, device=starts_T.device) - starts_T
        return ExplicitPositions(of_T[None], self.longest)

    def of_keys(self, S: int) -> Tensor:
        """The index of the sequence of each of S keys."""
        return _sequence_of(self.key_offsets, S)

    def dense(self, T: int, S: int) -> Tensor:
        """bool [1, T, S]: true where query and key belong to the same sequence."""
        query_T = _sequence_of(self.query_offsets, T)
        key_S = _sequence_of(self.key_offsets, S)
        return (query_T[:, None] == key_S)[None]


def _sequence_of(offsets: Tensor, length: int) -> Tensor:
    positions = torch.arange(length, device=offsets.device, dtype=offsets.dtype)
    return torch.searchsorted(offsets, positions, right=True) - 1


@dataclass(
    frozen=True, eq=False
)  # comparing tensors gives no single truth value, so masks compare by identity
class Mask:
    """The keys that each query may attend to; `one & other` allows what both allow.

    The T queries are the last T of the S positions, so query t is at position p = S - T + t. A
    decoder with a KV cache that adds one step (T = 1) thus sees its whole past.

    causal: a query sees position τ where τ ≤ p: itself and its past, never its future.

    window: (back, ahead): a query sees position τ where p - back ≤ τ ≤ p + ahead.

    visible_BTS: bool, True where a key may be attended to; anything that broadcasts to [B, T, S].

    segments: packed sequences; a query sees only keys of its own sequence, and causality applies
    within it.

    further: more segmentations, all of which must put a query and its key into one sequence.
    """

    causal: bool = False
    window: tuple[int, int] | None = None
    visible_BTS: Tensor | None = None
    segments: Segments | None = None
    further: tuple[Segments, ...] = ()

    def __post_init__(self) -> None:
        if self.window is not None and min(self.window) < 0:
            raise ValueError(
                f"A window counts steps back and steps ahead, both zero or more, not {self.window}."
            )
        visible = self.visible_BTS
        if visible is not None and (visible.dtype != torch.bool or visible.dim() > 3):
            raise ValueError(
                f"visible_BTS must be a bool tensor that broadcasts to [B, T, S], True where a key "
                f"may be seen, not {visible.dtype} of shape {list(visible.shape)}."
            )

    def __and__(self, other: Mask) -> Mask:
        # Each one once, as the same may be in both.
        every = list(dict.fromkeys([*self._segmentations, *other._segmentations]))
        return Mask(
            causal=self.causal or other.causal,
            window=_both_windows(self.window, other.window),
            visible_BTS=_both_visible(self.visible_BTS, other.visible_BTS),
            segments=every[0] if every else None,
            further=tuple(every[1:]),
        )

    @property
    def _segmentations(self) -> list[Segments]:
        return [] if self.segments is None else [self.segments, *self.further]

    def repeat(self, times: int) -> Mask:
        """The mask of a batch in which each row is repeated `times` times."""
        visible = self.visible_BTS
        if visible is None or visible.dim() < 3 or visible.shape[0] == 1:
            return self
        return replace(self, visible_BTS=visible.repeat_interleave(times, dim=0))

    @property
    def only_causal(self) -> bool:
        """Whether the mask is causal and nothing else, so that a fused kernel needs no mask
        tensor.
        """
        return self.causal and self.segments is None and self._plain

    @property
    def only_segments(self) -> bool:
        """Whether the mask is packed sequences and nothing else, causal or not."""
        return self.segments is not None and self._plain

    @property
    def _plain(self) -> bool:
        return self.window is None and self.visible_BTS is None and not self.further

    def dense(self, T: int, S: int, device: torch.device | str | None = None) -> Tensor | None:
        """The mask as a bool tensor of three dimensions that broadcasts to [B, T, S].

        None if every query sees every key. Raises ValueError if the mask is causal or windowed and
        there are more queries than keys.
        """
        visible_BTS = self.visible_BTS
        for segments in self._segmentations:
            visible_BTS = _both_visible(visible_BTS, segments.dense(T, S))
        if visible_BTS is not None:
            visible_BTS = visible_BTS.to(device)
            visible_BTS = visible_BTS.view((1,) * (3 - visible_BTS.dim()) + visible_BTS.shape)
        if not self.causal and self.window is None:
            return visible_BTS
        if T > S:
            raise ValueError(
                f"A causal or windowed mask takes its queries as the last of the keys' positions, "
                f"but there are {T} queries and only {S} keys: leave it out of attention between "
                f"two sequences."
            )
        back, ahead = self.window or (S, S)
        ahead = 0 if self.causal else ahead
        if back >= S - 1 and ahead >= T - 1:
            return visible_BTS
        query_T1 = torch.arange(S - T, S, device=device)[:, None]
        key_S = torch.arange(S, device=device)
        near_1TS = ((query_T1 - back <= key_S) & (key_S <= query_T1 + ahead))[None]
        return near_1TS if visible_BTS is None else near_1TS & visible_BTS


def causal() -> Mask:
    """Each position sees itself and its past (τ ≤ t)."""
    return Mask(causal=True)


def window(back: int, ahead: int) -> Mask:
    """Each position sees at most `back` steps back, itself, and `ahead` steps ahead."""
    return Mask(window=(back, ahead))


def real_positions(lengths_B: Tensor, S: int, device: torch.device | None = None) -> Tensor:
    """bool [B, S]: true for the first lengths_B[b] positions of row b, false at padding."""
    if device is not None:
        lengths_B = lengths_B.to(device, non_blocking=True)
    return torch.arange(S, device=lengths_B.device) < lengths_B[:, None]


def padding(lengths_B: Tensor, S: int) -> Mask:
    """Padding mask: the first lengths_B[b] keys of row b may be attended to; the rest is padding.

    Args:
        lengths_B: the number of real keys of each row.
        S: the number of keys with padding.
    """
    return Mask(visible_BTS=real_positions(lengths_B, S)[:, None, :])


def _both_windows(
    one: tuple[int, int] | None, other: tuple[int, int] | None
) -> tuple[int, int] | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), min(one[1], other[1])


def _both_visible(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other
