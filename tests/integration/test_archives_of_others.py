"""Archives that the real libraries have written: WebDataset's, and Shar of Lhotse.

Needs pip install webdataset lhotse, in an environment of its own.
"""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tones import RATE, tones
from transduce.data.audio.read import parse_place, read_audio
from transduce.data.text.pairs import Pair, read_pairs
from transduce.recipe import Recordings

WORDS = ["ab", "cde", "a b c", "d", "ed"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def pairs_of(file: str, kind: str, **more: str) -> list[Pair]:
    corpus = Recordings.model_validate({"file": file, "format": kind, **more})
    return list(read_pairs(corpus, None))


def check_audio(pairs: list[Pair], cut: float = 0.0) -> None:
    """Each pair has the tones of its word, from `cut` seconds on."""
    assert [pair.target for pair in pairs] == WORDS
    for pair, word in zip(pairs, WORDS, strict=True):
        path, start, end = parse_place(pair.source)
        assert (start, end) == (0.0, None)
        expected = tones(word)[round(cut * RATE) :]
        found = read_audio(path, RATE).samples
        assert len(found) == len(expected)
        assert np.abs(found - expected).max() < 1e-3


@pytest.mark.skipif(find_spec("webdataset") is None, reason="needs pip install webdataset")
@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_shards_of_webdataset(tmp_path: Path, kind: str) -> None:
    import webdataset

    with webdataset.ShardWriter(str(tmp_path / "a-%06d.tar"), maxcount=2, verbose=0) as writer:
        for number, word in enumerate(WORDS):
            buffer = io.BytesIO()
            soundfile.write(buffer, tones(word), RATE, format=kind.upper())
            sample: dict[str, Any] = {"__key__": f"one.two/{number:04d}", kind: buffer.getvalue()}
            facts = {"speaker": f"s{number % 2}", "words": word}
            writer.write({**sample, "txt": word, "said.txt": word, "json": facts})
    for file in ("a-*.tar", "a-{000000..000002}.tar"):
        pairs = pairs_of(str(tmp_path / file), "webdataset")
        check_audio(pairs)
        assert [pair.group for pair in pairs] == ["s0", "s1", "s0", "s1", "s0"]
    for column in ("words", "said.txt"):
        check_audio(pairs_of(str(tmp_path / "a-*.tar"), "webdataset", target=column))


@pytest.mark.skipif(find_spec("lhotse") is None, reason="needs pip install lhotse")
@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_shar_of_lhotse(tmp_path: Path, kind: str) -> None:
    """Whole cuts, and cuts of the middle of a recording; one has no words, which is left out."""
    from lhotse import CutSet, MonoCut, Recording, SupervisionSegment, fastcopy

    def cut(number: int, word: str) -> MonoCut:
        file = tmp_path / f"{number}.wav"
        soundfile.write(file, tones(word), RATE)
        recording = Recording.from_file(file, recording_id=f"rec.{number}")
        said = SupervisionSegment(
            f"said-{number}", recording.id, 0, recording.duration, text=word, speaker=f"s{number}"
        )
        return MonoCut(f"c.{number}", 0, recording.duration, 0, [said], recording=recording)

    whole = [cut(number, word) for number, word in enumerate(WORDS)]
    without = fastcopy(whole[1], id="without", supervisions=[])
    later = [one.truncate(offset=0.05, preserve_id=True) for one in whole]
    for name, cuts, start in (("whole", [without, *whole], 0.0), ("later", later, 0.05)):
        folder = tmp_path / name
        folder.mkdir()
        CutSet.from_cuts(cuts).to_shar(folder, fields={"recording": kind}, shard_size=2)
        assert len(list(folder.glob("recording.*.tar"))) == 3
        pairs = pairs_of(str(folder / "cuts.*.jsonl.gz"), "shar")
        check_audio(pairs, start)
        assert [pair.group for pair in pairs] == ["s0", "s1", "s2", "s3", "s4"]
