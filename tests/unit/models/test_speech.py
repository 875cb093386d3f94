"""The network that hears: nobody hears a neighbour, and the loss is the sum it should be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tiny_sounds import ENCODERS, audio_model, audio_network, noise
from transduce.data.audio.corpus import AudioCorpus, audio_corpus
from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import PAD
from transduce.models.speech import SpeechEncoderDecoder
from transduce.models.trainable import SpeechLosses
from transduce.nn.attention.guided import guided_attention_loss
from transduce.nn.ctc.loss import consistency_loss
from transduce.nn.speech.mel import LogMel

TARGETS = [[4, 5, 5, 6], [7, 4], [8]]


def batch_of(waves: list[np.ndarray], targets: list[list[int]] = TARGETS):  # type: ignore[no-untyped-def]
    batch = collate(waves, targets)
    longest = max(map(len, targets))
    said = [ids + [PAD] * (longest - len(ids)) for ids in targets]
    batch.transcript_BT = torch.tensor(said)
    batch.transcript_lengths_B = torch.tensor([len(ids) for ids in targets])
    return batch


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("normalize", ["utterance", "global"])
def test_what_is_heard_does_not_depend_on_neighbours(encoder: str, normalize: str) -> None:
    network = audio_network(f"audio.normalize={normalize}", encoder=encoder).double()
    waves = [noise(1.0, 1), noise(0.33, 2), noise(0.05, 3)]
    together = collate(waves, None)
    memory = network.encode(together.source_BS, together.source_lengths_B)
    for row, wave in enumerate(waves):
        alone = collate([wave], None)
        apart = network.encode(alone.source_BS, alone.source_lengths_B)
        states = int(memory.lengths_B[row])
        assert states == int(apart.lengths_B[0]) == network.states_of(len(wave))
        torch.testing.assert_close(
            memory.states_BSD[row, :states], apart.states_BSD[0], rtol=1e-6, atol=1e-6
        )


def test_places_that_are_added_tell_states_apart() -> None:
    # The same audio twice, far from each other: what is around both is silence.
    wave = np.concatenate([np.zeros(4000, np.int16), noise(0.2, 1), np.zeros(4000, np.int16)])
    batch = collate([np.concatenate([wave, wave])], None)
    differences = {}
    for name in ("places", "conformer"):
        network = audio_network(encoder=name)
        with torch.no_grad():
            states_SD = network.front(batch.source_BS, batch.source_lengths_B)[0][0]
        shift = len(wave) // (4 * network.front.mel.hop)
        differences[name] = float((states_SD[26:30] - states_SD[26 + shift : 30 + shift]).norm())
    assert differences["places"] > 10 * differences["conformer"]


def test_the_stream_is_whole_where_products_are_of_half_precision() -> None:
    network = audio_network()
    batch = collate([noise(1.0, 1)], None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states_BSD, _ = network.front(batch.source_BS, batch.source_lengths_B)
    assert states_BSD.dtype == torch.float32


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_network_of_half_precision_hears_nearly_the_same(encoder: str) -> None:
    """Features are computed in float32 whatever the network is converted to."""
    network = audio_network(encoder=encoder).eval()
    batch = collate([noise(1.0)], None)
    exact_BSD = network.encode(batch.source_BS, batch.source_lengths_B).states_BSD
    half_BSD = network.bfloat16().encode(batch.source_BS, batch.source_lengths_B).states_BSD
    assert half_BSD.dtype == torch.bfloat16
    assert F.cosine_similarity(half_BSD.float(), exact_BSD, dim=-1).min() > 0.98


def test_four_frames_become_one_state() -> None:
    network = audio_network()
    samples = 4000
    frames = int(LogMel(4000, 16).count_frames(torch.tensor(samples)))
    assert network.states_of(samples) == ((frames - 1) // 2 - 1) // 2
    assert network.states_of(100) == 1  # one frame


@pytest.mark.parametrize("encoder", ["conformer", "recurrent"])
def test_the_loss_is_a_share_of_each(encoder: str) -> None:
    network = audio_network(encoder=encoder)
    waves = [noise(1.0, 1), noise(0.7, 2), noise(0.5, 3)]
    batch = batch_of(waves)
    assert batch.target_BT is not None
    loss = network.batch_loss(batch)
    memory = network.encode(batch.source_BS, batch.source_lengths_B)
    logits_BTV = network.head(network.decoder(batch.target_BT[:, :-1], memory))
    wanted_BT = batch.target_BT[:, 1:].long()
    written = F.cross_entropy(logits_BTV.mT, wanted_BT, ignore_index=PAD, reduction="sum")
    heard = F.ctc_loss(
        network.ctc_log_probs(memory).transpose(0, 1),
        batch.transcript_BT,
        memory.lengths_B,
        torch.tensor([4, 2, 1]),
        blank=PAD,
        reduction="sum",
    )
    torch.testing.assert_close(loss.total, 0.7 * written + 0.3 * heard)
    torch.testing.assert_close(loss.nll, written)  # without CTC, as without smoothing


def test_tokens_that_are_not_scored_have_no_loss_and_are_not_counted() -> None:
    """From the first to the last of them, and not the token after the last."""
    waves = [noise(1.0, 1), noise(0.7, 2)]
    batch = batch_of(waves, [[4, 5, 6, 7], [5, 7]])
    assert batch.target_BT is not None
    network = audio_network()
    memory = network.encode(batch.source_BS, batch.source_lengths_B)
    logits_BTV = network.head(network.decoder(batch.target_BT[:, :-1], memory))
    wanted_BT = batch.target_BT[:, 1:].long()
    each_BT = F.cross_entropy(logits_BTV.mT, wanted_BT, reduction="none")
    for first, end in ((5, 7), (4, 5), (7, 8)):
        network.unscored = (first, end)
        scored_BT = (wanted_BT != PAD) & ~torch.isin(wanted_BT, torch.arange(first, end))
        loss = network.batch_loss(batch)
        assert int(loss.tokens) == int(scored_BT.sum())
        torch.testing.assert_close(loss.nll, each_BT[scored_BT].sum())


def test_where_two_passes_agree_the_loss_is_that_of_one() -> None:
    network = audio_network()  # nothing is dropped in it
    batch = batch_of([noise(1.0, 1), noise(0.7, 2), noise(0.5, 3)])
    once, twice = network.batch_loss(batch), network.batch_loss(batch.twice(), r_drop=2.0)
    torch.testing.assert_close(twice.total, once.total)
    torch.testing.assert_close(twice.nll, once.nll)


@pytest.mark.parametrize("r_drop", [0.0, 2.0])
def test_two_equal_views_have_the_loss_of_one(r_drop: float) -> None:
    network = audio_network()
    batch = batch_of([noise(1.0, 1), noise(0.7, 2), noise(0.5, 3)])
    once = network.batch_loss(batch)
    twice = network.batch_loss(batch.twice(), r_drop=r_drop, losses=SpeechLosses(cr_ctc=0.2))
    for one, other in zip(once[:2], twice[:2], strict=True):
        torch.testing.assert_close(one, other)
    assert float(twice.tokens) == float(once.tokens)


def test_cr_ctc_adds_the_consistency_of_views_with_the_same_frames() -> None:
    """Masks differ from view to view; speed and noise, which move frames, do not."""
    network = audio_network(
        "audio.speed_perturbation=[0.8, 1.0, 1.25]",
        "audio.background_noise={share: 1.0, before: 1.0, after: 1.0}",
    ).train()
    batch = batch_of([noise(1.0, seed) for seed in range(6)], 2 * TARGETS).twice()

    def loss_of(weight: float) -> torch.Tensor:
        torch.manual_seed(3)
        return network.batch_loss(batch, losses=SpeechLosses(weight, 2.5)).total.detach()

    torch.manual_seed(3)
    source = (batch.source_BS, batch.source_lengths_B)
    memory = network.encode(*source, losses=SpeechLosses(1.0, 2.5))
    assert torch.equal(memory.lengths_B[:6], memory.lengths_B[6:])
    assert len(set(memory.lengths_B.tolist())) > 1
    apart = consistency_loss(network.ctc_logits(memory), memory.lengths_B)
    assert apart.item() > 0
    # Of CTC's share, 0.3: its two losses are halved, and so are its divergences.
    torch.testing.assert_close(loss_of(2.0) - loss_of(1.0), 0.3 * apart.detach())
    network.front.augment = None
    states_BSD = network.encode(*source, losses=SpeechLosses(1.0, 2.5)).states_BSD
    torch.testing.assert_close(states_BSD[:6], states_BSD[6:])


def test_cr_ctc_has_more_time_masks() -> None:
    network, asked = audio_network(), []

    class Note(torch.nn.Module):
        def forward(self, mel: torch.Tensor, _: object, *, time_mask_ratio: float) -> torch.Tensor:
            asked.append(time_mask_ratio)
            return mel

    network.front.augment = Note()  # type: ignore[assignment]
    batch = batch_of([noise(1.0, 1), noise(0.7, 2), noise(0.5, 3)])
    network.batch_loss(batch)
    network.batch_loss(batch.twice(), losses=SpeechLosses(0.2, 2.5))
    assert asked == [1.0, 2.5]


def test_rows_that_fill_up_a_batch_teach_nothing() -> None:
    network = audio_network("model.dropout=0.3").eval()
    waves = [noise(1.0, 1), noise(0.7, 2), noise(0.5, 3)]
    batch, filled = batch_of(waves), batch_of([*waves, noise(0.5, 4)], [*TARGETS, [8]])
    filled.source_lengths_B[-1] = 0
    assert filled.target_BT is not None
    assert filled.transcript_lengths_B is not None
    filled.target_BT[-1, 1:] = PAD
    filled.transcript_lengths_B[-1] = 0
    torch.testing.assert_close(network.batch_loss(filled).total, network.batch_loss(batch).total)
    # Views that differ: what the filling rows hold must not be compared.
    network.train()
    network.front.augment = None
    torch.manual_seed(1)
    filled = filled.twice()
    memory = network.encode(filled.source_BS, filled.source_lengths_B, losses=SpeechLosses(1.0))
    logits_BSV = network.ctc_logits(memory)
    real_B = memory.lengths_B.where(filled.source_lengths_B > 0, 0)
    assert consistency_loss(logits_BSV, memory.lengths_B) > consistency_loss(logits_BSV, real_B)

    def loss_of(weight: float) -> torch.Tensor:
        torch.manual_seed(1)
        return network.batch_loss(filled, losses=SpeechLosses(weight)).total

    apart = 0.3 * consistency_loss(logits_BSV, real_B)
    torch.testing.assert_close(loss_of(2.0) - loss_of(1.0), apart)


@pytest.mark.parametrize(
    "decoder",
    [
        "{layers: 2, heads: 2, feed_forward: 32}",
        "{kind: recurrent, attention: additive, context: input}",
        "{kind: recurrent, attention: location-aware}",
    ],
)
def test_guided_attention_is_of_the_decoder_s_weights(decoder: str) -> None:
    """And its gradient makes them more diagonal."""
    network = audio_network(f"model.decoder={decoder}")
    batch = batch_of([noise(1.0, 1), noise(0.7, 2), noise(0.5, 3)])
    assert batch.target_BT is not None
    seen: list[torch.Tensor] = []
    memory = network.encode(batch.source_BS, batch.source_lengths_B)
    network.decoder(batch.target_BT[:, :-1], memory, watch=seen.append)
    weights_BHTS, counted_BT = torch.cat(seen, dim=2), batch.target_BT[:, 1:] != PAD
    guided = guided_attention_loss(weights_BHTS, counted_BT, memory.lengths_B)
    plain, more = (
        network.batch_loss(batch, losses=SpeechLosses(guided_attention=w)).total for w in (0.0, 2.0)
    )
    torch.testing.assert_close(more - plain, 0.7 * 2.0 * guided)
    both = network.batch_loss(batch.twice(), losses=SpeechLosses(1e-9, guided_attention=2.0)).total
    torch.testing.assert_close(both, more)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    guided.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    again: list[torch.Tensor] = []
    memory = network.encode(batch.source_BS, batch.source_lengths_B)
    network.decoder(batch.target_BT[:, :-1], memory, watch=again.append)
    less = guided_attention_loss(torch.cat(again, dim=2), counted_BT, memory.lengths_B)
    assert less.item() < guided.item()


def test_a_sound_too_short_for_its_text_is_no_infinite_loss() -> None:
    network = audio_network()
    batch = batch_of([noise(0.05), noise(1.0)], [[4, 5, 6, 7], [4]])
    loss = network.batch_loss(batch)
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert bool(loss.total.isfinite())
    assert all(bool(p.grad.isfinite().all()) for p in network.parameters() if p.grad is not None)


def test_without_ctc_there_are_no_weights_for_it() -> None:
    network = audio_network("model.ctc_weight=0")
    assert not [name for name, _ in network.named_parameters() if name.startswith("ctc")]
    assert bool(network.batch_loss(batch_of([noise(0.5)], [[4]])).total.isfinite())


def features_of(network: SpeechEncoderDecoder) -> torch.Tensor:
    waves = collate([noise(1.0, seed) for seed in range(8)], None)
    with torch.no_grad():
        x_BSD, _ = network.front(waves.source_BS, waves.source_lengths_B)
    return x_BSD


def plain_and_trained(network: SpeechEncoderDecoder) -> tuple[torch.Tensor, torch.Tensor]:
    """Features out of training, always the same, and in training, the same with the same seed."""
    plain = features_of(network)
    torch.testing.assert_close(features_of(network), plain)
    network.train()
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        found.append(features_of(network))
    torch.testing.assert_close(*found)
    return plain, found[0]


def test_sound_is_changed_in_training_alone() -> None:
    network = audio_network("audio.speed_perturbation=[0.8, 1.0, 1.25]")
    plain, first = plain_and_trained(network)
    assert first.shape[1] > plain.shape[1]  # some are slower
    torch.manual_seed(2)
    assert features_of(network).shape != first.shape or not torch.equal(features_of(network), first)


def test_noise_is_around_speech_in_training_alone() -> None:
    network = audio_network("audio.background_noise={share: 1.0, before: 1.0, after: 1.0}")
    plain, first = plain_and_trained(network)
    assert first.shape[1] > plain.shape[1] + 10  # of 40 ms


def test_a_corpus_says_how_features_are_normalised() -> None:
    model = audio_model("audio.normalize=global")
    waves = [noise(1.0, 1), (noise(2.0, 2) // 50).astype(np.int16)]
    corpus = audio_corpus(waves, [[4], [5]])
    assert isinstance(corpus, AudioCorpus)
    model.set_feature_statistics(corpus)
    front = model.network.front
    assert front.norm is not None
    mels = [front.mel(torch.from_numpy(w)[None] / 32768)[0][0] for w in waves]
    all_frames = torch.cat(mels)
    torch.testing.assert_close(front.norm.mean_M.data, all_frames.mean(dim=0))
    torch.testing.assert_close(
        front.norm.deviation_M.data, all_frames.std(dim=0, correction=0), rtol=1e-4, atol=1e-4
    )
    assert not front.norm.mean_M.requires_grad
    assert "front.norm.mean_M" in dict(model.network.named_parameters())  # so it is kept


def test_a_state_lies_amid_what_it_sees() -> None:
    front = audio_network().front
    # State 0 sees 7 frames of 25 ms, 10 ms apart: 85 ms. Its 40 ms lie in the middle.
    assert front.seconds_of(0) == pytest.approx(0.0225)
    assert front.seconds_of(1) == pytest.approx(0.0625)
