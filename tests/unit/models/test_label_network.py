"""Networks of labels: the lecture's sizes, pools beside sums by hand, letters of unknown words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from transduce import recipe
from transduce.data.batches.batch import collate
from transduce.data.batches.packing import pack
from transduce.data.tokens.tokenizer import BEGIN, SPECIALS, UNKNOWN
from transduce.models import LabelNetwork
from transduce.models.build import build_label_network
from transduce.nn.attention.attention import attention_pool
from transduce.nn.masks import padding

WORDS = [*SPECIALS, "the", "dog", "runs", "unbelievable", "a", "cat"]
SOURCES = [[4, 5, 6], [7], [8, 9, 6, 7, 4], [5, 5]]
LABELS = [[4], [6], [5], [4]]
TAGS = [[4, 5, 6], [5], [4, 5, 6, 6, 4], [6, 6]]
ENCODERS: dict[str, dict[str, Any]] = {
    "pooled": {"kind": "pooled"},
    "recurrent": {"kind": "recurrent", "cell": "gru"},
    "transformer": {"kind": "transformer", "layers": 1, "heads": 2, "feed_forward": 16},
    "convolutional": {"kind": "convolutional", "layers": 2, "kernel": 5},
}


def label_network(
    pooled: bool, encoder: str = "pooled", shape: dict[str, Any] | None = None, **model: Any
) -> LabelNetwork:
    shape = shape or ENCODERS[encoder]
    given = {"width": 8, "dropout": 0.0, "decoder": None, "encoder": shape, **model}
    torch.manual_seed(1)
    return build_label_network(recipe.Model.model_validate(given), WORDS, 3, pooled=pooled).double()


def filled(network: LabelNetwork) -> None:
    """N-grams begin at zero: give them something to say."""
    if network.front.ngrams is not None:
        nn.init.normal_(network.front.ngrams.table.weight)


def test_the_lectures_classifier_has_640_066_parameters() -> None:
    """20,000 words of width 32, averaged, two classes: 640,000 + 66."""
    settings = recipe.Model(width=32, encoder=recipe.PooledEncoder(), decoder=None)
    words = [*SPECIALS, *(f"w{n}" for n in range(19_996))]
    network = build_label_network(settings, words, 2, pooled=True)
    sizes = {name: parameter.numel() for name, parameter in network.named_parameters()}
    assert sizes == {"front.table.weight": 640_000, "head.weight": 64, "head.bias": 2}


def test_the_lectures_classifier_is_a_softmax_of_averages() -> None:
    network = label_network(pooled=True)
    batch = collate(SOURCES, LABELS, ends=False)
    found_B1V = network.log_probabilities(batch.source_BS, batch.source_lengths_B)
    for row, words in enumerate(SOURCES):
        average_D = sum(network.front.table.weight[word] for word in words) / len(words)
        logits_V = network.head.weight @ average_D + network.head.bias
        torch.testing.assert_close(
            found_B1V[row, 0], logits_V.log_softmax(-1).float(), check_dtype=False
        )


def test_attention_pools_as_the_lecture_does() -> None:
    """T_q = T_v = words, dim = 8: weighted values averaged, joined with averaged queries: 16."""
    network = label_network(pooled=True, pooling="attention")
    assert network.head.weight.shape == (3, 16)
    batch = collate(SOURCES, None, ends=False)
    features_B1D = network(batch.source_BS, batch.source_lengths_B)
    for row, words in enumerate(SOURCES):
        x_1SD = network.front.table.weight[words][None]
        torch.testing.assert_close(features_B1D[row], attention_pool(x_1SD, x_1SD))
    x_BSD = network.front(batch.source_BS)
    mask = padding(batch.source_lengths_B, x_BSD.shape[1])
    torch.testing.assert_close(features_B1D[:, 0], attention_pool(x_BSD, x_BSD, mask, mask))


def test_the_last_is_the_final_state_of_both_directions() -> None:
    network = label_network(pooled=True, encoder="recurrent", pooling="last")
    forward, backward = network.encoder.recurrent.cells
    for words in SOURCES:
        features_11D = network(torch.tensor([words]), torch.tensor([len(words)]))
        x_1SD = network.front.table.weight[words][None] * network.front.scale
        ends = [forward(x_1SD)[1][0], backward(x_1SD.flip(1))[1][0]]
        torch.testing.assert_close(features_11D[0], torch.cat(ends, dim=-1))


def test_the_last_of_others_is_that_of_the_last_word() -> None:
    network = label_network(pooled=True, pooling="last")
    batch = collate(SOURCES, None, ends=False)
    features_B1D = network(batch.source_BS, batch.source_lengths_B)
    last_BD = network.front.table.weight[[words[-1] for words in SOURCES]]
    torch.testing.assert_close(features_B1D[:, 0], last_BD)


def test_the_lectures_tagger_is_a_recurrence_and_a_softmax() -> None:
    """h_t = tanh(U x_t + V h_{t−1}), o_t = softmax(W h_t); with a bias to each."""
    plain = {"kind": "recurrent", "cell": "elman", "bidirectional": False}
    network = label_network(False, shape=plain)
    (cell,) = network.encoder.recurrent.cells
    U, V, b, c = cell.weights()
    for words in SOURCES:
        found_1SV = network.log_probabilities(torch.tensor([words]), torch.tensor([len(words)]))
        h_D = torch.zeros(8, dtype=torch.float64)
        for place, word in enumerate(words):
            x_D = network.front.table.weight[word] * network.front.scale
            h_D = torch.tanh(U @ x_D + b + V @ h_D + c)
            o_V = (network.head.weight @ h_D + network.head.bias).softmax(-1)
            torch.testing.assert_close(found_1SV[0, place].double().exp(), o_V, atol=1e-6, rtol=0)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("pooling", [None, "mean", "attention", "last"])
@pytest.mark.parametrize("ngrams", [None, {"max_n": 3, "size": 50}])
def test_neighbours_and_padding_change_nothing(
    encoder: str, pooling: str | None, ngrams: dict[str, int] | None
) -> None:
    network = label_network(pooling is not None, encoder, pooling=pooling or "mean", ngrams=ngrams)
    filled(network)
    batch = collate(SOURCES, None, ends=False)
    together = network.log_probabilities(batch.source_BS, batch.source_lengths_B)
    for row, words in enumerate(SOURCES):
        alone = network.log_probabilities(torch.tensor([words]), torch.tensor([len(words)]))
        count = 1 if pooling else len(words)
        torch.testing.assert_close(together[row, :count], alone[0])


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_torchs_over_labels_alone(pooled: bool, smoothing: float) -> None:
    network = label_network(pooled, "transformer")
    targets = [row[:] for row in (LABELS if pooled else TAGS)]
    targets[3][0] = UNKNOWN  # a label that training had not: nothing can be said of it
    batch = collate(SOURCES, targets, ends=False)
    loss = network.loss(batch.source_BS, batch.source_lengths_B, batch.target_BT, smoothing)
    logits_BTV = network.head(network(batch.source_BS, batch.source_lengths_B))
    total = 0.0
    for row, labels in enumerate(targets):
        for place, label in enumerate(labels):
            if label != UNKNOWN:
                wanted = torch.tensor(label - len(SPECIALS))
                total += nn.functional.cross_entropy(
                    logits_BTV[row, place], wanted, label_smoothing=smoothing
                )
    torch.testing.assert_close(loss.total, total)
    assert int(loss.tokens) == sum(map(len, targets)) - 1
    assert batch.target_tokens == sum(map(len, targets))


@pytest.mark.parametrize("encoder", ["pooled", "transformer"])
@pytest.mark.parametrize("pooling", [None, "mean", "last"])
@pytest.mark.parametrize("ngrams", [None, {"max_n": 3, "size": 50}])
def test_packed_sequences_have_the_same_loss_and_gradient(
    encoder: str, pooling: str | None, ngrams: dict[str, int] | None
) -> None:
    network = label_network(
        pooling is not None, encoder, pooling=pooling or "mean", width=16, ngrams=ngrams
    )
    filled(network)
    assert network.packs(16)
    batch = collate(SOURCES * 10, (LABELS if pooling else TAGS) * 10, ends=False)
    found = []
    for loss in (
        network.loss(batch.source_BS, batch.source_lengths_B, batch.target_BT, 0.1),
        network.packed_loss(pack(batch), 0.1),
    ):
        gradients = torch.autograd.grad(loss.total, list(network.parameters()))
        found.append((loss.total, loss.nll, loss.tokens, *gradients))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, check_dtype=False, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pooled", [True, False])
def test_two_passes_without_dropout_agree(pooled: bool) -> None:
    """Padded or packed, their loss is that of one."""
    network = label_network(pooled, "transformer")
    batch = collate(SOURCES, LABELS if pooled else TAGS, ends=False)
    once = network.batch_loss(batch, 0.1)
    for twice in (
        network.batch_loss(batch.twice(), 0.1, r_drop=5.0),
        network.packed_loss(pack(batch, copies=2), 0.1, r_drop=5.0),
    ):
        torch.testing.assert_close(twice.total, once.total, check_dtype=False, rtol=1e-5, atol=0)
        assert int(twice.tokens) == int(once.tokens)
    network = label_network(pooled, "transformer", dropout=0.5).train()
    apart = network.packed_loss(pack(batch, copies=2), 0.1, r_drop=5.0)
    assert float(apart.total.detach()) > 1.01 * float(once.total.detach())


def test_what_does_not_pack_says_so() -> None:
    assert not label_network(pooled=True, pooling="attention").packs(16)
    assert not label_network(pooled=False, encoder="recurrent").packs(16)
    assert not label_network(pooled=False, encoder="convolutional").packs(16)
    assert not label_network(pooled=False, characters={"width": 4}).packs(16)


@pytest.mark.parametrize("kind", ["lstm", "cnn"])
def test_letters_stand_beside_the_word_and_tell_unknown_words_apart(kind: str) -> None:
    network = label_network(pooled=False, characters={"kind": kind, "width": 4})
    front = network.front
    assert front.table.weight.shape == (len(WORDS), 4)
    x_BTD = front(torch.tensor([[4, 5, UNKNOWN]]))
    torch.testing.assert_close(x_BTD[0, 0, :4], front.table.weight[4] * front.scale)
    assert x_BTD[0, 2, 4:].eq(0).all()  # unknown, and no letters are known of it
    also_BTD = front(torch.tensor([[len(WORDS), len(WORDS) + 1, 5]]), words=["dogs", "dog"])
    unknown_D = front.table.weight[UNKNOWN] * front.scale
    torch.testing.assert_close(also_BTD[0, 0, :4], unknown_D)
    torch.testing.assert_close(also_BTD[0, 1, 4:], also_BTD[0, 2, 4:])  # the same letters
    assert (also_BTD[0, 0, 4:] - also_BTD[0, 1, 4:]).abs().max() > 1e-3
    assert front.spelled == len(WORDS)
    assert not any("spelled" in name for name in network.state_dict())


def test_rare_words_are_known_by_their_letters_alone() -> None:
    network = label_network(pooled=False, characters={"width": 4, "words": 2})
    front = network.front
    assert front.table.weight.shape == (len(SPECIALS) + 2, 4)
    x_BTD = front(torch.tensor([[4, 5, 6, 7]]))
    own = [4, 5, UNKNOWN, UNKNOWN]
    torch.testing.assert_close(x_BTD[0, :, :4], front.table.weight[own] * front.scale)
    assert (x_BTD[0, 2, 4:] - x_BTD[0, 3, 4:]).abs().max() > 1e-3
    assert front.spelled == len(WORDS)
    also_BTD = front(torch.tensor([[len(WORDS)]]), words=["runs"])
    torch.testing.assert_close(also_BTD[0, 0], x_BTD[0, 2])
    more = label_network(pooled=False, characters={"width": 4, "words": 200})
    assert more.front.table.weight.shape == (len(WORDS), 4)


def test_long_words_keep_both_ends() -> None:
    spelling = label_network(pooled=False, characters={"width": 4}).front.spelling
    (long,) = spelling.spell(["a" * 10 + "x" * 30 + "b" * 10]).tolist()
    assert long == spelling.spell(["a" * 10 + "b" * 10])[0].tolist()
    assert spelling.spell(["t", "€"]).tolist()[1][:2] == [1, 0]


def test_word_dropout_makes_words_unknown_while_training_alone() -> None:
    network = label_network(pooled=False, word_dropout=0.3)
    tokens_1T = torch.full((1, 4000), 5)
    table = network.front.table.weight
    network.train()
    hidden_T = (network.front(tokens_1T)[0] == table[UNKNOWN]).all(dim=-1)
    assert 0.25 < float(hidden_T.double().mean()) < 0.35
    network.eval()
    assert (network.front(tokens_1T)[0] == table[5]).all()


def test_ngrams_are_added_to_words_and_hidden_with_them() -> None:
    network = label_network(pooled=True, ngrams={"size": 50})
    filled(network)
    front = network.front
    assert front.ngrams is not None
    tokens_1T, place_1T = torch.tensor([[4, 5, 6]]), torch.arange(3)[None]
    network.eval()
    pairs_1TD = front.ngrams(tokens_1T, place_1T, BEGIN)
    torch.testing.assert_close(front(tokens_1T), front.table(tokens_1T) + pairs_1TD)
    network.train()
    front.word_dropout = 1.0
    unknown_1T = torch.full_like(tokens_1T, UNKNOWN)
    pairs_1TD = front.ngrams(unknown_1T, place_1T, BEGIN)
    torch.testing.assert_close(front(tokens_1T), front.table(unknown_1T) + pairs_1TD)
