"""Jobs that arrive while others are being decoded get the hypotheses that they get alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from transduce import recipe
from transduce.decoding.cuda.graph_slots import Slots
from transduce.decoding.cuda.pool import CudaSearch
from transduce.decoding.search.continuous_batching import Job, Search, decode_feed
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build
from trickle import Trickle

V = 13


def network() -> EncoderDecoder:
    torch.manual_seed(3)
    side = {"layers": 1, "heads": 2, "feed_forward": 16}
    shape = {"width": 16, "dropout": 0.0, "encoder": side, "decoder": side}
    made = build(recipe.Model.model_validate(shape), Vocabulary(V, V))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made.eval().double()


def jobs(count: int) -> list[Job]:
    draw = random.Random(4)
    return [
        Job([draw.randrange(4, V) for _ in range(draw.randrange(1, 40))], draw.randrange(1, 40))
        for _ in range(count)
    ]


@pytest.mark.parametrize(("beam", "nbest"), [(1, 1), (3, 2)])
@torch.inference_mode()
def test_whoever_is_there_already(beam: int, nbest: int) -> None:
    made, every = network(), jobs(30)
    search, settings = CudaSearch(made, torch.float64), Search(beam, nbest, 0.8)
    expected = [search.run([job], settings)[0] for job in every]
    feed = Trickle(every, [1, 0, 2, 11, 1, 0, 0, 3], {4: 3, 29: 0})
    while feed.next < len(every):  # it ends whenever there is nothing to do
        decode_feed(search, feed, settings)
    assert feed.max_beside > 0  # some entered while others were under way
    assert set(range(30)) - set(feed.found) <= {4, 29}
    assert 29 not in feed.found
    for number, hypotheses in feed.found.items():
        assert [h.tokens for h in hypotheses] == [h.tokens for h in expected[number]]
        assert [h.score for h in hypotheses] == pytest.approx(
            [h.score for h in expected[number]], abs=1e-5
        )


@torch.inference_mode()
def test_a_gpu_is_busy_while_results_are_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def note(name: str) -> None:
        call = getattr(Slots, name)

        def noted(pool: Slots) -> Any:
            events.append(name)
            return call(pool)

        monkeypatch.setattr(Slots, name, noted)

    note("launch")
    note("go")

    class Noting(Trickle):
        def done(self, found: Any) -> None:
            events.append("done")
            super().done(found)

    every = jobs(12)
    feed = Noting(every, [1, 2, 3, 2, 1, 3], {})
    while feed.next < len(every):
        decode_feed(CudaSearch(network(), torch.float64), feed, Search())
    assert len(feed.found) == len(every)
    before = [events[place - 1] for place, name in enumerate(events) if name == "done"]
    assert "launch" in before  # the steps of the others are under way


@torch.inference_mode()
def test_a_cancelled_job_frees_its_slot() -> None:
    """The long one would take hundreds of steps; nobody waits for it."""
    made = network()
    search, settings = CudaSearch(made), Search(minimum=500)
    feed = Trickle([Job([5], 500), Job([6], 500)], [2], {0: 2, 1: 2})
    decode_feed(search, feed, settings)
    assert feed.found == {}
    assert feed.looks < 8
