"""Streamed encoder states are those of the whole recording, at the same chunk size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tiny_sounds import audio_network, noise
from transduce.models.call_context import CallContext
from transduce.models.speech import SpeechEncoderDecoder
from transduce.models.streaming import EncoderStreams
from transduce.nn.positions import Rotary

GLOBAL = "audio.normalize=global"
KINDS = {
    "conformer": "kind: conformer, layers: 2, heads: 2, feed_forward: 32, kernel: 5",
    "transformer": "kind: transformer, layers: 2, heads: 2, feed_forward: 32",
}
POSITIONS = [
    ("conformer", "rotary"),
    ("conformer", "relative"),
    ("conformer", "sinusoidal"),
    ("conformer", "none"),
    ("transformer", "rotary"),
    ("transformer", "relative"),
    ("transformer", "sinusoidal"),
    ("transformer", "learned"),
    ("transformer", "fourier"),
    ("transformer", "sinusoidal, combine: concatenate"),
    ("transformer", "sinusoidal, norm_position: post, norm: rms"),
]


def streaming_network(
    kind: str = "conformer", positions: str = "rotary", left: int = 2, subsampling: int = 4
) -> SpeechEncoderDecoder:
    chunk = f"{{ms: 160, trained: [80, 320], left_chunks: {left}}}"
    shape = f"model.encoder={{{KINDS[kind]}, positions: {positions}, chunk: {chunk}}}"
    network = audio_network(GLOBAL, shape, f"audio.subsampling={subsampling}")
    assert network.front.norm is not None
    torch.nn.init.normal_(network.front.norm.mean_M)
    return network


def whole(network: SpeechEncoderDecoder, samples_W: Tensor, states: int | None) -> Tensor:
    context = CallContext(chunk=states)
    with torch.inference_mode():
        memory = network.encode(samples_W[None], torch.tensor([len(samples_W)]), context)
    return memory.states_BSD[0]


def streamed(streams: EncoderStreams, recordings: list[Tensor], delays: list[int]) -> list[Tensor]:
    """Each recording from a step of its own on, all that are under way in one batch."""
    shape = streams.shape
    slots = [streams.open() for _ in recordings]
    at, found = [0] * len(recordings), [[] for _ in recordings]  # type: ignore[var-annotated]
    step = 0
    while True:
        ready = [
            n
            for n, one in enumerate(recordings)
            if step >= delays[n] and shape.states_in(len(one) - at[n])
        ]
        if not ready and step > max(delays):
            break
        if ready:
            pieces = [recordings[n][at[n] :][: shape.samples] for n in ready]
            samples_BW = torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True)
            lengths_B = torch.tensor([len(piece) for piece in pieces])
            states_BTD, counts = streams.encode([slots[n] for n in ready], samples_BW, lengths_B)
            for row, n in enumerate(ready):
                found[n].append(states_BTD[row, : counts[row]])
                at[n] += shape.advance
        step += 1
    for slot in slots:
        streams.close(slot)
    return [torch.cat(parts) for parts in found]


@pytest.mark.parametrize(("kind", "positions"), POSITIONS)
@torch.inference_mode()
def test_streamed_states_equal_those_of_the_whole_recording(kind: str, positions: str) -> None:
    assert_streamed_as_whole(streaming_network(kind, positions))


@pytest.mark.parametrize("subsampling", [2, 8])
@torch.inference_mode()
def test_so_do_those_of_more_or_fewer_frames(subsampling: int) -> None:
    assert_streamed_as_whole(streaming_network(subsampling=subsampling))


def assert_streamed_as_whole(network: SpeechEncoderDecoder) -> None:
    seconds = [1.4, 0.33, 0.91]
    recordings = [torch.from_numpy(noise(one, seed)) for seed, one in enumerate(seconds)]
    for states in (2, 4):
        found = streamed(EncoderStreams(network, states), recordings, [0, 3, 1])
        for samples_W, states_SD in zip(recordings, found, strict=True):
            expected_SD = whole(network, samples_W, states)
            torch.testing.assert_close(states_SD, expected_SD, rtol=0, atol=1e-5)
    unlike_SD = whole(network, recordings[0], None)
    assert (unlike_SD - whole(network, recordings[0], 4)).abs().max() > 1e-3


@torch.inference_mode()
def test_no_state_sees_beyond_its_chunk_or_further_back_than_it_may() -> None:
    network = streaming_network(left=1)
    samples_W = torch.from_numpy(noise(4.0))
    states_SD = whole(network, samples_W, 4)
    changed_W = samples_W.clone()
    changed_W[8000:] = 0  # from state 50 on
    same_S = (whole(network, changed_W, 4) - states_SD).abs().amax(dim=1) < 1e-6
    assert same_S[:48].all()
    assert not same_S[50:60].any()
    changed_W = samples_W.clone()
    changed_W[:1600] = 0  # before state 10
    same_S = (whole(network, changed_W, 4) - states_SD).abs().amax(dim=1) < 1e-6
    # Two layers, each of which sees a chunk further back, and convolutions of five.
    assert not same_S[:8].any()
    assert same_S[28:].all()


@torch.inference_mode()
def test_caches_are_as_large_after_an_hour_as_after_a_second() -> None:
    network = streaming_network()
    streams = EncoderStreams(network, 4)
    samples_W = torch.from_numpy(noise(1.0))
    slot = streams.open()
    chunk_1W, length = (
        samples_W[None, : streams.shape.samples],
        torch.tensor([streams.shape.samples]),
    )
    streams.encode([slot], chunk_1W, length)
    after_one = streams.bytes
    assert after_one == 4 * (2 * 8 * 32 + 2 * 4 * 16)  # keys and values, and convolutions
    for _ in range(12):  # until all that it sees is this chunk
        fresh_BTD, _ = streams.encode([slot], chunk_1W, length)
    streams.seen[slot] += 4 * 22_500  # an hour later: only distances count
    later_BTD, _ = streams.encode([slot], chunk_1W, length)
    torch.testing.assert_close(later_BTD, fresh_BTD, rtol=0, atol=1e-6)
    assert streams.bytes == after_one
    tables = [part.table_TD for part in network.encoder.modules() if isinstance(part, Rotary)]
    assert max(len(table_TD) for table_TD in tables) <= 2 * (streams.past + 4)
    streams.close(slot)
    assert streams.bytes == 0


@torch.inference_mode()
def test_a_slot_is_as_new_for_the_next_stream() -> None:
    network = streaming_network()
    streams = EncoderStreams(network, 4)
    kept = streams.open()
    one, other = torch.from_numpy(noise(1.0, 1)), torch.from_numpy(noise(1.0, 2))
    streamed(streams, [one], [0])
    for cache in streams._caches:
        assert cache.frames_BPD is not None
        cache.frames_BPD.fill_(torch.nan)
        cache.keys_BP2D.fill_(torch.nan)
    (again,) = streamed(streams, [other], [0])
    torch.testing.assert_close(again, whole(network, other, 4), rtol=0, atol=1e-5)
    streams.close(kept)
