"""The beam as a tree: what search really kept, dropped and ended."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from language import language_model
from tiny_models import tiny
from tiny_sounds import audio_model, noise
from transduce.inspection.look.beam import traced
from transduce.inspection.look.collect import collect
from transduce.tasks.audio_input import AudioSegment

SOURCE = "iroh made tea"
RECURRENT = {"kind": "recurrent"}


def written(nodes: list[list[Any]], number: int) -> list[str]:
    """The tokens from the root to a node."""
    tokens: list[str] = []
    while number:
        tokens.insert(0, nodes[number][1])
        number = nodes[number][0]
    return tokens


@pytest.mark.parametrize("kind", ["transformer", "recurrent", "language", "speech"])
def test_the_tree_is_what_search_did(kind: str) -> None:
    made: dict[str, Any] = {
        "transformer": lambda: (tiny(banned=True), SOURCE),
        "recurrent": lambda: (tiny(RECURRENT, RECURRENT, banned=True), SOURCE),
        "language": lambda: (language_model(), "te"),
        "speech": lambda: (audio_model(), AudioSegment.of("noise", noise(0.8))),
    }
    model, source = made[kind]()
    settings = {} if kind in ("transformer", "recurrent") else {"max_length": 4}
    outputs = model.run([source], beam=3, nbest=3, **settings)[0].alternatives
    page = collect(model, source, beam=3, **settings)
    assert [one["text"] for one in page["nbest"]] == [output.text for output in outputs]
    assert "_task" not in vars(model)
    size, nodes = page["beam"]["size"], page["beam"]["nodes"]
    assert size == 3
    depth = [0]
    for parent, *_ in nodes[1:]:
        depth.append(depth[parent] + 1)
    kept = Counter(depth[n] for n, node in enumerate(nodes) if node[3] == "kept" and n)
    assert max(kept.values()) <= size
    fates = {node[3] for node in nodes}
    assert {"kept", "pruned"} <= fates
    for parent, _, total, *_ in nodes[1:]:
        assert nodes[parent][3] == "kept", "only what was kept goes on"
        assert total <= nodes[parent][2] + 1e-3
    ended = {node[6]: n for n, node in enumerate(nodes) if node[6] is not None}
    for place, one in enumerate(page["nbest"]):
        assert written(nodes, ended[place]) == one["tokens"]
        assert nodes[ended[place]][5] == pytest.approx(one["score"], abs=2e-3)
        assert nodes[ended[place]][2] == pytest.approx(one["log_probability"], abs=0.02)


def test_what_was_pruned_was_worse_than_what_was_kept() -> None:
    nodes = collect(tiny(banned=True), SOURCE, beam=3)["beam"]["nodes"]
    depth = [0]
    for parent, *_ in nodes[1:]:
        depth.append(depth[parent] + 1)
    for step in range(1, 5):
        kept, pruned = (
            [node[2] for n, node in enumerate(nodes) if depth[n] == step and node[3] == fate]
            for fate in ("kept", "pruned")
        )
        assert len(kept) == 3
        assert max(pruned) <= min(kept)


def test_no_beam_no_tree() -> None:
    model = tiny(banned=True)
    assert collect(model, SOURCE, beam=1)["beam"] is None
    assert collect(model, SOURCE, target="tea")["beam"] is None
    twin, trace = traced(model)
    twin.run([SOURCE], sample=True)
    assert trace.steps == []


CONSTRAINTS: dict[str, dict[str, Any]] = {
    "must begin with the given prefix": {"prefix": "made"},
    "required phrase": {"include": ["tea"]},
    "complete an excluded phrase": {"exclude": ["oo"]},
    "repeat an n-gram": {"no_repeat_ngram": 1},
    "not among the allowed tokens": {"only": ["t", "e", "a"]},
}


@pytest.mark.parametrize("reason", CONSTRAINTS)
def test_what_a_constraint_bans_is_reported_with_the_reason(reason: str) -> None:
    model, settings = tiny(banned=True), CONSTRAINTS[reason]
    outputs = model.run([SOURCE], beam=3, nbest=3, **settings)[0].alternatives
    page = collect(model, SOURCE, beam=3, **settings)
    assert [one["text"] for one in page["nbest"]] == [output.text for output in outputs]
    nodes = page["beam"]["nodes"]
    banned = [number for number, node in enumerate(nodes) if node[3] == "banned"]
    assert banned
    assert all(reason in nodes[number][7] for number in banned)
    assert {node[7] for node in nodes if node[3] != "banned"} == {None}
    parents = {node[0] for node in nodes[1:]}
    assert not parents & set(banned), "nothing goes on from what is banned"
    if "exclude" in settings:
        assert all("".join(written(nodes, number)).endswith("oo") for number in banned)
    for place, one in enumerate(page["nbest"]):
        (ended,) = [number for number, node in enumerate(nodes) if node[6] == place]
        assert written(nodes, ended) == one["tokens"]
        assert nodes[ended][5] == pytest.approx(one["score"], abs=2e-3)


def test_each_of_several_constraints_has_its_own_reason() -> None:
    found = collect(tiny(banned=True), SOURCE, beam=3, exclude=["oo"], include=["tea"])["beam"]
    reasons = {node[7] for node in found["nodes"] if node[7]}
    assert any("excluded phrase" in reason for reason in reasons)
    assert any("required phrase" in reason for reason in reasons)


def test_banks_of_required_phrases_are_a_reason_too() -> None:
    beam = collect(tiny(banned=True), SOURCE, beam=3, include=["tea"])["beam"]
    assert beam["phrases"]
    assert beam["size"] == 4, "one bank for each number of its three letters, and one for none"
    by_bank = [node for node in beam["nodes"] if node[3] == "bank"]
    assert by_bank
    for node in by_bank:
        kept = [one[2] for one in beam["nodes"] if one[3] == "kept"]
        assert node[2] > min(kept)


def test_the_search_of_a_gpu_gives_way_to_one_that_can_be_seen() -> None:
    class Graphs:
        def run(self, *jobs: Any) -> Any:
            raise AssertionError("captured graphs cannot be looked into")

    model = tiny(banned=True)
    plain = collect(model, SOURCE, beam=3)
    vars(model)["_fast_search"] = lambda context: Graphs()
    with pytest.raises(AssertionError):
        model.run([SOURCE], beam=3)
    assert collect(model, SOURCE, beam=3)["beam"] == plain["beam"]


def test_why_there_is_no_tree_is_reported() -> None:
    model = tiny(banned=True)
    assert "sampled" in collect(model, SOURCE, sample=True)["no_beam"]
    assert "groups" in collect(model, SOURCE, beam=4, groups=2)["no_beam"]
    assert collect(model, SOURCE, beam=4)["no_beam"] == ""
