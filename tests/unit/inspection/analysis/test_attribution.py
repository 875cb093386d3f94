"""Attribution: completeness, cases that can be computed by hand, captum where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from language import LSTM as LM_LSTM
from language import language_model
from tiny_models import tiny
from tiny_sounds import audio_model, noise
from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, SPECIALS, UNKNOWN, Tokens
from transduce.errors import ModelError
from transduce.inspection.analysis import (
    Attribution,
    attribute,
    erasure,
    gradient_norm,
    gradient_x_input,
    integrated_gradients,
)
from transduce.recipe import Recipe
from transduce.tasks.audio_input import AudioSegment
from transduce.tasks.transduce import create

# --------------------------------------------------------------------------------- functions

W = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).double()
X, BASE = (
    torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(seed)).double() for seed in (2, 3)
)


def linear(inputs: Sequence[Tensor]) -> Tensor:
    return (inputs[0] * W).sum(dim=(1, 2))


def cubic(inputs: Sequence[Tensor]) -> Tensor:
    return (inputs[0] * W).sum(dim=(1, 2)) ** 3 + inputs[1].sum(dim=(1, 2))


def test_of_a_linear_function_all_methods_agree() -> None:
    exact = W * (X - BASE)
    torch.testing.assert_close(gradient_x_input(linear, [X], [BASE])[0], exact)
    torch.testing.assert_close(gradient_x_input(linear, [X])[0], W * X)
    found = integrated_gradients(linear, [X], [BASE], steps=1)
    torch.testing.assert_close(found.attributions[0], exact)
    torch.testing.assert_close(erasure(linear, [X], [BASE])[0], exact.sum(dim=-1))
    torch.testing.assert_close(gradient_norm(linear, [X])[0], W.norm(dim=-1).expand(2, 3))
    torch.testing.assert_close(found.gap_N, torch.zeros(2).double())


def test_integrated_gradients_add_up() -> None:
    """Of a cubic function its gradient is a square: exact from two steps on, and not from one."""
    for steps, exact in ((2, True), (1, False)):
        found = integrated_gradients(cubic, [X, X], [BASE, BASE], steps)
        difference = cubic([X, X]) - cubic([BASE, BASE])
        total = sum(one.sum(dim=(1, 2)) for one in found.attributions)
        assert torch.allclose(total, difference) == exact
        assert torch.allclose(found.gap_N, torch.zeros(2).double()) == exact
    with pytest.raises(ValueError, match="at least one step"):
        integrated_gradients(linear, [X], steps=0)


def test_rows_do_not_touch_each_other() -> None:
    both = integrated_gradients(cubic, [X, X], steps=4).attributions[0]
    one = integrated_gradients(cubic, [X[1:], X[1:]], steps=4).attributions[0]
    torch.testing.assert_close(both[1:], one)


# ------------------------------------------------------------------------------------- models


def labelled(task: str, **parts: Any) -> Any:
    words = Tokens.train(recipe.Tokens(level="word"), ["a cup of tea", "iroh made tea"])
    data = {split: {"file": "a.tsv"} for split in ("train", "valid")}
    encoder = {"layers": 1, "heads": 2, "feed_forward": 8}
    shape = {"width": 8, "encoder": encoder, "dropout": 0.3, **parts}
    settings = Recipe.model_validate({"task": task, "data": data, "model": shape})
    labels = Tokens.train(settings.data.tokens.target, ["good", "bad", "fair"])
    torch.manual_seed(1)
    return create(settings, words, labels)


RECURRENT = {"kind": "recurrent"}
ROTARY = {"positions": "rotary"}
BESIDE = {"combine": "concatenate"}
MODELS: dict[str, tuple[Any, Any, str | None]] = {
    "transformer": (lambda: tiny(banned=True), "a cup of tea", "tea"),
    "rotary": (lambda: tiny(ROTARY, ROTARY), "a cup of tea", "tea"),
    "beside": (lambda: tiny(BESIDE, BESIDE, tie_embeddings="none"), "a cup of tea", "tea"),
    "shared table": (lambda: tiny(tie_embeddings="all"), "a cup", "tea"),
    "recurrent": (lambda: tiny(RECURRENT, RECURRENT, banned=True), "a cup of tea", "tea"),
    "convolutional": (
        lambda: tiny({"kind": "convolutional"}, {"kind": "convolutional"}),
        "a cup",
        "tea",
    ),
    "language_modeling": (language_model, "te", "a"),
    "continue by lstm": (lambda: language_model(decoder=LM_LSTM), "te", "a"),
    "classify": (lambda: labelled("classify"), "a cup of tea", "bad"),
    "n-grams": (
        lambda: labelled("classify", encoder={"kind": "pooled"}, ngrams={"max_n": 2, "size": 50}),
        "a cup of tea",
        "bad",
    ),
    "tag": (lambda: labelled("tag"), "a cup", "good bad"),
    "letters": (
        lambda: labelled("tag", characters={"kind": "cnn", "width": 4}),
        "a mug",
        "good bad",
    ),
    "speech": (audio_model, AudioSegment.of("noise", noise(0.5)), "ab"),
}


def found_in(attribution: Attribution) -> list[np.ndarray]:  # type: ignore[type-arg]
    return [one for one in (attribution.source, attribution.prefix) if one is not None]


@pytest.mark.parametrize("kind", MODELS)
def test_integrated_gradients_of_a_model_add_up(kind: str) -> None:
    """After a run too, which makes tables of positions where no gradient is."""
    build, source, target = MODELS[kind]
    model = build()
    if kind not in ("classify", "tag", "n-grams", "letters"):
        model.run([source], max_length=3)
    found = attribute(model, source, target, steps=32)
    size = sum(np.abs(one).sum(axis=1) for one in found_in(found))
    assert found.gap is not None
    assert (np.abs(found.gap) < 0.05 * size).all()
    assert len(found.values) == len(found.target_tokens)
    names = (found.source_tokens or found.times, found.prefix_tokens)
    for part, labels in zip((found.source, found.prefix), names, strict=True):
        assert part is None or part.shape == (len(found.target_tokens), len(labels))
    if found.prefix is not None:
        first = found.prefix.shape[1] - len(found.target_tokens)
        assert np.triu(found.prefix[:, first:], 1).any() == 0, "nothing depends on what comes later"
        assert np.abs(found.prefix[:, 0]).max() == 0, "BEGIN is its own baseline"
        assert np.abs(found.prefix[:, 1]).max() > 0
    assert not any(module._forward_hooks for module in model.network.modules())
    assert all(parameter.grad is None for parameter in model.network.parameters())


@pytest.mark.parametrize("method", ["integrated_gradients", "gradient_x_input", "erasure"])
@pytest.mark.parametrize("kind", ["transformer", "language_modeling", "classify", "tag"])
def test_values_are_the_log_probabilities_and_contrasts_their_differences(
    kind: str, method: Any
) -> None:
    build, source, target = MODELS[kind]
    model = build()
    plain = attribute(model, source, target, method=method, steps=8)
    if kind in ("transformer", "language_modeling"):
        (score,) = model.score([source], [target])
        values = score.token_log_probabilities[: len(plain.values)]
        np.testing.assert_allclose(plain.values, values, atol=1e-4)
    foil = "good" if kind in ("classify", "tag") else "c"
    against = attribute(model, source, target, method=method, contrast=foil, steps=8)
    assert set(against.foils) == {foil}
    other = attribute(model, source, target, method=method, contrast=True, steps=8)
    assert all(one != foil for one, foil in zip(other.target_tokens, other.foils, strict=True))
    if kind == "transformer":
        # Attribution is linear in the value: that of a difference is the difference of two.
        alone = attribute(model, source, "c" * (len(plain.values) - 1), method=method, steps=8)
        np.testing.assert_allclose(
            against.source[0],
            plain.source[0] - alone.source[0],
            atol=1e-3,  # type: ignore[index]
        )


def test_few_rows_at_a_time_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(banned=True)
    whole = attribute(model, "a cup", "tea", steps=4)
    monkeypatch.setattr("transduce.inspection.analysis.model_attribution.PLACES", 20)
    parts = attribute(model, "a cup", "tea", steps=4)
    for one, other in zip(found_in(whole), found_in(parts), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    np.testing.assert_allclose(whole.values, parts.values, atol=1e-5)


def test_gradient_norms_have_no_sign() -> None:
    model = tiny(banned=True)
    found = attribute(model, "a cup", "tea", method="gradient_norm")
    assert found.source is not None
    assert (found.source > 0).all()
    assert found.gap is None


def test_without_a_target_it_is_what_the_model_gives() -> None:
    model = tiny(banned=True)
    (output,) = model.run(["a cup"], beam=2)
    found = attribute(model, "a cup", method="gradient_x_input", beam=2)
    assert found.target_tokens == output.tokens
    classifier = labelled("classify")
    (label,) = classifier.run(["a cup"])
    assert attribute(classifier, "a cup", method="gradient_x_input").target_tokens == [label.text]


def test_a_source_word_that_alone_matters_has_it_all() -> None:
    """Pooled words, their mean and a linear head: erasure and gradients are known by hand."""
    model = labelled("classify", encoder={"kind": "pooled"}, pooling="mean")
    found = attribute(
        model, "a cup tea", "good", contrast="bad", method="gradient_x_input", baseline="zero"
    )
    network = model.network
    (ids,) = model.source_tokens.encode_batch(["a cup tea"])
    vectors_SD = network.front.table.weight[ids] * network.front.scale
    direction_D = (
        network.head.weight[model_label(model, "good")]
        - network.head.weight[model_label(model, "bad")]
    )
    expected_S = (vectors_SD @ direction_D / 3).detach().numpy()
    assert found.source is not None
    np.testing.assert_allclose(found.source[0], expected_S, rtol=1e-4)


@pytest.mark.parametrize("baseline", ["zero", "mean", "unknown"])
def test_the_baseline_is_what_it_is_called(baseline: Any) -> None:
    """What erasing all words leaves is the value of the baseline."""
    model = tiny(banned=True)
    table_VD = model.network.front.table.weight.data
    found = attribute(model, "a cup", "tea", baseline=baseline, steps=20)
    size = sum(np.abs(one).sum(axis=1) for one in found_in(found))
    with torch.no_grad():
        if baseline == "zero":
            model.network.front.table.weight.data[4:] = 0.0
        elif baseline == "mean":
            model.network.front.table.weight.data[4:] = table_VD.mean(dim=0)
        else:
            model.network.front.table.weight.data[4:] = table_VD[UNKNOWN]
        (score,) = model.score(["a cup"], ["tea"])
    # At the first step, the prefix is BEGIN alone: its share is that of the source, but for END.
    assert found.source is not None
    if baseline == "unknown":
        change = found.values[0] - score.token_log_probabilities[0]
        np.testing.assert_allclose(found.source[0].sum(), change, atol=0.02 * size[0])
        assert found.source[0, -1] == 0, "END is its own baseline"
    else:
        assert found.source[0, -1] != 0


def model_label(model: Any, name: str) -> int:
    return int(model.target_tokens.pieces(range(4, len(model.target_tokens))).index(name))


def test_what_cannot_be_explained_is_reported() -> None:
    model = tiny()
    with pytest.raises(ModelError, match="method is magic"):
        attribute(model, "a", "b", method="magic")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="baseline is silence"):
        attribute(model, "a", "b", baseline="silence")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="empty"):
        attribute(model, "", "tea")
    with pytest.raises(ModelError, match="no token 'tea' to contrast with: give one token"):
        attribute(model, "a", "tea", contrast="tea")
    with pytest.raises(ModelError, match=r"no label 'ugly'; it has .*good"):
        attribute(labelled("classify"), "a cup", "ugly")
    with pytest.raises(ModelError, match="2 words, but 1 tags"):
        attribute(labelled("tag"), "a cup", "good")
    with pytest.raises(ModelError, match="1 to 8 tokens"):
        attribute(language_model(), "tea", "a cup of tea")


# ------------------------------------------------------------------------------------- captum


def test_captum_gives_the_same() -> None:
    captum = pytest.importorskip("captum.attr")
    model = tiny(banned=True)
    network, (source,), (target,) = (
        model.network,
        model.source_tokens.encode_batch(["a cup of tea"]),
        model.target_tokens.encode_batch(["tea"]),
    )
    source_1S, target_1T = torch.tensor([[*source, END]]), torch.tensor([[BEGIN, *target]])
    mask_free = torch.tensor([source_1S.shape[1]])
    at, wanted = 2, target[2]

    def value(x_NSD: Tensor, y_NTD: Tensor) -> Tensor:
        """The same network by its modules, without hooks."""
        memory = network.encoder(x_NSD, mask_free.expand(len(x_NSD)), None)
        stream = y_NTD
        from transduce.nn.masks import causal

        for block in network.decoder.stack:
            projected = block.project_memory(memory.states_BSD)
            stream = block(stream, projected, memory.mask, causal())
        logits_NTV = network.head(network.decoder.norm(stream))
        return logits_NTV.log_softmax(dim=-1)[:, at, wanted]

    with torch.no_grad():
        inputs = (network.front(source_1S), network.decoder.embedding(target_1T))
        base = (
            network.front.positions(torch.zeros_like(inputs[0])),
            network.decoder.embedding.positions(torch.zeros_like(inputs[1])),
        )
    theirs = captum.IntegratedGradients(value).attribute(
        inputs, baselines=base, n_steps=16, method="gausslegendre"
    )
    ours = attribute(model, "a cup of tea", "tea", steps=16, baseline="zero")
    for own, other in zip((ours.source, ours.prefix), theirs, strict=True):
        assert own is not None
        np.testing.assert_allclose(own[at], other[0].sum(dim=-1).detach().numpy(), atol=1e-4)
    gradients = captum.Saliency(value).attribute(inputs, abs=False)
    products = attribute(model, "a cup of tea", "tea", method="gradient_x_input", baseline="zero")
    for own, gradient, x, b in zip(
        (products.source, products.prefix), gradients, inputs, base, strict=True
    ):
        assert own is not None
        expected = (gradient * (x - b)).sum(dim=-1)[0].detach().numpy()
        np.testing.assert_allclose(own[at], expected, atol=1e-4)
    erased = captum.FeatureAblation(value)
    positions = torch.arange(inputs[0].shape[1])[None, :, None].expand_as(inputs[0])
    whole = torch.full_like(inputs[1], 99, dtype=torch.long)
    lost = erased.attribute(inputs, baselines=base, feature_mask=(positions, whole))
    found = attribute(model, "a cup of tea", "tea", method="erasure", baseline="zero")
    assert found.source is not None
    np.testing.assert_allclose(found.source[at], lost[0][0, :, 0].detach().numpy(), atol=1e-4)


def test_captum_gives_the_same_of_classifiers() -> None:
    """Integrated gradients of a label, and contrastive: of this label and not that one."""
    captum = pytest.importorskip("captum.attr")
    model = labelled("classify")
    network = model.network.eval()
    (ids,) = model.source_tokens.encode_batch(["a cup of tea"])
    source_1S = torch.tensor([ids])
    good, bad = (model.target_tokens.encode(name)[0] - len(SPECIALS) for name in ("good", "bad"))

    def log_probabilities(x_NSD: Tensor) -> Tensor:
        lengths_N = torch.full((len(x_NSD),), x_NSD.shape[1])
        memory = network.encoder(x_NSD, lengths_N, None)
        return torch.log_softmax(network.head(network.pool(memory)), dim=-1)

    with torch.no_grad():
        inputs = network.front(source_1S)
        base = network.front.positions(torch.zeros_like(inputs))
    for contrast, value in (
        (False, lambda x: log_probabilities(x)[:, bad]),
        ("good", lambda x: log_probabilities(x)[:, bad] - log_probabilities(x)[:, good]),
    ):
        theirs = captum.IntegratedGradients(value).attribute(
            inputs, baselines=base, n_steps=16, method="gausslegendre"
        )
        ours = attribute(model, "a cup of tea", "bad", contrast=contrast, steps=16, baseline="zero")
        assert ours.source is not None
        expected = theirs[0].sum(dim=-1).detach().numpy()
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(ours.source[0], expected, atol=1e-4)
