"""Every option of a decoder in every runtime and precision gives what teacher forcing gives.

Teacher forcing in float64 is the reference. The runtimes: the cached step of the modules, the C
library, the slots of a GPU's search (here by torch), and ONNX.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from slow_params import some_slow
from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.interop.onnx import EncoderGraph, StepGraph
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build, build_language_model
from transduce.models.decoders import DecoderState, TransformerDecoder
from transduce.models.language_model import LanguageModelNetwork
from transduce.nn.attention.attention import SCORES
from transduce.nn.attention.static_kv_cache import (
    StaticCrossAttentionCache,
    StaticSelfAttentionCache,
)
from transduce.nn.recurrent.cells import CELLS
from transduce.runtime import library, why_not
from transduce.runtime.packed_copy import packed
from transduce.runtime.recurrent import CRecurrentState, CRecurrentSteps
from transduce.runtime.steps import steps_of
from transduce.runtime.transformer import CTransformerSteps

V, B, T = 31, 5, 7
LENGTHS = torch.tensor([6, 1, 3, 9, 4])
# After these steps rows change places, some twice and some no more, as in a beam.
REORDERED = {1: [0, 0, 1, 2, 3, 4, 4], 3: [6, 1, 0, 2, 3], 5: [2, 0]}
# How far log-probabilities may be from those of float64: relative to their norm.
Source = tuple[Tensor, Tensor]
NEAR = {"float32": 2e-6, "bfloat16": 0.03, "int8": 0.03}
needs_c = pytest.mark.skipif(library() is None, reason=f"no C library: {why_not()}")

POSITIONS = [
    {"positions": "sinusoidal"},
    {"positions": "fourier"},
    {"positions": "learned"},
    {"positions": "rotary"},
    {"positions": "none"},
    {"positions": "sinusoidal", "combine": "concatenate"},
    {"positions": "learned", "combine": "concatenate"},
]
TRANSFORMERS = [
    {"norm": norm, "norm_position": place, "activation": activation, **positions}
    for norm, place, activation, positions in product(
        ("layer", "rms"), ("pre", "post"), ("relu", "gelu", "silu", "swiglu"), POSITIONS
    )
]
# As models of other toolkits have them.
TRANSFORMERS += [
    {"norm": norm, "norm_epsilon": 0.05, "activation": activation, **positions}
    for norm, (activation, positions) in product(
        ("layer", "rms"),
        [
            ("gelu_tanh", {"positions": "learned"}),
            ("geglu", {"positions": "rotary", "rotary_base": 50.0}),
            ("geglu_tanh", {"positions": "rotary", "rotary_base": 50.0}),
        ],
    )
]
# Narrower and wider than width / heads.
HEADS = [
    {"head_width": width, "positions": positions}
    for width, positions in product((6, 12), ("learned", "rotary"))
]
RELATIVE = {"positions": "relative", "relative_buckets": 8, "relative_distance": 6}
# Embeddings as BART, M2M100 and others have them.
TRANSFORMERS += [
    {"norm": norm, "norm_embeddings": normed, "scale_embeddings": scaled, **positions}
    for norm, (normed, scaled), positions in product(
        ("layer", "rms"), ((True, True), (True, False), (False, False)), POSITIONS[1:3]
    )
]
ALONE = [*TRANSFORMERS[::5], *({"kind": "recurrent", "cell": cell} for cell in CELLS)]
RECURRENT = [
    {"kind": "recurrent", "cell": cell, "attention": score, **rest}
    for cell, score, rest in product(
        CELLS,
        [*(name for name in SCORES if name != "location-aware"), "none"],
        [
            {"layers": 1, "context": "output"},
            {"layers": 2, "context": "input", "skip": True},
            {"layers": 2, "context": "both"},
        ],
    )
]


def reported(options: dict[str, Any]) -> str:
    return " ".join(str(value) for value in options.values())


def lively(network: torch.nn.Module) -> None:
    """Weights that tell every part from every other."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.normal_(std=0.3)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)


@cache
def transformer(**options: Any) -> EncoderDecoder:
    """Made once for all tests, which leave it as it is."""
    side = {"layers": 2, "heads": 2, "feed_forward": 20, "max_positions": 16, **options}
    return made({"width": 16, "encoder": side, "decoder": side})


def made(shape: dict[str, Any], **vocabulary: Any) -> EncoderDecoder:
    torch.manual_seed(8)
    vocabularies = Vocabulary(V, V, **vocabulary)
    network = build(recipe.Model.model_validate(shape), vocabularies).eval()
    lively(network)
    return network


def source() -> tuple[Tensor, Tensor]:
    source_BS = torch.randint(4, V, (B, 9), generator=torch.Generator().manual_seed(1))
    source_BS[torch.arange(9) >= LENGTHS[:, None]] = PAD
    return source_BS, LENGTHS


@cache
def walk() -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """At each step the tokens_R, all tokens_RT so far with the source of each row before them, and
    how rows change places afterwards."""
    generator = torch.Generator().manual_seed(3)
    history_RT = torch.arange(B)[:, None]
    steps = []
    for step in range(T):
        tokens_R = torch.randint(4, V, (len(history_RT),), generator=generator)
        history_RT = torch.cat([history_RT, tokens_R[:, None]], dim=1)
        index_R = torch.tensor(REORDERED[step]) if step in REORDERED else None
        steps.append((tokens_R, history_RT, index_R))
        if index_R is not None:
            history_RT = history_RT[index_R]
    return steps


@torch.inference_mode()
def teacher_forced(
    network: torch.nn.Module, read: Callable[[Tensor, Tensor], Tensor]
) -> list[Tensor]:
    """In float64, the log-probabilities_RV after each step.

    read: from the sources and tokens of rows to their log-probabilities_RTV. It is called once,
    with the rows of every stretch between two changes of rows: what comes later in a row has no
    influence on what was before.
    """
    ends = [step for step in range(T) if step in REORDERED or step == T - 1]
    rows = [walk()[step][1] for step in ends]
    whole_RT = torch.cat([torch.nn.functional.pad(one, (0, T + 1 - one.shape[1])) for one in rows])
    network.double()
    try:
        stretches = read(whole_RT[:, 0], whole_RT[:, 1:]).split([len(one) for one in rows])
    finally:
        network.float()  # the same weights to the bit
    found: list[Tensor] = []
    for end, log_probs_RTV in zip(ends, stretches, strict=True):
        found += log_probs_RTV[:, len(found) : end + 1].unbind(dim=1)
    return found


def expected(network: EncoderDecoder, given: Source | None = None) -> list[Tensor]:
    source_BS, lengths_B = given or source()

    def read(rows_R: Tensor, tokens_RT: Tensor) -> Tensor:
        logits_RTV = network.logits(source_BS[rows_R], lengths_B[rows_R], tokens_RT)
        return logits_RTV.log_softmax(dim=-1)  # of a network that copies, what it was

    return teacher_forced(network, read)


RIGHT: dict[tuple[tuple[str, Any], ...], list[Tensor]] = {}


def expected_of(options: dict[str, Any], network: EncoderDecoder) -> list[Tensor]:
    """What is expected of a Transformer with these options, computed once for all tests."""
    key = tuple(options.items())
    if key not in RIGHT:
        RIGHT[key] = expected(network)
    return RIGHT[key]


def check(expected: list[Tensor], near: float, *runtimes: Any, given: Source | None = None) -> None:
    for steps in runtimes:
        state: DecoderState = steps.start(*(given or source()))
        for (tokens_R, _, index_R), expected_RV in zip(walk(), expected, strict=True):
            found_RV, state = steps.step(tokens_R, state)
            never_RV = expected_RV == -torch.inf
            assert torch.equal(found_RV == -torch.inf, never_RV)
            apart_RV = found_RV.double().sub(expected_RV).masked_fill(never_RV, 0.0)
            apart = float(apart_RV.norm() / expected_RV.masked_fill(never_RV, 0.0).norm())
            assert apart < near
            if index_R is not None:
                state.reorder(index_R)


@pytest.mark.parametrize("options", TRANSFORMERS, ids=reported)
@torch.inference_mode()
def test_transformers_in_float32(options: dict[str, Any]) -> None:
    network = transformer(**options)
    right = expected_of(options, network)
    check(right, NEAR["float32"], network, Slots(network))
    if library() is not None:
        ours = steps_of(packed(network, "float32"))
        # A head narrower than the states is left to torch.
        assert isinstance(ours, EncoderDecoder if "combine" in options else CTransformerSteps)
        check(right, NEAR["float32"], ours)


@pytest.mark.parametrize("options", HEADS, ids=reported)
@torch.inference_mode()
def test_heads_of_an_own_width(options: dict[str, Any]) -> None:
    network = transformer(**options)
    right, ours = expected(network), steps_of(packed(network, "float32"))
    if library() is not None:
        # The library's buffers are as wide as the model.
        assert isinstance(ours, EncoderDecoder if options["head_width"] > 8 else CTransformerSteps)
    check(right, NEAR["float32"], network, ours)
    check(right, NEAR["int8"], steps_of(packed(network, "int8")))


@pytest.mark.parametrize("more", [{}, {"head_width": 10, "norm": "rms"}], ids=reported)
@torch.inference_mode()
def test_relative_positions(more: dict[str, Any]) -> None:
    """They are left to torch, step by step and in fewer bits too."""
    network = transformer(**RELATIVE, **more)
    right, ours = expected(network), steps_of(packed(network, "float32"))
    assert isinstance(ours, EncoderDecoder)
    check(right, NEAR["float32"], network, ours)
    check(right, NEAR["int8"], steps_of(packed(network, "int8")))


@needs_c
@torch.inference_mode()
def test_an_end_that_is_not_read_changes_nothing() -> None:
    """Whatever stands where END stands; in C and in torch."""
    network = made({"width": 16, "source_end": False, "encoder": {}, "decoder": {}})
    for steps in (network, steps_of(packed(network, "float32"))):
        found = []
        for last in (END, 7):
            source_BS, lengths_B = source()
            source_BS[torch.arange(B), lengths_B - 1] = last
            source_BS[1, 0] = END  # an empty source: there is nothing but its END to read
            found.append(steps.step(torch.full((B,), BEGIN), steps.start(source_BS, lengths_B))[0])
        torch.testing.assert_close(*found, rtol=0, atol=0)
        without = steps.start(source_BS[[0]], lengths_B[[0]])
        shorter = made({"width": 16, "encoder": {}, "decoder": {}})
        expected_1V = shorter.step(
            torch.tensor([BEGIN]), shorter.start(source_BS[[0], :5], lengths_B[[0]] - 1)
        )[0]
        found_1V = steps.step(torch.tensor([BEGIN]), without)[0]
        torch.testing.assert_close(found_1V, expected_1V, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@pytest.mark.parametrize("options", some_slow(TRANSFORMERS[::3], TRANSFORMERS[::6]), ids=reported)
@torch.inference_mode()
def test_transformers_in_fewer_bits(options: dict[str, Any], kind: str) -> None:
    network = transformer(**options)
    few = packed(network, kind)
    check(expected_of(options, network), NEAR[kind], few, steps_of(few))


@pytest.mark.parametrize("options", TRANSFORMERS[::2], ids=reported)
@torch.inference_mode()
def test_transformers_as_graphs_of_onnx(options: dict[str, Any]) -> None:
    network = transformer(**options)
    check(expected_of(options, network), NEAR["float32"], Graphs(network))


@needs_c
@pytest.mark.parametrize("options", RECURRENT, ids=reported)
@torch.inference_mode()
def test_recurrent_decoders(options: dict[str, Any]) -> None:
    encoder = {"kind": "recurrent", "cell": options["cell"], "layers": options["layers"]}
    network = made({"width": 20, "encoder": encoder, "decoder": options})
    ours = steps_of(packed(network, "float32"))
    assert isinstance(ours, CRecurrentSteps)
    check(expected(network), NEAR["float32"], network, ours)


TAGS = [4, 5, 6]
READ_APART = [
    {**one, "tag_attention": True}
    for one in RECURRENT[1::2]
    if one["attention"] != "none" and one["context"] != "input"
]


def tagged() -> Source:
    """Sources with different numbers of tags; one is nothing else, another has a tag in its
    middle, where it is a letter like others."""
    source_BS, lengths_B = source()
    source_BS = torch.where((source_BS > PAD) & (source_BS < 7), 7, source_BS)
    source_BS[0, :2], source_BS[2, :3] = torch.tensor([5, 4]), torch.tensor([4, 6, END])
    source_BS[3, 0], source_BS[3, 4] = 6, 5
    return source_BS, lengths_B


@needs_c
@pytest.mark.parametrize("layers", [1, 3], ids=["", "bridge"])
@pytest.mark.parametrize("source_end", [True, False], ids=["", "no end"])
@pytest.mark.parametrize("options", READ_APART, ids=reported)
@torch.inference_mode()
def test_tags_that_the_decoder_reads(
    options: dict[str, Any], source_end: bool, layers: int
) -> None:
    encoder = {"kind": "recurrent", "cell": options["cell"], "layers": layers}
    shape = {"width": 20, "encoder": encoder, "decoder": options, "source_end": source_end}
    network = made(shape, tags=TAGS)
    ours = steps_of(packed(network, "float32"))
    assert isinstance(ours, CRecurrentSteps)
    assert isinstance(ours.start(*tagged()), CRecurrentState)
    right = expected(network, tagged())
    check(right, NEAR["float32"], network, ours, given=tagged())
    assert float((right[0] - expected(network)[0]).norm()) > 1.0


COPYING: list[dict[str, Any]] = [
    {**one, "copying": True}
    for one in (
        *(one for one in RECURRENT[::7] if one["attention"] != "none"),
        *READ_APART[::3],
        *(one for one in TRANSFORMERS[::9] if "combine" not in one),
        HEADS[0],
        RELATIVE,
    )
]


def copied() -> Source:
    """Sources with tokens that no vocabulary has, and such as the target's alone has."""
    source_BS, lengths_B = tagged()
    source_BS[0, 3], source_BS[0, 4], source_BS[3, 5] = 2 * V + 3, 2 * V + 3, V + 9
    source_BS[3, 7] = source_BS[3, 1]
    return source_BS, lengths_B


@needs_c
@pytest.mark.parametrize("options", COPYING, ids=reported)
@torch.inference_mode()
def test_decoders_that_copy(options: dict[str, Any]) -> None:
    side = {"layers": 2, "heads": 2, "feed_forward": 20, "max_positions": 16}
    if options.get("kind") == "recurrent":
        side = {"kind": "recurrent", "layers": options["layers"], "cell": options["cell"]}
    # Tags and specials are never copied; some tokens have other numbers, or none, in the target.
    copied_as = [-1] * 7 + [V] * 3 + list(range(V - 1, 9, -1))
    shape = {"width": 16, "encoder": side, "decoder": {**side, **options}}
    network = made(shape, copied_as=copied_as, tags=TAGS)
    ours = steps_of(packed(network, "float32"))
    in_torch = {"relative_buckets", "head_width"} & set(options)
    assert isinstance(ours, CRecurrentSteps | CTransformerSteps) != bool(in_torch)
    beyond = [
        steps.step(torch.full((B,), V + 2), steps.start(*copied()))[0] for steps in (network, ours)
    ]
    torch.testing.assert_close(*beyond, atol=1e-4, rtol=1e-4)  # what was copied is read as unknown
    check(expected(network, copied()), NEAR["float32"], network, ours, given=copied())


@needs_c
@pytest.mark.parametrize(
    "options",
    [*TRANSFORMERS[::5], *({**one, "attention": "none"} for one in RECURRENT[::8])],
    ids=reported,
)
@pytest.mark.parametrize("read", [0, 1, 6])
@torch.inference_mode()
def test_language_models(options: dict[str, Any], read: int) -> None:
    network = speaker(**options)
    ours = steps_of(packed(network, "float32"))
    assert isinstance(
        ours, LanguageModelNetwork if "combine" in options else CTransformerSteps | CRecurrentSteps
    )
    prompt_BT = torch.randint(4, V, (B, read), generator=torch.Generator().manual_seed(5))

    def exact(rows_R: Tensor, tokens_RT: Tensor) -> Tensor:
        features_RTD = network(torch.cat([prompt_BT[rows_R], tokens_RT], dim=1))
        return network.head(features_RTD[:, read:]).log_softmax(dim=-1)

    state = ours.read(prompt_BT)
    right = teacher_forced(network, exact)
    for (tokens_R, _, index_R), expected_RV in zip(walk(), right, strict=True):
        found_RV, state = ours.step(tokens_R, state)
        apart = float((found_RV.double() - expected_RV).norm() / expected_RV.norm())
        assert apart < NEAR["float32"]
        if index_R is not None:
            state.reorder(index_R)


@cache
def speaker(**options: Any) -> LanguageModelNetwork:
    """A language model, made once for all tests, which leave it as it is."""
    if options.get("kind") == "recurrent":
        options = {"layers": 2, "attention": "none", **options}
    else:
        options = {"layers": 2, "heads": 2, "feed_forward": 20, "max_positions": 24, **options}
    shape = {"width": 16, "encoder": None, "decoder": options}
    torch.manual_seed(8)
    network = build_language_model(recipe.Model.model_validate(shape), V).eval()
    lively(network)
    return network


@needs_c
def test_a_token_that_is_not_in_the_vocabulary_is_refused() -> None:
    side = {"kind": "recurrent"}
    recurrent = made({"width": 16, "encoder": side, "decoder": side})
    with torch.inference_mode():
        for network in (transformer(), recurrent):
            steps = steps_of(packed(network, "float32"))
            state = steps.start(*source())
            for bad in (V, -1):
                with pytest.raises(ValueError, match=r"vocabulary|not among"):
                    steps.step(torch.full((B,), bad), state)


@needs_c
@torch.inference_mode()
def test_a_copy_of_a_place_that_no_source_has_is_refused() -> None:
    side = {"kind": "recurrent"}
    shape = {"width": 16, "encoder": side, "decoder": {**side, "copying": True}}
    steps = steps_of(packed(made(shape, copied_as=[-1] * V), "float32"))
    source_BS, lengths_B = source()
    for number in (9, 8):  # places are counted from 0, and there are nine
        source_BS[3, 1] = 2 * V + number
        state = steps.start(source_BS, lengths_B)
        if number == 9:
            with pytest.raises(ValueError, match="not among"):
                steps.step(torch.full((B,), BEGIN), state)
    found_RX, _ = steps.step(torch.full((B,), BEGIN), state)
    assert found_RX[3, V + 8] > -torch.inf
    state.query_RD[:] = state.h_LRD[:] = torch.nan  # type: ignore[attr-defined]
    lost_RX, _ = steps.step(torch.full((B,), BEGIN), state)
    assert (lost_RX == -torch.inf).all()  # never NaN, as search expects of C


# ------------------------------------------------------------------ other runtimes, as steppers


class Slots:
    """The step over stores of a fixed size, one CUDA graph on a GPU; here by torch."""

    def __init__(self, network: EncoderDecoder) -> None:
        assert isinstance(network.decoder, TransformerDecoder)
        self.network, self.decoder = network, network.decoder

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> SlotState:
        states_BSD = self.network.encode(source_BS, lengths_B).states_BSD
        memory = [
            StaticCrossAttentionCache(block.project_memory(states_BSD), lengths_B)
            for block in self.decoder.stack
        ]
        stores = [torch.zeros(B, T, 2 * states_BSD.shape[2]) for _ in memory]
        return SlotState(stores, memory, torch.zeros(B, dtype=torch.int32))

    def step(self, tokens_R: Tensor, state: SlotState) -> tuple[Tensor, SlotState]:
        own = [StaticSelfAttentionCache(store, state.lengths_R) for store in state.stores]
        features_RD = self.decoder.advance(tokens_R, own, list(state.memory))
        state.lengths_R += 1
        return self.network.head(features_RD).log_softmax(dim=-1), state


class SlotState:
    def __init__(
        self, stores: list[Tensor], memory: list[StaticCrossAttentionCache], lengths_R: Tensor
    ) -> None:
        self.stores, self.memory, self.lengths_R = stores, memory, lengths_R

    def reorder(self, index_R: Tensor) -> None:
        self.stores = [store[index_R] for store in self.stores]
        self.memory = [
            StaticCrossAttentionCache(past.store_BSE[index_R], past.lengths_B[index_R])
            for past in self.memory
        ]
        self.lengths_R = self.lengths_R[index_R]


class Graphs:
    """What is exported to ONNX, before a file is made of it."""

    def __init__(self, network: EncoderDecoder) -> None:
        self.encoder, self.decoder = EncoderGraph(network, 16), StepGraph(network, 16)
        self.layers, self.width = len(network.decoder.blocks), 16

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> GraphState:
        mask_BS = torch.arange(source_BS.shape[1]) < lengths_B[:, None]
        past_LBTE = torch.zeros(self.layers, len(source_BS), 0, 2 * self.width)
        return GraphState(past_LBTE, self.encoder(source_BS, mask_BS), mask_BS)

    def step(self, tokens_R: Tensor, state: GraphState) -> tuple[Tensor, GraphState]:
        place_1 = torch.tensor([state.past_LBTE.shape[2]])
        log_probs_RV, state.past_LBTE = self.decoder(
            tokens_R, place_1, state.past_LBTE, state.memory_LBSE, state.mask_BS
        )
        return log_probs_RV, state


class GraphState:
    def __init__(self, past_LBTE: Tensor, memory_LBSE: Tensor, mask_BS: Tensor) -> None:
        self.past_LBTE, self.memory_LBSE, self.mask_BS = past_LBTE, memory_LBSE, mask_BS

    def reorder(self, index_R: Tensor) -> None:
        self.past_LBTE, self.memory_LBSE = self.past_LBTE[:, index_R], self.memory_LBSE[:, index_R]
        self.mask_BS = self.mask_BS[index_R]
