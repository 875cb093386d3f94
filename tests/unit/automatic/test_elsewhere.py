"""Recordings that are not where a table says, and texts that are in files of transcripts."""

from __future__ import annotations

import array
import wave
from pathlib import Path
from typing import Any

import pytest

from transduce.automatic import Found, inspect
from transduce.automatic.rewrite import PREFIX
from transduce.errors import DataError

pytest.importorskip("soundfile")
SEAS = [f"{a} and the {b}" for a in ("cat", "dog", "sun", "tree") for b in ("sea", "road", "moon")]
TEXTS = [f"the {SEAS[n % 12]} of {'mnprs'[n // 12]} {n}" for n in range(60)]


def found(path: Path, **hints: Any) -> Found:
    return inspect([path], hints)


def sound(path: Path, rate: int = 8000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(array.array("h", [0, 99] * (rate // 20)).tobytes())


def sounds(folder: Path, count: int = 60) -> None:
    for number in range(count):
        sound(folder / f"u{number}.wav")


def write(path: Path, rows: list[list[str]], separator: str = "\t") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(separator.join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def paths(it: Found, part: str = "train") -> list[str]:
    lines = (it.folder / it.corpora[part]["file"]).read_text("utf-8").splitlines()
    place = lines[0].split("\t").index("path")
    return [line.split("\t")[place] for line in lines[1:]]


@pytest.mark.parametrize(
    ("table", "folder", "cell"),
    [
        ("list.tsv", "clips", "u{}.wav"),  # Common Voice
        ("list.tsv", "clips", "/home/ann/corpus/clips/u{}.wav"),  # from another machine
        ("list.tsv", "clips", r"C:\data\u{}.wav"),
        ("list.tsv", "data/wavs", "wavs/u{}.wav"),
    ],
)
def test_recordings_that_are_elsewhere_are_found(
    tmp_path: Path, table: str, folder: str, cell: str
) -> None:
    sounds(tmp_path / folder)
    rows = [["speaker", cell.format(n), text, "en"] for n, text in enumerate(TEXTS)]
    path = write(tmp_path / table, [["client_id", "path", "sentence", "locale"], *rows])
    it = found(path)
    corpus = it.corpora["train"]
    assert (it.task, it.rows, it.name) == ("audio to text", 60, "list")
    assert (corpus["file"], corpus["target"]) == (f"{PREFIX}list.tsv", "sentence")
    assert "tags" not in corpus  # of one language
    assert "locale: the same in every row" in it.seen[2]
    assert [(it.folder / one).resolve() for one in paths(it)] == [
        (tmp_path / folder / f"u{n}.wav").resolve() for n in range(60)
    ]
    assert "its recordings are elsewhere" in it.seen[0]


def test_the_other_parts_are_found_too(tmp_path: Path) -> None:
    sounds(tmp_path / "clips")
    rows = [[f"u{n}.wav", text] for n, text in enumerate(TEXTS)]
    for part, some in (("train", rows[:50]), ("dev", rows[50:55]), ("test", rows[55:])):
        write(tmp_path / f"{part}.tsv", [["path", "sentence"], *some])
    it = found(tmp_path)
    assert {part: one["file"] for part, one in it.corpora.items()} == {
        "train": f"{PREFIX}train.tsv", "valid": f"{PREFIX}dev.tsv", "test": f"{PREFIX}test.tsv"
    }  # fmt: skip
    assert paths(it, "test") == [f"clips/u{n}.wav" for n in range(55, 60)]


def test_what_was_validated_is_taken_of_common_voice(tmp_path: Path) -> None:
    sounds(tmp_path / "clips")
    for name, count in (("validated", 60), ("other", 3), ("invalidated", 3)):
        rows = [[f"u{n}.wav", text] for n, text in enumerate(TEXTS[:count])]
        write(tmp_path / f"{name}.tsv", [["path", "sentence"], *rows])
    assert found(tmp_path).rows == 60


@pytest.mark.parametrize("given", ["metadata.csv", "."])
def test_ids_between_bars(tmp_path: Path, given: str) -> None:
    """As LJSpeech has them, with quotes that are text."""
    sounds(tmp_path / "wavs")
    rows = [[f"u{n}", text, f'"{text}'] for n, text in enumerate(TEXTS)]
    write(tmp_path / "metadata.csv", rows, "|")
    it = found(tmp_path / given)
    assert (it.task, it.rows) == ("audio to text", 60)
    assert paths(it)[7] == "wavs/u7.wav"
    it = found(tmp_path / given, target=2)
    assert it.corpora["train"]["target"] == "text2"
    line = (tmp_path / f"{PREFIX}metadata.tsv").read_text("utf-8").splitlines()[1]
    assert line.endswith(f'\t"{TEXTS[0]}')


def test_names_that_several_recordings_have_say_nothing(tmp_path: Path) -> None:
    for speaker in "ab":
        sounds(tmp_path / speaker)
    path = write(tmp_path / "list.tsv", [[f"u{n}.wav", text] for n, text in enumerate(TEXTS)])
    with pytest.raises(DataError, match="60 of 60 audio files are missing"):
        found(path)


def test_a_long_text_without_spaces_is_no_name_of_a_recording(tmp_path: Path) -> None:
    sounds(tmp_path / "audio", 1)
    rows = [["字" * 100 + text.replace(" ", ""), text] for text in TEXTS]
    assert found(write(tmp_path / "list.tsv", rows)).task == "text to text"


def test_data_beside_the_folder_is_said_and_not_taken(tmp_path: Path) -> None:
    """It may be other data with the same names."""
    sounds(tmp_path / "other" / "wavs")
    rows = [[f"wavs/u{n}.wav", text] for n, text in enumerate(TEXTS)]
    path = write(tmp_path / "mine" / "list.tsv", rows)
    with pytest.raises(
        DataError, match=r"are missing.* it is in \.\./other, so write \.\./other/ "
    ):
        found(path)


def test_transcripts_of_librispeech(tmp_path: Path) -> None:
    """The names of recordings are unique in their folder alone."""
    place = 0
    for part in ("train-clean-100", "dev-clean", "test-clean"):
        for chapter in ("1", "2"):
            folder = tmp_path / part / "19" / chapter
            count = 20 if part.startswith("train") else 5
            sounds(folder, count)
            rows = [[f"u{n}", TEXTS[place + n].upper()] for n in range(count)]
            write(folder / f"19-{chapter}.trans.txt", rows, " ")
            place += count
    it = found(tmp_path)
    assert (it.task, it.rows) == ("audio to text", 40)
    assert it.corpora["valid"]["where"] == {"column": "split", "value": "dev"}
    lines = (tmp_path / f"{PREFIX}list.tsv").read_text("utf-8").splitlines()
    rows = [line.split("\t") for line in lines[1:]]
    assert {row[1] for row in rows} == {text.upper() for text in TEXTS}
    assert ["train-clean-100/19/2/u3.wav", TEXTS[23].upper(), "train"] in rows
    assert "their texts in files of transcripts" in it.seen[0]


def test_speech_commands(tmp_path: Path) -> None:
    for label in ("yes", "no"):
        sounds(tmp_path / label, 30)
    sounds(tmp_path / "_background_noise_", 3)
    for name, some in (("validation", range(5)), ("testing", range(5, 9))):
        lines = [[f"{label}/u{n}.wav"] for label in ("yes", "no") for n in some]
        write(tmp_path / f"{name}_list.txt", lines)
    it = found(tmp_path)
    assert (it.task, it.labels, it.rows) == ("audio to label", 2, 42)
    assert "_background_noise_ left out" in it.seen[0]
    assert "train 70 %, valid 17 %, test 13 % of the rows" in it.seen[1]


def test_several_sampling_rates_are_said(tmp_path: Path) -> None:
    for number in range(60):
        sound(tmp_path / f"u{number}.wav", 8000 if number % 4 else 16000)
    path = write(tmp_path / "list.tsv", [[f"u{n}.wav", text] for n, text in enumerate(TEXTS)])
    said = "Sampling rates: 8 kHz 75 %, 16 kHz 25 %; all are resampled to 8 kHz."
    assert said in found(path).seen


def test_recordings_with_times_of_another_program(tmp_path: Path) -> None:
    sounds(tmp_path)
    (tmp_path / "u0.TextGrid").touch()
    with pytest.raises(DataError, match=r"nothing that is read \(.TextGrid is not\) that says"):
        found(tmp_path)
