"""Architectures of plain numbers: what a recipe builds, learnt by a loop of one's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import transduce.models
from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, SPECIALS
from transduce.decoding import greedy
from transduce.models import (
    Conformer,
    ConvolutionalLanguageModel,
    ConvolutionalSeq2Seq,
    RecurrentLanguageModel,
    RecurrentSeq2Seq,
    TrainableNetwork,
    Transformer,
    TransformerClassifier,
    TransformerLanguageModel,
    TransformerTagger,
)
from transduce.models.build import (
    Vocabulary,
    build,
    build_audio,
    build_label_network,
    build_language_model,
)
from transduce.nn import SpecAugment

SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 3, 0, 0, 0]])
LENGTHS = torch.tensor([5, 2])
TARGET = torch.tensor([[2, 5, 6, 7, 3, 0], [2, 9, 3, 0, 0, 0]])
BLOCKS = {"layers": 2, "heads": 2, "feed_forward": 24}
POST = {"norm": "rms", "norm_position": "post", "activation": "swiglu"}
LOUD = {"attention_dropout": 0.2, "activation_dropout": 0.3}
WORDS = [*SPECIALS, *"abcdefg"]


def by_recipe(**model: Any) -> recipe.Model:
    return recipe.Model.model_validate({"width": 16, **model})


def transformer(**more: Any) -> dict[str, Any]:
    return {"kind": "transformer", **BLOCKS, **more}


def recurrent(**more: Any) -> dict[str, Any]:
    return {"kind": "recurrent", **more}


def seq2seq(encoder: Any, decoder: Any, **model: Any) -> TrainableNetwork:
    return build(by_recipe(encoder=encoder, decoder=decoder, **model), Vocabulary(11, 11))


def language_model(decoder: Any, **model: Any) -> TrainableNetwork:
    return build_language_model(by_recipe(decoder=decoder, **model), 11)


def label_network(encoder: Any, pooled: bool, **model: Any) -> TrainableNetwork:
    return build_label_network(by_recipe(encoder=encoder, **model), WORDS, 7, pooled=pooled)


def speech(encoder: Any, decoder: Any, audio: dict[str, Any], **model: Any) -> TrainableNetwork:
    settings = by_recipe(encoder=encoder, decoder=decoder, **model)
    return build_audio(settings, recipe.Audio.model_validate(audio), Vocabulary(11, 11))


LAYER = {"layers": 1, "heads": 2, "feed_forward": 24}
CONFORMER = {"kind": "conformer", **LAYER, "kernel": 5}
AWARE = {"attention": "location-aware", "location_filters": 3, "location_kernel": 5}
SAME: dict[str, tuple[Callable[[], TrainableNetwork], Callable[[], TrainableNetwork]]] = {
    "transformer": (
        lambda: Transformer(11, 11, width=16, **BLOCKS),
        lambda: seq2seq(transformer(), transformer()),
    ),
    "transformer, all tied": (
        lambda: Transformer(11, 11, width=16, tie_embeddings="all", **BLOCKS, **POST, **LOUD),
        lambda: seq2seq(
            transformer(**POST, **LOUD), transformer(**POST, **LOUD), tie_embeddings="all"
        ),
    ),
    "transformer, rotary, fewer decoder layers": (
        lambda: Transformer(
            11, 11, width=16, positions="rotary", decoder_layers=1, dropout=0.3, **BLOCKS
        ),
        lambda: seq2seq(
            transformer(positions="rotary"),
            transformer(positions="rotary", layers=1),
            dropout=0.3,
        ),
    ),
    "transformer, concatenated": (
        lambda: Transformer(
            11, 11, width=16, positions="learned", combine="concatenate", max_positions=9, **BLOCKS
        ),
        lambda: seq2seq(
            *[transformer(positions="learned", combine="concatenate", max_positions=9)] * 2
        ),
    ),
    "recurrent": (
        lambda: RecurrentSeq2Seq(11, 11, width=16),
        lambda: seq2seq(recurrent(), recurrent()),
    ),
    "recurrent, no attention": (
        lambda: RecurrentSeq2Seq(
            11,
            11,
            width=16,
            cell="gru",
            layers=2,
            attention=None,
            bidirectional=False,
            reverse=True,
            skip=True,
            tie_embeddings="none",
        ),
        lambda: seq2seq(
            recurrent(cell="gru", layers=2, bidirectional=False, reverse=True, skip=True),
            recurrent(cell="gru", layers=2, attention="none", skip=True),
            tie_embeddings="none",
        ),
    ),
    "recurrent, bridged": (
        lambda: RecurrentSeq2Seq(
            11, 11, width=16, layers=2, decoder_layers=1, context="both", **AWARE
        ),
        lambda: seq2seq(recurrent(layers=2), recurrent(layers=1, context="both", **AWARE)),
    ),
    "convolutional": (
        lambda: ConvolutionalSeq2Seq(11, 11, width=16, layers=2, positions="learned"),
        lambda: seq2seq(*[{"kind": "convolutional", "layers": 2, "positions": "learned"}] * 2),
    ),
    "transformer language model": (
        lambda: TransformerLanguageModel(11, width=16, tie_embeddings=False, **BLOCKS),
        lambda: language_model(transformer(), tie_embeddings="none"),
    ),
    "recurrent language model": (
        lambda: RecurrentLanguageModel(11, width=16, cell="gru", layers=2, skip=True),
        lambda: language_model(recurrent(cell="gru", layers=2, skip=True)),
    ),
    "convolutional language model": (
        lambda: ConvolutionalLanguageModel(11, width=16, kernel=4),
        lambda: language_model({"kind": "convolutional", "kernel": 4}),
    ),
    "transformer tagger": (
        lambda: TransformerTagger(11, 7, width=16, combine="concatenate", **BLOCKS),
        lambda: label_network(transformer(combine="concatenate"), False),
    ),
    "transformer classifier": (
        lambda: TransformerClassifier(
            11, 7, width=16, pooling="attention", word_dropout=0.3, ngrams={"size": 50}, **BLOCKS
        ),
        lambda: label_network(
            transformer(), True, pooling="attention", word_dropout=0.3, ngrams={"size": 50}
        ),
    ),
    "conformer": (
        lambda: Conformer(
            11, width=16, **LAYER, kernel=5, decoder_layers=1, sample_rate=4000, mel_bands=16
        ),
        lambda: speech(
            CONFORMER,
            transformer(layers=1),
            {"sample_rate": 4000, "mel_bands": 16},
            ctc_weight=0.3,
        ),
    ),
    "conformer, other ears": (
        lambda: Conformer(
            11,
            width=16,
            **LAYER,
            kernel=7,
            positions="sinusoidal",
            decoder_layers=2,
            decoder_heads=4,
            decoder_feed_forward=20,
            ctc_weight=0.0,
            tie_embeddings=False,
            sample_rate=8000,
            mel_bands=12,
            window_ms=20.0,
            hop_ms=8.0,
            normalize="global",
            channels=3,
            speed_perturbation=[0.9, 1.1],
            spec_augment=SpecAugment(time_masks=1),
            background_noise={"share": 1.0},
        ),
        lambda: speech(
            {**CONFORMER, "kernel": 7, "positions": "sinusoidal"},
            transformer(layers=2, heads=4, feed_forward=20),
            {
                "sample_rate": 8000,
                "mel_bands": 12,
                "window": 20.0,
                "hop": 8.0,
                "normalize": "global",
                "channels": 3,
                "speed_perturbation": [0.9, 1.1],
                "spec_augment": {"time_masks": 1},
                "background_noise": {"share": 1.0},
            },
            tie_embeddings="none",
        ),
    ),
    "conformer that reads in chunks": (
        lambda: Conformer(
            11,
            width=16,
            **LAYER,
            kernel=5,
            decoder_layers=1,
            sample_rate=4000,
            mel_bands=16,
            normalize="global",
            output_bias=False,
            chunk={"trained": [80.0, 240.0], "whole": 0.0},
        ),
        lambda: speech(
            {**CONFORMER, "chunk": {"trained": [80.0, 240.0], "whole": 0.0}},
            transformer(layers=1),
            {"sample_rate": 4000, "mel_bands": 16, "normalize": "global"},
            ctc_weight=0.3,
            output_bias=False,
        ),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_plain_numbers_give_what_a_recipe_gives(name: str) -> None:
    plain, built = SAME[name]
    losses, weights = [], []
    for make in (plain, built):
        torch.manual_seed(3)
        network = make().train()
        weights.append(network.state_dict())
        source, lengths = SOURCE, LENGTHS
        if name.startswith("conformer"):
            source = 0.1 * torch.randn(2, 4000)
            lengths = torch.tensor([4000, 3100])
        torch.manual_seed(4)  # of dropout and augmentation
        losses.append(network.loss(source, lengths, TARGET).total.detach())
        assert network.as_built
    assert list(weights[0]) == list(weights[1])
    for parameter in weights[0]:
        assert torch.equal(weights[0][parameter], weights[1][parameter]), parameter
    assert torch.equal(*losses)


# What a recipe has and plain numbers have not: what pruning leaves, what has a name of its own
# there, what belongs to files of words or to another architecture's source, what needs to know
# how tokens are spelt, or which are tags.
ELSEWHERE = {"kind", "preset", "encoder", "decoder", "layer_heads", "cross_heads", "source_end"}
ELSEWHERE |= {"copying", "tag_attention", "tag_positions", "transducer"}
OF_AUDIO = {"ctc_weight", "chunk"}
OF_LABELS = {"pooling", "word_dropout", "ngrams", "characters"}
OF_WHISPER = {"features", "pad_to", "prompt"}
OF_FOLDERS = {"recorded_noise", "reverberation"}
OF_LOADED = {"segment"}  # how a trained model is run


@pytest.mark.parametrize(
    ("make", "sections", "without"),
    [
        (
            Transformer,
            (recipe.Model, recipe.TransformerEncoder, recipe.TransformerDecoder),
            OF_AUDIO | OF_LABELS,
        ),
        (
            RecurrentSeq2Seq,
            (recipe.Model, recipe.RecurrentEncoder, recipe.RecurrentDecoder),
            OF_AUDIO | OF_LABELS,
        ),
        (
            ConvolutionalSeq2Seq,
            (recipe.Model, recipe.ConvolutionalEncoder, recipe.ConvolutionalDecoder),
            OF_AUDIO | OF_LABELS,
        ),
        (
            Conformer,
            (recipe.Model, recipe.ConformerEncoder, recipe.Audio),
            OF_LABELS | OF_WHISPER | OF_FOLDERS | OF_LOADED | {"window", "hop"},
        ),
    ],
)
def test_every_key_of_the_recipe_is_an_argument(
    make: Callable[..., Any], sections: tuple[type[recipe.Section], ...], without: set[str]
) -> None:
    keys = {key for section in sections for key in section.model_fields}
    assert keys - set(inspect.signature(make).parameters) == keys & (ELSEWHERE | without)


def test_every_exported_name_is_there() -> None:
    for name in transduce.models.__all__:
        assert getattr(transduce.models, name).__doc__


# ---------------------------------------------------------------------------------- wrong numbers


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: Transformer(9, 9, width=30, heads=4),
            "^heads is 4, which does not divide width, 30",
        ),
        (lambda: Transformer(9, 9, width=12, heads=4, positions="rotary"), "rotary .* even number"),
        (lambda: Transformer(9, 9, width=15, heads=3), "width is 15; it must be even"),
        (lambda: Transformer(9, 9, layers=0), "^layers is 0; it must be a whole number above 0"),
        (lambda: Transformer(9, 9, decoder_layers=0), "^decoder_layers is 0; it must be"),
        (lambda: Transformer(9, 9, dropout=1.0), "^dropout is 1.0; it must be"),
        (lambda: Transformer(4, 9), "source_vocabulary is 4, but ids 0 to 3 are the special"),
        (lambda: Transformer(9, 9.5), "target_vocabulary is 9.5; it must be a whole number"),  # type: ignore[arg-type]
        (
            lambda: Transformer(9, 9, tie_embeddings="yes"),
            "tie_embeddings is 'yes'; it must be all, target or none",
        ),
        (lambda: Transformer(9, 8, tie_embeddings="all"), "one vocabulary"),
        (lambda: Transformer(9, 9, activation="rule"), "activation is rule; it must be .*relu"),
        (lambda: Transformer(9, 9, norm="batch"), "^norm is batch; it must be layer or rms"),
        (
            lambda: Transformer(9, 9, norm_position="mid"),
            "^norm_position is mid; it must be pre or post",
        ),
        (
            lambda: Transformer(9, 9, positions="absolute"),
            "^positions is absolute; it must be sinus",
        ),
        (
            lambda: Transformer(9, 9, positions="none", combine="concatenate"),
            "^combine is concatenate, but there are no positions to concatenate",
        ),
        (
            lambda: Transformer(9, 9, width=18, heads=2, combine="concatenate"),
            "half of width, 18",
        ),
        (lambda: TransformerLanguageModel(9, heads=7), "heads is 7, which does not divide"),
        (lambda: TransformerTagger(9, 0), "labels is 0; it must be a whole number above 0"),
        (lambda: TransformerClassifier(9, 2, pooling="sum"), "^pooling is sum; it must be mean"),
        (lambda: RecurrentSeq2Seq(9, 9, cell="ltsm"), "^cell is ltsm; it must be elman, gru"),
        (lambda: RecurrentSeq2Seq(9, 9, attention="sum"), "^attention is sum; it must be "),
        (lambda: RecurrentSeq2Seq(9, 9, context="top"), "^context is top; it must be input"),
        (lambda: RecurrentSeq2Seq(9, 9, location_kernel=4), "location_kernel is 4; .* odd"),
        (lambda: RecurrentLanguageModel(9, layers=-1), "^layers is -1; it must be"),
        (lambda: ConvolutionalSeq2Seq(9, 9, kernel=4), "kernel is 4; it must be odd"),
        (
            lambda: ConvolutionalSeq2Seq(9, 9, positions="rotary"),
            "^positions is rotary; it must be",
        ),
        (lambda: Conformer(9, heads=5), "^heads is 5, which does not divide width, 256"),
        (lambda: Conformer(9, decoder_heads=5), "decoder_heads is 5, which does not divide"),
        (lambda: Conformer(9, ctc_weight=1.0), "^ctc_weight is 1.0; it must be"),
        (lambda: Conformer(9, kernel=30), "kernel is 30; it must be odd"),
        (lambda: Conformer(9, hop_ms=30.0), "^hop_ms is 30.0 ms, longer than window_ms, 25.0 ms"),
        (lambda: Conformer(9, mel_bands=500), "500 mel bands are too many"),
        (
            lambda: Conformer(9, normalize="none"),
            "^normalize is none; it must be utterance or global",
        ),
        (lambda: Conformer(9, chunk=True), "^chunk is given, but normalize is utterance"),
        (lambda: Conformer(9, background_noise={"snr": [9.0, 3.0]}), "^snr is .* lowest first"),
        (lambda: TransformerLanguageModel(9, head=7), "^unknown key head; did you mean heads"),  # type: ignore[call-arg]
        (
            lambda: Conformer(9, speed_perturbation=[0.0, 1.0]),
            "^item 1 of speed_pert.* is 0.0",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_reported_in_a_sentence(
    make: Callable[[], TrainableNetwork], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        make()
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------- logits and own loops


def test_logits_are_those_of_the_loss() -> None:
    network = Transformer(11, 12, width=16, **BLOCKS).eval()
    logits_BTV = network.logits(SOURCE, LENGTHS, TARGET[:, :-1])
    assert logits_BTV.shape == (2, 5, 12)
    expected = F.cross_entropy(
        logits_BTV.flatten(0, 1), TARGET[:, 1:].flatten(), ignore_index=PAD, reduction="sum"
    )
    torch.testing.assert_close(network.loss(SOURCE, LENGTHS, TARGET).total, expected)


def test_logits_of_a_language_model_are_those_of_its_steps() -> None:
    network = RecurrentLanguageModel(11, width=16).eval()
    logits_BTV = network.logits(TARGET)
    state = network.read(TARGET[:, :2])
    log_probs_BV, _ = network.step(TARGET[:, 2], state)
    torch.testing.assert_close(logits_BTV[:, 2].log_softmax(dim=-1), log_probs_BV)


def test_logits_of_labels() -> None:
    tagger = TransformerTagger(11, 3, width=16, **BLOCKS).eval()
    assert tagger.logits(SOURCE, LENGTHS).shape == (2, 5, 3)
    classifier = TransformerClassifier(11, 3, width=16, **BLOCKS).eval()
    logits_B1V = classifier.logits(SOURCE, LENGTHS)
    assert logits_B1V.shape == (2, 1, 3)
    alone_B1V = classifier.logits(SOURCE[1:, :2], LENGTHS[1:])
    torch.testing.assert_close(logits_B1V[1:], alone_B1V)


def test_a_recurrent_network_learns_in_a_loop_of_ones_own() -> None:
    torch.manual_seed(1)
    network = RecurrentSeq2Seq(9, 9, width=32, cell="gru", dropout=0.0)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    lengths_B = torch.full((64,), 3)
    for _ in range(120):
        source_BS = torch.randint(4, 9, (64, 3))
        target_BT = F.pad(F.pad(source_BS.flip(1), (1, 0), value=BEGIN), (0, 1), value=END)
        logits_BTV = network.logits(source_BS, lengths_B, target_BT[:, :-1])
        optimizer.zero_grad()
        F.cross_entropy(logits_BTV.flatten(0, 1), target_BT[:, 1:].flatten()).backward()
        optimizer.step()
    source_BS = torch.randint(4, 9, (64, 3))
    with torch.inference_mode():
        found = greedy(network.eval(), source_BS, lengths_B, torch.full((64,), 5))
    rows = source_BS.flip(1).tolist()
    right = [best.tokens == row for (best,), row in zip(found, rows, strict=True)]
    assert sum(right) > 55


def tones(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Waveforms of two tones, each low or high, and which they are."""
    pitch_B2 = torch.randint(0, 2, (count, 2))
    time_W = torch.arange(1200) / 4000
    waves_B2W = torch.sin(2 * torch.pi * (300.0 + 900.0 * pitch_B2[:, :, None]) * time_W)
    samples_BW = 0.3 * waves_B2W.flatten(1) + 0.01 * torch.randn(count, 2400)
    target_BT = F.pad(F.pad(4 + pitch_B2, (1, 0), value=BEGIN), (0, 1), value=END)
    return samples_BW, torch.full((count,), 2400), target_BT


def tiny_conformer(**numbers: Any) -> transduce.models.SpeechEncoderDecoder:
    shape = {"width": 16, **LAYER, "kernel": 5, "decoder_layers": 1, "dropout": 0.0}
    # Normalised by itself alone, an utterance of one steady tone would be silence.
    audio = {"sample_rate": 4000, "mel_bands": 16, "normalize": "global", "spec_augment": False}
    return Conformer(6, **(shape | audio | numbers))


@pytest.mark.slow
def test_a_conformer_learns_in_a_loop_of_ones_own() -> None:
    torch.manual_seed(1)
    network = tiny_conformer(positions="sinusoidal")
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    for _ in range(100):
        loss = network.loss(*tones(16))
        optimizer.zero_grad()
        (loss.total / loss.tokens).backward()
        optimizer.step()
    samples_BW, lengths_B, target_BT = tones(32)
    with torch.inference_mode():
        found = greedy(network.eval(), samples_BW, lengths_B, torch.full((32,), 4))
        memory = network.encode(samples_BW, lengths_B)
        assert network.ctc_log_probs(memory).shape == (32, network.states_of(2400), 6)
    rows = target_BT[:, 1:-1].tolist()
    right = [best.tokens == row for (best,), row in zip(found, rows, strict=True)]
    assert sum(right) > 28


def test_samples_are_of_sixteen_bits_or_within_one() -> None:
    network = tiny_conformer().eval()
    samples_BW, lengths_B, target_BT = tones(3)
    bits_BW = (samples_BW * 32768).round().to(torch.int16)
    loss, same = (network.loss(x, lengths_B, target_BT).total for x in (samples_BW, bits_BW))
    torch.testing.assert_close(loss, same, rtol=1e-3, atol=0.0)


def test_without_a_transcript_ctc_learns_the_target() -> None:
    samples_BW, lengths_B, target_BT = tones(3)
    target_BT[0, 2:] = torch.tensor([END, PAD])
    network = tiny_conformer().eval()
    transcript = {
        "transcript_BT": torch.tensor([[int(target_BT[0, 1]), PAD], *target_BT[1:, 1:3].tolist()]),
        "transcript_lengths_B": torch.tensor([1, 2, 2]),
    }
    reported = network.loss(samples_BW, lengths_B, target_BT, **transcript)
    assert torch.equal(network.loss(samples_BW, lengths_B, target_BT).total, reported.total)
    other = tiny_conformer(transcript_vocabulary=20)
    with pytest.raises(
        ValueError, match="transcript's vocabulary of 20 tokens, the target's has 6"
    ):
        other.loss(samples_BW, lengths_B, target_BT)
    assert other.loss(samples_BW, lengths_B, target_BT, **transcript).total.isfinite()
