"""Hotwords against a plain search for phrases in outputs, and brute force over all outputs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, UNKNOWN, Tokens
from transduce.data.tokens.word_edges import WordEdges
from transduce.decoding.batch.decode import BatchDecoder, Bounds, Request
from transduce.decoding.constraints.hotwords import OUTSIDE, Hotwords, HotwordTree
from transduce.decoding.constraints.read import hotwords_of
from transduce.decoding.search.hypothesis import Hypothesis, penalty
from transduce.decoding.settings import Settings
from transduce.errors import ModelError, TransduceWarning

# After the four special tokens: letters, subwords that begin with a space, and a space.
PIECES = ["<pad>", "<unk>", "<s>", "</s>", "a", "b", "▁a", "▁b", "▁", "ab"]
TOKENS = len(PIECES)
EDGES = WordEdges.of(PIECES, whole_words=False, silent=())
GOING_ON = range(4, TOKENS)

phrases_of_tokens = st.lists(
    st.lists(st.sampled_from(GOING_ON), min_size=1, max_size=4), min_size=1, max_size=5
)
outputs = st.lists(st.sampled_from(GOING_ON), max_size=12)


def found_in(tokens: Sequence[int], phrases: Sequence[Sequence[int]]) -> int:
    """The tokens of phrases in a whole output: from left to right, the longest, as whole words."""
    place, total = 0, 0
    while place < len(tokens):
        before = PIECES[tokens[place - 1]][-1] if place else "▁"
        begins = not (before.isalnum() and PIECES[tokens[place]][0].isalnum())
        lengths = [0]
        for phrase in phrases if begins else ():
            end = place + len(phrase)
            after = PIECES[tokens[end]][0] if end < len(tokens) else "▁"
            over = not (after.isalnum() and PIECES[phrase[-1]][-1].isalnum())
            if list(tokens[place:end]) == list(phrase) and over:
                lengths.append(len(phrase))
        place += max(lengths) or 1
        total += max(lengths)
    return total


@example([6, 7, 7, 6], [[6], [6, 7, 7, 7]])  # a phrase that was over long before the other ends
@given(outputs, phrases_of_tokens)
def test_a_whole_output_has_the_bonus_of_its_whole_phrases(
    tokens: list[int], phrases: list[list[int]]
) -> None:
    assert HotwordTree(phrases, EDGES).matched(tokens) == found_in(tokens, phrases)


@example([6, 7], [[6, 7, 7], [7, 7]])  # the next token goes on with both
@example([6, 7], [[6, 7], [7, 7]])  # one is over with the next token, which begins the other
@given(outputs, phrases_of_tokens)
def test_all_next_tokens_at_once_are_as_one_by_one(
    tokens: list[int], phrases: list[list[int]]
) -> None:
    tree = HotwordTree(phrases, EDGES)
    hotwords = Hotwords([tree, None], 0.5, torch.device("cpu"))
    node = OUTSIDE
    for place in range(len(tokens) + 1):
        written_RT = torch.tensor([tokens[:place]] * 2).view(2, -1)
        added_RV = hotwords.with_bonus(torch.zeros(2, TOKENS), written_RT)
        expected = [0.5 * tree.step(node, token)[1] for token in range(TOKENS)]
        assert added_RV[0].tolist() == pytest.approx(expected)
        assert not added_RV[1].any()
        if place < len(tokens):
            node, _ = tree.step(node, tokens[place])


def test_a_token_that_is_copied_from_the_source_ends_a_phrase() -> None:
    tree = HotwordTree([[6], [7, 7]], EDGES)
    for written, taken_back in ([6], 0.0), ([7], -0.5):
        hotwords = Hotwords([tree], 0.5, torch.device("cpu"))
        hotwords.with_bonus(torch.zeros(1, TOKENS + 2), torch.zeros(1, 0).long())
        added_1V = hotwords.with_bonus(torch.zeros(1, TOKENS + 2), torch.tensor([written]))
        assert added_1V[0, TOKENS:].tolist() == [taken_back] * 2
        assert tree.step(tree.step(OUTSIDE, written[0])[0], TOKENS)[1] == 2 * taken_back


def test_phrases_are_found_as_a_regular_expression_finds_words() -> None:
    text = "new york, newark: a york new yorker in the new york city of new yo"
    names = ["new york", "york", "new york city", "the"]
    tokens = Tokens.train(recipe.Tokens(level="character"), [text])
    (tree,) = hotwords_of(names, 1, tokens)
    assert tree is not None
    longest_first = sorted(names, key=len, reverse=True)
    words = re.finditer(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)", text)
    assert tree.matched(tokens.encode(text)) == sum(len(word[0]) for word in words) == 28


# ---------------------------------------------------------------------------------------- search


@dataclass
class Prefixes:
    rows: list[tuple[int, ...]]

    def reorder(self, index_B: Tensor) -> None:
        self.rows = [self.rows[index] for index in index_B.tolist()]


class RandomModel:
    """Next-token probabilities by source and prefix, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._known: dict[tuple[int, ...], Tensor] = {}

    def next(self, prefix: tuple[int, ...]) -> Tensor:
        if prefix not in self._known:
            generator = torch.Generator().manual_seed(hash((self.seed, *prefix)) % 2**31)
            logits_V = 1.5 * torch.randn(TOKENS, generator=generator)
            self._known[prefix] = logits_V.log_softmax(dim=0)
        return self._known[prefix]

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> Prefixes:
        return Prefixes([(int(source),) for source in source_BS[:, 0]])

    def step(self, tokens_B: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
        state.rows = [(*row, t) for row, t in zip(state.rows, tokens_B.tolist(), strict=True)]
        return torch.stack([self.next(row) for row in state.rows]), state

    def log_probability(self, source: int, tokens: Sequence[int]) -> float:
        rows = [(source, BEGIN, *tokens[:end]) for end in range(len(tokens) + 1)]
        pairs = zip(rows, (*tokens, END), strict=True)
        return sum(float(self.next(row)[token]) for row, token in pairs)


LIMIT = 4  # tokens, END among them
ALLOWED = [UNKNOWN, 4, 5, 6, 7, 8, 9]
POWER = 1.0


def decoded(
    model: RandomModel,
    trees: Sequence[HotwordTree | None],
    bonus: float,
    sources: Sequence[int],
    **settings: Any,
) -> list[list[Hypothesis]]:
    chosen = Settings(length_penalty=POWER, hotword_bonus=bonus, **settings)
    bounds = Bounds(0.0, LIMIT, LIMIT)
    task = BatchDecoder(model, chosen, bounds, torch.device("cpu"), vocabulary=TOKENS)
    pairs = zip(sources, trees, strict=True)
    return task.run([Request([source], hotwords=tree) for source, tree in pairs])


def ranked(
    model: RandomModel, source: int, phrases: Sequence[Sequence[int]], bonus: float
) -> list[Any]:
    """All outputs with their scores, best with the bonus first."""
    found = []
    for length in range(LIMIT):
        divisor = float(penalty(length + 1, POWER))
        for tokens in itertools.product(ALLOWED, repeat=length):
            total = model.log_probability(source, tokens)
            more = bonus * (found_in(tokens, phrases) if phrases else 0)
            found.append(((total + more) / divisor, total / divisor, total, list(tokens)))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("seed", range(4))
def test_a_wide_beam_finds_what_brute_force_finds(seed: int) -> None:
    model = RandomModel(seed)
    phrases = [[6, 5], [7, 9, 5], [4]]
    tree = HotwordTree(phrases, EDGES)
    # Two sources with hotwords, one without, one with others: none sees those of another.
    others = [[7, 4]]
    trees = [tree, None, HotwordTree(others, EDGES), tree]
    sources = [4, 5, 6, 7]
    found = decoded(model, trees, 2.5, sources, beam=400, nbest=5)
    changed = 0
    for source, own, hypotheses in zip(sources, [phrases, [], others, phrases], found, strict=True):
        expected = ranked(model, source, own, 2.5)[:5]
        assert [one.tokens for one in hypotheses] == [tokens for *_, tokens in expected]
        assert [one.score for one in hypotheses] == pytest.approx([e[1] for e in expected])
        assert [one.log_probability for one in hypotheses] == pytest.approx(
            [e[2] for e in expected], abs=1e-4
        )
        changed += hypotheses[0].tokens != ranked(model, source, [], 0.0)[0][-1]
    assert changed  # the bonus matters here


def test_search_goes_on_while_the_rest_of_a_phrase_may_be_worth_more() -> None:
    class Reluctant(RandomModel):
        """Would rather end at once than begin the phrase, whose other tokens then follow."""

        def next(self, prefix: tuple[int, ...]) -> Tensor:
            log_probs_V = torch.full((TOKENS,), -9.0)
            wanted = {(): (END, -0.1), (7,): (9, -0.1), (7, 9): (5, -0.1), (7, 9, 5): (END, -0.1)}
            token, log_prob = wanted.get(prefix[2:], (END, -0.1))
            log_probs_V[token] = log_prob
            if not prefix[2:]:
                log_probs_V[7] = -4.0
            return log_probs_V

    tree = HotwordTree([[7, 9, 5]], EDGES)
    found = decoded(Reluctant(1), [tree, None], 2.0, [4, 4], beam=2, patience=None)
    assert [one[0].tokens for one in found] == [[7, 9, 5], []]


def test_greedy_search_and_samples_are_worth_what_the_model_says() -> None:
    model, tree = RandomModel(3), HotwordTree([[6, 5], [4]], EDGES)
    for settings in ({"beam": 1}, {"sample": True, "nbest": 4, "beam": 1}):
        for hypothesis in decoded(model, [tree], 4.0, [4], **settings)[0]:
            expected = model.log_probability(4, hypothesis.tokens)
            assert hypothesis.log_probability == pytest.approx(expected, abs=1e-4)
    (with_them,), (without,) = decoded(model, [tree, None], 4.0, [4, 4], beam=1)
    assert with_them.tokens != without.tokens
    assert found_in(with_them.tokens, [[6, 5], [4]])


def test_neighbours_change_nothing() -> None:
    model, tree = RandomModel(1), HotwordTree([[6, 5]], EDGES)
    longer = HotwordTree([[7, 9, 4], [8, 4], [5]], EDGES)
    for trees in ([tree, longer], [tree, None]):
        together = decoded(model, trees, 1.0, [4, 5], beam=3, nbest=2)
        alone = [
            decoded(model, [t], 1.0, [s], beam=3, nbest=2)[0]
            for t, s in zip(trees, [4, 5], strict=True)
        ]
        assert [[h.tokens for h in one] for one in together] == [
            [h.tokens for h in one] for one in alone
        ]


# ------------------------------------------------------------------------------------ spellings


def test_phrases_are_spelt_as_the_model_writes_them() -> None:
    upper = Tokens.train(recipe.Tokens(level="character"), ["CALL QUILTER AGAIN"])
    (tree,) = hotwords_of(["Quilter"], 1, upper)
    assert tree is not None
    assert tree.matched(upper.encode("CALL QUILTER")) == 7
    both = Tokens.train(recipe.Tokens(level="character"), ["Call quilter Again, Quilter"])
    (tree,) = hotwords_of(["quilter"], 1, both)
    assert tree is not None
    assert tree.matched(both.encode("Quilter")) == 7  # as at the beginning of a sentence


def test_subwords_are_found_wherever_the_phrase_stands() -> None:
    lines = ["call quilter", "quilter again", "the quilters (call) (again)"] * 20
    tokens = Tokens.train(recipe.Tokens(level="subword", size=30), lines)
    (tree,) = hotwords_of(["quilter"], 1, tokens)
    assert tree is not None
    for text in ("quilter", "call quilter", "the (quilter)"):
        assert tree.matched(tokens.encode(text)) > 0, text
    assert not tree.matched(tokens.encode("the quilters again"))


def test_what_cannot_be_written_is_left_out_with_a_word() -> None:
    tokens = Tokens.train(recipe.Tokens(level="character"), ["call ann"])
    with pytest.warns(TransduceWarning, match="'Ødegård' has letters"):
        (tree,) = hotwords_of(["ann", "Ødegård"], 1, tokens)
    assert tree is not None
    with pytest.warns(TransduceWarning, match="'Øde' has letters"):
        assert hotwords_of(["Øde"], 1, tokens) == [None]
    with pytest.raises(ModelError, match="hotwords has an empty phrase"):
        hotwords_of(["ann", " "], 1, tokens)
    with pytest.raises(ModelError, match="more than 100 tokens"):
        hotwords_of(["ann " * 40], 1, tokens)
    assert hotwords_of([["ann"], []], 2, tokens)[1] is None


def test_word_edges() -> None:
    pieces = ["<pad>", "<unk>", "<s>", "</s>", "▁a", "b", "é", "´", "<C3>", "木", ",", "c,"]
    begins_V, inside_V = WordEdges.of(pieces, whole_words=False, silent=())
    assert np.flatnonzero(begins_V).tolist() == [0, 1, 2, 3, 4, 7, 9, 10]
    assert np.flatnonzero(inside_V).tolist() == [4, 5, 6, 8]
