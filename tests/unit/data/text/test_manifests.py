"""Kaldi data folders and Lhotse manifests, as recordings of a recipe and as a folder of data."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from transduce.automatic.inspect import inspect
from transduce.data.audio.read import parse_place
from transduce.data.text.pairs import Pair, read_pairs
from transduce.errors import DataError
from transduce.evaluation.items import given_files
from transduce.recipe import Recordings, parse_recipe

RATE = 4000
WORDS = ["one two", "three", "four five six", "seven"] * 12


def write_sounds(folder: Path, count: int = len(WORDS), seconds: float = 0.5) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(1).normal(0, 0.1, round(seconds * RATE))
    for number in range(count):
        soundfile.write(folder / f"{number}.wav", noise, RATE)


@pytest.fixture
def kaldi(tmp_path: Path) -> Path:
    """egs/data/train, whose paths begin in egs, as Kaldi's do; long recordings with segments."""
    egs = tmp_path / "egs"
    write_sounds(egs / "wavs")
    folder = egs / "data" / "train"
    folder.mkdir(parents=True)
    numbers = range(len(WORDS))
    (folder / "wav.scp").write_text("".join(f"rec{n} wavs/{n}.wav\n" for n in numbers))
    (folder / "segments").write_text(
        "".join(f"utt{n} rec{n} 0.1 {0.3 + n / 1000}\n" for n in numbers)
    )
    (folder / "text").write_text("".join(f"utt{n} {WORDS[n]}\n" for n in numbers))
    (folder / "utt2spk").write_text("".join(f"utt{n} spk{n % 2}\n" for n in numbers))
    return folder


def pairs_of(file: object, kind: str) -> list[Pair]:
    return list(read_pairs(Recordings.model_validate({"file": str(file), "format": kind}), None))


def test_a_kaldi_folder(kaldi: Path) -> None:
    for file in (kaldi, kaldi / "text"):
        pairs = pairs_of(file, "kaldi")
        assert [pair.target for pair in pairs] == WORDS
        assert [pair.group for pair in pairs[:3]] == ["spk0", "spk1", "spk0"]
        path, start, end = parse_place(pairs[5].source)
        assert path.resolve() == kaldi.parents[1] / "wavs" / "5.wav"
        assert (start, end) == (0.1, 0.305)
    (kaldi / "segments").unlink()
    (kaldi / "utt2spk").unlink()
    (kaldi / "text").write_text("rec3 seven\n\nrec4\n")
    whole = pairs_of(kaldi, "kaldi")
    assert [(pair.target, pair.group) for pair in whole] == [
        ("seven", "")
    ]  # no text: nothing to learn
    assert parse_place(whole[0].source)[2] is None


@pytest.mark.parametrize(
    ("file", "line", "words"),
    [
        (
            "wav.scp",
            "rec0 sph2pipe -f wav x.sph |",
            "wav.scp:1: 'sph2pipe -f wav x.sph |' is a com",
        ),
        ("wav.scp", "rec0 raw.ark:34", "is not an audio file"),
        ("wav.scp", "rec0", "no path behind rec0"),
        ("segments", "utt0 rec0 0.1", "segments:1: write utterance, recording, start and end"),
        ("segments", "utt0 rec9x 0.1 0.2", "rec9x is not in .*wav.scp"),
        ("text", "utt99 hello", "text:1: utt99 is not in .*segments"),
        ("segments", "utt0 rec0 0.1 x", "'x' is not a number of seconds"),
    ],
)
def test_mistakes_in_a_kaldi_folder(kaldi: Path, file: str, line: str, words: str) -> None:
    rest = (kaldi / file).read_text().split("\n", 1)[1]
    (kaldi / file).write_text(f"{line}\n{rest}")
    with pytest.raises(DataError, match=words):
        pairs_of(kaldi, "kaldi")


def test_a_kaldi_folder_without_wav_scp(kaldi: Path) -> None:
    (kaldi / "wav.scp").unlink()
    with pytest.raises(DataError, match=r"has no wav\.scp"):
        pairs_of(kaldi, "kaldi")


def recording(path: str, **more: Any) -> dict[str, Any]:
    source = {"type": "file", "channels": [0], "source": path}
    return {"id": path, "sources": [source], "sampling_rate": RATE, "duration": 0.5, **more}


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def supervision(number: int) -> dict[str, Any]:
    return {
        "id": f"utt{number}",
        "recording_id": f"wavs/{number}.wav",
        "start": 0.1,
        "duration": 0.25,
        "channel": 0,
        "text": WORDS[number],
        "speaker": f"spk{number % 2}",
    }


def cut(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"cut{number}",
        "start": 0.0,
        "duration": 0.5,
        "channel": 0,
        "supervisions": [supervision(number)],
        "recording": recording(f"wavs/{number}.wav"),
        "type": "MonoCut",
        **more,
    }


def test_lhotse_supervisions_and_cuts(tmp_path: Path) -> None:
    write_sounds(tmp_path / "wavs")
    numbers = range(len(WORDS))
    said = write_jsonl(tmp_path / "x_supervisions_a.jsonl.gz", [supervision(n) for n in numbers])
    with pytest.raises(DataError, match=r"not beside it as x_recordings_a\.jsonl\.gz"):
        pairs_of(said, "lhotse")
    found = [recording(f"wavs/{n}.wav") for n in numbers]
    write_jsonl(tmp_path / "x_recordings_a.jsonl.gz", found)
    pairs = pairs_of(said, "lhotse")
    assert [pair.target for pair in pairs] == WORDS
    assert pairs[3].group == "spk1"
    path, start, end = parse_place(pairs[3].source)
    assert (path, start, end) == (tmp_path / "wavs" / "3.wav", 0.1, 0.35)
    cuts = write_jsonl(tmp_path / "cuts.jsonl.gz", [cut(n) for n in numbers])
    of_cuts = pairs_of(cuts, "lhotse")
    assert [pair.target for pair in of_cuts] == WORDS
    assert parse_place(of_cuts[3].source)[1:] == (0.0, 0.5)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"type": "MixedCut"}, "a cut of type 'MixedCut'"),
        ({"recording": None}, "features alone"),
        ({"recording": recording("a.wav", transforms=[{"name": "Speed"}])}, "to be transformed"),
        ({"recording": recording("a.wav", sources=[])}, "of one audio file"),
        (
            {"recording": recording("a", sources=[{"type": "command", "source": "rm -r x |"}])},
            "is a 'command', not a file",
        ),
        (
            {"recording": recording("a", sources=[{**recording("a")["sources"][0],
                                                   "channels": [0, 1]}])},
            "channel 0 of 2 is meant",
        ),
        ({"duration": "long"}, "numbers of seconds"),
        ({"supervisions": ["a"]}, "must be a list of objects"),
    ],
)  # fmt: skip
def test_cuts_that_are_more_than_a_file_and_a_text(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    file = write_jsonl(tmp_path / "cuts.jsonl.gz", [cut(0, **changed)])
    with pytest.raises(DataError, match=rf"cuts\.jsonl\.gz:1: .*{words}"):
        pairs_of(file, "lhotse")


def test_folders_of_data_are_recognised(kaldi: Path, tmp_path: Path) -> None:
    dev = kaldi.parent / "dev"
    kaldi.rename(dev)
    found = inspect([dev])
    assert found.task == "audio to text"
    assert found.corpora == {"train": {"file": "text", "format": "kaldi"}}
    assert found.rows == len(WORDS)
    with pytest.raises(DataError, match="no name says which is for training"):
        inspect_two(dev)
    train = dev.parent / "train"
    for name in ("wav.scp", "segments", "text"):
        train.mkdir(exist_ok=True)
        (train / name).write_bytes((dev / name).read_bytes())
    found = inspect([dev.parent])
    assert found.name == "data"
    assert found.corpora["valid"] == {"file": "../dev/text", "format": "kaldi"}
    assert "a Kaldi data folder, with valid beside it" in found.seen[0]
    assert found.sound is not None
    assert 0.2 < found.sound.seconds.median / 100 < 0.25  # of segments, not of files

    lhotse = tmp_path / "manifests"
    write_sounds(lhotse / "wavs")
    for part in ("train", "dev"):
        file = lhotse / f"digits_cuts_{part}.jsonl.gz"
        write_jsonl(file, [cut(n) for n in range(len(WORDS))])
    found = inspect([lhotse])
    assert found.corpora["train"] == {"file": "digits_cuts_train.jsonl.gz", "format": "lhotse"}
    assert found.corpora["valid"]["file"] == "digits_cuts_dev.jsonl.gz"
    assert inspect([lhotse / "digits_cuts_dev.jsonl.gz"]).rows == len(WORDS)


def inspect_two(dev: Path) -> None:
    other = dev.parent / "more"
    other.mkdir()
    (other / "wav.scp").write_text("")
    try:
        inspect([dev.parent])
    finally:
        (other / "wav.scp").unlink()
        other.rmdir()


def test_a_recipe_needs_no_columns(kaldi: Path) -> None:
    text = f"""
data:
  train: {{file: {kaldi}, format: kaldi, split: 0-80%}}
  valid: {{file: {kaldi}, format: kaldi, split: 80-100%}}
  tokens: {{both: {{level: character}}}}
audio: {{sample_rate: {RATE}}}
"""
    data = parse_recipe(text, "digits", kaldi).data
    assert isinstance(data.train, Recordings)
    assert data.train.group == "speaker"
    parts = [list(read_pairs(one, None)) for one in (data.train, data.valid)]
    assert sum(map(len, parts)) == len(WORDS)
    assert all(parts)


@pytest.mark.parametrize("trained", ["kaldi", "lhotse", "table"])
def test_a_model_is_evaluated_on_lists_of_another_kind(
    kaldi: Path, tmp_path: Path, trained: str
) -> None:
    """Whatever it was trained from: each kind of list has columns of its own."""
    sound = kaldi.parents[1] / "wavs" / "5.wav"
    rows = {
        "paths.tsv": f"path\ttext\n{sound}\tfour five six\n",
        "aligned.tsv": f"audio\tstart\tend\ttext\n{sound}\t0.1\t0.3\tfour five six\n",
    }
    for name, text in rows.items():
        (tmp_path / name).write_text(text)
    cuts = write_jsonl(kaldi.parents[1] / "cuts.jsonl.gz", [cut(2)])
    like = {
        "kaldi": {"file": "data/train", "format": "kaldi"},
        "lhotse": {"file": "cuts.jsonl.gz", "format": "lhotse"},
        "table": {"file": "train.tsv", "audio": "path"},
    }[trained]
    train = Recordings.model_validate(like)
    data = SimpleNamespace(train=train, valid=None, test=None)
    model: Any = SimpleNamespace(recipe=SimpleNamespace(data=data))

    def evaluated_on(source: Path) -> list[tuple[str, str]]:
        corpus, _ = given_files(model, source, None)
        return [(Path(pair.source).name, pair.target) for pair in read_pairs(corpus, None)]

    assert evaluated_on(tmp_path / "paths.tsv") == [("5.wav", "four five six")]
    if trained != "table":  # which has its own names of columns
        assert evaluated_on(tmp_path / "aligned.tsv") == [("5.wav#t=0.1,0.3", "four five six")]
    assert [target for _, target in evaluated_on(cuts)] == [WORDS[2]]
    assert [target for _, target in evaluated_on(kaldi)] == WORDS
    # As for `run`, the columns are those of the test part, if there is one.
    data.test = Recordings(file="test.tsv", audio="audio", start="start", end="end")
    assert evaluated_on(tmp_path / "aligned.tsv") == [("5.wav#t=0.1,0.3", "four five six")]
