"""N-grams beside a sum by hand; their rows scatter, and stay where trained weights have them."""

from __future__ import annotations

import torch

from transduce.nn.embedding.ngrams import MULTIPLIER, PRIME, SCALE, SCATTER, NGrams

BEFORE = 2


def row(ngram: list[int], size: int) -> int:
    """In Python's integers, which know no overflow."""
    value = len(ngram)
    for token in ngram:
        value = (value * MULTIPLIER + token) % PRIME
    return value * SCATTER % PRIME % size


def test_each_token_has_the_sum_of_the_ngrams_that_end_there() -> None:
    torch.manual_seed(1)
    ngrams = NGrams(3, 50, 4).double()
    torch.nn.init.normal_(ngrams.table.weight)
    tokens = [5, 9, 30_000, 5, 9]
    found_1TD = ngrams(torch.tensor([tokens]), torch.arange(5)[None], BEFORE)
    for place in range(5):
        read = [BEFORE, BEFORE, *tokens][: place + 3]
        rows = [row(read[-n:], 50) for n in (2, 3)]
        expected_D = SCALE * ngrams.table.weight[rows].sum(dim=0)
        torch.testing.assert_close(found_1TD[0, place], expected_D)


def test_no_ngram_reaches_into_the_sequence_before_it() -> None:
    ngrams = NGrams(3, 1000, 4)
    apart = [
        ngrams.rows(torch.tensor([tokens]), torch.arange(len(tokens))[None], BEFORE)[0]
        for tokens in ([5, 6, 7], [8], [9, 5])
    ]
    one_row = torch.tensor([[5, 6, 7, 8, 9, 5]])
    place_BT = torch.tensor([[0, 1, 2, 0, 0, 1]])
    assert torch.equal(ngrams.rows(one_row, place_BT, BEFORE)[0], torch.cat(apart))


def test_short_numbers_are_enough_to_say_which_tokens() -> None:
    ngrams = NGrams(2, 500_000, 4)
    tokens_1T, place_1T = torch.tensor([[29_000, 19_999, 7]]), torch.arange(3)[None]
    found = ngrams.rows(tokens_1T.int(), place_1T, BEFORE)
    assert torch.equal(found, ngrams.rows(tokens_1T, place_1T, BEFORE))


def test_ngrams_share_rows_no_more_than_if_drawn() -> None:
    """Of m n-grams drawn into m rows, 1 − 1/e of the rows are taken."""
    ngrams = NGrams(2, 90_000, 1)
    first, second = torch.meshgrid(torch.arange(300), torch.arange(300), indexing="ij")
    pairs_BT = torch.stack((first.flatten(), second.flatten()), dim=1) + 4
    rows_B = ngrams.rows(pairs_BT, torch.tensor([[0, 1]]).expand_as(pairs_BT), BEFORE)[:, 1, 0]
    taken = len(rows_B.unique()) / 90_000
    assert taken > 0.63


def test_rows_stay_where_trained_weights_have_them() -> None:
    rows_1TN = NGrams(3, 500_000, 1).rows(torch.tensor([[4, 5, 6]]), torch.arange(3)[None], 2)
    assert rows_1TN[0].tolist() == [[92640, 34657], [9320, 434984], [444979, 231748]]


def test_what_training_never_had_says_nothing() -> None:
    ngrams = NGrams(2, 10, 4)
    assert ngrams(torch.tensor([[5, 6]]), torch.arange(2)[None], BEFORE).eq(0).all()
