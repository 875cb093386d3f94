"""Rollout, entropy, coverage, diagonality: against sums over paths, and cases known by hand."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from language import language_model
from tiny_models import tiny
from transduce.errors import ModelError
from transduce.inspection.analysis import (
    attention_confidence,
    attention_entropy,
    attention_rollout,
    coverage,
    diagonality,
    encoder_decoder_rollout,
    rollout,
)


def draw(*shape: int, seed: int = 1, causal: bool = False) -> np.ndarray:  # type: ignore[type-arg]
    scores = np.random.default_rng(seed).normal(size=shape)
    if causal:
        scores = np.where(np.tril(np.ones(shape[-2:])) > 0, scores, -np.inf)
    weights = np.exp(scores)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def test_a_rollout_sums_over_all_paths() -> None:
    layers = [draw(2, 4, 4, seed=seed) for seed in range(3)]
    mixed = [0.5 * np.eye(4) + 0.5 * layer.mean(axis=0) for layer in layers]
    paths = np.zeros((4, 4))
    for top, second, first, bottom in product(range(4), repeat=4):
        paths[top, bottom] += (
            mixed[2][top, second] * mixed[1][second, first] * mixed[0][first, bottom]
        )
    rolled = attention_rollout(layers)
    np.testing.assert_allclose(rolled, paths)
    np.testing.assert_allclose(rolled.sum(axis=1), 1)
    np.testing.assert_allclose(attention_rollout(layers, residual=1.0), np.eye(4))
    with pytest.raises(ValueError, match="at least one layer"):
        attention_rollout([])


def test_the_rollout_of_an_encoder_decoder_is_one_over_both_sequences() -> None:
    """Both sides as one sequence: the source first, which sees itself alone, then the target."""
    T, S = 3, 4
    encoder = [draw(2, S, S, seed=seed) for seed in range(2)]
    own = [draw(2, T, T, seed=10 + seed, causal=True) for seed in range(2)]
    cross = [draw(2, T, S, seed=20 + seed) for seed in range(2)]
    whole = np.eye(S + T)
    steps = []
    for weights in encoder:
        step = np.eye(S + T)
        step[:S, :S] = 0.5 * np.eye(S) + 0.5 * weights.mean(axis=0)
        steps.append(step)
    for mine, source in zip(own, cross, strict=True):
        step = np.eye(S + T)
        step[S:, S:] = 0.5 * np.eye(T) + 0.5 * mine.mean(axis=0)
        steps.append(step)
        step = np.eye(S + T)
        step[S:, S:] = 0.5 * np.eye(T)
        step[S:, :S] = 0.5 * source.mean(axis=0)
        steps.append(step)
    for step in steps:
        whole = step @ whole
    found = encoder_decoder_rollout(encoder, own, cross)
    np.testing.assert_allclose(found.source, whole[S:, :S])
    np.testing.assert_allclose(found.prefix, whole[S:, S:])
    np.testing.assert_allclose(found.source.sum(axis=1) + found.prefix.sum(axis=1), 1)


def test_the_rollout_of_what_a_lens_has_seen() -> None:
    model = tiny(banned=True)
    with model.lens() as lens:
        model.run(["a cup of tea"])
    found = rollout(lens[0])
    T, S = len(lens[0].target_tokens), len(lens[0].source_tokens)
    assert found.source.shape == (T, S)
    assert found.prefix.shape == (T, T)
    np.testing.assert_allclose(found.source.sum(axis=1) + found.prefix.sum(axis=1), 1, atol=1e-5)
    assert np.triu(found.prefix, 1).max() == 0, "nothing of the future"
    language = language_model()
    with language.lens() as lens:
        language.run(["te"], max_length=3)
    assert rollout(lens[0]).prefix.shape == (5, 5)
    with model.lens("decoder.*.cross") as lens:
        model.run(["tea"])
    with pytest.raises(ModelError, match=r"model\.lens\(\) and no patterns"):
        rollout(lens[0])


def test_entropy_confidence_and_coverage() -> None:
    weights = np.array([[[0.25] * 4, [0, 1, 0, 0]], [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]])
    np.testing.assert_allclose(
        attention_entropy(weights), [[math.log(4), 0], [math.log(2), math.log(2)]], atol=1e-12
    )
    np.testing.assert_allclose(attention_confidence(weights), [0.625, 0.5])
    np.testing.assert_allclose(coverage(weights), [[0.25, 1.25, 0.25, 0.25], [0.5] * 4])


def test_diagonality() -> None:
    straight, back, nowhere = np.eye(5), np.eye(5)[::-1], np.full((5, 5), 0.2)
    found = diagonality(np.stack([straight, back, nowhere]))
    np.testing.assert_allclose(found, [1, -1, 0], atol=1e-6)
    assert diagonality(straight).shape == ()
