"""Slots find what plain search finds, whoever sits beside whom."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from slow_params import some_slow
from transduce import recipe
from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.decoding.constraints.constraint import NEG_INF
from transduce.decoding.cuda import graph_slots
from transduce.decoding.cuda import pool as fast
from transduce.decoding.cuda.graph_slots import WIDEST_BEAM, Slots
from transduce.decoding.cuda.pool import CudaSearch
from transduce.decoding.search import greedy as search
from transduce.decoding.search.beam import beam as beam_search
from transduce.decoding.search.continuous_batching import Job, Search, Shape, round_up
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build
from transduce.nn.masks import padding

V = 13


ON_GPU = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
)


def network(
    positions: str = "sinusoidal", norm_position: str = "pre", **more: int
) -> EncoderDecoder:
    side = {
        **more,
        "layers": 2,
        "heads": 2,
        "feed_forward": 32,
        "positions": positions,
        "norm_position": norm_position,
    }
    shape = {"width": 16, "dropout": 0.0, "encoder": side, "decoder": side}
    made = build(recipe.Model.model_validate(shape), Vocabulary(V, V))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made.eval()


def jobs(count: int) -> list[Job]:
    random = torch.Generator().manual_seed(4)
    made = []
    for _ in range(count):
        length, limit = torch.randint(1, 40, (2,), generator=random).tolist()
        made.append(Job(torch.randint(4, V, (length,), generator=random).tolist(), limit))
    return made


KINDS = list(product(["sinusoidal", "rotary", "learned"], ["pre", "post"]))
BEAMS = [(1, 1), (2, 1), (3, 3), (4, 2)]
# Each position, each norm and both ways of search, in half of their combinations.
QUICK = [kind + BEAMS[2 * (at % 2)] for at, kind in enumerate(KINDS)]
QUICK += [("rotary", "pre", 3, 3), ("sinusoidal", "post", 1, 1)]


@pytest.mark.parametrize(
    ("positions", "norm_position", "beam", "nbest"),
    some_slow([kind + beam for kind in KINDS for beam in BEAMS], QUICK),
)
@torch.inference_mode()
def test_the_same_hypotheses(
    positions: str, norm_position: str, beam: int, nbest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(7)
    made = network(positions, norm_position).double()
    asked = jobs(8)
    monkeypatch.setattr(fast, "MAX_PLACES", 3 * 100)  # few slots: sentences come and go
    found = CudaSearch(made, torch.float64).run(asked, Search(beam, nbest, 0.8))
    for job, mine in zip(asked, found, strict=True):
        source = as_batch(job)
        if beam == 1:
            (theirs,) = search.greedy(made, *source, 0.8)
        else:
            (theirs,) = beam_search(made, *source, beam, nbest, 0.8)
        assert [h.tokens for h in mine] == [h.tokens for h in theirs]
        for one, other in zip(mine, theirs, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-5)
            assert one.log_probability == pytest.approx(other.log_probability, abs=1e-5)


@torch.inference_mode()
def test_patience_stops_it_as_it_stops_beam_search(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(7)
    made = network().double()
    made.head.bias.data[END] += 2.0  # many hypotheses end
    asked = jobs(8)
    monkeypatch.setattr(fast, "MAX_PLACES", 3 * 100)
    ways = []
    for patience in (None, 0.4, 1.0):
        found = CudaSearch(made, torch.float64).run(asked, Search(3, 1, 3.0, 0, patience))
        ways.append([mine[0].tokens for mine in found])
        theirs = [
            beam_search(made, *as_batch(job), 3, 1, 3.0, patience=patience)[0] for job in asked
        ]
        assert ways[-1] == [one[0].tokens for one in theirs], patience
    assert ways[0] != ways[1] != ways[2] != ways[0]


@torch.inference_mode()
def test_patience_counts_all_that_end_in_one_step() -> None:
    """Three have ended after the second step: one in the first, two in the second."""
    made = network().double()
    made.head.weight.zero_()  # the same probabilities at every step
    made.head.bias.fill_(-30.0)
    made.head.bias[[END, 5, 6]] = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()
    settings = Search(3, 1, 9.0, 0, patience=1.0)
    ((found,),) = CudaSearch(made, torch.float64).run([Job([4, 5], 30)], settings)
    assert found.tokens == [5]


@pytest.mark.parametrize(
    ("length", "maximum"), [(1, 7), (5, 7), (7, 7), (20, 40), (33, 40), (40, 40)]
)
def test_no_length_is_rounded_up_beyond_the_positions_there_are(length: int, maximum: int) -> None:
    assert length <= round_up(length, maximum) <= maximum
    assert round_up(length, 1000) in (32, 64)


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("maximum", [7, 40])
@torch.inference_mode()
def test_as_many_learned_positions_as_there_are(maximum: int, beam: int, device: str) -> None:
    torch.manual_seed(7)
    made = network("learned", max_positions=maximum).double()
    asked = [Job(job.source[: maximum - 1], min(job.limit, maximum)) for job in jobs(6)]
    asked += [Job([5] * (maximum - 1), maximum)]
    expected = [
        search.greedy(made, *given, 0.8)[0]
        if beam == 1
        else beam_search(made, *given, 3, 1, 0.8)[0]
        for given in map(as_batch, asked)
    ]
    made.to(device)
    found = CudaSearch(made, torch.float64).run(asked, Search(beam, 1, 0.8))
    assert [h[0].tokens for h in found] == [h[0].tokens for h in expected]


@pytest.mark.parametrize("beam", [2, WIDEST_BEAM, WIDEST_BEAM + 1, 600])
def test_a_beam_is_settled_in_one_kernel_where_it_fits(beam: int) -> None:
    """Triton refuses tensors of more than 2**20 elements, which a beam of 600 would need."""
    pool = Slots(network(), Shape(1, beam, 8, 8))
    pool.device = torch.device("cuda")
    steps = []
    pool._settle_beams = lambda best: steps.append("kernel")
    pool._beam = lambda *best: steps.append("torch")
    pool._best_of_chunks = lambda features_RD, keep: None
    with torch.inference_mode():
        pool._step()
    assert steps == ["kernel" if beam <= WIDEST_BEAM else "torch"]


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@torch.inference_mode()
def test_a_wide_beam_finds_what_plain_search_finds(device: str) -> None:
    torch.manual_seed(7)
    made = network().double()
    asked = [Job(job.source[:9], min(job.limit, 6)) for job in jobs(3)]
    wide = WIDEST_BEAM + 1
    expected = [beam_search(made, *as_batch(job), wide, 2, 0.8)[0] for job in asked]
    found = CudaSearch(made.to(device), torch.float64).run(asked, Search(wide, 2, 0.8))
    assert [[h.tokens for h in one] for one in found] == [
        [h.tokens for h in one] for one in expected
    ]


def as_batch(job: Job) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch = collate([job.source], None)
    return batch.source_BS, batch.source_lengths_B, torch.tensor([job.limit])


@torch.inference_mode()
def test_no_output_ends_before_its_least_length() -> None:
    made = network()
    for beam in (1, 3):
        found = CudaSearch(made).run([Job([5, 6], 12), Job([7], 12)], Search(beam, minimum=12))
        assert [len(h[0].tokens) for h in found] == [11, 11]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("beam", [1, 4])
@torch.inference_mode()
def test_recorded_steps_find_the_same(beam: int) -> None:
    torch.manual_seed(7)
    asked = jobs(40)
    made = network()
    expected = CudaSearch(made).run(asked, Search(beam))
    on_gpu = CudaSearch(network().cuda().requires_grad_(False))
    on_gpu.network.load_state_dict(made.state_dict())
    for _ in range(2):  # the second time everything is recorded
        found = on_gpu.run(asked, Search(beam))
        same = [a[0].tokens == b[0].tokens for a, b in zip(expected, found, strict=True)]
        assert sum(same) >= 39  # other kernels round otherwise: a tie may fall the other way
        for a, b, equal in zip(expected, found, same, strict=True):
            if equal:
                assert a[0].score == pytest.approx(b[0].score, abs=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("rows", [1, 16, 33, 64, 130])
@pytest.mark.parametrize(("V", "width"), [(13, 16), (200, 40), (1000, 128)])
@torch.inference_mode()
def test_the_best_token_without_its_logits(rows: int, V: int, width: int) -> None:
    """The kernel of one token against what torch finds among all logits."""
    side = {"layers": 1, "heads": 2, "feed_forward": 16}
    shape = {"width": width, "dropout": 0.0, "encoder": side, "decoder": side}
    torch.manual_seed(7)
    made = build(recipe.Model.model_validate(shape), Vocabulary(V, V)).eval().cuda().bfloat16()
    made.head.bias.copy_(torch.randn(V))
    slots = Slots(made, Shape(rows, 1, 32, 32, minimum=4))
    slots.steps_R.copy_(torch.arange(rows) % 12)
    slots.limits_B.copy_(torch.tensor([10, 32]).repeat(rows)[:rows])
    features_RD = torch.randn(rows, width, device="cuda").bfloat16()
    worth_RC, tokens_RC, masses_RC = slots._top(features_RD, 1)
    best_R1 = worth_RC.argmax(dim=1, keepdim=True)
    logits_RV = made.head.products(features_RD) + made.head.bias.float()
    torch.testing.assert_close(masses_RC.logsumexp(dim=1), logits_RV.logsumexp(dim=1))
    size_R = slots.steps_R + 1
    logits_RV[:, [PAD, BEGIN]] = NEG_INF
    logits_RV[size_R < 4, END] = NEG_INF
    last_R1 = (size_R >= slots.limits_B)[:, None]
    logits_RV = logits_RV.where(~last_R1 | (torch.arange(V, device="cuda") == END), NEG_INF)
    expected_R = logits_RV.max(dim=1).values
    torch.testing.assert_close(worth_RC.gather(1, best_R1).squeeze(1), expected_R)
    chosen_R1 = tokens_RC.gather(1, best_R1)
    torch.testing.assert_close(logits_RV.gather(1, chosen_R1).squeeze(1), expected_R)


def amid_a_search(made: EncoderDecoder, shape: Shape) -> Slots:
    """Slots at steps of their own, with hypotheses and ended ones drawn at random."""
    slots = Slots(made, shape)
    draw = torch.Generator().manual_seed(5)
    B, N, T = shape.slots, shape.beam, shape.target
    step_B = torch.randint(0, T - 1, (B,), generator=draw)
    step_B[0] = 0
    slots.steps_R.copy_(step_B.repeat_interleave(N))
    slots.limits_B.copy_(step_B + 1 + torch.randint(0, 3, (B,), generator=draw).clamp(max=1))
    slots.open_B.copy_(torch.arange(B) % 5 != 4)
    slots.written_BNT.copy_(torch.randint(4, 9, (B, N, T), generator=draw))
    slots.reached_BN.copy_(-3 * torch.rand(B, N, generator=draw))
    slots.reached_BN[0, 1:] = NEG_INF
    own_BNT = torch.randint(0, N, (B, N, T), generator=draw) + N * torch.arange(B)[:, None, None]
    assert slots.origin_RT is not None
    slots.origin_RT.copy_(own_BNT.view(B * N, T))
    score_BN = (-1 - torch.rand(B, shape.nbest, generator=draw)).sort(descending=True).values
    score_BN[::2, -1] = NEG_INF  # a place in the list is empty
    slots.ended.score_BN.copy_(score_BN)
    slots.ended.total_BN.copy_(2 * score_BN)
    slots.ended.tokens_BNT.copy_(torch.randint(9, 13, (B, shape.nbest, T), generator=draw))
    slots.count_B.copy_(torch.arange(B) % 4)
    return slots


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize(("V", "width"), [(13, 16), (200, 40), (3000, 64)])
@pytest.mark.parametrize(("beam", "nbest", "maximum"), [(2, 1, None), (4, 3, None), (5, 1, 5)])
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
@torch.inference_mode()
def test_a_step_of_beam_search_in_one_kernel(
    V: int,
    width: int,
    beam: int,
    nbest: int,
    maximum: int | None,
    precision: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against the operations of torch that do the same elsewhere."""
    side = {"layers": 1, "heads": 2, "feed_forward": 16}
    model = {"width": width, "dropout": 0.0, "encoder": side, "decoder": side}
    torch.manual_seed(7)
    made = build(recipe.Model.model_validate(model), Vocabulary(V, V)).eval().to("cuda", precision)
    made.head.bias.copy_(torch.randn(V))
    made.head.bias[END] += 3.0  # many end
    shape = Shape(24, beam, 32, 32, nbest, 0.7, 3, maximum)
    ours, theirs = amid_a_search(made, shape), amid_a_search(made, shape)
    features_RD = torch.randn(24 * beam, width, device="cuda").to(precision)
    ours._settle_beams(ours._best_of_chunks(features_RD, keep=True))
    monkeypatch.setattr(Slots, "_by_kernels", False)
    theirs._beam(*theirs._top(features_RD, 2 * beam))
    assert ours.open_B.tolist() == theirs.open_B.tolist()
    assert ours.steps_R.tolist() == theirs.steps_R.tolist()
    assert ours.origin_RT is not None
    assert theirs.origin_RT is not None
    was_open = (torch.arange(24) % 5 != 4).nonzero().squeeze(1).tolist()
    before = amid_a_search(made, shape).steps_R[::beam].tolist()
    for slot in was_open:
        size, rows = before[slot] + 1, slice(slot * beam, (slot + 1) * beam)
        torch.testing.assert_close(ours.reached_BN[slot], theirs.reached_BN[slot])
        real_N = ours.reached_BN[slot] > NEG_INF  # what cannot be may be anything
        for mine, other in (
            (ours.tokens_R[rows], theirs.tokens_R[rows]),
            (ours.written_BNT[slot, :, :size], theirs.written_BNT[slot, :, :size]),
            (ours.origin_RT[rows, :size], theirs.origin_RT[rows, :size]),
        ):
            assert mine[real_N].tolist() == other[real_N].tolist()
        torch.testing.assert_close(ours.ended.score_BN[slot], theirs.ended.score_BN[slot])
        real_N = ours.ended.score_BN[slot] > NEG_INF
        total_N, other_N = (each.ended.total_BN[slot][real_N] for each in (ours, theirs))
        torch.testing.assert_close(total_N, other_N)
        texts = [each.ended.tokens_BNT[slot, :, :size][real_N].tolist() for each in (ours, theirs)]
        assert texts[0] == texts[1]
        if maximum is not None:
            assert int(ours.count_B[slot]) == int(theirs.count_B[slot])


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@torch.inference_mode()
def test_weights_that_are_nan_find_nothing_and_come_to_an_end(device: str, beam: int) -> None:
    made = network().to(device)
    made.head.bias[7] = torch.nan
    for precision in (torch.float32, torch.bfloat16):
        assert CudaSearch(made, precision).run(jobs(3), Search(beam)) == [[], [], []]


@torch.inference_mode()
def test_it_searches_with_the_weights_of_now() -> None:
    """A network that is being trained is searched again and again."""
    torch.manual_seed(7)
    made = network().double()
    fast_search = CudaSearch(made, torch.float64)
    asked = jobs(3)
    before = fast_search.run(asked)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    after = fast_search.run(asked)
    fresh = CudaSearch(made, torch.float64).run(asked)
    assert [h[0].tokens for h in after] == [h[0].tokens for h in fresh]
    assert [h[0].score for h in after] == pytest.approx([h[0].score for h in fresh])
    assert [h[0].score for h in after] != pytest.approx([h[0].score for h in before])


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@torch.inference_mode()
def test_weights_that_are_put_elsewhere_are_found(device: str) -> None:
    """Copying them is recorded with their addresses."""
    torch.manual_seed(7)
    made = network().to(device)
    searching = CudaSearch(made)
    for _ in range(3):
        before = searching.run(jobs(3))
    for parameter in made.parameters():
        parameter.data = torch.randn_like(parameter)
    for _ in range(3):
        after = searching.run(jobs(3))
        assert after == CudaSearch(made).run(jobs(3)) != before


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@torch.inference_mode()
def test_the_next_steps_are_launched_before_the_host_reads(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But none beyond the greatest length, and none while sentences wait for slots."""
    torch.manual_seed(7)
    made = network().to(device)
    seen: list[str] = []
    launch, wait = Slots.launch, graph_slots.HostReport.wait
    monkeypatch.setattr(Slots, "launch", lambda *given: (seen.append("launch"), launch(*given))[1])
    monkeypatch.setattr(
        graph_slots.HostReport, "wait", lambda report: (seen.append("read"), wait(report))[1]
    )
    searching, settings = CudaSearch(made), Search(1, 1, 1.0, 16)  # all outputs have 16 tokens
    asked = [Job(job.source[:20], 16) for job in jobs(5)]
    apart = [searching.run([job], settings)[0][0].tokens for job in asked]
    seen.clear()
    assert [found[0].tokens for found in searching.run(asked, settings)] == apart
    assert seen == ["launch", "launch", "read", "launch", "read", "launch", "read", "read"]
    seen.clear()
    monkeypatch.setattr(fast, "SIZES", (2,))
    assert [found[0].tokens for found in searching.run(asked, settings)] == apart
    assert seen == [*["launch", "read"] * 4, *seen[8:]]
    assert seen[8:] == ["launch", "launch", "read", "launch", "read", "launch", "read", "read"]


def test_what_a_fused_optimizer_did_is_seen() -> None:
    """Such an optimizer does not count up the versions of the weights it changes."""
    torch.manual_seed(7)
    made = network()
    searching = CudaSearch(made)
    with torch.inference_mode():
        before = searching.run(jobs(5))
    for parameter in made.parameters():
        parameter.grad = torch.randn_like(parameter)
    torch.optim.AdamW(made.parameters(), lr=0.5, fused=True).step()
    with torch.inference_mode():
        assert searching.run(jobs(5)) == CudaSearch(made).run(jobs(5)) != before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@torch.inference_mode()
def test_sources_in_one_row_are_encoded_as_padded_ones(positions: str) -> None:
    side = {"layers": 2, "heads": 2, "feed_forward": 64, "positions": positions}
    shape = {"width": 64, "dropout": 0.0, "encoder": side, "decoder": side}
    torch.manual_seed(7)
    made = build(recipe.Model.model_validate(shape), Vocabulary(V, V)).eval().cuda()
    lengths = torch.tensor([1, 32, 7, 12], device="cuda")
    source = torch.randint(4, V, (4, 32), device="cuda")
    exact = made.encoder(made.front(source), lengths, padding(lengths, 32)).states_BSD
    half = Slots(made.bfloat16(), Shape(4, 1, 32, 32))._encode(source, lengths)
    for mine, theirs, length in zip(half, exact, lengths.tolist(), strict=True):
        torch.testing.assert_close(mine[:length].float(), theirs[:length], rtol=0.05, atol=0.05)


def test_pools_are_few() -> None:
    made = network()
    fast_search = CudaSearch(made)
    with torch.inference_mode():
        for minimum in range(fast.MAX_POOLS + 3):
            fast_search.run([Job([5], 3)], Search(minimum=minimum))
    assert len(fast_search._pools) == fast.MAX_POOLS
    assert max(shape.minimum for _, shape in fast_search._pools) == fast.MAX_POOLS + 2
