"""ONNX Runtime as an inference engine: it computes the steps, our search does the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.cores import count_cores
from transduce.data.batches.batch import collate
from transduce.decoding.batch.decode import PLACES, BatchDecoder, Request
from transduce.decoding.batch.token_budget import pack
from transduce.decoding.engine import Rows
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.errors import ModelError, load_package
from transduce.interop.onnx import DECODER, ENCODER
from transduce.interop.positions import positions
from transduce.models.decoders import DecoderState
from transduce.recipe import Recipe


@dataclass
class SessionState:
    """The decoder's KV cache, one row for each hypothesis."""

    past_LBTE: Tensor
    memory_LBSE: Tensor
    mask_BS: Tensor

    def reorder(self, index_B: Tensor) -> None:
        self.past_LBTE = self.past_LBTE[:, index_B]
        self.memory_LBSE = self.memory_LBSE[:, index_B]
        self.mask_BS = self.mask_BS[index_B]


class Session:
    """A model that `interop.onnx.export` wrote; a Stepper."""

    name = "ONNX Runtime"
    at_once = 1

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        runtime = load_package("onnxruntime", "onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = count_cores()
        # Spinning threads would take the cores from our own part of the step.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._encoder, self._decoder = (
            _session(runtime, folder / name, options) for name in (ENCODER, DECODER)
        )
        self.max_source_length = positions(recipe.model.encoder)
        self.max_target_length = positions(recipe.model.decoder)

    # ------------------------------------------------------------------- what search asks for

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> SessionState:
        mask_BS = torch.arange(source_BS.shape[1]) < lengths_B[:, None]
        (memory_LBSE,) = self._encoder.run(
            ["memory"], {"source": source_BS.long().numpy(), "mask": mask_BS.numpy()}
        )
        memory_LBSE = torch.from_numpy(memory_LBSE)
        L, B, _, E = memory_LBSE.shape
        return SessionState(torch.zeros(L, B, 0, E), memory_LBSE, mask_BS)

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        assert isinstance(state, SessionState)
        position_1 = torch.tensor([state.past_LBTE.shape[2]])
        log_probs_BV, past_LBTE = self._decoder.run(
            ["log_probabilities", "new_past"],
            {
                "tokens": tokens_B.long().numpy(),
                "position": position_1.numpy(),
                "past": state.past_LBTE.numpy(),
                "memory": state.memory_LBSE.numpy(),
                "mask": state.mask_BS.numpy(),
            },
        )
        state.past_LBTE = torch.from_numpy(past_LBTE)
        return torch.from_numpy(log_probs_BV), state

    # ----------------------------------------------------------------- what a Transducer asks

    def decode(self, task: BatchDecoder, requests: Sequence[Request]) -> list[list[Hypothesis]]:
        return replace(task, model=self).run(requests)

    def follow(self, task: BatchDecoder, request: Request) -> Iterator[int]:
        return replace(task, model=self).follow(request)

    def log_probabilities(self, sources: Rows, targets: Rows) -> list[list[float]]:
        """The log-probability of each token of each target, END included, step by step."""
        found: list[list[float]] = [[] for _ in sources]
        sizes = [len(s) + len(t) + 2 for s, t in zip(sources, targets, strict=True)]
        for indices in pack(range(len(sources)), sizes, PLACES // 4):
            batch = collate([sources[i] for i in indices], [targets[i] for i in indices])
            assert batch.target_BT is not None
            target_BT = batch.target_BT.long()
            state: DecoderState = self.start(batch.source_BS, batch.source_lengths_B)
            steps = []
            for t in range(target_BT.shape[1] - 1):
                log_probs_BV, state = self.step(target_BT[:, t], state)
                steps.append(log_probs_BV.gather(1, target_BT[:, t + 1, None]))
            for index, row in zip(indices, torch.cat(steps, dim=1).tolist(), strict=True):
                found[index] = row[: len(targets[index]) + 1]
        return found


def _session(runtime: Any, path: Path, options: Any) -> Any:
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base class
        reason = str(error).splitlines()[0]
        raise ModelError(f"ONNX Runtime cannot load {path}: {reason}") from None
