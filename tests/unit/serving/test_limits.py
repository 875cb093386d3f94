"""Limits of time and of length: one timer for many requests, texts that are short enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import itemgetter
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transduce import recipe
from transduce.data.tokens.tokenizer import Tokens
from transduce.serving.deadlines import Deadlines
from transduce.serving.protocols.translation import is_short

LEARNT = ["A dog runs <s> over the street.", "one two", "#!/ \t\n"] * 3
KINDS: dict[str, dict[str, object]] = {
    "character": {},
    "byte": {},
    "word": {},
    "symbol": {},
    "bpe": {"level": "subword", "algorithm": "bpe", "size": 60},
    "unigram": {"level": "subword", "algorithm": "unigram", "size": 60},
}
PARTS = st.text(st.characters(max_codepoint=127)) | st.sampled_from(["<s>", "<pad>", "<", " "])
TOKENS = {
    name: Tokens.train(recipe.Tokens.model_validate({"level": name, **keys}), LEARNT)
    for name, keys in KINDS.items()
}


class Clock:
    """A loop's timers, run by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.made: list[str] = []
        own = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr("transduce.serving.deadlines.time", own)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((self.now + seconds, call))

    def pass_until(self, when: float) -> list[str]:
        while self.timers and min(self.timers, key=itemgetter(0))[0] <= when:
            self.timers.sort(key=itemgetter(0))
            self.now, call = self.timers.pop(0)
            call()
        self.now = when
        made, self.made = self.made, []
        return made


def test_calls_are_made_in_time_unless_they_are_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr("asyncio.get_running_loop", lambda: clock)
    deadlines = Deadlines(10.0)
    deadlines.add(lambda: clock.made.append("a"))
    assert clock.pass_until(4.0) == []
    b, c = (lambda: clock.made.append("b")), (lambda: clock.made.append("c"))
    deadlines.add(b)
    deadlines.add(c)
    deadlines.discard(b)
    assert clock.pass_until(9.9) == []
    assert clock.pass_until(10.1) == ["a"]
    deadlines.add(b)
    assert len(clock.timers) == 1
    assert clock.pass_until(13.9) == []
    assert clock.pass_until(14.1) == ["c"]
    assert clock.pass_until(20.2) == ["b"]
    assert clock.timers == []
    deadlines.discard(b)  # too late, and no harm
    for _ in range(50):
        deadlines.add(c)
        deadlines.discard(c)
    assert len(clock.timers) == 1
    assert clock.pass_until(99.0) == []
    deadlines.add(c)
    assert clock.pass_until(109.0) == ["c"]


def test_another_event_loop_has_a_timer_of_its_own() -> None:
    async def use() -> None:
        done = asyncio.Event()
        deadlines.add(done.set)
        await asyncio.wait_for(done.wait(), 100)

    async def leave() -> None:
        deadlines.add(call := (lambda: None))
        deadlines.discard(call)

    deadlines = Deadlines(0.01)
    asyncio.run(leave())
    asyncio.run(use())


@pytest.mark.parametrize("kind", KINDS)
@given(parts=st.lists(PARTS))
@example(parts=["<s>", "<pad>"])
def test_a_text_taken_for_short_has_no_more_tokens(kind: str, parts: list[str]) -> None:
    tokens, text = TOKENS[kind], "".join(parts)
    count = len(tokens.encode(text))
    assert not is_short(tokens, text, count - 1)


def test_a_short_text_need_not_be_tokenized() -> None:
    assert is_short(TOKENS["bpe"], "A dog runs.", 20)
    assert not is_short(TOKENS["byte"], "é" * 10, 15)
