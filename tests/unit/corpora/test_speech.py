"""The announcements: no text in two splits, the same each time, nothing left to fill in."""

from __future__ import annotations

from transduce.corpora.speech import ANNOUNCEMENT_COUNTS, PARTS, announcements


def test_splits_share_no_text() -> None:
    found = announcements()
    assert {split: len(texts) for split, texts in found.items()} == ANNOUNCEMENT_COUNTS
    everything = [text for texts in found.values() for text in texts]
    assert len(set(everything)) == len(everything)
    assert found == announcements()


def test_they_are_plain_words_and_every_choice_is_made() -> None:
    heard = " ".join(announcements()["train"])
    assert set(heard) <= set("abcdefghijklmnopqrstuvwxyz ")
    for choices in PARTS.values():
        assert all(f" {choice} " in f" {heard} " for choice in choices)
