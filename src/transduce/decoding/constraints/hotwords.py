"""Hotwords: phrases, such as names, that outputs are more likely to contain.

A prefix tree holds the tokens of all phrases. Each token of a hypothesis that goes on with a phrase
adds a bonus to its score at once, so that the phrase stays in the beam; what was added for a phrase
that is not finished is taken back. So a whole hypothesis has the bonus of the tokens of the whole
phrases in it, and nothing else. Phrases are found as a lexer finds its tokens: from left to right,
at each place the longest one, and none overlaps another. They are whole words: `art` is not found
in `party`.

As in contextual biasing of transducers (Zhao et al. 2019,
https://doi.org/10.21437/Interspeech.2019-1209), but that a phrase inside another one counts once.

    R rows: hypotheses of all sources
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import END
from transduce.data.tokens.word_edges import WordEdges
from transduce.decoding.constraints.constraint import Constraint

HOTWORD_BEAM = 5  # with hotwords, where neither the call nor the recipe asks for a larger beam
OUTSIDE, INSIDE = 0, 1
"""Nodes without a part of a phrase: between words, and inside a word, where no phrase begins."""


class Changes(NamedTuple):
    """How the number of tokens that have the bonus changes with the next token of a hypothesis."""

    inside: bool
    """Whether the last token ends inside a word."""
    after_word: int
    """With a token after which the word, and so perhaps a phrase, is over."""
    in_word: int
    """With a token that goes on with the word."""
    tokens: list[int]
    """Tokens that go on with a phrase, and so change it otherwise:"""
    of_tokens: list[int]


NO_CHANGES = Changes(False, 0, 0, [], [])


class HotwordTree:
    """The phrases of one source. A hypothesis is at one of its nodes, at first at OUTSIDE.

    A node stands for the tokens of the phrase that is being written, which all have the bonus until
    it is known that this phrase is not finished.
    """

    def __init__(self, phrases: Iterable[Sequence[int]], edges: WordEdges) -> None:
        """phrases: as tokens, one or more each; a phrase may be there in several spellings."""
        self._begins, self._inside = edges.begins_V.tolist(), edges.inside_V.tolist()
        self._children: list[dict[int, int]] = [{}, {}]
        self._path: list[tuple[int, ...]] = [(), ()]
        """The tokens of each node."""
        self._whole = [False, False]
        """Whether they are a phrase."""
        self._kept = [0, 0]
        """How many of them are a phrase that is over, whatever comes next."""
        for phrase in phrases:
            self._add(phrase)
        self._children[INSIDE] = {
            token: node for token, node in self._children[OUTSIDE].items() if self._begins[token]
        }
        for node in range(2, len(self._path)):  # parents come first
            *before, token = self._path[node]
            if before:
                parent = self._parent_of(node)
                over = self._whole[parent] and self._ends_word(parent, token)
                self._kept[node] = len(before) if over else self._kept[parent]
        self._fallen: dict[tuple[int, bool], tuple[int, int]] = {}
        self._changes: dict[int, Changes] = {}

    def _add(self, phrase: Sequence[int]) -> None:
        node = OUTSIDE
        for token in phrase:
            if token not in self._children[node]:
                self._children[node][token] = len(self._path)
                self._children.append({})
                self._path.append((*self._path[node], token))
                self._whole.append(False)
                self._kept.append(0)
            node = self._children[node][token]
        self._whole[node] = True

    def _parent_of(self, node: int) -> int:
        parent = OUTSIDE
        for token in self._path[node][:-1]:
            parent = self._children[parent][token]
        return parent

    @cached_property
    def longest(self) -> int:
        """The tokens of the longest phrase."""
        return max(map(len, self._path))

    @cached_property
    def first_V(self) -> Tensor:
        """1 for the first tokens of phrases, 0 for others."""
        found_V = torch.zeros(len(self._begins))
        found_V[list(self._children[OUTSIDE])] = 1.0
        return found_V

    @cached_property
    def begins_V(self) -> Tensor:
        """The tokens that begin a word."""
        return torch.tensor(self._begins)

    def step(self, node: int, token: int) -> tuple[int, int]:
        """The node after one more token, and by how much the number of tokens that have the bonus
        changes."""
        change = 0
        while token not in self._children[node]:
            if node <= INSIDE:
                return INSIDE if self._ends_inside(token) else OUTSIDE, change
            node, lost = self._fall(node, self._ends_word(node, token))
            change += lost
        return self._children[node][token], change + 1

    def matched(self, tokens: Iterable[int]) -> int:
        """How many tokens of a whole output are part of a phrase."""
        node, total = OUTSIDE, 0
        for token in (*tokens, END):
            node, change = self.step(node, token)
            total += change
        return total

    def changes(self, node: int) -> Changes:
        """What `step` says of all tokens, but for the beginning of a phrase: one more."""
        if node not in self._changes:
            self._changes[node] = self._find_changes(node)
        return self._changes[node]

    def _find_changes(self, node: int) -> Changes:
        inside = node == INSIDE or (node != OUTSIDE and self._ends_inside(self._path[node][-1]))
        found: dict[int, int] = {}
        totals = {}
        for over in (True, False):
            at, total = node, 0
            while at > INSIDE:
                for token in self._children[at]:
                    if self._ends_word(node, token) == over:
                        found.setdefault(token, total + 1)
                at, lost = self._fall(at, over)
                total += lost
            totals[over] = total
        return Changes(inside, totals[True], totals[False], list(found), list(found.values()))

    def _fall(self, node: int, over: bool) -> tuple[int, int]:
        """The phrase of a node is not finished by the next token: the node of what else its tokens
        may begin, and the change. over: whether the next token ends the word."""
        if (known := self._fallen.get((node, over))) is not None:
            return known
        path = self._path[node]
        kept = len(path) if self._whole[node] and over else self._kept[node]
        first = kept or 1  # no phrase begins with the first token, or it is kept
        at, change = INSIDE if self._ends_inside(path[first - 1]) else OUTSIDE, kept - len(path)
        for token in path[first:]:
            at, more = self.step(at, token)
            change += more
        self._fallen[node, over] = at, change
        return at, change

    def _ends_word(self, node: int, token: int) -> bool:
        """Whether the last word of a node is over with the next token."""
        if token < len(self._begins) and not self._begins[token]:
            return not self._ends_inside(self._path[node][-1])
        return True  # also a token that is copied from the source

    def _ends_inside(self, token: int) -> bool:
        return token < len(self._inside) and self._inside[token]


Place = tuple[int, int]
"""Where a hypothesis is: the number of its tree, -1 without one, and its node there."""
NOWHERE: Place = (-1, OUTSIDE)


class HotwordScores:
    """What some trees add to the scores of all next tokens of hypotheses."""

    def __init__(
        self, trees: Sequence[HotwordTree], bonus: float, device: torch.device | str
    ) -> None:
        """trees: one or more. bonus: of each token."""
        self.trees, self.bonus = trees, bonus
        first = [tree.first_V for tree in trees]
        self._first_XV = bonus * torch.stack([*first, torch.zeros_like(first[0])]).to(device)
        self._begins_V = trees[0].begins_V.to(device)

    start: Place = (0, OUTSIDE)
    """Of a hypothesis with the first tree."""

    def after(self, place: Place, token: int) -> Place:
        """The place of a hypothesis with one more token."""
        tree, node = place
        return place if tree < 0 else (tree, self.trees[tree].step(node, token)[0])

    def added(self, places: Sequence[Place]) -> Tensor:
        """[R, V], for the place of each hypothesis."""
        rows: list[int] = []
        tokens: list[int] = []
        of_tokens: list[int] = []
        totals = []
        for row, (tree, node) in enumerate(places):
            found = NO_CHANGES if tree < 0 else self.trees[tree].changes(node)
            totals.append((found.inside, found.after_word, found.in_word))
            rows += [row] * len(found.tokens)
            tokens += found.tokens
            of_tokens += found.of_tokens
        device = self._begins_V.device
        inside_R1, after_R1, in_R1 = torch.tensor(totals, device=device).float().T[..., None]
        first_RV = self._first_XV[[tree for tree, _ in places]]
        over_RV = self._begins_V | (inside_R1 == 0)
        added_RV = torch.where(over_RV, first_RV + self.bonus * after_R1, self.bonus * in_R1)
        if rows:
            changed = torch.tensor(of_tokens, dtype=added_RV.dtype, device=device)
            added_RV[rows, tokens] = self.bonus * changed
        return added_RV


class Hotwords(Constraint):
    """The hotwords of each source of a search. It bans nothing: `with_bonus` adds to scores."""

    def __init__(
        self, trees: Sequence[HotwordTree | None], bonus: float, device: torch.device
    ) -> None:
        """trees: of each source, one of them or more. bonus: of each token."""
        each = [tree for tree in dict.fromkeys(trees) if tree is not None]
        self._scores = HotwordScores(each, bonus, device)
        self._places = [NOWHERE if tree is None else (each.index(tree), OUTSIDE) for tree in trees]
        """Of each row."""
        longest = [0 if tree is None else tree.longest for tree in trees]
        self.ahead_B = bonus * torch.tensor(longest, dtype=torch.float32, device=device)
        """For each source, the bonus of its longest phrase."""

    def reorder(self, index_R: Tensor) -> None:
        self._places = [self._places[index] for index in index_R.tolist()]

    def with_bonus(self, scores_RV: Tensor, written_RT: Tensor) -> Tensor:
        if written_RT.shape[1]:
            pairs = zip(self._places, written_RT[:, -1].tolist(), strict=True)
            self._places = [self._scores.after(place, token) for place, token in pairs]
        added_RV = self._scores.added(self._places)
        # Tokens that are copied from the source are words that are in no phrase.
        copied = scores_RV.shape[1] - added_RV.shape[1]
        if copied:
            added_RV = torch.cat([added_RV, added_RV[:, END, None].expand(-1, copied)], dim=1)
        return scores_RV + added_RV.to(scores_RV.dtype)
