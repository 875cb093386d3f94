"""Audio in slots: the hypotheses of plain greedy and beam search, whoever sits beside whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tiny_whisper import noises, our_model
from transduce.data.batches.batch import collate, pad_waves
from transduce.data.tokens.tokenizer import BEGIN, END
from transduce.decoding.cuda import pool as pools
from transduce.decoding.cuda.graph_slots import Slots
from transduce.decoding.cuda.pool import (
    AudioTask,
    CudaSearch,
    EncodeWaves,
    has_cuda_search,
)
from transduce.decoding.search.beam import beam as beam_search
from transduce.decoding.search.continuous_batching import Job, Search, Shape
from transduce.decoding.search.greedy import greedy
from transduce.whisper.steps import PromptedSteps, RecordedRules, Rules

ON_GPU = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
)
LIMITS = (3, 9, 14, 20, 6, 17, 1)


@pytest.fixture(scope="module")
def model() -> Any:
    return our_model()


def on(device: str, network: Any) -> EncodeWaves:
    return lambda waves: network.encode(*pad_waves(waves, torch.device(device)))


def rules_of(model: Any) -> Rules:
    settings = model.prompt_settings
    return Rules(model.prompt_tokens, settings.suppress, settings.suppress_first)


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize(("beam", "patience"), [(1, None), (4, None), (4, 1.0)])
@torch.inference_mode()
def test_after_a_prompt_and_by_rules(
    model: Any,
    beam: int,
    patience: float | None,
    timestamps: bool,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "MAX_RECORDINGS", 4)  # few slots: recordings come and go,
    monkeypatch.setattr(pools, "FEWER", 2)  # and the last move to a smaller pool
    network = model.network.to(device)
    prompt = model.prompt_tokens.prompt("de", "transcribe", timestamps, previous=[30, 40])
    rules = rules_of(model)
    waves = noises(len(LIMITS))
    search = CudaSearch(network)
    recorded = RecordedRules(rules, timestamps, torch.device(device))
    task = AudioTask(search, on(device, search.copy), prompt, recorded)
    jobs = [Job(wave, limit) for wave, limit in zip(waves, LIMITS, strict=True)]
    settings = Search(beam, beam, 0.7, patience=patience)
    found = task.run(jobs, settings)
    steps = PromptedSteps(network, network.encode, prompt, rules, torch.device(device))
    texts = set()
    for job, mine in zip(jobs, found, strict=True):
        batch = collate([job.source], None).to(torch.device(device))
        limits_B = torch.tensor([job.limit])
        source = (steps, batch.source_BS, batch.source_lengths_B, limits_B)
        if beam == 1:
            (theirs,) = greedy(*source, 0.7)
        else:
            (theirs,) = beam_search(*source, beam, beam, 0.7, patience=patience)
        assert [one.tokens for one in mine] == [one.tokens for one in theirs]
        assert mine  # also where END may not come: it is cut at its greatest length
        for one, other in zip(mine, theirs, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.log_probability == pytest.approx(other.log_probability, abs=1e-4)
            texts.add(tuple(one.tokens))
    assert len(texts) > 3
    network.to("cpu")


@torch.inference_mode()
def test_without_a_prompt_and_of_a_minimum_length(model: Any) -> None:
    network = model.network
    waves = noises(3)
    search = CudaSearch(network)
    jobs = [Job(wave, 12) for wave in waves]
    found = AudioTask(search, on("cpu", network)).run(jobs, Search(minimum=9))
    assert all(len(of_one[0].tokens) >= 8 for of_one in found)
    free = AudioTask(search, on("cpu", network)).run(jobs)
    batch = collate(waves, None)
    theirs = greedy(network, batch.source_BS, batch.source_lengths_B, torch.full((3,), 12))
    assert [one[0].tokens for one in free] == [one[0].tokens for one in theirs]


@torch.inference_mode()
def test_new_weights_are_used(model: Any) -> None:
    """A model is validated while it is trained, with the same slots."""
    network = our_model(seed=5).network
    search = CudaSearch(network)
    jobs = [Job(wave, 12) for wave in noises(2)]
    before = AudioTask(search, on("cpu", network)).run(jobs)
    network.head.bias[END] += 100.0
    after = AudioTask(search, on("cpu", network)).run(jobs)
    assert [one[0].tokens for one in after] == [[], []]
    assert before != after


@torch.inference_mode()
def test_weights_that_are_no_numbers_give_no_output(model: Any) -> None:
    network = our_model(seed=6).network
    network.head.bias.fill_(np.nan)
    found = AudioTask(CudaSearch(network), on("cpu", network)).run([Job(noises(1)[0], 5)])
    assert found == [[]]


@torch.inference_mode()
def test_half_precision(model: Any) -> None:
    """The copy computes in bfloat16, encoder and decoder, whatever the network is in."""
    search = CudaSearch(model.network, torch.bfloat16)
    states_BSD = search.copy.encode(*_batch()).states_BSD
    assert states_BSD.dtype == torch.bfloat16
    exact_BSD = model.network.encode(*_batch()).states_BSD
    assert torch.allclose(states_BSD.float(), exact_BSD, atol=0.5)
    (found,) = AudioTask(search, on("cpu", search.copy), (BEGIN,)).run([Job(noises(1)[0], 8)])
    assert len(found) == 1


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    batch = collate(noises(1), None)
    return batch.source_BS, batch.source_lengths_B


def test_not_on_a_cpu(model: Any) -> None:
    assert not has_cuda_search(model.network)


@torch.inference_mode()
def test_recordings_stay_where_there_is_no_memory_for_a_smaller_pool(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = our_model(seed=5).network
    jobs = [Job(wave, limit) for wave, limit in zip(noises(3), (10, 18, 24), strict=True)]
    expected = AudioTask(CudaSearch(network), on("cpu", network)).run(jobs, Search(minimum=10))
    capacities = iter([1 << 20])
    monkeypatch.setattr(
        pools, "capacity", lambda network: next(capacities, 0)
    )  # then for one slot alone
    monkeypatch.setattr(pools, "FEWER", 2)
    search = CudaSearch(network)
    found = AudioTask(search, on("cpu", network)).run(jobs, Search(minimum=10))
    assert [one[0].tokens for one in found] == [one[0].tokens for one in expected]
    assert sorted(shape.slots for _, shape in search._pools) == [1, 4]


def tensors_of(slots: Slots) -> dict[str, torch.Tensor]:
    """All that a pool keeps; some are the same tensor under two names."""
    found = {name: x for name, x in vars(slots).items() if isinstance(x, torch.Tensor)}
    found |= slots.ended._asdict()
    found |= {f"own {number}": one.store_RTE for number, one in enumerate(slots.own)}
    return found | {f"source {number}": one.store_BSE for number, one in enumerate(slots.source)}


@pytest.mark.parametrize("ruled", [True, False])
@pytest.mark.parametrize("beam", [1, 4])
@torch.inference_mode()
def test_all_that_a_recording_has_moves_to_another_pool(model: Any, beam: int, ruled: bool) -> None:
    search = CudaSearch(model.network.to("cpu"))
    rules = RecordedRules(rules_of(model), True, torch.device("cpu")) if ruled else None
    large, small = (search.pool(Shape(slots, beam, 64, 64, beam), rules) for slots in (4, 2))
    for number, x in enumerate(tensors_of(large).values()):
        values = torch.arange(x.numel()).view(x.shape) + 1000 * number
        x.copy_(values % 2 == 0 if x.dtype == torch.bool else values % 251)
    large.open_B.fill_(True)
    before = {name: x.clone() for name, x in tensors_of(large).items()}
    small.move_from(large, [3, 1])
    after = tensors_of(small)
    compared = 0
    for name, x in before.items():
        # Rows have other numbers in the other pool.
        if name == "origin_RT":
            continue
        rows = len(x) // 4
        assert torch.equal(after[name][:rows], x[3 * rows :][:rows]), name
        assert torch.equal(after[name][rows : 2 * rows], x[rows : 2 * rows]), name
        compared += 1
    assert compared >= 16
    assert large.open_B.tolist() == [True, False, True, False]
