"""Embeddings in which tags have no place in the order of a sequence."""

from __future__ import annotations

import torch

from transduce.nn.embedding.tokens import TaggedEmbedding, TokenEmbedding
from transduce.nn.masks import Segments
from transduce.nn.positions import build_positions

TAGS = [7, 8]


def make() -> TaggedEmbedding:
    torch.manual_seed(1)
    made = TaggedEmbedding(9, 8, build_positions("sinusoidal", 8), 0.0, tags=TAGS)
    return made.eval()


def test_letters_count_from_one_whatever_the_number_of_tags() -> None:
    embedding = make()
    plain = TokenEmbedding(9, 8, build_positions("sinusoidal", 8), 0.0).eval()
    plain.load_state_dict(embedding.state_dict())
    few_1TD, more_1TD = (
        embedding(torch.tensor([[7, 4, 5, 6]])),
        embedding(torch.tensor([[8, 7, 8, 4, 5, 6]])),
    )
    letters_1TD = plain(torch.tensor([[0, 4, 5, 6]]))[:, 1:]  # at 1, 2, 3
    torch.testing.assert_close(few_1TD[:, 1:], letters_1TD)
    torch.testing.assert_close(more_1TD[:, 3:], letters_1TD)
    first_1TD = plain(torch.tensor([[7]]))
    torch.testing.assert_close(few_1TD[:, :1], first_1TD)
    torch.testing.assert_close(more_1TD[:, 1:2], first_1TD)  # 7 is at 0 here, too


def test_packed_sequences_each_have_their_own_tags() -> None:
    embedding = make()
    one, other = [7, 8, 4, 5], [8, 6, 4]
    offsets = torch.tensor([0, 4, 7])
    packed_1TD = embedding(torch.tensor([one + other]), Segments(offsets, offsets, 4).positions(7))
    torch.testing.assert_close(packed_1TD[:, :4], embedding(torch.tensor([one])))
    torch.testing.assert_close(packed_1TD[:, 4:], embedding(torch.tensor([other])))


def test_the_tags_are_not_saved() -> None:
    assert list(make().state_dict()) == ["table.weight"]
