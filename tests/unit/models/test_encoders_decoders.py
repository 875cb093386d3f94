"""Encoders and decoders: stepping equals teacher forcing, padding is never seen, rows are rows."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce import recipe
from transduce.data.tokens.tokenizer import PAD
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build
from transduce.nn.recurrent.stack import reverse_sequences
from transduce.recipe import parse_recipe
from transduce.recipe.presets import PRESETS

WIDTH, VOCABULARY = 16, Vocabulary(11, 13)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
LENGTHS = torch.tensor([5, 2, 7, 1])
SCORES = (
    "cosine",
    "additive",
    "location-aware",
    "location",
    "general",
    "dot",
    "scaled-dot",
    "additive-free",
    "none",
)


def transformer(**settings: Any) -> dict[str, Any]:
    return {"kind": "transformer", "layers": 2, "heads": 2, "feed_forward": 24, **settings}


def recurrent(**settings: Any) -> dict[str, Any]:
    return {"kind": "recurrent", **settings}


def convolutional(**settings: Any) -> dict[str, Any]:
    return {"kind": "convolutional", "layers": 2, **settings}


def network(
    encoder: dict[str, Any],
    decoder: dict[str, Any],
    dtype: torch.dtype = torch.float64,
    width: int = WIDTH,
    **model: Any,
) -> EncoderDecoder:
    torch.manual_seed(3)
    settings = recipe.Model.model_validate(
        {"width": width, "encoder": encoder, "decoder": decoder, **model}
    )
    return build(settings, VOCABULARY).to(dtype).eval()


def preset(name: str, dtype: torch.dtype) -> EncoderDecoder:
    model = parse_recipe(
        "data: {train: {name: copy, split: train}, valid: {name: copy, split: valid}}",
        "test",
        Path.cwd(),
        [f"model.preset={name}", f"model.width={WIDTH}", *small(name)],
    ).model
    torch.manual_seed(3)
    return build(model, VOCABULARY).to(dtype).eval()


def small(name: str) -> list[str]:
    if PRESETS[name]["encoder"]["kind"] != "transformer":
        return []
    return ["model.encoder.heads=2", "model.decoder.heads=2"]


def batch(lengths_B: Tensor = LENGTHS, seed: int = 5) -> Tensor:
    """Sources of these lengths; what lies beyond them is padding."""
    generator = torch.Generator().manual_seed(seed)
    source_BS = torch.randint(4, 11, (len(lengths_B), int(lengths_B.max())), generator=generator)
    beyond_BS = torch.arange(source_BS.shape[1]) >= lengths_B[:, None]
    return source_BS.masked_fill(beyond_BS, PAD)


def targets(rows: int = len(LENGTHS), steps: int = 6, seed: int = 6) -> Tensor:
    return torch.randint(1, 13, (rows, steps), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def by_steps(net: EncoderDecoder, state: Any, target_BT: Tensor) -> Tensor:
    features = []
    for tokens_B in target_BT.unbind(1):
        features_BD, state = net.decoder.step(tokens_B, state)
        features.append(features_BD)
    return torch.stack(features, dim=1)


def agree(ours: Tensor, theirs: Tensor, tolerance: float | None = None) -> None:
    tolerance = TOLERANCE[ours.dtype] if tolerance is None else tolerance
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@torch.no_grad()
def check(net: EncoderDecoder) -> None:
    """All that every model must hold: steps, padding, and reordered rows."""
    source_BS, target_BT = batch(), targets()
    whole_BTD = net(source_BS, LENGTHS, target_BT)
    assert torch.isfinite(whole_BTD).all()
    assert whole_BTD.std() > 1e-3  # equal numbers that say nothing would agree too

    agree(by_steps(net, net.start(source_BS, LENGTHS), target_BT), whole_BTD)

    for row, length in enumerate(LENGTHS.tolist()):
        alone_1TD = net(
            source_BS[row : row + 1, :length], LENGTHS[row : row + 1], target_BT[row : row + 1]
        )
        agree(alone_1TD[0], whole_BTD[row], max(1e-5, TOLERANCE[whole_BTD.dtype]))

    # Rows repeated, dropped and out of order after two steps are as if they had stood so always.
    index_B = torch.tensor([2, 2, 0, 3, 2])
    state = net.start(source_BS, LENGTHS)
    by_steps(net, state, target_BT[:, :2])
    state.reorder(index_B)
    after_BTD = by_steps(net, state, target_BT[index_B, 2:])
    agree(after_BTD, whole_BTD[index_B, 2:])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_steps_as_it_was_trained(name: str, dtype: torch.dtype) -> None:
    check(preset(name, dtype))


@pytest.mark.parametrize("context", ["input", "output", "both"])
@pytest.mark.parametrize("score", SCORES)
def test_every_attention_score_in_every_place(score: str, context: str) -> None:
    encoder = recurrent(cell="gru")
    for dtype in TOLERANCE:
        check(network(encoder, recurrent(cell="gru", attention=score, context=context), dtype))


@pytest.mark.parametrize(
    ("cell", "skip", "bidirectional"),
    list(product(["elman", "gru", "lstm", "lstm-peephole"], [False, True], [False, True])),
)
def test_every_cell_with_and_without_skips(cell: str, skip: bool, bidirectional: bool) -> None:
    encoder = recurrent(cell=cell, layers=2, skip=skip, bidirectional=bidirectional)
    decoder = recurrent(cell=cell, layers=2, skip=skip, context="both")
    for dtype in TOLERANCE:
        check(network(encoder, decoder, dtype))


@pytest.mark.parametrize(
    ("positions", "combine"),
    [
        *product(["sinusoidal", "fourier", "learned"], ["add", "concatenate"]),
        ("rotary", "add"),
        ("none", "add"),
    ],
)
@pytest.mark.parametrize("tie_embeddings", ["target", "none"])
def test_every_kind_of_position(positions: str, combine: str, tie_embeddings: str) -> None:
    part = transformer(positions=positions, combine=combine, max_positions=12)
    for dtype in TOLERANCE:
        check(network(part, part, dtype, tie_embeddings=tie_embeddings))


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_every_kind_of_block(activation: str, norm: str, norm_position: str) -> None:
    part = transformer(activation=activation, norm=norm, norm_position=norm_position)
    for dtype in TOLERANCE:
        check(network(part, part, dtype))


HYBRIDS = {
    "transformer to lstm": (transformer(), recurrent(layers=2)),
    "transformer to fixed context": (transformer(), recurrent(cell="gru", attention="none")),
    "lstm to transformer": (recurrent(layers=2), transformer(layers=3)),
    "rotary to gru": (transformer(positions="rotary"), recurrent(cell="gru", context="both")),
    "one layer to three": (recurrent(layers=1), recurrent(layers=3)),
    "gru to lstm": (recurrent(cell="gru"), recurrent(cell="lstm-peephole")),
    "convolutional to lstm": (convolutional(), recurrent(layers=2, context="both")),
    "convolutional to transformer": (convolutional(kernel=5), transformer()),
    "convolutional to fixed context": (convolutional(), recurrent(attention="none")),
    "convolutional to location-aware": (
        convolutional(),
        recurrent(attention="location-aware", location_kernel=3),
    ),
    "transformer to convolutional": (transformer(), convolutional()),
    "gru to convolutional": (recurrent(cell="gru"), convolutional(kernel=4)),
    "pooled to convolutional": ({"kind": "pooled"}, convolutional()),
    "reversed to transformer": (recurrent(bidirectional=False, reverse=True), transformer()),
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_encoders_and_decoders_of_different_kinds(name: str) -> None:
    for dtype in TOLERANCE:
        check(network(*HYBRIDS[name], dtype))


def test_the_bridge_is_there_only_where_states_do_not_fit() -> None:
    def bridge(encoder: dict[str, Any], decoder: dict[str, Any]) -> Any:
        return network(encoder, decoder).decoder.bridge

    assert bridge(recurrent(layers=2), recurrent(layers=2)) is None
    assert bridge(recurrent(layers=2, bidirectional=False), recurrent(layers=2)) is None
    assert bridge(recurrent(layers=1), recurrent(layers=2)).out_features == 2 * 2 * WIDTH
    assert bridge(transformer(), recurrent(cell="gru", layers=3)).out_features == 3 * WIDTH


@torch.no_grad()
def test_the_bridge_starts_from_the_mean_of_the_source_alone() -> None:
    net = network(transformer(), recurrent(cell="lstm", layers=2, attention="none"))
    source_BS = batch()
    states_BSD = net.encode(source_BS, LENGTHS).states_BSD
    mean_BD = torch.stack([s[:n].mean(0) for s, n in zip(states_BSD, LENGTHS, strict=True)])
    start_BE = torch.tanh(net.decoder.bridge(mean_BD))
    layers = net.start(source_BS, LENGTHS).layers
    agree(torch.cat([part for layer in layers for part in layer], dim=1), start_BE)


# ------------------------------------------------------------------ what the encoder leaves


@torch.no_grad()
def test_a_recurrent_memory_is_zero_beyond_each_source() -> None:
    for skip in (False, True):
        states_BSD = network(recurrent(skip=skip), transformer()).encode(batch(), LENGTHS)
        for row, length in enumerate(LENGTHS.tolist()):
            assert (states_BSD.states_BSD[row, length:] == 0).all()
            assert (states_BSD.states_BSD[row, :length] != 0).any()


@torch.no_grad()
def test_both_directions_are_joined_layer_by_layer() -> None:
    """The final state of a layer is the forward state at the end and the backward at the start."""
    memory = network(recurrent(layers=2), recurrent(layers=2)).encode(batch(), LENGTHS)
    (h_BD, c_BD) = memory.final[-1]
    assert len(memory.final) == 2
    assert c_BD.shape == h_BD.shape
    half = WIDTH // 2
    rows = torch.arange(len(LENGTHS))
    agree(h_BD[:, :half], memory.states_BSD[rows, LENGTHS - 1, :half])
    agree(h_BD[:, half:], memory.states_BSD[:, 0, half:])


@torch.no_grad()
@pytest.mark.parametrize("attention", ["none", "general"])
def test_reverse_reads_the_source_from_its_end(attention: str) -> None:
    """With the trick, a source is read as its mirror image is read without it."""
    plain = network(
        recurrent(bidirectional=False, layers=2), recurrent(layers=2, attention=attention)
    )
    tricked = network(
        recurrent(bidirectional=False, layers=2, reverse=True),
        recurrent(layers=2, attention=attention),
    )
    tricked.load_state_dict(plain.state_dict())
    source_BS, target_BT = batch(), targets()
    mirrored_BS = reverse_sequences(source_BS, LENGTHS)
    agree(
        tricked(source_BS, LENGTHS, target_BT),
        plain(mirrored_BS, LENGTHS, target_BT),
    )
    difference = tricked(source_BS, LENGTHS, target_BT) - plain(source_BS, LENGTHS, target_BT)
    assert difference[[0, 2]].abs().max() > 1e-4  # the rows that a mirror changes
    # States stay beside the tokens they belong to, so that attention maps can be read.
    memory = tricked.encode(source_BS, LENGTHS)
    mirrored = plain.encode(mirrored_BS, LENGTHS)
    agree(memory.states_BSD, reverse_sequences(mirrored.states_BSD, LENGTHS))


@torch.no_grad()
def test_without_attention_the_final_state_is_all_that_is_known() -> None:
    net = network(recurrent(layers=2), recurrent(layers=2, attention="none"))
    attending = network(recurrent(layers=2), recurrent(layers=2, attention="dot"))
    for model, sees_states in ((net, False), (attending, True)):
        memory = model.encode(batch(), LENGTHS)
        before_BTD = model.decoder(targets(), memory)
        memory.states_BSD = torch.randn_like(memory.states_BSD)
        changed = not torch.equal(model.decoder(targets(), memory), before_BTD)
        assert changed == sees_states
        memory.final = [tuple(p + 0.1 for p in layer) for layer in memory.final]
        assert not torch.allclose(model.decoder(targets(), memory), before_BTD)


@torch.no_grad()
@pytest.mark.parametrize("context", ["input", "output", "both"])
def test_a_recurrent_decoder_is_its_equations(context: str) -> None:
    """Bahdanau 2015: the last output asks before the step; Luong 2015: the new one after it."""
    encoder = recurrent(cell="gru", layers=2)
    net = network(encoder, recurrent(cell="gru", layers=2, attention="dot", context=context))
    decoder, length = net.decoder, 4
    memory = net.encode(batch(torch.tensor([length])), torch.tensor([length]))
    states_SD = memory.states_BSD[0]
    h = [layer[0][0] for layer in memory.final]

    def attended(query_D: Tensor) -> Tensor:
        return (states_SD @ query_D).softmax(dim=0) @ states_SD

    features = []
    for token in targets(1)[0]:
        x_D = decoder.embedding.table.weight[token] * WIDTH**0.5
        if context != "output":
            c_D = attended(h[-1])
            x_D = torch.cat([x_D, c_D])
        h[0] = decoder.recurrent.cells[0].step(x_D[None], (h[0][None],))[0][0]
        h[1] = decoder.recurrent.cells[1].step(h[0][None], (h[1][None],))[0][0]
        if context == "output":
            c_D = attended(h[-1])
        out_D = h[1] if context == "input" else decoder.readout(torch.cat([h[1], c_D])).tanh()
        features.append(out_D)
    agree(decoder(targets(1), memory)[0], torch.stack(features))


@torch.no_grad()
def test_a_transformer_decoder_sees_no_future() -> None:
    net = network(transformer(), transformer())
    target_BT = targets()
    changed_BT = target_BT.clone()
    changed_BT[:, 3] = 12 - changed_BT[:, 3]
    before, after = (net(batch(), LENGTHS, t) for t in (target_BT, changed_BT))
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


@torch.no_grad()
def test_order_is_told_by_positions_alone() -> None:
    """Without positions a Transformer's memory is a bag; with any kind it is not."""
    source_BS = batch(torch.tensor([6]))
    mirrored_BS = source_BS.flip(1)
    for positions in ("none", "sinusoidal", "fourier", "learned", "rotary"):
        part = transformer(positions=positions)
        net = network(part, part)
        one, other = (net(s, torch.tensor([6]), targets(1)) for s in (source_BS, mirrored_BS))
        assert torch.allclose(one, other, atol=1e-9) == (positions == "none"), positions


@torch.no_grad()
def test_a_long_decoding_outgrows_its_cache_and_goes_on() -> None:
    net = network(transformer(positions="rotary"), transformer(positions="rotary"))
    target_BT = targets(steps=70)
    agree(
        by_steps(net, net.start(batch(), LENGTHS), target_BT),
        net(batch(), LENGTHS, target_BT),
    )


@torch.no_grad()
def test_a_state_can_be_reordered_before_its_first_step() -> None:
    """As beam search does, to have several hypotheses of each source."""
    index_B = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    for decoder in (transformer(), recurrent(context="both"), convolutional()):
        net = network(transformer(), decoder)
        state = net.start(batch(), LENGTHS)
        state.reorder(index_B)
        target_BT = targets(len(index_B))
        expected = net(batch()[index_B], LENGTHS[index_B], target_BT)
        agree(by_steps(net, state, target_BT), expected)
