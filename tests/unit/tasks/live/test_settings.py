"""When an utterance is over."""

from __future__ import annotations

import pytest

from transduce.errors import ModelError
from transduce.tasks.live import Endpointing

RULES = Endpointing(silence=1.0, sentence_silence=0.5, no_speech=4.0, longest=10.0)


@pytest.mark.parametrize(
    ("text", "silence", "length", "over"),
    [
        ("yes", 0.9, 3.0, False),
        ("yes", 1.0, 3.0, True),
        ("yes.", 0.4, 3.0, False),
        ("yes. ", 0.5, 3.0, True),
        ("जी हाँ।", 0.6, 3.0, True),
        ("", 3.9, 3.9, False),
        (" ", 4.0, 4.0, True),
        ("on and on", 0.0, 9.9, False),
        ("on and on", 0.0, 10.0, True),
    ],
)
def test_rules(text: str, silence: float, length: float, over: bool) -> None:
    assert RULES.ends(text, silence, length) is over


def test_rules_are_taken_from_settings() -> None:
    settings = {"beam": 4, "silence": 0.3}
    assert Endpointing.take(settings) == Endpointing(silence=0.3)
    assert settings == {"beam": 4}
    with pytest.raises(ModelError, match="longest is 0"):
        Endpointing(longest=0)
