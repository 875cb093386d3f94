"""Announcements read aloud: voices of the test are in no other split, and it is made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from transduce.corpora import check_named
from transduce.data.audio.read import parse_place
from transduce.data.text.pairs import read_pairs
from transduce.errors import DataError
from transduce.recipe import Named
from transduce.synthesis import announcements as made

pytest.importorskip("espeakng_loader", reason="needs the package espeakng-loader")


def test_voices_are_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"train": ["bus one", "bus two", "bus three"], "valid": ["bus four"], "test": ["tram"]}
    monkeypatch.setenv("TRANSDUCE_DATA", str(tmp_path))
    monkeypatch.setattr(made, "announcements", lambda: texts)
    monkeypatch.setattr(made, "KNOWN", made.KNOWN[:2])
    corpora = [Named(name="announcements", split=split) for split in ("train", "valid", "test")]
    with pytest.raises(DataError, match="`transduce demo speech` makes it"):
        check_named(corpora[0])
    seen: list[int] = []
    place, new = made.make_announcements(2, lambda done, total: seen.append(total - done))
    assert new
    assert seen[-1] == 0
    voices = []
    for corpus in corpora:
        check_named(corpus)
        pairs = list(read_pairs(corpus, None))
        files = [parse_place(pair.source)[0] for pair in pairs]
        assert {pair.target for pair in pairs} == set(texts[corpus.split])
        assert all(file.is_file() for file in files)
        voices.append({file.parent.name for file in files})
    assert voices[0] == {"f2", "m1"}
    assert voices[1] <= voices[0]
    assert not voices[2] & voices[0]
    assert made.make_announcements(2, lambda done, total: None) == (place, False)
