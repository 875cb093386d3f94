"""A batch: sources and targets as padded tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.audio.corpus import AudioCorpus, Wave, audio_corpus
from transduce.data.cache.tokenised import Encoded
from transduce.data.tokens.tokenizer import BEGIN, END, PAD

T = TypeVar("T")


@dataclass
class Batch:
    """A padded batch. The decoder reads target_BT[:, :-1] and predicts target_BT[:, 1:].

    Lengths stay on the CPU, so that reading them does not synchronise with a device; `on_device`
    moves them too, for passes that a CUDA graph replays: there nothing can read them.

    Source rows end with END; target rows start with BEGIN and end with END (labels have no END on
    either side, blocks of running text none in the target). `target_lengths_B` counts predicted
    tokens: not BEGIN. `lines` are line numbers in the files, for messages; `rows` are rows of the
    `Encoded` corpus, to restore its order.

    With audio, source_BS holds 16-bit samples padded with zeros, and transcript_BT the tokens of
    the transcripts, without special tokens.
    """

    source_BS: Tensor
    source_lengths_B: Tensor
    target_BT: Tensor | None
    target_lengths_B: Tensor | None
    lines: list[int]
    rows: list[int]
    target_tokens: int
    """Predicted tokens, without padding; known without synchronising with a device."""
    padding_fraction: float
    """Share of padding among the inputs of encoder and decoder."""
    transcript_BT: Tensor | None = None
    transcript_lengths_B: Tensor | None = None
    tags_BG: Tensor | None = None
    """Tags of audio sources, one-hot."""
    ready: Any = None
    """The batch as an update reads it, where that was made ahead of time."""

    def __len__(self) -> int:
        return len(self.lines)

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device; to CUDA from pinned memory, asynchronously."""
        device = torch.device(device)

        def moved(tensor: Tensor) -> Tensor:
            if device.type == "cuda" and tensor.device.type == "cpu":
                tensor = tensor.pin_memory()
            return tensor.to(device, non_blocking=device.type == "cuda")

        return replace(
            self,
            source_BS=moved(self.source_BS),
            target_BT=None if self.target_BT is None else moved(self.target_BT),
            transcript_BT=None if self.transcript_BT is None else moved(self.transcript_BT),
            tags_BG=None if self.tags_BG is None else moved(self.tags_BG),
        )

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by the names of their fields, lengths included."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def with_tensors(self, tensors: Mapping[str, Any]) -> Batch:
        """The same batch in other memory, or on another device."""
        return replace(self, **tensors)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Of all tensors: what a CUDA graph is captured for."""
        return tuple((name, *tensor.shape) for name, tensor in self.tensors().items())

    def rounded(self, longest: int | None = None) -> Batch:
        """The batch filled up to one of few shapes: longer rows, and more of them.

        The rows added have length 0, and nothing is predicted in them; `lines` and `rows` do not
        count them. longest: what no row of tokens is made longer than.
        """
        tensors, widths = self.tensors(), dict[str, int]()
        for name in ("source_BS", "target_BT", "transcript_BT"):
            if name in tensors:
                # Of a target, BEGIN is not counted: a decoder reads it, but not the last token.
                first = int(name == "target_BT")
                length = tensors[name].shape[1] - first
                if tensors[name].dtype == torch.int16:
                    widths[name] = round_up(length, 4)
                else:
                    made = 2 * round_up(-(-length // 2), 3)
                    widths[name] = first + max(length, min(made, longest or made))
        rows = round_up(len(self), 4)
        filled: dict[str, Any] = {
            name: _filled(tensor, rows, widths.get(name)) for name, tensor in tensors.items()
        }
        real, places = int(self.source_lengths_B.sum()), filled["source_BS"].numel()
        if "target_BT" in filled:
            real, places = real + self.target_tokens, places + filled["target_BT"][:, 1:].numel()
        return replace(self, padding_fraction=1 - real / places, **filled)

    def twice(self) -> Batch:
        """The batch repeated, for the two passes of R-Drop."""
        assert self.target_BT is not None
        assert self.target_lengths_B is not None
        return Batch(
            source_BS=self.source_BS.repeat(2, 1),
            source_lengths_B=self.source_lengths_B.repeat(2),
            target_BT=self.target_BT.repeat(2, 1),
            target_lengths_B=self.target_lengths_B.repeat(2),
            lines=2 * self.lines,
            rows=2 * self.rows,
            target_tokens=2 * self.target_tokens,
            padding_fraction=self.padding_fraction,
            transcript_BT=None if self.transcript_BT is None else self.transcript_BT.repeat(2, 1),
            transcript_lengths_B=None
            if self.transcript_lengths_B is None
            else self.transcript_lengths_B.repeat(2),
            tags_BG=None if self.tags_BG is None else self.tags_BG.repeat(2, 1),
        )

    def part(self, rows: slice) -> Batch:
        """A subset of the rows, padded to the longest of them."""
        source_lengths_B = self.source_lengths_B[rows]
        source_BS = self.source_BS[rows, : int(source_lengths_B.max())]
        real, places = int(source_lengths_B.sum()), source_BS.numel()
        target_BT, target_lengths_B, target_tokens = None, None, 0
        if self.target_BT is not None and self.target_lengths_B is not None:
            target_lengths_B = self.target_lengths_B[rows]
            target_BT = self.target_BT[rows, : 1 + int(target_lengths_B.max())]
            target_tokens = int(target_lengths_B.sum())
            real, places = real + target_tokens, places + target_BT[:, 1:].numel()
        return Batch(
            source_BS=source_BS.contiguous(),
            source_lengths_B=source_lengths_B,
            target_BT=None if target_BT is None else target_BT.contiguous(),
            target_lengths_B=target_lengths_B,
            lines=self.lines[rows],
            rows=self.rows[rows],
            target_tokens=target_tokens,
            padding_fraction=1 - real / places,
            transcript_BT=None
            if self.transcript_BT is None
            else self.transcript_BT[rows].contiguous(),
            transcript_lengths_B=None
            if self.transcript_lengths_B is None
            else self.transcript_lengths_B[rows],
            tags_BG=None if self.tags_BG is None else self.tags_BG[rows],
        )


def round_up(number: int, bits: int) -> int:
    """Rounded up to so many significant bits: with 3, at most a quarter too much, with 4 an
    eighth."""
    step = 1 << max(number.bit_length() - bits, 0)
    return -(-number // step) * step


def _filled(tensor: Tensor, rows: int, width: int | None) -> Tensor:
    """More rows, and longer ones, of PAD; of lengths, 0."""
    shape = (rows, *tensor.shape[1:]) if width is None else (rows, width)
    filled = tensor.new_full(shape, 0 if width is None else PAD)
    filled[tuple(slice(size) for size in tensor.shape)] = tensor
    return filled


Row = Sequence[int] | NDArray[np.int32] | NDArray[np.int16]


def collate(
    sources: Sequence[Row],
    targets: Sequence[Row] | None,
    lines: Sequence[int] | None = None,
    ends: bool = True,
) -> Batch:
    """A padded batch from rows of ids without special tokens; without targets at inference.

    `ends`, here and below: whether END is appended to rows. Rows of 16-bit integers are audio.
    """
    if len(sources) and getattr(sources[0], "dtype", None) == np.int16:
        return batch_of_rows(
            audio_corpus(sources, targets), np.arange(len(sources)), ends, bool(targets)
        )
    rows = np.arange(len(sources))
    encoded_targets = targets if targets is not None else [[]] * len(sources)
    encoded = Encoded(
        *_flat(sources),
        *_flat(encoded_targets),
        lines=np.asarray(rows + 1 if lines is None else lines, np.int64),
        numbers=rows,
    )
    return batch_of_rows(encoded, rows, ends, with_targets=targets is not None)


def _flat(rows: Sequence[Row]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    empty = np.zeros(0, np.int32)
    return np.concatenate([empty, *(np.asarray(row, np.int32) for row in rows)]), offsets


def batch_of_rows(
    encoded: Encoded, rows: NDArray[np.int64], ends: bool, with_targets: bool = True
) -> Batch:
    sides = encoded.source_ids, encoded.source_offsets, rows
    transcript_BT, transcript_lengths_B, tags_BG = None, None, None
    source_BS: NDArray[Any]
    if isinstance(encoded, AudioCorpus):
        source_BS, source_lengths_B = encoded.waves(rows)
        transcripts, lengths = _padded(
            encoded.transcript_ids, encoded.transcript_offsets, rows, False, False
        )
        transcript_BT, transcript_lengths_B = (
            torch.from_numpy(transcripts),
            torch.from_numpy(lengths),
        )
        if encoded.tags is not None:
            tags_BG = torch.from_numpy(encoded.tags[rows])
    else:
        source_BS, source_lengths_B = _padded(*sides, False, ends)
    real, places = int(source_lengths_B.sum()), source_BS.size
    target_BT, target_lengths_B = None, None
    target_tokens = 0
    if with_targets:
        end = ends and encoded.whole
        padded, lengths = _padded(encoded.target_ids, encoded.target_offsets, rows, True, end)
        target_tokens = int(lengths.sum())
        real, places = real + target_tokens, places + padded.size - len(rows)
        target_BT, target_lengths_B = torch.from_numpy(padded), torch.from_numpy(lengths)
    return Batch(
        source_BS=torch.from_numpy(source_BS),
        source_lengths_B=torch.from_numpy(source_lengths_B),
        target_BT=target_BT,
        target_lengths_B=target_lengths_B,
        lines=encoded.lines[rows].tolist(),
        rows=rows.tolist(),
        target_tokens=target_tokens,
        padding_fraction=1 - real / places if places else 0.0,
        transcript_BT=transcript_BT,
        transcript_lengths_B=transcript_lengths_B,
        tags_BG=tags_BG,
    )


def _padded(
    ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
    rows: NDArray[np.int64],
    begin: bool,
    end: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows padded to one tensor, with BEGIN and END where asked; their lengths without BEGIN."""
    starts, lengths_B = offsets[rows], offsets[rows + 1] - offsets[rows]
    width = int(lengths_B.max(initial=0))
    places = np.arange(width)
    real = places < lengths_B[:, None]
    first = int(begin)
    padded = np.full((len(rows), max(first + width + int(end), 1)), PAD, np.int64)
    padded[:, :first] = BEGIN
    padded[:, first : first + width][real] = ids[(starts[:, None] + places)[real]]
    if end:
        padded[np.arange(len(rows)), first + lengths_B] = END
    return padded, lengths_B + int(end)


# ----------------------------------------------------------------------------------------------
# Waveforms of different lengths as one batch on a device.


def pad_waves(waves: Sequence[Wave], device: torch.device) -> tuple[Tensor, Tensor]:
    """Samples [B, W] on the device, padded with zeros, and their lengths_B, on the CPU."""
    lengths_B = torch.tensor([len(wave) for wave in waves])
    flat_N = torch.from_numpy(np.concatenate([np.zeros(0, np.int16), *waves]))
    if device.type == "cuda":  # pinned memory: the copy waits for nothing the device is doing
        flat_N = flat_N.pin_memory()
    return pad_flat(flat_N.to(device, non_blocking=True), lengths_B), lengths_B


def pad_flat(flat_N: Tensor, lengths_B: Tensor) -> Tensor:
    """Sequences that lie one after the other as rows [B, W], on their device; lengths_B is on the
    CPU."""
    rows, longest = len(lengths_B), max(1, int(lengths_B.max()))
    if not flat_N.is_cuda:
        padded_BW = flat_N.new_zeros(rows, longest)
        for row_W, part in zip(padded_BW, torch.split(flat_N, lengths_B.tolist()), strict=True):
            row_W[: len(part)] = part
        return padded_BW
    return scattered(flat_N, lengths_B, longest)


def scattered(flat_N: Tensor, lengths_B: Tensor, longest: int) -> Tensor:
    """The same in a few operations, however many rows there are; nothing waits for the device."""
    place_W = torch.arange(longest, device=flat_N.device)
    there_BW = place_W < lengths_B.to(flat_N.device, non_blocking=True)[:, None]
    padded_BW = flat_N.new_zeros(there_BW.shape)
    return padded_BW.masked_scatter_(there_BW, flat_N)
