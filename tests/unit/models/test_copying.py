"""Networks that copy: steps, search and scores agree, and a letter never seen is written."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, UNKNOWN
from transduce.decoding.search.beam import beam
from transduce.decoding.search.greedy import greedy
from transduce.models.build import Vocabulary, build
from transduce.models.copying import CopyingEncoderDecoder

KINDS: dict[str, dict[str, Any]] = {
    "transformer": {"kind": "transformer", "layers": 2, "heads": 2, "feed_forward": 24},
    "recurrent": {"kind": "recurrent", "cell": "gru"},
    "input feeding": {"kind": "recurrent", "cell": "lstm", "context": "input"},
}
SOURCE, TARGET = 8, 6
# Source tokens 4 and 5 are target tokens 4 and 5; 6 is of the source alone; 7 is a tag.
COPIED_AS = [-1, -1, -1, -1, 4, 5, TARGET, -1]
NEW = SOURCE + TARGET  # the number of an unknown token, which its place is added to


def network(kind: str, width: int = 16, seed: int = 3) -> CopyingEncoderDecoder:
    torch.manual_seed(seed)
    decoder = KINDS[kind]
    encoder = {key: value for key, value in decoder.items() if key != "context"}
    settings = {"width": width, "dropout": 0.0, "encoder": encoder}
    settings["decoder"] = {**decoder, "copying": True}
    found = build(recipe.Model.model_validate(settings), Vocabulary(SOURCE, TARGET, COPIED_AS))
    assert isinstance(found, CopyingEncoderDecoder)
    return found.eval()


def sources() -> tuple[Tensor, Tensor]:
    """Two sources: one with a tag, a token of its own and an unknown one twice; a short one."""
    source_BS = torch.tensor([[7, 6, NEW + 2, 4, NEW + 2, END], [5, 4, END, PAD, PAD, PAD]])
    return source_BS, torch.tensor([6, 3])


def test_source_tokens_have_their_numbers_in_the_extended_vocabulary() -> None:
    source_BS, _ = sources()
    copies = network("transformer").copies(source_BS).tolist()
    assert copies == [[-1, TARGET + 1, TARGET + 2, 4, TARGET + 2, -1], [5, 4, -1, -1, -1, -1]]


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_steps_after_a_reordering_are_those_of_teacher_forcing(kind: str) -> None:
    net = network(kind)
    source_BS, lengths_B = sources()
    target_BT = torch.tensor([[BEGIN, 4, TARGET + 2, 5], [BEGIN, 5, 4, 4]])
    forced_BTX = net.logits(source_BS, lengths_B, target_BT)
    assert torch.allclose(forced_BTX.exp().sum(dim=-1), torch.ones(2, 4), atol=1e-5)
    state = net.start(source_BS, lengths_B)
    order_R = torch.tensor([0, 1])
    for step, tokens_B in enumerate(target_BT.unbind(dim=1)):
        log_probs_RX, state = net.step(tokens_B[order_R], state)
        assert torch.allclose(log_probs_RX, forced_BTX[order_R, step], atol=1e-5)
        if step == 1:
            order_R = torch.tensor([1, 0, 0])
            state.reorder(order_R)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_search_finds_what_trying_everything_finds(kind: str) -> None:
    net = network(kind)
    source_BS, lengths_B = (each[:1] for each in sources())
    X, longest = TARGET + source_BS.shape[1], 3
    best: list[tuple[float, list[int]]] = []
    # What may be written: the vocabulary's tokens, and what stands in the source beyond it.
    known = [UNKNOWN, 4, 5, TARGET + 1, TARGET + 2]
    for length in range(longest):
        for words in itertools.product(known, repeat=length):
            read_1T = torch.tensor([[BEGIN, *words]])
            log_probs_TX = net.logits(source_BS, lengths_B, read_1T)[0]
            total = sum(float(log_probs_TX[t, w]) for t, w in enumerate([*words, END]))
            best.append((total, list(words)))
    best.sort(reverse=True)
    limits_B = torch.tensor([longest])
    ((found, second),) = beam(net, source_BS, lengths_B, limits_B, 60, 2, length_penalty=0.0)
    assert found.tokens == best[0][1]
    assert found.log_probability == pytest.approx(best[0][0], abs=1e-4)
    assert second.tokens == best[1][1]
    ((one,),) = greedy(net, source_BS, lengths_B, limits_B)
    words = []
    while len(words) < longest - 1:
        log_probs_X = net.logits(source_BS, lengths_B, torch.tensor([[BEGIN, *words]]))[0, -1]
        token = max((t for t in range(X) if t not in (PAD, BEGIN)), key=log_probs_X.__getitem__)
        if token == END:
            break
        words.append(token)
    assert one.tokens == words


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_a_token_that_training_never_saw_is_copied(kind: str) -> None:
    """A target is its source, and a 4 at the end. In training no token is unknown."""
    torch.manual_seed(1)
    draw, size, rows = random.Random(1), 12, 32
    part = {**KINDS[kind], "layers": 1}
    settings = {"width": 32, "dropout": 0.0, "encoder": part}
    settings["decoder"] = {**part, "copying": True}
    vocabulary = Vocabulary(size, size, [-1] * 4 + list(range(4, size)))
    net = build(recipe.Model.model_validate(settings), vocabulary)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(50):
        words = [[draw.randrange(5, size) for _ in range(3)] for _ in range(rows)]
        source_BS = torch.tensor([[*word, END] for word in words])
        target_BT = torch.tensor([[BEGIN, *word, 4, END] for word in words])
        loss = net.loss(source_BS, torch.full((rows,), 4), target_BT)
        optimizer.zero_grad()
        (loss.total / loss.tokens).backward()
        optimizer.step()
    new = 2 * size  # source vocabulary, target vocabulary, then places
    source_BS = torch.tensor([[6, new + 1, 8, END], [new, 7, new + 2, END]])
    with torch.inference_mode():
        found = greedy(net.eval(), source_BS, torch.tensor([4, 4]), torch.tensor([9, 9]))
    assert [one.tokens for (one,) in found] == [[6, size + 1, 8, 4], [size, 7, size + 2, 4]]
