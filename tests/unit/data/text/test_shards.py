"""Audio in tar archives, of WebDataset and of Lhotse Shar: nothing is unpacked."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import soundfile

from tones import RATE, RECIPE, tones
from transduce.data.audio.corpus import encode_recordings
from transduce.data.audio.read import parse_place, read_audio
from transduce.data.text import shards
from transduce.data.text.pairs import Pair, ReadingCounts, read_pairs
from transduce.data.tokens.sides import train_tokens
from transduce.errors import DataError
from transduce.recipe import Recordings, parse_recipe

WORDS = ["ab", "cde", "a b c", "d"]


def sound(text: str, kind: str = "WAV") -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, tones(text), RATE, format=kind)
    return buffer.getvalue()


def archive(members: dict[str, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as made:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            made.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def webdataset(words: list[str] = WORDS, kind: str = "flac", folder: str = "") -> bytes:
    members = {}
    for number, word in enumerate(words):
        key = f"{folder}{number:04d}"
        members[f"{key}.{kind}"] = sound(word, kind.upper())
        members[f"{key}.txt"] = f"{word}\n".encode()
        facts = {"speaker": f"s{number % 2}", "translation": word.upper(), "start": 77.0}
        members[f"{key}.json"] = json.dumps(facts).encode()
    return archive(members)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pairs_of(file: Any, kind: str = "webdataset", **more: Any) -> list[Pair]:
    corpus = Recordings.model_validate({"file": file, "format": kind, **more})
    return list(read_pairs(corpus, None, more.get("counts")))


def check_audio(pairs: list[Pair], words: list[str] = WORDS) -> None:
    assert [pair.target for pair in pairs] == words
    for pair, word in zip(pairs, words, strict=True):
        path, start, end = parse_place(pair.source)
        assert (start, end) == (0.0, None)
        found = read_audio(path, RATE).samples
        assert np.abs(found - tones(word)).max() < 1e-3


@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_samples_of_webdataset(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.tar").write_bytes(webdataset(kind=kind))
    pairs = pairs_of(str(tmp_path / "a.tar"))
    check_audio(pairs)
    assert [pair.group for pair in pairs] == ["s0", "s1", "s0", "s1"]
    assert [pair.line for pair in pairs] == [1, 2, 3, 4]
    other = pairs_of(str(tmp_path / "a.tar"), target="translation", transcript="txt")
    assert [(pair.target, pair.transcript) for pair in other][1] == ("CDE", "cde")


def test_texts_in_json_and_numbered_shards(tmp_path: Path) -> None:
    for number, word in enumerate(WORDS):
        facts = json.dumps({"text": word}).encode()
        members = {f"utt/{number}.wav": sound(word), f"utt/{number}.json": facts}
        (tmp_path / f"a-{number:03d}.tar").write_bytes(archive(members))
    check_audio(pairs_of(str(tmp_path / "a-{000..003}.tar")))
    check_audio(pairs_of(str(tmp_path / "*.tar")))
    assert len(pairs_of(str(tmp_path / "a-{001..002}.tar"))) == 2


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_names_too_long_for_a_header(tmp_path: Path, format: int) -> None:
    long = "folder/" * 20 + "é" * 90
    members = {f"{long}.wav": sound("ab"), f"{long}.txt": b"ab"}
    (tmp_path / "a.tar").write_bytes(archive(members, format))
    check_audio(pairs_of(str(tmp_path / "a.tar")), ["ab"])


def test_an_archive_is_indexed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tar").write_bytes(webdataset())
    before = pairs_of(str(tmp_path / "a.tar"))
    with monkeypatch.context() as patch:
        patch.setattr(shards, "_members", lambda *_: pytest.fail("it is read again"))
        assert pairs_of(str(tmp_path / "a.tar")) == before
    (tmp_path / "a.tar").write_bytes(webdataset(["e", "ab"]))
    check_audio(pairs_of(str(tmp_path / "a.tar")), ["e", "ab"])
    (index,) = (tmp_path / "cache").rglob("*.members.json")
    index.write_text(index.read_text()[:100])
    check_audio(pairs_of(str(tmp_path / "a.tar")), ["e", "ab"])


def test_an_archive_in_a_store(tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    store.pipe("/speech/a.tar", webdataset())
    try:
        pairs = pairs_of("memory://speech/a.tar")
        check_audio(pairs)
        assert pairs[0].source.startswith("memory://speech/a.tar#member=512,")
    finally:
        store.store.clear()


def test_a_part_of_the_samples_is_the_same_wherever_they_lie(tmp_path: Path) -> None:
    words = [letter * n for letter in "abcde" for n in range(1, 9)]
    for folder in ("one", "another"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.tar").write_bytes(webdataset(words, folder="x/"))
    halves = [
        [pair.target for pair in pairs_of(str(tmp_path / folder / "a.tar"), split=part)]
        for folder in ("one", "another")
        for part in ("0-50%", "50-100%")
    ]
    assert halves[:2] == halves[2:]
    assert sorted(halves[0] + halves[1]) == sorted(words)
    assert all(halves)


@pytest.mark.parametrize("other", [webdataset([*WORDS[1:], "e"]), webdataset(folder="x")])
def test_a_changed_archive_is_said(tmp_path: Path, other: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(webdataset())
    source = parse_place(pairs_of(str(tmp_path / "a.tar"))[2].source)[0]
    (tmp_path / "a.tar").write_bytes(other)
    with pytest.raises(DataError, match=r"a.tar has no 0002.flac at byte [\d,]+ any more"):
        read_audio(source)


def test_samples_without_audio_or_text_are_counted(tmp_path: Path) -> None:
    members = {"0.wav": sound("ab"), "0.txt": b"ab", "1.txt": b"no audio", "2.wav": sound("c")}
    (tmp_path / "a.tar").write_bytes(archive(members))
    counts = ReadingCounts()
    corpus = Recordings.model_validate({"file": str(tmp_path / "a.tar"), "format": "webdataset"})
    assert [pair.target for pair in read_pairs(corpus, None, counts)] == ["ab"]
    assert (counts.empty_source, counts.empty_target) == (1, 1)


def test_what_is_no_archive_is_said(tmp_path: Path) -> None:
    whole = webdataset()
    cases = {
        "gz": (gzip.compress(whole), "is compressed, and cannot be read from its middle"),
        "cut": (whole[: len(whole) // 2], "damaged or truncated"),
        "last": (archive({"0.txt": b"ab", "0.wav": sound("ab")})[:2000], "damaged or truncated"),
        "other": (b"RIFF" * 500, "is not a tar archive"),
        "latin": (archive({"0.txt": "é".encode("latin1")}), "the text in 0.txt is not UTF-8"),
        "json": (archive({"0.wav": sound("a"), "0.json": b"{"}), "0.json is not valid JSON"),
        "column": (archive({"0.wav": sound("a"), "0.lab": b"a"}), "has no text; it has audio, wav"),
    }
    for name, (content, sentence) in cases.items():
        (tmp_path / f"{name}.tar").write_bytes(content)
        with pytest.raises(DataError, match=sentence):
            pairs_of(str(tmp_path / f"{name}.tar"))


def test_members_that_are_no_samples(tmp_path: Path) -> None:
    """What tar on a Mac adds, and what lies beside the samples."""
    members = {"README": b"read me", "._a.wav": b"\x00\x05", "._a.txt": b"\xff\xfe"}
    members |= {"a.wav": sound("ab"), "a.txt": b"ab", "d/.DS_Store": b"\x00"}
    (tmp_path / "a.tar").write_bytes(archive(members))
    check_audio(pairs_of(str(tmp_path / "a.tar")), ["ab"])


def test_names_that_cannot_be_used_are_said(tmp_path: Path) -> None:
    latin = b"\xe4.wav".decode("utf-8", "surrogateescape")
    (tmp_path / "a.tar").write_bytes(archive({latin: sound("ab")}, tarfile.GNU_FORMAT))
    with pytest.raises(DataError, match=r"a\.tar: the name '.udce4\.wav' in it is not UTF-8; rena"):
        pairs_of(str(tmp_path / "a.tar"))
    with pytest.raises(DataError, match=r"\{5\.\.3\} counts downwards; write the lower number"):
        pairs_of(str(tmp_path / "a-{5..3}.tar"))


def shar(folder: Path, number: int, words: list[str]) -> None:
    """A shard as Lhotse's SharWriter writes it: cuts, and the audio of each of them."""
    folder.mkdir(exist_ok=True)
    members: dict[str, bytes] = {}
    cuts = []
    for at, word in enumerate(words):
        name = f"rec.{number}-{at}"
        recording = {
            "id": f"rec.{number}",
            "sources": [{"type": "shar", "channels": [0], "source": ""}],
            "sampling_rate": RATE,
            "num_samples": len(tones(word)),
            "duration": len(tones(word)) / RATE,
        }
        if word:
            members[f"{name}.flac"] = sound(word, "FLAC")
            members[f"{name}.json"] = json.dumps(recording).encode()
        else:
            members |= {f"{name}.nodata": b"", f"{name}.nometa": b""}
        said = {"id": name, "recording_id": "rec", "start": 0.0, "duration": 1.0, "text": word}
        cut = {"id": name, "start": 12.5, "duration": len(tones(word)) / RATE, "channel": 0}
        cut |= {"supervisions": [said | {"speaker": f"s{at}"}], "type": "MonoCut"}
        cuts.append(cut | {"recording": recording})
    lines = "".join(json.dumps(cut) + "\n" for cut in cuts)
    (folder / f"cuts.{number:06d}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / f"recording.{number:06d}.tar").write_bytes(archive(members))


def test_shards_of_lhotse(tmp_path: Path) -> None:
    shar(tmp_path, 0, WORDS[:2])
    shar(tmp_path, 1, [*WORDS[2:], ""])
    pairs = pairs_of(str(tmp_path / "cuts.*.jsonl.gz"), "shar")
    check_audio(pairs)
    assert [pair.group for pair in pairs] == ["s0", "s1", "s0", "s1"]
    (tmp_path / "recording.000001.tar").unlink()
    with pytest.raises(DataError, match=r"no recordings beside it, as recording\.000001\.tar"):
        pairs_of(str(tmp_path / "cuts.*.jsonl.gz"), "shar")
    (tmp_path / "recording.000001.tar").write_bytes(archive({"x.flac": b"", "x.json": b""}))
    with pytest.raises(DataError, match=r"000001.jsonl.gz:1: the cut 'rec.1-0' is not in the arch"):
        pairs_of(str(tmp_path / "cuts.*.jsonl.gz"), "shar")


def test_a_recipe_learns_from_archives(tmp_path: Path) -> None:
    (tmp_path / "train.tar").write_bytes(webdataset())
    text = RECIPE.replace("{file: train.tsv, audio: path, target: text}", "TRAIN")
    text = text.replace("TRAIN", "{file: train.tar, format: webdataset}")
    recipe = parse_recipe(text, "tones", tmp_path)
    assert recipe.audio is not None
    tokens, _ = train_tokens(recipe.data, print)
    cache = tmp_path / "samples"
    made, report = encode_recordings(
        recipe.data.train, recipe.data, recipe.audio, tokens, tokens, cache
    )
    assert [tokens.decode(made.target(row)) for row in range(len(made))] == WORDS
    assert [len(made.wave(row)) for row in range(4)] == [len(tones(word)) for word in WORDS]
    assert report.unreadable == 0
    assert made.groups is not None
    assert made.groups.tolist() == [0, 1, 0, 1]
