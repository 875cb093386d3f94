"""Batches filled up to few shapes, whose lengths nobody reads; and passes replayed as CUDA graphs.

What a CUDA graph may not do, read a number from the device, is no branch of its own: `readable`
says so. On a CPU a test can forbid it too, and compare.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tiny_sounds import ENCODERS, audio_network, audio_recipe, noise
from transduce import recipe
from transduce.adapters.network import AdaptedNetwork, adaptable
from transduce.data.batches.batch import Batch, collate, round_up
from transduce.data.tokens.tokenizer import PAD
from transduce.memory import out_of_memory
from transduce.models import RecurrentLanguageModel, TrainableNetwork
from transduce.models.build import Vocabulary, build, build_label_network, build_transducer
from transduce.models.speech import SpeechNetwork
from transduce.models.trainable import NO_SPEECH_LOSSES, SpeechLosses
from transduce.nn import chunks, masks, torch_private
from transduce.nn.conformer import MaskedBatchNorm
from transduce.nn.ctc.loss import ctc_loss
from transduce.nn.recurrent.cells import CELLS
from transduce.nn.recurrent.stack import Recurrent
from transduce.nn.speech.background_noise import BackgroundNoise
from transduce.nn.speech.speed_perturbation import change_speed, perturb_speed
from transduce.recipe import Train
from transduce.recipe.training import CrCtc
from transduce.training.distillation import Distillation
from transduce.training.optimizer import MovingAverage, build_optimizer, set_learning_rate
from transduce.training.update import (
    CapturedUpdate,
    Replayed,
    Update,
    build_update,
    capture_notice,
    longest_row,
    why_not_captured,
)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
WORDS = [f"{letter}{n}" for n, letter in enumerate("abcdefghijkl")]
ATTENTION = {"kind": "transformer", "layers": 2, "heads": 2, "feed_forward": 32}
CONFORMER = {"kind": "conformer", "layers": 2, "heads": 2, "feed_forward": 32, "kernel": 5}
LSTM = {"kind": "recurrent", "cell": "lstm", "layers": 2}
SIDES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "transformer": (ATTENTION, ATTENTION),
    "learned": ({**ATTENTION, "positions": "learned"}, {**ATTENTION, "positions": "learned"}),
    "conformer": (CONFORMER, ATTENTION),
    "relative": ({**CONFORMER, "positions": "relative"}, ATTENTION),
    "convolutional": ({"kind": "convolutional"}, {"kind": "convolutional"}),
    "lstm": (LSTM, LSTM),
    "gru": ({**LSTM, "cell": "gru"}, {**LSTM, "cell": "gru", "context": "input"}),
    "elman": ({**LSTM, "cell": "elman"}, {**LSTM, "cell": "elman", "attention": "additive"}),
    "peephole": ({**LSTM, "cell": "lstm-peephole"}, {**LSTM, "cell": "lstm-peephole"}),
    "mixed": (ATTENTION, {**LSTM, "attention": "location-aware"}),
}
TAGGERS: dict[str, dict[str, Any]] = {
    "transformer": {"encoder": ATTENTION},
    "lstm": {"encoder": LSTM, "characters": {"kind": "lstm", "width": 4}},
    "letters": {"encoder": LSTM, "characters": {"kind": "cnn", "width": 4}},
}


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device: no length is read."""
    forbid(monkeypatch)


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "READABLE", ())
    monkeypatch.setattr(chunks, "READABLE", ())


def encoder_decoder(name: str, width: int = 16, dropout: float = 0.0) -> TrainableNetwork:
    torch.manual_seed(1)
    encoder, decoder = SIDES[name]
    shape = {"width": width, "dropout": dropout, "encoder": encoder, "decoder": decoder}
    return build(recipe.Model.model_validate(shape), Vocabulary(12, 12))


def tagger(name: str, pooled: bool, pooling: str = "mean") -> TrainableNetwork:
    torch.manual_seed(1)
    shape = {"width": 16, "dropout": 0.0, **TAGGERS[name]}
    if pooled:
        shape["pooling"] = pooling
    return build_label_network(recipe.Model.model_validate(shape), WORDS, 3, pooled=pooled)


def pairs(rows: int = 5, seed: int = 1, longest: int = 9) -> Batch:
    random = np.random.default_rng(seed)

    def some() -> list[list[int]]:
        lengths = random.integers(1, longest + 1, rows)
        return [random.integers(4, 12, length).tolist() for length in lengths]

    return collate(some(), some())


def labelled(pooled: bool) -> Batch:
    sources = [[5, 6, 7, 8, 9], [9, 4], [6, 6, 5]]
    labels = [[4], [5], [6]] if pooled else [[4, 5, 6, 4, 4], [5, 6], [6, 4, 5]]
    return collate(sources, labels, ends=False)


def sounds(seconds: tuple[float, ...] = (1.0, 0.33, 0.6)) -> Batch:
    texts = [[4, 5, 5, 6], [7, 4], [8, 8, 5]]
    said = [texts[n % len(texts)] for n in range(len(seconds))]
    batch = collate([noise(length, n) for n, length in enumerate(seconds, 1)], said)
    longest = max(map(len, said))
    batch.transcript_BT = torch.tensor([ids + [PAD] * (longest - len(ids)) for ids in said])
    batch.transcript_lengths_B = torch.tensor([len(ids) for ids in said])
    return batch


def learned(
    network: nn.Module, batch: Batch, r_drop: float = 0.0, losses: SpeechLosses = NO_SPEECH_LOSSES
) -> list[Tensor]:
    """What a pass gives: losses, counts, gradients, statistics."""
    assert isinstance(network, TrainableNetwork)
    given = batch.twice() if r_drop or losses.cr_ctc else batch
    loss = network.batch_loss(given, 0.1, r_drop, losses)
    weights = [p for p in network.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss.total, weights, allow_unused=True, materialize_grads=True)
    return [loss.total.detach(), loss.nll, loss.tokens, *found, *network.buffers()]


def assert_same(one: list[Tensor], other: list[Tensor], near: float = 1e-9) -> None:
    for mine, theirs in zip(one, other, strict=True):
        if mine.shape == theirs.shape:  # tables of positions grow
            torch.testing.assert_close(mine, theirs, rtol=near, atol=near)


# ------------------------------------------------------------------------------------- shapes


def test_a_filled_batch_has_the_same_pairs_and_nothing_else() -> None:
    batch = pairs(rows=17, longest=20)
    filled = batch.rounded()
    assert len(filled.source_BS) == 18
    assert filled.source_BS.shape[1] % 2 == 0
    assert (filled.lines, filled.rows, filled.target_tokens) == (
        batch.lines,
        batch.rows,
        batch.target_tokens,
    )
    for name, tensor in batch.tensors().items():
        made = filled.tensors()[name]
        inside = tuple(slice(size) for size in tensor.shape)
        assert torch.equal(made[inside], tensor)
        assert int((made != 0).sum()) == int((tensor != 0).sum())  # PAD, and lengths of 0
    places = filled.source_BS.numel() + filled.target_BT[:, 1:].numel()  # type: ignore[index]
    real = int(batch.source_lengths_B.sum()) + batch.target_tokens
    assert filled.padding_fraction == pytest.approx(1 - real / places)


def test_many_batches_have_few_shapes() -> None:
    shapes = {pairs(rows, rows, 5 + rows % 20).rounded().shape for rows in range(1, 200)}
    assert len(shapes) < 120
    assert all(number <= round_up(number, 3) <= 1.25 * number for number in range(1, 5000))
    assert all(number <= round_up(number, 4) <= 1.125 * number for number in range(1, 5000))
    assert len({round_up(number, 3) for number in range(64, 129)}) == 5


def test_rows_are_filled_up_no_further_than_positions_are_learned() -> None:
    network = encoder_decoder("learned")
    longest = longest_row(network)
    assert longest is not None
    batch = pairs(longest=9)
    assert batch.rounded(9).source_BS.shape[1] == batch.source_BS.shape[1]
    assert longest_row(encoder_decoder("transformer")) is None


# --------------------------------------------------------------------------- the same numbers


@pytest.mark.parametrize("r_drop", [0.0, 2.0])
@pytest.mark.parametrize("name", SIDES)
def test_a_filled_batch_whose_lengths_are_not_read_teaches_the_same(
    name: str, r_drop: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = encoder_decoder(name).double().train()
    batch = pairs()
    expected = learned(network, batch, r_drop)
    forbid(monkeypatch)
    assert_same(learned(network, batch.rounded(longest_row(network)), r_drop), expected)
    assert_same(learned(network, batch, r_drop), expected)


@pytest.mark.parametrize("pooling", ["mean", "attention", "last", None])
@pytest.mark.parametrize("name", TAGGERS)
def test_labels_are_learned_the_same(
    name: str, pooling: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooled = pooling is not None
    network = tagger(name, pooled, pooling or "mean").double().train()
    batch = labelled(pooled)
    expected = learned(network, batch)
    forbid(monkeypatch)
    assert_same(learned(network, batch.rounded()), expected)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_speech_is_learned_the_same(encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = audio_network(encoder=encoder).double().train()
    network.front.speeds, network.front.augment = (), None
    batch = sounds()
    expected = learned(network, batch)
    forbid(monkeypatch)
    # Features are of float32.
    assert_same(learned(network, batch.rounded()), expected, near=2e-5)


@pytest.mark.parametrize(
    "losses", [NO_SPEECH_LOSSES, SpeechLosses(cr_ctc=0.2), SpeechLosses(guided_attention=1.0)]
)
def test_rows_that_fill_up_a_batch_of_speech_teach_nothing(
    losses: SpeechLosses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of no samples have one state each, of which CTC must not learn that nothing is said."""
    assert_filled_rows_teach_nothing(audio_network("audio.mel_bands=8"), monkeypatch, losses)


def transducer(*overrides: str) -> SpeechNetwork:
    decoder = "model.decoder={kind: recurrent, attention: none}"
    given = audio_recipe("model.transducer={}", decoder, *overrides)
    assert given.audio is not None
    torch.manual_seed(1)
    return build_transducer(given.model, given.audio, Vocabulary(9, 9))


def test_nor_do_they_teach_a_transducer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_filled_rows_teach_nothing(transducer("audio.mel_bands=8"), monkeypatch)


def assert_filled_rows_teach_nothing(
    network: SpeechNetwork,
    monkeypatch: pytest.MonkeyPatch,
    losses: SpeechLosses = NO_SPEECH_LOSSES,
) -> None:
    network = network.double().train()
    network.front.augment = None
    batch = sounds((0.3, 0.2, 0.25, *[0.2] * 14))
    expected = learned(network, batch, losses=losses)
    forbid(monkeypatch)
    filled = batch.rounded()
    assert len(filled.source_BS) == 18
    assert_same(learned(network, filled, losses=losses), expected, near=2e-5)


def test_an_update_with_cr_ctc_has_two_views_of_each_recording() -> None:
    network = audio_network("model.dropout=0.1").train()
    settings = Train(cr_ctc=CrCtc(weight=0.5), label_smoothing=0.1)
    update = Update(network, build_optimizer(network, settings), settings, torch.float32)
    found = []
    for given in (
        lambda: update.loss(sounds()),
        lambda: network.batch_loss(sounds().twice(), 0.1, 0.0, SpeechLosses(0.5, 2.5)),
    ):
        torch.manual_seed(1)
        found.append(given())
    torch.testing.assert_close(found[0].total, found[1].total)
    assert int(found[0].tokens) == sounds().target_tokens


def test_rows_of_padding_are_in_no_statistics() -> None:
    torch.manual_seed(1)
    x_BSD = torch.randn(3, 5, 4)
    real_BS = torch.arange(5) < torch.tensor([5, 2, 0])[:, None]
    norms = [MaskedBatchNorm(4), MaskedBatchNorm(4)]
    filled = norms[0].train()(x_BSD, real_BS)
    alone = norms[1].train()(x_BSD[:2], real_BS[:2])
    torch.testing.assert_close(filled[:2][real_BS[:2]], alone[real_BS[:2]])
    assert_same(list(norms[0].buffers()), list(norms[1].buffers()), near=1e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_recurrent_steps_beyond_an_end_hold_the_state(
    cell: str, bidirectional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly: the last state is that of each sequence's own end."""
    torch.manual_seed(1)
    network = Recurrent(cell, 3, 4, 2, bidirectional=bidirectional).double()
    x_BSD, lengths_B = torch.randn(4, 6, 3).double(), torch.tensor([6, 1, 4, 0])
    found = []
    for read in (True, False):
        if not read:
            forbid(monkeypatch)
        outputs, state = network(x_BSD, None, lengths_B)
        parts = [part for layer in state for part in layer]
        total = outputs.square().sum() + sum(part.sin().sum() for part in parts)
        found.append([outputs, *parts, *torch.autograd.grad(total, list(network.parameters()))])
    assert_same(*found, near=1e-12)


def test_ctc_step_by_step_is_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    logits_BSV = (3 * torch.randn(6, 9, 7)).requires_grad_()
    lengths_B = torch.tensor([9, 4, 7, 0, 3, 5])
    # Equal neighbours, nothing said, no frames, too few; beyond a length is anything.
    targets_BT = torch.tensor(
        [[1, 2, 3, 4], [5, 5, 9, 9], [2, 2, 3, 2], [1, 2, 9, 9], [1, 1, 2, 3], [9, 9, 9, 9]]
    )
    targets_BT = targets_BT.clamp(max=6)
    labels_B = torch.tensor([4, 2, 4, 2, 4, 0])
    found = []
    for read in (True, False):
        if not read:
            forbid(monkeypatch)
        loss = ctc_loss(logits_BSV, lengths_B, targets_BT, labels_B)
        (gradient,) = torch.autograd.grad(loss.total, [logits_BSV])
        found.append([loss.total, gradient, loss.tokens, loss.impossible])
    assert int(found[0][3]) == 2
    assert_same(*found, near=1e-4)


def test_a_label_that_is_never_said_makes_no_nan(unread: None) -> None:
    logits_BSV = torch.zeros(1, 5, 4)
    logits_BSV[..., 2] = -torch.inf
    logits_BSV.requires_grad_()
    loss = ctc_loss(logits_BSV, torch.tensor([5]), torch.tensor([[2]]), torch.tensor([1]))
    (gradient,) = torch.autograd.grad(loss.total, [logits_BSV])
    assert not bool(gradient[..., [0, 1, 3]].isnan().any())


# ------------------------------------------------------------- what is drawn where none can look


def test_each_waveform_has_one_of_the_speeds(unread: None) -> None:
    torch.manual_seed(1)
    speeds, lengths_B = (0.9, 1.0, 1.1), torch.tensor([400, 300, 0, 400] * 8)
    samples_BW = torch.randn(32, 400)
    made_BW, after_B = perturb_speed(samples_BW, lengths_B, speeds=speeds)
    drawn = set()
    for row in range(32):
        options = [
            change_speed(samples_BW[row : row + 1], lengths_B[row : row + 1], s) for s in speeds
        ]
        fits = [
            n
            for n, (wave_1W, length_1) in enumerate(options)
            if int(length_1) == int(after_B[row])
            and torch.allclose(wave_1W[0], made_BW[row, : wave_1W.shape[1]], atol=1e-5)
            and not bool(made_BW[row, wave_1W.shape[1] :].any())
        ]
        assert fits
        if lengths_B[row] == 400:
            drawn.update(fits)
    assert drawn == {0, 1, 2}


def test_noise_has_room_for_all_there_may_be(unread: None) -> None:
    torch.manual_seed(1)
    noisy = BackgroundNoise(1000, share=1.0, before=0.1, after=0.2).train()
    lengths_B = torch.tensor([300, 100, 0])
    made_BW, longer_B = noisy(torch.randn(3, 300), lengths_B)
    assert made_BW.shape == (3, 600)
    assert bool(((longer_B >= lengths_B) & (longer_B <= lengths_B + 300)).all())
    beyond_BW = torch.arange(600) >= longer_B[:, None]
    assert not bool(made_BW[beyond_BW].any())
    assert not bool(made_BW.isnan().any())


def test_chunks_drawn_on_a_device_are_those_that_a_cpu_draws() -> None:
    torch.manual_seed(1)
    sizes = chunks.ChunkSizes(2, 4, left_chunks=1, whole=0.3)
    drawn = [int(sizes.draw_on(torch.device("cpu"), 50)) for _ in range(400)]
    assert set(drawn) == {2, 3, 4, 50}
    assert 0.2 < drawn.count(50) / len(drawn) < 0.4


# ------------------------------------------------------------------- why there may be no graphs


def on_gpu(network: nn.Module) -> Any:
    """As if its weights were on a GPU."""

    class Weight:
        is_cuda = True

    class There:
        def __getattr__(self, name: str) -> Any:
            return getattr(network, name)

        def parameters(self) -> Any:
            yield Weight()

    return There()


def test_what_is_not_captured_says_why_once() -> None:
    network = encoder_decoder("conformer")
    assert why_not_captured(network, Train(checkpoint_activations=True)) is None  # on a CPU
    there = on_gpu(network)
    assert why_not_captured(there, Train()) is None
    assert "recomputed" in str(why_not_captured(there, Train(checkpoint_activations=True)))
    assert "sharded" in str(why_not_captured(there, Train(), sharded=True))
    (reported,) = capture_notice(there, Train(checkpoint_activations=True), False)
    assert "without CUDA graphs" in reported
    assert capture_notice(there, Train(), False) == []


def test_parts_of_others_and_hooks_are_not_captured() -> None:
    class Mine(nn.Linear):
        """Of a plugin, or put in by hand."""

    network = encoder_decoder("lstm")
    network.encoder.more = Mine(2, 2)  # type: ignore[union-attr]
    assert "Mine" in str(why_not_captured(on_gpu(network), Train()))
    network = encoder_decoder("lstm")
    network.head.forward = lambda x_BTD: x_BTD  # type: ignore[union-attr, method-assign]
    assert "Head" in str(why_not_captured(on_gpu(network), Train()))
    network = encoder_decoder("lstm")
    network.head.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]
    assert "hooks" in str(why_not_captured(on_gpu(network), Train()))


def test_audio_with_a_limited_number_of_positions_is_not_filled_up() -> None:
    network = audio_network(encoder="places")
    assert why_not_captured(on_gpu(network), Train()) is None
    network = audio_network("model.encoder.positions=learned", encoder="transformer")
    assert "positions" in str(why_not_captured(on_gpu(network), Train()))


# ----------------------------------------------------------------------------- without a GPU


class NoGraph:
    """In place of a CUDA graph: its capture was never closed."""

    def pool(self) -> Any:
        raise RuntimeError("without a preceding successful capture")


class FailingCapture:
    """In place of torch.cuda.graph: as if the work waited for the device."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    def __exit__(self, *_: object) -> None:
        raise AssertionError("it was not entered")


@pytest.fixture
def no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU in place of a GPU, on which nothing can be captured."""
    if torch.cuda.is_available():
        pytest.skip("stands in for a GPU")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", NoGraph)
    monkeypatch.setattr(torch.cuda, "graph", FailingCapture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "own")
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
    monkeypatch.setattr("transduce.training.update._new_random_state", lambda _: None)


def updates_of(unused: bool = False) -> tuple[Update, Update]:
    """Two updates of equal networks; with a matrix that no pass uses."""
    made = []
    for kind in (Update, CapturedUpdate):
        network = encoder_decoder("lstm")
        if unused:
            network.head.spare = nn.Linear(3, 3)  # type: ignore[union-attr]
            nn.init.ones_(network.head.spare.weight)  # type: ignore[union-attr]
        settings = Train(lr=0.1, weight_decay=0.5, ema=0.9, clip_norm=1.0)
        average = MovingAverage(network, 0.9)
        parts = (network.train(), build_optimizer(network, settings), settings, torch.float32)
        made.append(kind(*parts, average=average))
    return made[0], made[1]


@pytest.mark.usefixtures("no_capture")
def test_what_cannot_be_captured_runs_as_it_is_and_says_so_once() -> None:
    plain, captured = updates_of()
    for n in range(8):
        batches = [pairs(5, n % 2), pairs(5, 3)]
        one, other = plain(batches), captured(batches)
        assert_same([torch.stack(one)], [torch.stack(other)], 1e-5)
        plain.apply()
        captured.apply()
    for one, other in zip(plain._weights, captured._weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    (said,) = captured.notices
    assert "without CUDA graphs" in said
    assert "(operation not permitted when stream is capturing)" in said


@pytest.mark.usefixtures("no_capture")
def test_weights_without_a_gradient_do_not_decay() -> None:
    for update in updates_of(unused=True):
        spare = update.network.head.spare.weight  # type: ignore[union-attr]
        for n in range(6):
            before = update._weights[0].detach().clone()
            update([pairs(5, n % 2), pairs(5, 3)])
            update.apply()
            assert not torch.equal(before, update._weights[0])
        assert torch.equal(spare, torch.ones_like(spare))


@pytest.mark.usefixtures("no_capture")
def test_a_gradient_of_an_earlier_update_is_not_applied_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A weight that only some batches use: in other updates it stays as it is."""
    for update in updates_of(unused=True):
        spare = update.network.head.spare.weight  # type: ignore[union-attr]
        loss = update.loss

        def with_spare(batch: Batch, loss: Any = loss, spare: Tensor = spare) -> Any:
            found = loss(batch)
            if len(batch.source_BS) > 3:
                return found._replace(total=found.total + spare.sum())
            return found

        monkeypatch.setattr(update, "loss", with_spare)
        values = []
        for rows in (5, 2, 5, 2):
            update([pairs(rows)])
            update.apply()
            values.append(float(spare[0, 0].detach()))
        assert values[0] != 1.0
        assert values[1] == values[0] != values[2] == values[3]


@pytest.mark.usefixtures("no_capture")
def test_a_capture_without_memory_is_left_behind_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does it: where closing a capture fails too, its stream and its pool stay in use."""
    streams, used, stopped = ["own"], list[Any](), list[Any]()

    class Capture(FailingCapture):
        def __init__(self, _: Any, pool: Any, **__: Any) -> None:
            self.pool = pool

        def __enter__(self) -> None:
            streams.append("of the capture")
            used.append(self.pool)

        def __exit__(self, *_: object) -> None:
            raise RuntimeError("operation failed due to a previous error during capture")

    def work() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "graph", Capture)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: streams[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    found = torch_private._found
    monkeypatch.setitem(found, "release_pool", lambda _, pool: used.remove(pool))
    monkeypatch.setitem(found, "stop_allocating", lambda _, pool: stopped.append(pool))
    with pytest.raises(RuntimeError) as failed:
        Replayed(work, lambda error: None, warm_up=0)()
    assert out_of_memory(failed.value)
    assert streams[-1] == "own"
    assert (stopped, used) == ([(0, 1)], [])


def test_no_memory_for_a_graph_of_what_follows_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The update goes on without it, and says so once."""

    def no_memory(_: Replayed) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Replayed, "_capture", no_memory)
    monkeypatch.setattr(CapturedUpdate, "lay_out", lambda _, batch: batch.rounded())
    norms = []
    for kind in (CapturedUpdate, Update):
        network = encoder_decoder("transformer")
        settings = Train(clip_norm=0.5)
        update = kind(network, build_optimizer(network, settings), settings, torch.float32)
        results = []
        for number in range(1, 6):  # each of another shape, so that no pass is captured
            results.append(update([pairs(4 * number, longest=8 * number)]))
            update.zero_gradients()
        norms.append([float(result.gradient_norm) for result in results])
        if kind is CapturedUpdate:
            assert len(update.notices) == 1
            assert "no memory for a CUDA graph" in update.notices[0]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


# ------------------------------------------------------------------------------------ on a GPU


@needs_gpu
def test_on_a_gpu_a_capture_without_memory_gives_it_back() -> None:
    own = torch.cuda.current_stream()

    def work() -> list[Tensor]:
        return [torch.zeros(2**22, device="cuda") for _ in range(64)]  # a GiB

    def refuse(error: Exception) -> None:
        raise error

    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    allowed = (before + 2**28) / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(allowed)
    try:
        for _ in range(3):
            with pytest.raises(RuntimeError) as failed:
                Replayed(work, refuse, warm_up=0)()
            assert out_of_memory(failed.value)
            del failed
            gc.collect()
            torch.cuda.empty_cache()
            assert torch.cuda.memory_reserved() == before
            assert torch.cuda.current_stream() == own
            assert len({float(torch.rand((), device="cuda")) for _ in range(3)}) == 3
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def on_cuda(network: TrainableNetwork, settings: Train, **more: Any) -> tuple[Update, Update]:
    """The update one operation after the other, and the captured one, of the same network."""
    parts = (network, build_optimizer(network, settings), settings, torch.float32)
    return Update(*parts, **more), CapturedUpdate(*parts, **more)


def gradients(network: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in network.parameters() if p.grad is not None]


def cases() -> dict[str, tuple[Callable[[], TrainableNetwork], Callable[[int], Batch]]]:
    made: dict[str, Any] = {
        name: (lambda name=name: encoder_decoder(name), lambda n: pairs(5, n)) for name in SIDES
    }
    for name in TAGGERS:
        made[f"tags-{name}"] = (lambda name=name: tagger(name, False), lambda n: labelled(False))
        made[f"labels-{name}"] = (lambda name=name: tagger(name, True), lambda n: labelled(True))
    for name in ENCODERS:
        made[f"speech-{name}"] = (lambda name=name: audio_network(encoder=name), lambda n: sounds())
    made["speech-transducer"] = (transducer, lambda n: sounds())
    return made


@needs_gpu
@pytest.mark.parametrize(
    ("name", "given"),
    [
        *((name, {}) for name in cases()),
        *((name, {"r_drop": 2.0}) for name in cases() if name != "speech-transducer"),
        *((f"speech-{name}", {"cr_ctc": CrCtc()}) for name in ENCODERS),
        ("speech-conformer", {"guided_attention": 1.0}),
    ],
)
def test_replayed_passes_have_the_same_gradients(
    name: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch three times: run as it comes, recorded, replayed; then several of an update."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    network, batch_of = cases()[name][0]().cuda().train(), cases()[name][1]
    if "speech" in name:
        network.front.speeds, network.front.augment = (), None  # type: ignore[assignment]
    settings = Train(clip_norm=0.0, **given)
    plain, captured = on_cuda(network, settings)
    cuts = [[batch_of(1)], [batch_of(2)], [batch_of(1), batch_of(2)]] * 4
    expected = []
    for cut in cuts:
        network.zero_grad()
        expected.append((plain(cut), gradients(network)))
    for weight, gradient in zip(captured._weights, captured._gradients, strict=True):  # type: ignore[attr-defined]
        weight.grad = gradient
    for cut, (passed, exact) in zip(cuts, expected, strict=True):
        found = captured(cut)
        torch.testing.assert_close(torch.stack(found), torch.stack(passed), rtol=1e-3, atol=1e-3)
        mine, theirs = (
            torch.cat([g.flatten() for g in many]) for many in (gradients(network), exact)
        )
        assert float((mine - theirs).norm() / theirs.norm()) < 2e-3
        captured.zero_gradients()
    # The lattice of a transducer has another size in each batch.
    assert bool(captured._graphs) is (name != "speech-transducer")  # type: ignore[attr-defined]


@needs_gpu
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_replayed_steps_are_the_same_updates(optimizer: str) -> None:
    """Optimizer, moving average and the guard against numbers that are none."""
    settings = Train(optimizer=optimizer, lr=0.01, ema=0.9)
    made = []
    for kind in (Update, CapturedUpdate):
        network = encoder_decoder("conformer").cuda().train()
        average = MovingAverage(network, 0.9)
        parts = (network, build_optimizer(network, settings), settings, torch.float32)
        update = kind(*parts, average=average)
        random = torch.Generator("cuda").manual_seed(4)
        for step in range(8):
            for weight in update._weights:
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
                weight.grad.normal_(generator=random)
            if step == 6:
                update._weights[0].grad.fill_(torch.nan)  # type: ignore[union-attr]
            set_learning_rate(update.optimizer, 0.01 / (step + 1))
            average.set_step(step + 1)
            if isinstance(update, CapturedUpdate):
                update._used = update._all
            total = torch.tensor([5.0, 4.0, 3.0], dtype=torch.float64, device="cuda")
            passed = update._mean(total, 1.0)
            assert int(passed.tokens) == 3
            version = update._weights[0]._version
            update.apply()
            if isinstance(update, CapturedUpdate):  # others see that weights changed
                assert update._weights[0]._version != version
        assert float(update.skip) == 0.0
        made.append([*network.parameters(), *average.weights.values()])
        if isinstance(update, CapturedUpdate):
            assert update._captured_steps[update._all].graph is not None
            assert update._captured_mean.graph is not None
    for eager, replayed in zip(*made, strict=True):
        torch.testing.assert_close(eager, replayed, rtol=1e-5, atol=1e-6)


@needs_gpu
@pytest.mark.parametrize("name", ["lstm", "conformer", "speech"])
def test_dropout_differs_from_replay_to_replay(name: str) -> None:
    if name == "speech":
        network: TrainableNetwork = audio_network("model.dropout=0.3").cuda().train()
        batch = sounds()
    else:
        network, batch = encoder_decoder(name, dropout=0.3).cuda().train(), pairs()
    settings = Train()
    update = build_update(network, build_optimizer(network, settings), settings, torch.bfloat16)
    assert isinstance(update, CapturedUpdate)
    losses = []
    for _ in range(6):
        losses.append(float(update([batch])[0]))
        update.zero_gradients()
    assert len(set(losses[2:])) == 4


@needs_gpu
def test_adapters_and_teachers_are_captured_too() -> None:
    network = encoder_decoder("transformer", width=32)
    places = list(adaptable(network).values())[:2]
    adapted = AdaptedNetwork(network, places, rank=2, alpha=4.0).cuda().train()
    plain, captured = on_cuda(adapted, Train(clip_norm=0.0))
    teacher = encoder_decoder("transformer").cuda().eval().requires_grad_(False)
    student = encoder_decoder("lstm").cuda().train()
    settings = Train.model_validate({"clip_norm": 0.0, "teacher": {"model": "x"}})
    objective = Distillation(student, [teacher], settings)
    for one, other in ((plain, captured), on_cuda(student, settings, objective=objective)):
        one.zero_gradients()
        expected = float(one([pairs()])[0])
        for weight, gradient in zip(other._weights, other._gradients, strict=True):  # type: ignore[attr-defined]
            weight.grad = gradient
        for _ in range(3):
            assert float(other([pairs()])[0]) == pytest.approx(expected, rel=1e-3)
            other.zero_gradients()
        assert other._graphs  # type: ignore[attr-defined]


@needs_gpu
def test_language_models_of_any_kind_are_captured() -> None:
    network = RecurrentLanguageModel(12, width=16, layers=2, dropout=0.0).cuda().train()
    plain, captured = on_cuda(network, Train(clip_norm=0.0))
    batch = pairs()
    found = []
    for _ in range(3):
        found.append(float(captured([batch])[0]))
        captured.zero_gradients()
    assert found == pytest.approx([float(plain([batch])[0])] * 3, rel=1e-3)


@needs_gpu
def test_a_pass_that_waits_for_the_gpu_is_not_captured() -> None:
    """And dropout still draws, whose generator was in the capture that failed."""
    network = encoder_decoder("lstm", dropout=0.3).cuda().train()
    settings = Train(ema=0.9)
    update = CapturedUpdate(network, build_optimizer(network, settings), settings, torch.bfloat16)
    loss = update.loss
    waits = [False]

    def waiting(batch: Batch) -> Any:
        found = loss(batch)
        if waits[0]:
            found.total.item()
        return found

    update.loss = waiting  # type: ignore[method-assign]
    losses = []
    for n in range(12):
        waits[0] = n > 5  # graphs of one shape are there already
        batch = pairs(9, 3, longest=20) if waits[0] else pairs(5, 1)
        losses.append(float(update([batch])[0]))
        update.apply()
    assert len(set(losses)) == 12
    (said,) = update.notices
    assert "capturing" in said
    assert update._captured_steps[update._all].graph is not None


@needs_gpu
def test_on_a_gpu_no_memory_for_a_graph_of_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = Replayed._capture

    def only_passes(replayed: Replayed) -> torch.cuda.CUDAGraph:
        if replayed.make_room is not None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return capture(replayed)

    monkeypatch.setattr(Replayed, "_capture", only_passes)
    settings, weights = Train(clip_norm=0.5), []
    for kind in (Update, CapturedUpdate):
        network = encoder_decoder("transformer").cuda()
        update = kind(network, build_optimizer(network, settings), settings, torch.float32)
        set_learning_rate(update.optimizer, 1e-2)
        for _ in range(8):
            update([pairs()])
            update.apply()
        weights.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
        assert len(update.notices) == (kind is CapturedUpdate)
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-3)
