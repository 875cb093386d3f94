"""An update's gradients, whatever way its batches are cut and run."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from transduce import recipe
from transduce.data.batches.batch import Batch, collate
from transduce.data.batches.packing import pack
from transduce.data.tokens.tokenizer import UNKNOWN
from transduce.models import EncoderDecoder, LabelNetwork
from transduce.models.build import Vocabulary, build, build_label_network
from transduce.nn.loss import Loss
from transduce.recipe import Train
from transduce.recipe.presets import PRESETS
from transduce.training.distributed.processes import Processes
from transduce.training.log_window import UpdateResult
from transduce.training.nan_guard import nonfinite
from transduce.training.optimizer import MovingAverage, build_optimizer
from transduce.training.update import CapturedUpdate, Update

PAIRS = [([5, 6, 7], [8, 9]), ([6], [7, 8, 9, 10]), ([9, 9, 4, 5], [4]), ([7, 8], [5, 6, 7])]


def network(width: int = 16, positions: str = "sinusoidal", dropout: float = 0.0) -> EncoderDecoder:
    torch.manual_seed(1)
    shape = {**PRESETS["transformer-tiny"], "width": width, "dropout": dropout}
    for side in ("encoder", "decoder"):
        shape[side] = {**shape.get(side, {}), "positions": positions}
    return build(recipe.Model.model_validate(shape), Vocabulary(12, 12))


def batch(*rows: int) -> Batch:
    return collate([PAIRS[row][0] for row in rows], [PAIRS[row][1] for row in rows])


def gradients(made: EncoderDecoder) -> list[torch.Tensor]:
    return [p.grad.clone() for p in made.parameters() if p.grad is not None]


def test_accumulated_batches_are_one_batch() -> None:
    """The mean is over all tokens of the update, not over batches: a short batch counts less."""
    settings = Train(clip_norm=0.0)
    found = []
    for cut in ([batch(0, 1, 2, 3)], [batch(0), batch(1, 2, 3)], [batch(3, 2), batch(1, 0)]):
        made = network().double()
        update = Update(made, build_optimizer(made, settings), settings, torch.float32)
        loss, norm, plain, _ = update(cut)
        found.append([loss, norm, plain, *gradients(made)])
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_the_gradient_is_clipped_and_its_norm_told() -> None:
    settings = Train(clip_norm=0.01)
    made = network()
    update = Update(made, build_optimizer(made, settings), settings, torch.float32)
    _, norm, _, _ = update([batch(0, 1)])
    assert float(norm) > 0.01
    clipped = torch.cat([g.flatten() for g in gradients(made)]).norm()
    assert float(clipped) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("r_drop", [0.0, 2.0])
def test_packed_and_recorded_gradients_are_the_same(positions: str, r_drop: float) -> None:
    """Every batch three times: run as it comes, recorded, replayed."""
    settings = Train(clip_norm=0.0, r_drop=r_drop)
    long = collate([list(range(4, 12)) * 20, [5]], [[7], list(range(4, 12)) * 12])
    cuts = [[batch(0, 1)], [batch(2, 3)], [long], [batch(1, 0), batch(3)]] * 3
    made = network(64, positions=positions).cuda()
    optimizer = build_optimizer(made, settings)
    exactly = Update(made, optimizer, settings, torch.float32)
    expected = []
    for cut in cuts:
        loss, norm, plain, _ = exactly(cut)
        expected.append((loss, norm, plain, gradients(made)))
        optimizer.zero_grad()
    packed = CapturedUpdate(made, optimizer, settings, torch.bfloat16)
    for cut, (loss, norm, plain, exact) in zip(cuts, expected, strict=True):
        my_loss, my_norm, my_plain, _ = packed(cut)
        assert float(my_plain) == pytest.approx(float(plain), rel=1e-2)
        torch.testing.assert_close(my_loss, loss, rtol=1e-2, atol=0)
        torch.testing.assert_close(my_norm, norm, rtol=2e-2, atol=0)
        mine, theirs = (torch.cat([g.flatten() for g in many]) for many in (gradients(made), exact))
        assert float((mine - theirs).norm() / theirs.norm()) < 3e-2
        packed.zero_gradients()
    # All the short ones are of one shape: the first of an update, and those that come after it.
    assert len(packed._graphs) == 3


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_an_update_without_finite_numbers_changes_nothing(bad: float, clip: float) -> None:
    """Weights, moments, the count of steps, the moving average: all as if it had not been."""
    settings = Train(clip_norm=clip, warmup=0)
    found = []
    for broken in (False, True):
        made = network()
        update = Update(made, build_optimizer(made, settings), settings, torch.float32)
        average = MovingAverage(made, 0.9)
        for number, rows in enumerate([(0, 1), (2, 3), (1, 2)]):
            if broken:
                update([batch(3), batch(0)])
                next(iter(made.parameters())).grad.view(-1)[0] = bad  # type: ignore[union-attr]
                norm = torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
                update.skip.copy_(nonfinite(torch.ones(()), norm))
                update.apply()
                average.set_step(7)
                average.move(1.0 - update.skip)
            update([batch(*rows)])
            update.apply()
            average.set_step(number + 1)
            average.move(1.0 - update.skip)
        state = [v for p in made.parameters() for v in update.optimizer.state[p].values()]
        found.append([*made.parameters(), *state, *average.weights.values()])
    assert all(torch.equal(p, q) for p, q in zip(*found, strict=True))


def test_an_update_of_no_tokens_is_skipped() -> None:
    """Weights would decay by it."""
    settings = Train(weight_decay=0.5, warmup=0)
    made = network()
    before = [p.detach().clone() for p in made.parameters()]
    update = Update(made, build_optimizer(made, settings), settings, torch.float32)
    result = update([])
    assert math.isnan(float(result.objective))
    assert bool(update.skip)
    update.apply()
    assert all(torch.equal(p, q) for p, q in zip(made.parameters(), before, strict=True))


def test_an_update_of_one_token_is_an_update() -> None:
    """A target of nothing but its end: the gradients are those of its loss, not of a part."""
    made, one, settings = network(), collate([[4]], [[]]), Train(clip_norm=0.0)
    made.batch_loss(one, settings.label_smoothing).total.backward()
    expected = gradients(made)
    update = Update(made, build_optimizer(made, settings), settings, torch.float32)
    update.zero_gradients()
    result = update([one])
    assert float(result.tokens) == 1.0
    assert math.isfinite(float(result.objective))
    assert not bool(update.skip)
    for mine, theirs in zip(gradients(made), expected, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-7)


def test_a_loss_that_is_not_finite_sets_the_flag() -> None:
    made = network()
    update = Update(made, build_optimizer(made, Train()), Train(), torch.float32)
    update([batch(0)])
    assert float(update.skip) == 0.0
    with torch.no_grad():
        made.head.bias[5] = math.nan
    update([batch(0)])
    assert float(update.skip) == 1.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("kind", [Update, CapturedUpdate])
def test_on_a_gpu_an_update_without_finite_numbers_changes_nothing(kind: type[Update]) -> None:
    made = network(64).cuda()
    update = kind(made, build_optimizer(made, Train()), Train(), torch.bfloat16)
    average = MovingAverage(made, 0.9)
    for _ in range(3):
        update([batch(0, 1)])
        update.apply()

    def everything() -> list[torch.Tensor]:
        state = [v for p in made.parameters() for v in update.optimizer.state[p].values()]
        return [t.detach().clone() for t in (*made.parameters(), *state, *average.weights.values())]

    before = everything()
    kept = made.head.bias.detach().clone()
    made.head.bias.data[5] = math.nan
    loss, norm, _, _ = update([batch(0, 1)])
    made.head.bias.data.copy_(kept)
    assert float(nonfinite(loss, norm)) == float(update.skip) == 1.0
    update.apply()
    average.set_step(3)
    average.move(1.0 - update.skip)
    assert all(torch.equal(p, q) for p, q in zip(everything(), before, strict=True))
    update([batch(0, 1)])
    update.apply()
    assert float(update.skip) == 0.0
    assert not all(torch.equal(p, q) for p, q in zip(everything(), before, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("kind", [Update, CapturedUpdate])
def test_on_a_gpu_a_batch_that_does_not_fit_is_done_in_halves(kind: type[Update]) -> None:
    """Three times: seen first, recorded, replayed."""
    rows = 2048
    sources = [[4 + n % 8] * 30 for n in range(rows)]
    whole = collate(sources, sources)
    found = []
    for limit in (None, 600 * 2**20):
        made = network(256).cuda()
        update = kind(made, build_optimizer(made, Train()), Train(clip_norm=0.0), torch.bfloat16)
        if limit is not None:
            torch.cuda.empty_cache()
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(limit / total)
        try:
            for _ in range(3):
                update.zero_gradients()
                loss, norm, plain, _ = update([whole])
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        found.append([loss, norm, plain, *gradients(made)])
        assert bool(update.splitter.split) == (limit is not None)
        assert not update.splitter.left_out
        del update, made
    for mine, theirs in zip(*found, strict=True):
        assert float((mine - theirs).norm() / theirs.norm().clamp(min=1e-6)) < 2e-2


@pytest.mark.parametrize("r_drop", [0.0, 2.0])
def test_the_cross_entropy_is_told_beside_what_is_minimised(r_drop: float) -> None:
    """It is what a validation would measure of the same batches: no smoothing, no R-Drop."""
    settings = Train(clip_norm=0.0, label_smoothing=0.3, r_drop=r_drop)
    made = network()
    batches = [batch(0, 1), batch(2, 3)]
    expected = sum(float(made.batch_loss(one).nll) for one in batches)
    smoothed = sum(float(made.batch_loss(one, 0.3).total.detach()) for one in batches)
    update = Update(made, build_optimizer(made, settings), settings, torch.float32)
    passed = update(batches)
    assert float(passed.cross_entropy) == pytest.approx(expected, rel=1e-5)
    assert float(passed.objective) == pytest.approx(smoothed, rel=1e-5)
    assert abs(expected - smoothed) > 0.01 * smoothed


def test_without_dropout_two_passes_agree() -> None:
    """Then the loss and the gradients are those of one pass."""
    plain, agreeing = network(), network()
    losses = []
    for made, r_drop in ((plain, 0.0), (agreeing, 5.0)):
        settings = Train(clip_norm=0.0, r_drop=r_drop)
        update = Update(made, build_optimizer(made, settings), settings, torch.float32)
        losses.append(float(update([batch(0, 1), batch(2, 3)])[0]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for one, other in zip(gradients(plain), gradients(agreeing), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_with_dropout_two_passes_differ() -> None:
    made = network(dropout=0.3)
    losses = []
    for r_drop in (0.0, 5.0):
        settings = Train(clip_norm=0.0, r_drop=r_drop)
        update = Update(made.train(), build_optimizer(made, settings), settings, torch.float32)
        torch.manual_seed(1)
        losses.append(float(update([batch(0, 1, 2, 3)])[0]))
    assert losses[1] > losses[0] + 1.0


def test_the_packed_loss_has_both_passes() -> None:
    made = network().eval()
    both = batch(0, 1, 2, 3)
    for copies, r_drop in ((1, 0.0), (2, 5.0)):
        packed = pack(both, copies)
        found = made.packed_loss(packed, 0.1, r_drop)
        assert both.target_BT is not None
        right = made.loss(both.source_BS, both.source_lengths_B, both.target_BT, 0.1)
        torch.testing.assert_close(found.total, right.total)


# ------------------------------------------------------ only tokens that were scored are counted

TAGGED = [([5, 6, 7, 8], [4, 5, UNKNOWN, 6]), ([9, 4], [UNKNOWN, 5]), ([6, 6, 5], [5, 4, 4])]


def tagger() -> LabelNetwork:
    torch.manual_seed(1)
    shape = {**PRESETS["transformer-tiny"], "width": 16, "dropout": 0.0}
    shape.pop("decoder", None)
    words = [f"w{n}" for n in range(12)]
    made = build_label_network(recipe.Model.model_validate(shape), words, 3, pooled=False)
    return made.double().eval()


def tagged(*rows: int) -> Batch:
    return collate([TAGGED[row][0] for row in rows], [TAGGED[row][1] for row in rows], ends=False)


def mean_gradients(*rows: int, r_drop: float = 0.0) -> list[torch.Tensor]:
    """Of the mean over all tokens that have a label."""
    made = tagger()
    one = tagged(*rows)
    loss = made.batch_loss(one.twice() if r_drop else one, 0.0, r_drop)
    known = sum(label != UNKNOWN for row in rows for label in TAGGED[row][1])
    assert int(loss.tokens) == known
    (loss.total / known).backward()
    return [p.grad for p in made.parameters() if p.grad is not None]


def updated(
    made: LabelNetwork, *batches: Batch, ranks: Processes | None = None, r_drop: float = 0.0
) -> UpdateResult:
    settings = Train(clip_norm=0.0, label_smoothing=0.0, r_drop=r_drop)
    parts = (made, build_optimizer(made, settings), settings, torch.float32)
    return Update(*parts, ranks=ranks or Processes())(list(batches))


@pytest.mark.parametrize("r_drop", [0.0, 2.0])
@pytest.mark.parametrize("cut", [[(0, 1, 2)], [(0,), (1, 2)], [(2, 0), (1,)]])
def test_labels_that_are_not_scored_are_in_no_mean(cut: list[Any], r_drop: float) -> None:
    made = tagger()
    passed = updated(made, *(tagged(*rows) for rows in cut), r_drop=r_drop)
    assert int(passed.tokens) == 7
    for mine, theirs in zip(
        [p.grad for p in made.parameters()], mean_gradients(0, 1, 2, r_drop=r_drop), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


class Two(Processes):
    """One of two ranks: what it adds to the other's sums, or what it has of its own."""

    def __init__(self, others: list[torch.Tensor] | None = None) -> None:
        super().__init__(rank=0, count=2)
        self.others, self.sent = others, list[torch.Tensor]()

    def all_reduce(self, tensor: torch.Tensor) -> None:
        place = len(self.sent)
        self.sent.append(tensor.clone())
        if self.others is not None:
            tensor.add_(self.others[place])

    def start_all_reduce(self, tensor: torch.Tensor) -> Any:
        self.all_reduce(tensor)
        return SimpleNamespace(wait=lambda: None)


def test_a_pair_left_out_on_one_rank_is_in_no_rank_s_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a rank that has nothing left adds nothing."""
    real = LabelNetwork.loss

    def loss(self: LabelNetwork, source_BS: torch.Tensor, *rest: Any) -> Loss:
        if source_BS.shape[1] == 3:
            raise MemoryError
        return real(self, source_BS, *rest)

    expected = mean_gradients(0, 1)
    monkeypatch.setattr(LabelNetwork, "loss", loss)
    for mine, other in (((0, 1), (2,)), ((0,), (1, 2)), ((2,), (0, 1))):
        alone = Two()
        updated(tagger(), tagged(*other), ranks=alone)
        made = tagger()
        passed = updated(made, tagged(*mine), ranks=Two(alone.sent))
        assert int(passed.tokens) == 4
        assert bool(passed.objective.isfinite())
        for found, theirs in zip([p.grad for p in made.parameters()], expected, strict=True):
            torch.testing.assert_close(found, theirs, rtol=1e-9, atol=1e-12)


def test_a_step_walks_along_no_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes longer than launching the kernels of a step."""
    settings = Train(ema=0.9)
    made = network()
    average = MovingAverage(made, 0.9)
    parts = (made, build_optimizer(made, settings), settings, torch.float32)
    update = Update(*parts, average=average)
    walks: list[Any] = []
    walk = torch.nn.Module.named_modules

    def noted(self: torch.nn.Module, *rest: Any, **more: Any) -> Any:
        walks.append(self)
        return walk(self, *rest, **more)

    monkeypatch.setattr(torch.nn.Module, "named_modules", noted)
    for step in (1, 2):
        average.set_step(step)
        update([batch(0, 1), batch(2)])
        update.apply()
    assert walks == []
