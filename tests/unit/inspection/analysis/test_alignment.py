"""Word alignments: formats, error rates, and heads that are found by themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tiny_models import tiny
from tiny_sounds import audio_model
from transduce.errors import DataError, ModelError
from transduce.inspection.analysis import (
    Gold,
    Head,
    align_words,
    alignment_error_rate,
    best_heads,
    from_pharaoh,
    links_of,
    symmetrize,
    to_pharaoh,
    word_attention,
)
from transduce.tasks.transduce import Transducer

CROSS = "decoder.blocks.0.cross_attention"


def gold(sure: str, possible: str = "") -> Gold:
    return from_pharaoh(f"{sure} {possible}")


def test_pharaoh_there_and_back() -> None:
    assert to_pharaoh({(1, 2), (0, 0), (10, 3)}) == "0-0 1-2 10-3"
    assert to_pharaoh([]) == ""
    reported = from_pharaoh("0-0 1?2 2p2 3-1\n")
    assert reported.sure == {(0, 0), (3, 1)}
    assert reported.possible == {(0, 0), (1, 2), (2, 2), (3, 1)}
    assert from_pharaoh("1-1 2-3", first=1).sure == {(0, 0), (1, 2)}
    for wrong in ("0", "0-", "a-b", "0_0", "-1-0"):
        with pytest.raises(DataError, match="is no link of an alignment"):
            from_pharaoh(f"0-0 {wrong}")
    with pytest.raises(DataError, match="counted from 1"):
        from_pharaoh("0-1", first=1)


def test_the_error_rate_is_that_of_och_and_ney() -> None:
    perfect = [{(0, 0), (1, 1)}]
    assert alignment_error_rate(perfect, [gold("0-0 1-1")]) == 0
    assert alignment_error_rate(perfect, [gold("0-0", "1?1")]) == 0, "a possible link is no error"
    assert alignment_error_rate([{(0, 1)}], [gold("0-0 1-1")]) == 1
    # A = 3 links, of which 1 sure and 2 possible; S = 2: 1 − (1 + 2) / (3 + 2).
    reported = {(0, 0), (1, 2), (5, 5)}
    assert alignment_error_rate([reported], [gold("0-0 3-3", "1?2")]) == pytest.approx(0.4)
    # Over a corpus links are counted, not averaged.
    both = alignment_error_rate([reported, {(0, 0)}], [gold("0-0 3-3", "1?2"), {(0, 0)}])
    assert both == pytest.approx(1 - 5 / 7)
    assert alignment_error_rate([], []) == 0
    with pytest.raises(ValueError, match="1 alignments, but 0"):
        alignment_error_rate([reported], [])


def test_attention_between_words_and_their_links() -> None:
    tokens_TS = np.array([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2], [0.0, 0.1, 0.9]])
    words_TS = word_attention(tokens_TS, [(0, 2), (2, 3)], [(0, 2), (2, 3)])
    np.testing.assert_allclose(words_TS, [[0.55, 0.45], [0.1, 0.9]])
    assert links_of(words_TS) == {(0, 0), (1, 1)}
    assert links_of(words_TS, threshold=0.6) == {(1, 1)}
    assert links_of(np.zeros((0, 3))) == set()


def test_two_directions_become_one() -> None:
    forward, backward = {(0, 0), (1, 1), (2, 2), (4, 0)}, {(0, 0), (1, 1), (1, 2), (2, 3)}
    assert symmetrize(forward, backward, "intersection") == {(0, 0), (1, 1)}
    assert symmetrize(forward, backward, "union") == forward | backward
    # (1, 2) touches (1, 1) and target 2 has none; then (2, 2) aligns source 2, and (2, 3) target 3;
    # (4, 0) touches nothing.
    assert symmetrize(forward, backward) == {(0, 0), (1, 1), (1, 2), (2, 2), (2, 3)}
    both = {(0, 0), (1, 1)}
    assert symmetrize(both | {(0, 1)}, both) == both, "both of its words are aligned already"
    with pytest.raises(ValueError, match="must be"):
        symmetrize(forward, backward, "grow")  # type: ignore[arg-type]


@pytest.mark.parametrize("across", range(-2, 3))
@pytest.mark.parametrize("along", range(-2, 3))
def test_links_grow_to_all_eight_sides_and_one_step_at_a_time(across: int, along: int) -> None:
    both, other = {(5, 5)}, (5 + across, 5 + along)
    touches = max(abs(across), abs(along)) <= 1
    assert symmetrize(both | {other}, both) == (both | {other} if touches else both)


# ------------------------------------------------------------------------------- whole models


def copier(part: int = 1, head: int = 1, shift: int = 0) -> Transducer:
    """Random but for one head that attends to the place it writes (`shift` 1: that it has read)."""
    model = tiny(
        {"layers": 1, "positions": "none", "norm": "layer"},
        {"layers": 2, "positions": "none", "norm": "layer"},
        banned=True,
    )
    attention = model.network.decoder.blocks[part].cross_attention
    plain = attention._weights

    def diagonal(query_BHTK: torch.Tensor, keys_BHSK: torch.Tensor, mask: object) -> torch.Tensor:
        weights_BHTS = plain(query_BHTK, keys_BHSK, mask)
        T, S = weights_BHTS.shape[2:]
        place = torch.arange(T)[:, None] - shift
        near_TS = torch.softmax(-2.0 * (place - torch.arange(S)).abs().float(), dim=-1)
        weights_BHTS[:, head] = near_TS
        return weights_BHTS

    attention._weights = diagonal
    return model


SENTENCES = ["tea cup", "uncle made tea", "a cup of tea", "iroh", "zuko made a cup"]
DIAGONAL = [[(n, n) for n in range(len(text.split()))] for text in SENTENCES]


@pytest.mark.parametrize(("part", "head"), [(0, 0), (1, 1)])
def test_the_head_that_aligns_is_found_by_itself(part: int, head: int) -> None:
    found = align_words(copier(part, head), SENTENCES, SENTENCES)
    best = found.best.head
    assert (best.part, best.head) == (f"decoder.blocks.{part}.cross_attention", head)
    assert found.links == [set(one) for one in DIAGONAL]
    assert found.to_pharaoh()[1] == "0-0 1-1 2-2"
    assert found.best.agreement == 1
    assert found.best.diagonality > 0.5
    assert len(found.scores) == 2 * 2 * 2
    assert [s.agreement for s in found.scores] == sorted(
        (s.agreement for s in found.scores), reverse=True
    )


def test_whether_it_aligns_what_is_written_or_what_is_read_is_found_too() -> None:
    right = [Gold(frozenset(one), frozenset(one)) for one in DIAGONAL]
    for shift, when in ((0, "writing"), (1, "reading")):
        letters = ["t e a", "a c u p", "z u k o"]
        links = [frozenset((n, n) for n in range(len(one.split()))) for one in letters]
        scores = best_heads(
            copier(shift=shift), letters, letters, gold=[Gold(one, one) for one in links]
        )
        assert scores[0].error_rate == 0
        assert scores[0].head.when == when
    scores = best_heads(copier(), SENTENCES, SENTENCES, gold=right)
    assert [s.error_rate for s in scores] == sorted(s.error_rate or 0 for s in scores)


def test_a_model_that_translates_back_has_a_say() -> None:
    found = align_words(copier(), SENTENCES, SENTENCES, reverse=copier(0, 0))
    assert (found.best.head.part, found.best.head.head) == ("decoder.blocks.1.cross_attention", 1)
    assert found.best.agreement == 1
    assert found.links == [set(one) for one in DIAGONAL]
    sources, targets = [*SENTENCES, "tea cup"], [*SENTENCES, "tea"]
    more = align_words(copier(), sources, targets, reverse=copier(0, 0))
    assert more.links[-1] == {(0, 0), (1, 0)}, "the second source word is aligned by the other"


def test_a_head_that_was_found_before_is_used_again() -> None:
    model = copier()
    head = align_words(model, SENTENCES, SENTENCES).best.head
    again = align_words(model, ["tea cup"], ["cup tea"], head=head)
    assert again.links == [{(0, 0), (1, 1)}]
    assert len(again.scores) == 1
    with pytest.raises(ModelError, match="no head 7 of nowhere"):
        align_words(model, ["a"], ["a"], head=Head("nowhere", 7, "writing"))
    with pytest.raises(ModelError, match="1 pairs, but 0 gold"):
        align_words(model, ["a"], ["a"], gold=[])
    with pytest.raises(ModelError, match="times=True"):
        align_words(audio_model(), ["a.wav"], ["a"])  # type: ignore[arg-type]
