"""The kernels of a decoding step without a GPU, by Triton's interpreter, against brute force.

They run where Triton is installed and there is no GPU; with a GPU, test_graph_slots.py,
test_rules.py and test_triton.py run the compiled kernels.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tiny_models import drawn
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.decoding.cuda import graph_slots
from transduce.decoding.cuda.graph_slots import Slots
from transduce.decoding.search.continuous_batching import Shape
from transduce.decoding.search.rules import NEG_INF
from transduce.nn import linear
from transduce.nn.attention import static_kv_cache
from transduce.nn.attention.static_kv_cache import (
    StaticCrossAttentionCache,
    StaticSelfAttentionCache,
)
from transduce.nn.embedding import tokens as embedding
from transduce.nn.triton import kernels, reset_kernels

NO_GPU = find_spec("triton") is not None and not torch.cuda.is_available()
if NO_GPU and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it once, when it is imported
pytestmark = pytest.mark.skipif(
    not NO_GPU or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton, and no GPU: where there is one, other tests run the kernels on it",
)

V, WIDTH, T = 150, 16, 12  # three chunks of 64 tokens


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Kernels that the interpreter can run: it sees global names alone, and has three faults."""
    from triton.runtime import interpreter

    def splat(builder: object, kind: Any, scalar: Any) -> Any:  # a comparison has another type
        values = np.full(kind.shape, scalar.data.reshape(-1)[0])
        return interpreter.TensorHandle(values, scalar.dtype.scalar)

    patch = interpreter._patch_lang_tensor

    def with_index(tensor: Any, scope: Any) -> None:  # numpy 2.4 makes no int of an array of one
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda one: int(one.handle.data.item()))

    def floats(x: Any) -> Any:
        return (
            (x.data.astype(np.uint32) << 16).view(np.float32)
            if x.data.dtype == np.uint16
            else x.data
        )

    def dot(
        builder: object, a: Any, b: Any, to: Any, *_: object
    ) -> Any:  # of bfloat16: as integers
        return interpreter.TensorHandle(floats(a) @ floats(b) + to.data, to.dtype.scalar)

    def show(kernel: Any) -> None:
        function = kernel.fn
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            monkeypatch.setitem(function.__globals__, name, cell.cell_contents)
            if hasattr(cell.cell_contents, "fn"):
                show(cell.cell_contents)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_splat", splat)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", with_index)
    for module in (graph_slots, linear, embedding, static_kv_cache):
        monkeypatch.setattr(module, "early", lambda *_, **__: {"EARLY": False})
    reset_kernels()
    for kernel in vars(kernels()).values():
        show(kernel)
    yield
    reset_kernels()


# ------------------------------------------------------------------------- a step of beam search


def slots(shape: Shape, kind: torch.dtype, seed: int, ties: bool) -> tuple[Slots, Tensor]:
    """Slots in the middle of a search, and features [R, D] of the next step."""
    side = {"layers": 1, "heads": 2, "feed_forward": 16}
    made = drawn(
        {"width": WIDTH, "encoder": side, "decoder": side, "tie_embeddings": "none"}, V
    ).to(kind)
    torch.manual_seed(seed)
    head = made.head
    head.weight.normal_(std=2.0)
    if ties:
        head.weight.copy_(head.weight.round())
        head.weight[:, 1:] = head.weight[:, :1]  # hypotheses have the same logits
    head.bias.zero_()
    head.bias[[PAD, BEGIN]] = 9.0
    head.bias[END] = 3.25  # never a tie with a token that goes on
    head.bias[64:128] = NEG_INF  # a whole chunk
    head.bias[7] = NEG_INF
    pool = Slots(made, shape)
    B, N = shape.slots, shape.beam
    step_B = torch.randint(0, 7, (B,))
    step_B[0], step_B[-1] = 0, 5
    pool.steps_R.copy_(step_B.repeat_interleave(N))
    pool.limits_B.copy_(step_B + torch.randint(2, 5, (B,)))
    pool.limits_B[-1] = step_B[-1] + 1  # at its maximum length
    pool.open_B.fill_(value=True)
    pool.open_B[1] = False
    pool.written_BNT.random_(4, V)
    pool.origin_RT.random_(0, B * N)
    pool.reached_BN.copy_(-4 * torch.rand(B, N).sort(dim=1).values - 1)
    if ties:
        pool.reached_BN.fill_(-2.0)
    pool.reached_BN[0] = NEG_INF  # the first step: one hypothesis
    pool.reached_BN[0, 0] = 0.0
    score_BN = (-torch.rand(B, shape.nbest) * 3 - 0.5).sort(dim=1, descending=True).values
    score_BN[0], score_BN[:, 1:][torch.rand(B, shape.nbest - 1) < 0.3] = NEG_INF, NEG_INF
    pool.ended.score_BN.copy_(score_BN.sort(dim=1, descending=True).values)
    pool.ended.total_BN.copy_(pool.ended.score_BN * 1.5)
    pool.ended.tokens_BNT.random_(4, V)
    pool.ended.tokens_BNT[:, :, 3] = END
    pool.count_B.random_(0, 3)
    return pool, torch.eye(B * N, WIDTH, dtype=kind)


def state(pool: Slots) -> SimpleNamespace:
    N = pool.shape.beam
    return SimpleNamespace(
        open=pool.open_B.clone(),
        steps=pool.steps_R.view(-1, N).clone(),
        reached=pool.reached_BN.clone(),
        tokens=pool.tokens_R.view(-1, N).clone(),
        written=pool.written_BNT.clone(),
        origin=pool.origin_RT.view(-1, N, T).clone(),
        scores=pool.ended.score_BN.clone(),
        totals=pool.ended.total_BN.clone(),
        texts=pool.ended.tokens_BNT.clone(),
        count=pool.count_B.clone(),
    )


def check(pool: Slots, features_RD: Tensor, old: SimpleNamespace, new: SimpleNamespace) -> None:
    """What the step should have found, among all candidates; of equal ones it may keep any."""
    shape, N = pool.shape, pool.shape.beam
    head = pool.network.head
    logits_RV = features_RD.double() @ head.weight.double().t() + head.bias.double()
    log_probs_BNV = logits_RV.log_softmax(dim=-1).view(-1, N, V)
    for b in range(shape.slots):
        step, limit = int(old.steps[b, 0]), int(pool.limits_B[b])
        if not old.open[b]:
            for name in ("open", "steps", "scores", "totals", "texts"):
                assert torch.equal(getattr(old, name)[b], getattr(new, name)[b]), name
            continue
        made_NV = old.reached[b].double()[:, None] + log_probs_BNV[b]
        made_NV[:, [PAD, BEGIN]] = NEG_INF
        if step + 1 < shape.minimum:
            made_NV[:, END] = NEG_INF
        if step + 1 >= limit:
            made_NV[:, torch.arange(V) != END] = NEG_INF
        best = made_NV.flatten().sort(descending=True).values
        going_on = made_NV.clone()
        going_on[:, END] = NEG_INF
        expected = going_on.flatten().sort(descending=True).values[:N]
        torch.testing.assert_close(new.reached[b].double(), expected, rtol=0, atol=1e-5)
        pairs = set()
        for n in range(N):
            if new.reached[b, n] == NEG_INF:
                continue
            parent, token = int(new.origin[b, n, step]) - b * N, int(new.tokens[b, n])
            assert float(going_on[parent, token]) == pytest.approx(float(expected[n]), abs=1e-5)
            assert new.written[b, n, : step + 1].tolist() == [
                *old.written[b, parent, :step].tolist(),
                token,
            ]
            assert torch.equal(new.origin[b, n, :step], old.origin[b, parent, :step])
            pairs.add((parent, token))
        assert len(pairs) == int((expected > NEG_INF).sum())
        # END counts among the better half of the candidates.
        texts = []
        for n in range(N):
            total = float(made_NV[n, END])
            if total > NEG_INF and total >= float(best[N - 1]) - 1e-9:
                text = [*old.written[b, n, :step].tolist(), END]
                texts.append((total / ((6 + step) / 6) ** shape.length_penalty, total, text))
        ended = len(texts)
        for k in range(shape.nbest):
            text = old.texts[b, k, :4].tolist()
            texts.append((float(old.scores[b, k]), float(old.totals[b, k]), text))
        texts.sort(key=lambda one: -one[0])
        for k in range(shape.nbest):
            score = float(new.scores[b, k])
            assert score == pytest.approx(texts[k][0], abs=1e-5)
            if score == NEG_INF:
                continue
            text = new.texts[b, k].tolist()
            text = text[: text.index(END) + 1]
            same = [one for one in texts if one[0] == pytest.approx(score, abs=1e-5)]
            (total,) = [one[1] for one in same if one[2] == text]
            assert float(new.totals[b, k]) == pytest.approx(total, abs=1e-5)
        if shape.maximum is not None:
            assert int(new.count[b] - old.count[b]) == ended
        ahead = max(((5 + length) / 6) ** shape.length_penalty for length in (limit, step + 2))
        done = texts[shape.nbest - 1][0] >= float(expected[0]) / ahead or step + 1 >= limit
        done |= shape.maximum is not None and int(old.count[b]) + ended >= shape.maximum
        assert bool(new.open[b]) is not done
        assert (new.steps[b] == step + (not done)).all()


SHAPES = [
    Shape(3, 4, 8, T, 1, 1.0),
    Shape(3, 5, 8, T, 3, 0.6, minimum=3),
    Shape(3, 2, 8, T, 2, 0.0, maximum=3),
]


@pytest.mark.parametrize("by", ["kernels", "torch"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ties", [False, True])
@torch.inference_mode()
def test_a_step_of_beam_search(
    ties: bool, kind: torch.dtype, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many tokens of a chunk may be among the best, and a chunk may have no possible token."""
    monkeypatch.setattr(graph_slots, "MANY_OF", (64, 1))
    for seed, shape in enumerate(SHAPES):
        pool, features_RD = slots(shape, kind, seed, ties)
        old = state(pool)
        if by == "kernels":
            pool._settle_beams(pool._best_of_chunks(features_RD, keep=True))
        else:
            pool._beam(*pool._top(features_RD, 2 * shape.beam))
        new = state(pool)
        check(pool, features_RD, old, new)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_step_of_greedy_search(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernels and by torch; the rows at their maximum length end."""
    monkeypatch.setattr(graph_slots, "ONE_OF", (64, 1))
    for seed in range(3):
        states = []
        for by_kernels in (True, False):
            pool, features_RD = slots(Shape(7, 2, 8, T, 1, 0.6, minimum=2), kind, seed, ties=False)
            one = Slots(pool.network, Shape(14, 1, 8, T, 1, 0.6, minimum=2))
            for mine, theirs in (
                (one.steps_R, pool.steps_R),
                (one.limits_B, pool.limits_B.repeat_interleave(2)),
                (one.open_B, pool.open_B.repeat_interleave(2)),
                (one.reached_BN, torch.linspace(-3, -1, 14)[:, None]),
            ):
                mine.copy_(theirs)
            if by_kernels:
                one._settle(*one._best_of_chunks(features_RD, keep=False)[:3])
            else:
                one._greedy(*one._top(features_RD, 1))
            ended = torch.cat([one.ended.score_BN, one.ended.total_BN], dim=1)
            states.append((one.open_B, one.tokens_R, one.steps_R, one.written_BNT, ended))
        for ours, theirs in zip(*states, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        assert 0 < int(states[0][0].sum()) < 12  # two were not open


# ----------------------------------------------------------- attention, products and embeddings


@torch.inference_mode()
def test_attention_over_the_cache() -> None:
    """To the own past, by the table of a beam and without it, and to a source of several rows."""
    torch.manual_seed(1)
    R, H, K, S = 6, 2, 12, 37
    lengths_R = torch.tensor([0, 1, 15, 16, 17, S - 1], dtype=torch.int32)
    origin_RT = torch.randint(0, R, (R, S), dtype=torch.int32)
    for origin in (None, origin_RT):
        store_RTE, projected_R1E = torch.randn(R, S, 2 * H * K), torch.randn(R, 1, 3 * H * K)
        other = StaticSelfAttentionCache(store_RTE.clone(), lengths_R, origin)
        expected = other.attend(projected_R1E, H)
        found = static_kv_cache._launch(projected_R1E, store_RTE, lengths_R, origin, 1, H)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        assert torch.equal(store_RTE, other.store_RTE)
    source_BSE, query_R1D = torch.randn(2, S, 2 * H * K), torch.randn(R, 1, H * K)
    lengths_B = torch.tensor([S, 18], dtype=torch.int32)
    expected = StaticCrossAttentionCache(source_BSE, lengths_B, 3).attend(query_R1D, H)
    found = static_kv_cache._launch(query_R1D, source_BSE, lengths_B, None, 3, H)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 33, 130])
@torch.inference_mode()
def test_products_of_few_rows(rows: int) -> None:
    """Within one unit of bfloat16: the interpreter cuts digits off, where a GPU rounds."""
    torch.manual_seed(1)
    x_ND, weight_FD, bias_F = (torch.randn(*n).bfloat16() for n in ((rows, 150), (70, 150), (70,)))
    for bias, relu in ((bias_F, True), (None, False)):
        exact_NF = x_ND.double() @ weight_FD.double().t()
        if bias is not None:
            exact_NF = (exact_NF + bias.double()).relu()
        found_NF = linear._few_rows(x_ND, weight_FD, bias, relu)
        torch.testing.assert_close(found_NF.double(), exact_NF, rtol=2**-7, atol=1e-4)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_embeddings_of_a_step(kind: torch.dtype) -> None:
    """Of whole numbers, which bfloat16 holds exactly."""
    torch.manual_seed(1)
    tokens_BT, places_BT = torch.randint(0, 50, (9, 1)), torch.randint(0, 20, (9, 1)).int()
    table_VD, positions_TD = (torch.randint(-8, 9, (n, 40)).to(kind) for n in (50, 20))
    for positions in (None, (positions_TD, places_BT)):
        found = embedding.embedded(tokens_BT, table_VD, 4.0, positions, 0.0)
        expected = table_VD[tokens_BT] * 4.0
        if positions is not None:
            expected = expected + positions_TD[places_BT.long()]
        assert torch.equal(found, expected)
