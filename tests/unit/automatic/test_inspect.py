"""What a file is: format, columns, task, parts; and what is said of files that cannot be used."""

from __future__ import annotations

import gzip
import json
import re
import wave
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from transduce.automatic import Found, inspect
from transduce.automatic import sample as sampling
from transduce.automatic.columns import (
    LABELS,
    LANGUAGES,
    SOURCES,
    TAGS,
    TARGETS,
    TRANSCRIPTS,
    run_name,
)
from transduce.automatic.found import Side
from transduce.data.text.columns import first_line
from transduce.data.text.pairs import read_pairs
from transduce.errors import DataError
from transduce.recipe import Columns, Recordings

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PHONES = ["K", "AE", "T", "D", "AO", "G", "S", "IH"]


def word(number: int) -> str:
    return "".join(LETTERS[(number * 7 + place * 5) % 26] for place in range(3 + number % 5))


def phones(number: int) -> str:
    return " ".join(PHONES[number // 7**place % len(PHONES)] for place in range(4 + number % 3))


def sentence(number: int) -> str:
    return " ".join(word(number * 3 + place) for place in range(6 + number % 7)) + "."


def write(folder: Path, name: str, rows: list[list[str]], separator: str = "\t") -> Path:
    path = folder / name
    path.write_text("".join(separator.join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def found(path: Path, **hints: Any) -> Found:
    return inspect([path], hints)


PAIRS = [[word(n) + str(n), phones(n)] for n in range(200)]
SENTENCES = [[sentence(n), sentence(n + 5000).upper()] for n in range(200)]
REVIEWS = [[sentence(n), "good" if n % 3 else "bad"] for n in range(200)]
FORMS = [
    [word(n) + str(n), word(n) + "ed", ["V;PST", "N;PL", "V;PRS;3"][n % 3]] for n in range(200)
]
TAGGED = [" ".join(["the", word(n), word(n + 9), "."]) for n in range(200)]


def test_a_name_that_the_person_gives_is_in_a_header(tmp_path: Path) -> None:
    path = write(tmp_path, "my.tsv", [["Umgekehrt", "Wort"], *([b, a] for a, b in PAIRS)])
    it = found(path, source="Wort", target="Umgekehrt")
    assert it.corpora["train"] == {"file": "my.tsv", "source": "Wort", "target": "Umgekehrt"}
    assert it.rows == len(PAIRS)


def test_a_table_of_pairs_without_a_header(tmp_path: Path) -> None:
    it = found(write(tmp_path, "pairs.tsv", PAIRS))
    assert it.task == "text to text"
    assert it.corpora == {"train": {"file": "pairs.tsv", "source": 0, "target": 1, "header": False}}
    assert (it.rows, it.sources, it.whole) == (200, 200, True)
    assert it.source is not None
    assert (it.source.is_words, it.source.is_symbols) == (True, False)
    assert (it.target.is_symbols, it.target.scripts) == (True, ("Latin",))
    assert "column 0 → column 1" in it.seen[0]


def test_a_header_and_ids_are_recognised(tmp_path: Path) -> None:
    rows = [
        ["id", "french", "english"],
        *([f"utt-{n:03}", *row] for n, row in enumerate(SENTENCES)),
    ]
    for name, separator in (("pairs.csv", ","), ("pairs.tsv", "\t")):
        it = found(write(tmp_path, name, rows, separator))
        assert it.corpora["train"]["source"] == "french"
        assert it.corpora["train"]["target"] == "english"
        assert it.rows == 200
        assert "Not used: id: ids" in it.seen[1]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_labels_are_the_target_wherever_they_stand(order: tuple[int, int], tmp_path: Path) -> None:
    rows = [[row[place] for place in order] for row in REVIEWS]
    it = found(write(tmp_path, "reviews.tsv", rows))
    assert it.task == "text to label"
    assert it.labels == 2
    assert it.corpora["train"]["target"] == order.index(1)


def test_numbers_beside_a_label_are_not_the_label(tmp_path: Path) -> None:
    rows = [[label, str(n), str(n % 7), text] for n, (text, label) in enumerate(REVIEWS)]
    it = found(write(tmp_path, "imdb.tsv", rows))
    assert (it.corpora["train"]["source"], it.corpora["train"]["target"]) == (3, 0)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1)])
def test_features_become_tags(order: tuple[int, int, int], tmp_path: Path) -> None:
    it = found(write(tmp_path, "x.trn", [[row[place] for place in order] for row in FORMS]))
    corpus = it.corpora["train"]
    assert it.task == "text to text"
    assert it.tags == 6
    assert [corpus[key] for key in ("source", "target", "tags")] == [
        order.index(n) for n in (0, 1, 2)
    ]
    assert corpus["format"] == "tsv"


def test_tags_are_counted_and_named(tmp_path: Path) -> None:
    it = found(write(tmp_path, "x.tsv", FORMS))
    assert "6 different tags, up to 3 in a row (V 66.5 %, PST 33.5 %, " in " ".join(it.seen)
    cells = ([a, "de" if n % 4 else "fr", b] for n, (a, b) in enumerate(PAIRS))
    rows = [["word", "language", "phones"], *cells]
    seen = found(write(tmp_path, "y.tsv", rows)).seen
    assert "2 different tags, one in a row (de 75.0 %, fr 25.0 %)." in seen


def test_lemmas_that_repeat_are_no_labels_beside_features(tmp_path: Path) -> None:
    rows = [[word(n % 45), f"{word(n % 45)}{n}", FORMS[n % 200][2]] for n in range(900)]
    corpus = found(write(tmp_path, "forms.tsv", rows)).corpora["train"]
    assert [corpus[key] for key in ("source", "target", "tags")] == [0, 1, 2]


def test_json_lines_and_parquet(tmp_path: Path) -> None:
    rows = [{"id": n, "text": text, "label": label} for n, (text, label) in enumerate(REVIEWS)]
    path = tmp_path / "reviews.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    it = found(path)
    assert it.task == "text to label"
    assert it.corpora["train"] == {"file": "reviews.jsonl", "source": "text", "target": "label"}
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "reviews.parquet")
    same = found(tmp_path / "reviews.parquet")
    assert (same.task, same.rows, same.labels) == ("text to label", 200, 2)


def test_two_parallel_files_and_those_beside_them(tmp_path: Path) -> None:
    for part in ("train", "dev"):
        for place, ending in enumerate(("en", "de")):
            write(tmp_path, f"{part}.{ending}", [[row[place]] for row in SENTENCES])
    it = inspect([tmp_path / "train.en", tmp_path / "train.de"])
    assert it.task == "text to text"
    assert it.corpora["train"] == {"source": "train.en", "target": "train.de"}
    assert it.corpora["valid"] == {"source": "dev.en", "target": "dev.de"}
    assert "test" not in it.corpora
    assert it.name == "en-de"


@pytest.mark.parametrize("name", ["names.conll", "names.txt", "names.bio"])
def test_a_word_and_its_tag_in_each_line(name: str, tmp_path: Path) -> None:
    lines = [
        f"{one} {'NOUN' if one.isalpha() else 'PUNCT'}"
        for line in TAGGED
        for one in [*line.split(), ""]
    ]
    path = tmp_path / name
    path.write_text("\n".join(line if line != " PUNCT" else "" for line in lines), encoding="utf-8")
    it = found(path)
    assert (it.task, it.labels, it.rows) == ("words to tags", 2, 200)
    assert it.corpora["train"]["target"] == 1


def test_conllu_and_tags_in_a_table(tmp_path: Path) -> None:
    lines = []
    for line in TAGGED:
        for number, one in enumerate(line.split(), 1):
            lines.append(f"{number}\t{one}\t_\t{'X' if one.isalpha() else 'PUNCT'}" + "\t_" * 6)
        lines.append("")
    (tmp_path / "x.conllu").write_text("\n".join(lines) + "\n", encoding="utf-8")
    it = found(tmp_path / "x.conllu")
    assert (it.task, it.corpora["train"]["target"]) == ("words to tags", "upos")
    rows = [
        [line, " ".join("W" if one.isalpha() else "P" for one in line.split())] for line in TAGGED
    ]
    assert found(write(tmp_path, "x.tsv", rows)).task == "words to tags"


def test_running_text_is_for_a_language_model(tmp_path: Path) -> None:
    path = write(tmp_path, "play.txt", [[sentence(n)] if n % 4 else [""] for n in range(300)])
    it = found(path)
    assert it.task == "language model"
    assert it.corpora == {"train": {"text": "play.txt"}}
    assert it.rows == len(path.read_text("utf-8"))


def sound(path: Path, seconds: float = 0.1) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\x10\x00" * round(8000 * seconds))


def test_a_folder_of_sound_with_a_table(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    for n in range(60):
        sound(tmp_path / "clips" / f"{n}.wav")
    rows = [["path", "sentence"], *([f"clips/{n}.wav", sentence(n)] for n in range(60))]
    write(tmp_path, "list.tsv", rows)
    for path in (tmp_path, tmp_path / "list.tsv"):
        it = found(path)
        assert it.task == "audio to text"
        assert it.corpora["train"] == {"file": "list.tsv", "audio": "path", "target": "sentence"}
        assert it.sound is not None
        assert it.sound.rate == 8000
        assert it.sound.minutes == pytest.approx(0.1)
        assert it.sound.too_short == 1.0  # a tenth of a second, and a sentence
    assert found(tmp_path).name == run_name(tmp_path)  # the folder was given: its name, not list
    labels = [["path", "word"], *([f"clips/{n}.wav", "yes" if n % 2 else "no"] for n in range(60))]
    assert found(write(tmp_path, "labels.tsv", labels)).task == "audio to label"


def test_where_missing_recordings_are_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, "train.tsv", [[f"{n}.wav", sentence(n)] for n in range(60)])
    write(tmp_path, "dev.tsv", [["60.wav", sentence(60)]])
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "0.wav").touch()
    with pytest.raises(DataError, match="it is in clips, so write clips/ before each"):
        found(path)


@pytest.mark.parametrize("header", [True, False])
def test_a_table_that_names_recordings_without_their_ending(header: bool, tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    for n in range(60):
        sound(tmp_path / "clips" / f"utt-{n}.wav")
    names = [["utt", "split", "sentence"]] if header else []
    rows = [[f"utt-{n}", "train" if n % 3 else "test", sentence(n)] for n in range(90)]
    write(tmp_path, "transcripts.tsv", [*names, *rows])
    it = found(tmp_path)
    assert it.task == "audio to text"
    assert it.rows == 60  # of 90, a third is of the test set
    corpus = it.corpora["train"]
    assert (corpus["file"], corpus["audio"]) == ("transduce-transcripts.tsv", "path")
    assert corpus["target"] == ("sentence" if header else "text2")
    assert corpus["where"]["value"] == "train"
    lines = (tmp_path / "transduce-transcripts.tsv").read_text("utf-8").splitlines()
    assert lines[1] == f"clips/utt-0.wav\ttest\t{sentence(0)}"
    assert lines[90] == f"utt-89.wav\ttrain\t{sentence(89)}"
    assert "of 60 audio files are missing, such as" in it.warnings[-1]  # no row is lost silently


def test_utterances_of_long_recordings_and_files_that_cannot_be_read(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    for n in range(50):
        sound(tmp_path / f"{n}.wav", 1.0)
    (tmp_path / "7.wav").write_bytes(b"nothing")
    rows = [["path", "start", "end", "text"]]
    for n in range(50):
        rows += [[f"{n}.wav", str(t / 4), str((t + 1) / 4), sentence(n)] for t in (0, 1)]
    rows[5][1] = ""
    it = found(write(tmp_path, "list.tsv", rows))
    assert (it.corpora["train"]["start"], it.corpora["train"]["end"]) == ("start", "end")
    assert (it.rows, it.sources) == (100, 50)
    assert it.sound is not None
    assert it.sound.seconds.median == 25  # hundredths


def test_features_of_a_few_rows_become_tags(tmp_path: Path) -> None:
    moods = ["IND", "SBJV", "OPT", "IMP", "COND"]
    rows = [
        [
            word(n) + str(n),
            word(n),
            f"V;{moods[n % 5]};{'SG' if n % 2 else 'PL'};{n % 13};LGSPEC{n % 9}",
        ]
        for n in range(50)
    ]
    assert found(write(tmp_path, "x.tsv", rows)).corpora["train"]["tags"] == 2


def test_a_text_beside_each_sound_and_a_folder_for_each_label(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    for n in range(50):
        sound(tmp_path / "speech" / f"{n:02}.wav")
        (tmp_path / "speech" / f"{n:02}.txt").write_text(f"{sentence(n)}\n", encoding="utf-8")
        sound(tmp_path / "words" / ("yes" if n % 2 else "no") / f"{n}.wav")
    it = found(tmp_path / "speech")
    assert (it.task, it.rows, it.name) == ("audio to text", 50, "speech")
    listed = (tmp_path / "speech" / it.corpora["train"]["file"]).read_text("utf-8").splitlines()
    assert listed[:2] == ["path\ttext", f"00.wav\t{sentence(0)}"]
    assert found(tmp_path / "speech").rows == 50  # the list is made anew, not read
    it = found(tmp_path / "words")
    assert (it.task, it.labels) == ("audio to label", 2)


def test_folders_of_labels_may_be_in_folders_of_parts(tmp_path: Path) -> None:
    """As film reviews and spoken commands are: test/pos/7.txt. What is held out is not learnt."""
    pytest.importorskip("soundfile")
    for n in range(80):
        part = "test" if n % 4 == 0 else "train"
        place = tmp_path / "texts" / part / ("pos" if n % 3 else "neg") / f"{n}.txt"
        place.parent.mkdir(exist_ok=True, parents=True)
        place.write_text(sentence(n), encoding="utf-8")
        sound(tmp_path / "words" / part / ("yes" if n % 3 else "no") / f"{n}.wav")
        sound(tmp_path / "speech" / part / f"{n}.wav")
        (tmp_path / "speech" / part / f"{n}.txt").write_text(sentence(n), encoding="utf-8")
    for name in ("texts", "words", "speech"):
        it = found(tmp_path / name)
        assert it.rows == 60
        parts = {part: it.corpora[part]["where"]["value"] for part in it.corpora}
        assert parts == {"train": "train", "test": "test"}
        assert any("test 25 %" in line for line in it.seen)
        assert it.corpora["train"].get("source" if name == "texts" else "audio") is not None
        assert it.labels == (0 if name == "speech" else 2)
    (tmp_path / "words" / "other" / "no").mkdir(parents=True)
    (tmp_path / "words/train/no/3.wav").rename(tmp_path / "words/other/no/3.wav")
    assert "test" not in found(tmp_path / "words").corpora  # other/ is no part


def test_each_part_may_have_a_table_in_its_folder(tmp_path: Path) -> None:
    """As the audio folders of Hugging Face; recordings are beside their own table."""
    pytest.importorskip("soundfile")
    for part, count in (("train", 50), ("validation", 6), ("test", 8)):
        rows = [["file_name", "transcription"]]
        for n in range(count):
            sound(tmp_path / "speech" / part / f"{part}{n}.wav")
            rows.append([f"{part}{n}.wav", sentence(n)])
        write(tmp_path / "speech" / part, "metadata.csv", rows, ",")
        write_text = [["text", "label"], *([sentence(n), "xy"[n % 2]] for n in range(count))]
        (tmp_path / "texts" / part).mkdir(parents=True)
        write(tmp_path / "texts" / part, "data.csv", write_text, ",")
    for place in (tmp_path / "speech", tmp_path / "speech" / "train"):
        it = found(place)
        assert (it.task, it.rows, it.name) == ("audio to text", 50, "speech")
        assert {part: corpus["file"] for part, corpus in it.corpora.items()} == {
            "train": "metadata.csv",
            "valid": "../validation/metadata.csv",
            "test": "../test/metadata.csv",
        }
        test = Recordings.model_validate(it.corpora["test"])
        sources = [pair.source for pair in read_pairs(test, str(it.folder))]
        assert len(sources) == 8
        assert all(Path(source).is_file() for source in sources)
    for given in (tmp_path / "texts", tmp_path / "texts" / "train" / "data.csv"):
        it = found(given)
        assert (it.task, it.rows) == ("text to label", 50)
        assert it.corpora["test"]["file"] == "../test/data.csv"
    (tmp_path / "texts" / "train" / "test.csv").write_bytes(
        (tmp_path / "texts" / "test" / "data.csv").read_bytes()
    )
    (tmp_path / "texts" / "train" / "data.csv").rename(tmp_path / "texts" / "train" / "train.csv")
    it = found(tmp_path / "texts" / "train" / "train.csv")  # beside it comes first
    assert it.corpora["test"]["file"] == "test.csv"
    other = tmp_path / "else"
    (tmp_path / "texts" / "train").rename(other)
    assert found(other / "train.csv").corpora.keys() == {"train", "test"}


def test_spoken_words_that_repeat_are_labels_unless_the_person_says_otherwise(
    tmp_path: Path,
) -> None:
    pytest.importorskip("soundfile")
    for n in range(50):
        sound(tmp_path / f"{n}.wav")
        (tmp_path / f"{n}.txt").write_text(["yes", "no", "stop"][n % 3], encoding="utf-8")
    it = found(tmp_path)
    assert (it.task, it.labels) == ("audio to label", 3)
    assert "task=transduce" in it.seen[1]
    it = found(tmp_path, task="transduce")
    assert (it.task, it.labels) == ("audio to text", 0)
    for n in range(26):  # most recordings have no text
        (tmp_path / f"{n}.txt").unlink()
    with pytest.raises(DataError, match="nothing that says what is in them"):
        found(tmp_path)


def test_what_was_said_is_learnt_and_not_who_said_it(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    for n in range(60):
        sound(tmp_path / f"{n}.wav")
    said = ["seven", "three", "one"]
    for name, target in (("word", "word"), ("spoken", "spoken")):
        cells = ([f"{n}.wav", f"s{n * 7 % 4}", said[n % 3]] for n in range(60))
        rows = [["file", "speaker", name], *cells]
        it = found(write(tmp_path, "list.tsv", rows))
        assert it.corpora["train"]["target"] == target
        assert "training hears each speaker of the held-out ones" in it.warnings[0]
    write(tmp_path, "list.dev.tsv", rows)
    assert found(tmp_path / "list.tsv").warnings == []
    rows = [row[:2] for row in rows]
    it = found(write(tmp_path, "only.tsv", rows))
    assert (it.corpora["train"]["target"], it.warnings) == ("speaker", [])


def test_of_a_compressed_file_lines_of_all_of_it_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that is sorted by label, the beginning has one label."""
    monkeypatch.setattr(sampling, "WHOLE", 20_000)
    rows = [[sentence(n), "bad" if n < 1500 else "good"] for n in range(3000)]
    path = write(tmp_path, "x.tsv", rows)
    packed = tmp_path / "y.tsv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    it = found(packed)
    assert (it.labels, it.whole) == (2, False)
    assert it.rows == 3000  # all of it was read
    good = re.search(r"good (\d+) %", it.seen[1])
    assert good is not None
    assert 40 <= int(good[1]) <= 60
    monkeypatch.setattr(sampling, "UNPACKED", 40_000)
    assert found(packed).rows == pytest.approx(3000, rel=0.2)


def test_several_training_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("train.de", "train.en", "train.fr", "valid.de"):
        (tmp_path / name).write_text("a\n" * 50, encoding="utf-8")
    with pytest.raises(DataError, match=r"several files of a training set \(train.de, train.en, t"):
        found(tmp_path)


def test_a_folder_of_texts_for_each_label(tmp_path: Path) -> None:
    for n in range(60):
        place = tmp_path / ("pos" if n % 2 else "neg")
        place.mkdir(exist_ok=True)
        (place / f"{n}.txt").write_text(f"{sentence(n)}\n", encoding="utf-8")
    it = found(tmp_path)
    assert (it.task, it.labels, it.rows) == ("text to label", 2, 60)


@pytest.mark.parametrize(
    ("train", "valid", "test"),
    [
        ("train.tsv", "valid.tsv", "test.tsv"),
        ("ady_train.tsv", "ady_dev.tsv", "ady_test.tsv"),
        ("x.train.tsv", "x.dev.tsv", "x.test.tsv"),
        ("x.tsv", "x.dev.tsv", "x_test.tsv"),
        ("ang_small.train", "ang.dev", "ang.gold"),
        ("deu.trn", "deu.dev", "deu.tst"),
    ],
)
def test_files_of_the_other_parts_are_found(
    train: str, valid: str, test: str, tmp_path: Path
) -> None:
    for name in (train, valid, test):
        write(tmp_path, name, PAIRS)
    it = found(tmp_path / train)
    assert it.corpora["valid"]["file"] == valid
    assert it.corpora["test"]["file"] == test
    assert it.name
    assert "train" not in it.name
    if train == "train.tsv":
        assert found(tmp_path).corpora == it.corpora  # the folder


def test_what_the_user_says_is_taken(tmp_path: Path) -> None:
    rows = [
        ["en", "de", "fr"],
        *([sentence(n), sentence(n + 1), sentence(n + 2)] for n in range(80)),
    ]
    path = write(tmp_path, "x.tsv", rows)
    corpus = found(path, header=True, source="fr", target="en").corpora["train"]
    assert (corpus["source"], corpus["target"]) == ("fr", "en")
    assert found(write(tmp_path, "r.tsv", REVIEWS), task="transduce").task == "text to text"
    with pytest.raises(DataError, match="there is no column xx; there are: en: text, de: text"):
        found(path, header=True, target="xx")


def test_a_large_file_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "WHOLE", 20_000)
    monkeypatch.setattr(sampling, "BEGINNING", 10_000)
    monkeypatch.setattr(sampling, "STRETCH", 1000)
    # The rows of the beginning are shorter than those of the rest.
    rows = [[f"{word(n)}{n}" * (1 + (n > 2000)), phones(n)] for n in range(20_000)]
    path = write(tmp_path, "pairs.tsv", rows)
    it = found(path)
    assert not it.whole
    assert it.rows == pytest.approx(20_000, rel=0.01)
    assert re.match(r"About [12]\d,\d00 rows;", it.seen[1])  # no digits that are not known
    packed = tmp_path / "packed.tsv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert found(packed).rows == pytest.approx(20_000, rel=0.5)
    monkeypatch.setattr(sampling, "STRETCH", 1)  # lines longer than a stretch
    assert found(path).rows == pytest.approx(20_000, rel=0.6)


def test_alternatives_and_repetitions_are_counted(tmp_path: Path) -> None:
    rows = [*PAIRS, *PAIRS[:20], *([source, "K AE"] for source, _ in PAIRS[:50])]
    it = found(write(tmp_path, "x.tsv", rows))
    assert it.alternatives == pytest.approx(0.25)
    assert any("% of the rows repeat another exactly" in line for line in it.seen)
    several = next(line for line in it.seen if "several targets" in line)
    assert several.startswith("25.0 % of the sources have several targets (")
    assert several.endswith(" has 2).")
    once = found(write(tmp_path, "y.tsv", [*PAIRS * 20, PAIRS[0]])).seen
    assert not any("several targets" in line for line in once)


# ---------------------------------------------------------------------- what cannot be used


BAD = {
    "one column": ("x.tsv", "\n".join(map(sentence, range(99))), r"has one column.*source and"),
    "one column of CSV": ("x.csv", "\n".join(word(n) for n in range(99)), "has one column"),
    "mixed separators": (
        "x.tsv", "a\tb\n" * 50 + "c,d\n" + "e\tf\n" * 50,
        r"x.tsv:51: the line has 1 column .*seems to be separated by commas: write tabs",
    ),
    "mixed separators, the first line another": (
        "x.tsv", "c,d\n" + "e\tf\n" * 50,
        r"x.tsv:1: the line has 1 column .*but most have 2; it seems to be separated by commas",
    ),
    "mixed separators, as many of each": (
        "x.tsv", "a\tb\nc, d\n" * 50,
        r"x.tsv:2: the line has 1 column .*50 of 100 have 2; it seems to be separated by commas",
    ),
    "spaces in place of tabs": (
        "x.tsv", "".join(f"{a}    {b}\n" for a, b in SENTENCES),
        r"one column \(separated by tabs\), and two spaces \(2 each\) in every line; write tabs",
    ),
    "empty lines": ("x.tsv", "\n \n\n", "has only empty lines"),
    "mixed separators of CSV": (
        "x.csv", "c;d\n" + "e,f\n" * 50,
        r"x.csv:1: the line has no comma \(it has ';' instead\), but most have one",
    ),
    "mixed separators of text": ("x.txt", "a\tb\nc d\n" * 50, r"x.txt:2: the line has no tab"),
    "no text among three": (
        "x.tsv", "\n".join(f"{n}\t{n * 7 % 13}.5\t{n % 3}" for n in range(200)),
        r"no column is a text.*column 0: ids.*give a table",
    ),
    "a date and a price": (
        "x.csv", "id,date,price\n" + "".join(f"{n},24-1-{n % 28 + 1},{n}.5\n" for n in range(99)),
        r"no column is a text.*date: numbers or dates",
    ),
    "one source": (
        "x.tsv", "".join(f"a\t{word(n)}\n" for n in range(99)), "has 1 different source ",
    ),
    "twenty rows": (
        "x.tsv", "".join(f"{a}\t{b}\n" for a, b in PAIRS[:20]),
        r"has 20 different sources.*at least 40",
    ),
    "empty targets": (
        "x.tsv", "".join(f"{a}\t\n" for a, _ in PAIRS),
        r"column 1 is empty in every row, and there is no other target; fill it in",
    ),
    "many empty targets": (
        "x.tsv", "".join(f"{a}\t{'' if n % 4 else b}\n" for n, (a, b) in enumerate(PAIRS)),
        r"the target is empty in 150 of 200 rows; fill it in",
    ),
    "the same on both sides": (
        "x.tsv", "".join(f"{a}\t{a}\n" for a, _ in PAIRS), "are the same in every row",
    ),
    "labels that are all different": (
        "x.tsv", "text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in SENTENCES),
        r"label has 200 different values in 200 rows, so they are no labels.*task=transduce",
    ),
    "labels without a header that count the rows": (
        "x.csv", "".join(f"{word(n)} {word(n + 1)},label{n}\n" for n in range(200)),
        r"no other column is something to learn.*column 1: ids.*which repeat",
    ),
    "labels that count the rows": (
        "x.csv", "text,label\n" + "".join(f"{word(n)} {word(n + 1)},l{n}\n" for n in range(200)),
        r"label has 200 different values in 200 rows, so they are no labels.*task=transduce",
    ),
    "one label": (
        "x.tsv", "text\tlabel\n" + "".join(f"{a}\tgood\n" for a, _ in SENTENCES),
        r"the target is the same in every row \(good\), so there is nothing to learn",
    ),
    "several that are the same in every row": (
        "x.csv", "text,source,kind\n" + "".join(f"{a},wiki,x\n" for a, _ in SENTENCES),
        r"the target is the same in every row \(wiki\), so there is nothing",
    ),
    "one language": (
        "x.tsv", "language\ttext\n" + "".join(f"de\t{a}\n" for a, _ in SENTENCES),
        r"no other column is something to learn from it \(language: the same in every row",
    ),
    "one label without a header": (
        "x.tsv", "".join(f"{a}\tgood\n" for a, _ in SENTENCES),
        r"the target is the same in every row \(good\), so there is nothing to learn",
    ),
    "audio on the web": (
        "x.tsv", "path\ttext\n" + "".join(f"https://x.org/{n}.wav\t{word(n)}\n" for n in range(60)),
        r"60 of 60 audio files are missing, such as https://x.org/0.wav; download them",
    ),
    "audio that is missing": (
        "x.tsv", "path\ttext\n" + "".join(f"clips/{n}.wav\t{sentence(n)}\n" for n in range(60)),
        r"60 of 60 audio files are missing, such as .*clips/0.wav; paths start at the folder",
    ),
    "audio without a text": (
        "x.tsv", "".join(f"{n}\tclips/{n}.wav\n" for n in range(60)), "no column of their text",
    ),
    "little text": (
        "x.txt", "a few words\n", r"running text of 12 characters, too little.*by a tab",
    ),
    "an array of numbers": ("x.json", "[\n1, 2\n]\n", "JSON array, but not of objects; write an"),
    "an array that is cut": ("x.json", '[{"a": 1}, {"a": \n', "is not valid JSON: Expecting"),
    "lists of objects": (
        "x.jsonl", '{"messages": [{"role": "user", "content": "hi"}]}\n' * 50,
        r"messages holds lists of objects, not text; write source and target as two texts",
    ),
    "two spaces": (
        "x.txt", "".join(f"{a}  {b}\n" for a, b in SENTENCES),
        r"there are two spaces \(1 each\) in every line; if they separate columns, write tabs",
    ),
    "an object in several lines": (
        "x.json", '{\n "a": 1\n}\n' * 9, r"x.json:1: an object is written in several.*jq -c . x",
    ),
    "one sentence of CoNLL": (
        "x.conll", "".join(f"{word(n)} NOUN\n" for n in range(99)), "is one sentence of 99 words",
    ),
    "no translation memory": ("x.tmx", "<tmx/>", "has 0 translation units; give one with texts"),
    "a translation memory of one language": (
        "x.tmx", '<tmx><tu><tuv lang="en"><seg>a</seg></tuv></tu></tmx>',
        "has 1 translation units in en alone",
    ),
    "broken XML": ("x.xlf", "<xliff><file>", r"x.xlf is not valid XML \(no element found"),
    "an object": (
        "x.json", json.dumps(dict(PAIRS)), "is one JSON object with 0 arrays of objects; write an",
    ),
    "an object with two arrays": (
        "x.json", json.dumps({"a": [{"b": "c"}], "d": [{"b": "c"}], "e": [1]}, indent=1),
        "is one JSON object with 2 arrays of objects; write an object",
    ),
    "packed by bzip2": ("x.tsv.bz2", "BZh9", r"in a way that is not read; decompress.*bunzip2 x"),
    "an archive": ("x.zip", "PK\3\4", "is an archive; unpack it, and give the file.*: unzip x.zip"),
    "a packed archive": ("x.tar.gz", "PK", "is an archive; unpack it.*: tar xf x.tar.gz"),
    "another compression": ("x.zst", "(", r"decompress it \(`zstd -d x.zst`\), or compress"),
    "times of Praat": ("x.TextGrid", "(", "has the times of a recording, of Praat; write a table"),
    "several labels of fastText": (
        "x.txt", "__label__a __label__b some text\n" * 50, "with several labels in a line",
    ),
    "Windows-1252": (
        "x.tsv", "gruen\tgr\udcfcn\n" * 50, "if 'grün' is right there, it is Windows-1252: `iconv",
    ),
    "a pointer of Git": ("x.tsv", "version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "a web page": ("x.tsv", "<!DOCTYPE html>\n<p>404\n", "a web page, perhaps of a download that"),
    "no UTF-16": ("x.tsv", "\udcff\udcfea", "begins as UTF-16, but is none"),
    "zero bytes": ("x.tsv", "\0\udcff\n", "x.tsv has many zero bytes"),
    "a spreadsheet": ("x.xls", "PK", r"file of another program \(.xls\); save it as text there"),
    "a broken spreadsheet": ("x.xlsx", "PK", "not a workbook that can be read .*; save it as CSV"),
    "a recording": ("x.wav", "RIFF", "is one recording; give the folder"),
    "nothing": ("x.txt", "\n\n\n", "only empty lines"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_said_in_a_sentence(case: str, tmp_path: Path) -> None:
    name, text, said = BAD[case]
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=said) as error:
        found(tmp_path / name)
    assert "\n" not in str(error.value)


def test_few_sources_are_enough_where_validation_is_a_file_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "x_dev.tsv", PAIRS[20:40])
    it = found(write(tmp_path, "x_train.tsv", PAIRS[:20]))
    assert (it.rows, it.corpora["valid"]["file"]) == (20, "x_dev.tsv")
    with pytest.raises(DataError, match=r"has 9 different sources, too few to learn from; give at"):
        found(write(tmp_path, "x_train.tsv", PAIRS[:9]))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (140, "130 different values in 200 rows, so it is learnt as text.*at least 5 rows of each"),
        (60, "60 different values in 200 rows, so it is learnt as text.*say task=classify"),
    ],
)
def test_words_that_may_be_labels_are_warned_of(labels: int, said: str, tmp_path: Path) -> None:
    rows = [[sentence(n), f"{word(n % labels)}{word(n % labels + 31)}"] for n in range(200)]
    it = found(write(tmp_path, "x.tsv", rows))
    assert (it.task, len(it.warnings)) == ("text to text", 1)
    assert re.search(f"column 1 has {said}", it.warnings[0])
    assert found(tmp_path / "x.tsv", task="transduce").warnings == []
    # A sentence in a script without spaces is no label.
    rows = [[sentence(n), "".join(chr(0x4E00 + ord(sign)) for sign in word(n))] for n in range(200)]
    assert found(write(tmp_path, "zh.tsv", rows)).warnings == []


@pytest.mark.parametrize("source", [lambda n: f"{n * 7 % 97}.{n}", sentence])
def test_numbers_that_are_learnt_as_text_are_warned_of(
    source: Callable[[int], str], tmp_path: Path
) -> None:
    path = write(tmp_path, "x.tsv", [[source(n), f"{n * 31 % 89}.{n % 7}"] for n in range(200)])
    (warning,) = found(path).warnings
    assert "column 1 has numbers, which are learnt as text, digit by digit" in warning
    assert found(path, task="transduce").warnings == []


def test_labels_of_two_texts_are_warned_of(tmp_path: Path) -> None:
    rows = [[sentence(n), sentence(n + 999), "yes" if n % 3 else "no"] for n in range(200)]
    path = write(tmp_path, "x.tsv", [["premise", "hypothesis", "label"], *rows])
    assert "only premise is read, and not hypothesis" in found(path).warnings[0]
    assert found(write(tmp_path, "y.tsv", REVIEWS)).warnings == []


def test_a_column_of_numbers_that_the_person_names_is_a_source(tmp_path: Path) -> None:
    rows = [["number", "roman", "price"]]
    rows += [[str(n * 7 % 997), word(n) + word(n + 3), f"{n}.5"] for n in range(200)]
    it = found(write(tmp_path, "x.tsv", rows), source="number")
    assert (it.corpora["train"]["source"], it.corpora["train"]["target"]) == ("number", "roman")


@pytest.mark.parametrize(
    "target",
    [
        lambda n: f"{word(n)} {word(n + 31)}",  # two words
        lambda n: "".join(word(n + 31 * k) for k in range(6)),  # a clause without spaces
    ],
)
def test_texts_are_not_taken_for_labels(target: Callable[[int], str], tmp_path: Path) -> None:
    rows = [[sentence(n), target(n)] for n in range(200)]
    assert found(write(tmp_path, "x.tsv", rows)).warnings == []


def test_words_become_words_without_a_warning(tmp_path: Path) -> None:
    rows = [[word(n) + str(n), word(n + 31) + word(n)] for n in range(200)]
    assert found(write(tmp_path, "x.tsv", rows)).warnings == []


@pytest.mark.parametrize(("words", "others"), [(97, 97), (1600, 250)])
def test_as_many_words_on_both_sides_are_no_tags(words: int, others: int, tmp_path: Path) -> None:
    """A translation word by word: different targets are too many, or as many as words."""
    sides = (("a", words), ("b", others))
    rows = [
        [" ".join(f"{sign}{(n * 8 + k) % size}x" for k in range(8)) for sign, size in sides]
        for n in range(200)
    ]
    assert found(write(tmp_path, "x.tsv", rows)).task == "text to text"
    rows = [[source, " ".join("NV"[len(one) % 2] for one in source.split())] for source, _ in rows]
    assert found(write(tmp_path, "x.tsv", rows)).task == "words to tags"


def test_a_few_lines_with_as_many_bars_are_text(tmp_path: Path) -> None:
    for lines, said in ((20, "characters"), (60, "bars (1 each) in every line")):
        text = "".join(f"{sentence(n)} | {sentence(n + 1) * 3}\n" for n in range(lines))
        (tmp_path / "x.txt").write_text(text, encoding="utf-8")
        try:
            told = " ".join(found(tmp_path / "x.txt").seen)
        except DataError as error:
            told = str(error)
        assert said in told


def test_limits_of_labels(tmp_path: Path) -> None:
    def task(count: int, labels: int, long: str = "") -> str:
        numbers = [(n, n * 7 % labels) for n in range(count)]
        rows = [[f"{sentence(n)} {n}", f"{word(label)}{label}{long}"] for n, label in numbers]
        return found(write(tmp_path, "x.tsv", rows)).task

    assert [task(300, labels) for labels in (60, 61)] == ["text to label", "text to text"]
    assert [task(500, labels) for labels in (25, 26)] == ["text to label", "text to text"]
    assert task(60, 2, " and a description of it that no label has, however often it is there") == (
        "text to text"
    )


def test_a_column_called_id_is_one_and_one_part_alone_is_none(tmp_path: Path) -> None:
    rows = [["id", "word", "phones"], *([f"{word(n * 3)}{n}", *PAIRS[n]] for n in range(200))]
    assert found(write(tmp_path, "x.tsv", rows)).corpora["train"]["source"] == "word"
    assert "Not used: id: ids" in found(tmp_path / "x.tsv").seen[1]
    rows = [["word", "kind"], *([a, "train" if n % 2 else "bus"] for n, (a, _) in enumerate(PAIRS))]
    assert found(write(tmp_path, "y.tsv", rows)).task == "text to label"


def test_a_language_of_each_row_is_no_features(tmp_path: Path) -> None:
    rows = [["word", "language", "phones"], *([a, "de", b] for a, b in PAIRS[:100])]
    rows += [[a, "fr", b] for a, b in PAIRS[100:]]
    assert not found(write(tmp_path, "x.tsv", rows)).features
    assert found(write(tmp_path, "y.tsv", FORMS)).features


def test_features_that_join_several_are_found(tmp_path: Path) -> None:
    assert not found(write(tmp_path, "y.tsv", FORMS)).joint_tags
    joint = [[*words, tags.replace("PST", "PST+PFV")] for *words, tags in FORMS]
    assert found(write(tmp_path, "z.tsv", joint)).joint_tags == "PST+PFV"


def test_inflected_forms_are_not_taken_for_labels(tmp_path: Path) -> None:
    rows = [[sentence(n), f"{word(n)}{word(n + 31)}", ["V;PST", "N;PL"][n % 2]] for n in range(200)]
    assert found(write(tmp_path, "x.tsv", rows)).warnings == []


@pytest.mark.parametrize("rows", [200, 500])
def test_a_column_of_labels_may_have_few_rows_of_each(rows: int, tmp_path: Path) -> None:
    each = [[sentence(n), f"aim{7 * n % 60}"] for n in range(rows)]
    named = found(write(tmp_path, "named.tsv", [["text", "intent"], *each]))
    asked = found(write(tmp_path, "asked.tsv", each), task="classify")
    for it in (named, asked):
        assert (it.task, it.labels, it.warnings) == ("text to label", 60, [])


def test_names_by_which_columns_are_chosen_make_a_header() -> None:
    names = {*SOURCES, *TARGETS, *TRANSCRIPTS, *LABELS, *TAGS, *LANGUAGES}
    rows = [["a", "b"], ["c", "d"]]
    assert [name for name in names if not first_line([name, "id"], rows).is_header] == []


def test_a_header_that_may_be_data_is_reported(tmp_path: Path) -> None:
    rows = [["word", "zzz"], *PAIRS]
    it = found(write(tmp_path, "x.tsv", rows))
    assert "is read as data; if it is a header, give data.train.header=true" in it.warnings[0]
    it = found(tmp_path / "x.tsv", header=True)
    assert (it.corpora["train"]["source"], it.warnings) == ("word", [])


def test_a_name_above_phones_or_sentences_may_be_a_header(tmp_path: Path) -> None:
    it = found(write(tmp_path, "x.tsv", [["Wort", "Lautung"], *PAIRS]))
    assert "(Wort, Lautung) is read as data; if it is a header, give" in it.warnings[0]
    assert found(write(tmp_path, "x.tsv", [["Wort", "Laut ung"], *PAIRS])).warnings == []
    short = [[a, b.split()[0] if n % 5 == 0 else b] for n, (a, b) in enumerate(PAIRS)]
    assert found(write(tmp_path, "x.tsv", [["Wort", "Lautung"], *short])).warnings == []


def test_rows_that_are_there_several_times_are_no_labels(tmp_path: Path) -> None:
    it = found(write(tmp_path, "x.tsv", PAIRS[:60] * 6))
    assert (it.task, it.rows, it.sources) == ("text to text", 360, 60)
    assert found(write(tmp_path, "x.tsv", REVIEWS * 3)).task == "text to label"


def test_a_column_that_is_the_same_in_every_row_is_not_used(tmp_path: Path) -> None:
    rows = "".join(f"{a},wiki,{b},x\n" for a, b in SENTENCES)
    (tmp_path / "qa.csv").write_text(f"question,source,answer,label\n{rows}", "utf-8")
    it = found(tmp_path / "qa.csv")
    train = it.corpora["train"]
    assert (it.task, train["source"], train["target"]) == ("text to text", "question", "answer")
    unused = "Not used: source: the same in every row, label: the same in every row."
    assert it.seen[1] == unused


def test_files_of_other_parts_in_another_form_are_said(tmp_path: Path) -> None:
    path = write(tmp_path, "x_train.tsv", PAIRS)
    for name in ("x_dev.csv", "x_test.jsonl.gz", "x_notes.csv", "y_dev.csv", "x_valid.md"):
        (tmp_path / name).touch()
    (tmp_path / "x_val.csv").mkdir()
    it = found(path)
    assert it.corpora.keys() == {"train"}
    assert it.warnings == [
        "x_dev.csv beside it is not used, as it has another form; save it as x_dev.tsv",
        "x_test.jsonl.gz beside it is not used, as it has another form; save it as x_test.tsv",
    ]
    write(tmp_path, "x_dev.tsv", PAIRS[:20])
    it = found(path)
    assert (it.corpora.keys(), len(it.warnings)) == ({"train", "valid"}, 1)
    write(tmp_path, "plain.tsv", PAIRS)
    (tmp_path / "plain.dev.csv").touch()
    assert "plain.dev.csv beside it" in found(tmp_path / "plain.tsv").warnings[0]


ASKED = [sentence(n) for n in range(60)]
ANSWERED = [(text, "xy"[n % 2]) for n, text in enumerate(ASKED)]


@pytest.mark.parametrize(
    ("name", "train", "test", "lacks"),
    [
        ("csv", "text,label\n" + "".join(f"{a},{b}\n" for a, b in ANSWERED),
         "text\n" + "".join(f"{a}\n" for a in ASKED), "has no column label"),
        ("csv", "text,label\n" + "".join(f"{a},{b}\n" for a, b in ANSWERED),
         "text,label\n" + "".join(f"{a},\n" for a in ASKED), "has no text in label"),
        ("tsv", "".join(f"{a}\t{b}\n" for a, b in ANSWERED),
         "".join(f"{a}\n" for a in ASKED), "has no column 1"),
        ("tsv", "".join(f"{a}\t{b}\n" for a, b in ANSWERED),
         "".join(f"{a}\t\n" for a in ASKED), "has no text in column 1"),
        ("jsonl", "".join(json.dumps({"text": a, "label": b}) + "\n" for a, b in ANSWERED),
         "".join(json.dumps({"text": a}) + "\n" for a in ASKED), "has no column label"),
    ],
)  # fmt: skip
def test_a_test_file_without_the_answers_is_not_measured_on(
    name: str, train: str, test: str, lacks: str, tmp_path: Path
) -> None:
    """As those of competitions: its rows are to be labelled."""
    for part, text in (("train", train), ("test", test), ("dev", train)):
        (tmp_path / f"{part}.{name}").write_text(text, "utf-8")
    it = found(tmp_path / f"train.{name}")
    assert it.corpora.keys() == {"train", "valid"}
    assert f"test.{name} beside it {lacks}, so it is not used." in it.seen
    assert not it.warnings
    (tmp_path / f"test.{name}").write_text(train, "utf-8")
    assert found(tmp_path / f"train.{name}").corpora.keys() == {"train", "valid", "test"}


def test_columns_without_a_name_of_their_own_have_numbers(tmp_path: Path) -> None:
    """Row numbers as pandas writes them, and two columns with one name."""
    (tmp_path / "a.csv").write_text(
        ",text,label\n" + "".join(f"{n},{a},{'xy'[n % 2]}\n" for n, (a, _) in enumerate(SENTENCES)),
        "utf-8",
    )
    it = found(tmp_path / "a.csv")
    assert (it.task, it.labels, it.rows) == ("text to label", 2, len(SENTENCES))
    assert it.seen[1] == "Not used: column 0: ids."
    for ending, sign in (("csv", ","), ("tsv", "\t")):
        path = tmp_path / f"b.{ending}"
        rows = [("id", "text", "text"), *((f"{n}", *pair) for n, pair in enumerate(PAIRS))]
        path.write_text("".join(f"{sign.join(row)}\n" for row in rows), "utf-8")
        it = found(path)
        assert it.rows == len(PAIRS) + 1
        assert it.warnings[0].startswith(
            f"b.{ending}:1: the first line (id, text, text) is read as"
        )
        it = found(path, header=True)
        train = it.corpora["train"]
        keys = {"file": path.name, "source": 1, "target": 2, "header": True}
        assert (it.rows, train) == (len(PAIRS), keys)
        assert [pair[:2] for pair in read_pairs(Columns(**train), str(tmp_path))] == list(
            map(tuple, PAIRS)
        )


def test_columns_of_lists_are_left_out(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    rows = [{"word": a, "phones": b, "parts": [a, b], "n": {"a": 1}} for a, b in PAIRS]
    lines = tmp_path / "x.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    for path in (lines, tmp_path / "x.parquet"):
        it = found(path)
        corpus = it.corpora["train"]
        assert (corpus["source"], corpus["target"]) == ("word", "phones")
        assert it.warnings == ["not used, as it is no text: parts (lists of texts)"]
        assert it.seen[1] == "Not used: n.a: the same in every row."
    only = [{"parts": [a, b], "word": a} for a, b in PAIRS]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(only), tmp_path / "y.parquet")
    with pytest.raises(DataError, match="parts holds lists of texts, not text; write source and"):
        found(tmp_path / "y.parquet")
    dates = [{"at": date(2024, 1, 1), "word": a, "form": b} for a, b in PAIRS]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(dates), tmp_path / "z.parquet")
    assert found(tmp_path / "z.parquet").warnings == ["not used, as it is no text: at (dates)"]
    sounds = [{"audio": {"bytes": b"RIFF", "path": f"{a}.wav"}, "text": b} for a, b in PAIRS]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(sounds), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"audio.bytes holds recordings .* write each recording"):
        found(tmp_path / "a.parquet")


def test_objects_and_lists_of_words_are_read(tmp_path: Path) -> None:
    """As the data sets of Hugging Face have them."""
    lines = tmp_path / "x.jsonl"
    rows: list[dict[str, Any]] = [
        {"id": str(n), "translation": {"de": a, "en": b}} for n, (a, b) in enumerate(SENTENCES)
    ]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    train = found(lines).corpora["train"]
    assert (train["source"], train["target"]) == ("translation.de", "translation.en")
    rows = [
        {"tokens": text.split(), "ner_tags": [len(w) % 3 for w in text.split()]} for text in TAGGED
    ]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    it = found(lines)
    assert (it.task, it.labels) == ("words to tags", 3)
    assert (it.corpora["train"]["source"], it.corpora["train"]["target"]) == ("tokens", "ner_tags")


def test_the_rows_of_a_small_file_are_counted_exactly(tmp_path: Path) -> None:
    lines = ["en\tde", *("\t".join(row) for row in SENTENCES)]
    lines[100:100] = ["", "en\tde", ""]  # the header of a second file is no row
    (tmp_path / "x.tsv").write_text("\n".join(lines), encoding="utf-8")
    assert found(tmp_path / "x.tsv").rows == 200


def test_csv_of_other_separators(tmp_path: Path) -> None:
    rows = [["Englisch", "Deutsch"], *([f"{a}, b", b] for a, b in SENTENCES)]
    path = write(tmp_path, "x.csv", rows, ";")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    it = found(path)
    assert (it.rows, it.corpora["train"]["source"]) == (200, "Englisch")


def test_the_text_beside_a_title_is_the_source(tmp_path: Path) -> None:
    rows = [
        ["title", "body", "category"],
        *([word(n), sentence(n), "ab"[n % 2]] for n in range(99)),
    ]
    assert found(write(tmp_path, "x.tsv", rows)).corpora["train"]["source"] == "body"


def test_the_column_that_is_named_as_another_is_no_id(tmp_path: Path) -> None:
    names = ["id", "en", "de", "note", "url_id"]
    rows = [
        [f"a{n}", sentence(n), sentence(n + 300), sentence(n + 900), f"b{n}"] for n in range(99)
    ]
    it = found(write(tmp_path, "x.tsv", [names, *rows]), source="en", target="de")
    assert it.seen[1].endswith("(to use one: data.train.target=note).")


def test_cells_in_quotes_are_warned_of(tmp_path: Path) -> None:
    rows = [[f'"{source}"', f'"{target}"'] for source, target in PAIRS]
    assert "in double quotes" in found(write(tmp_path, "x.tsv", rows)).warnings[-1]
    assert found(write(tmp_path, "x.csv", rows, ",")).warnings == []
    assert found(write(tmp_path, "x.tsv", [*PAIRS, *rows[:100]])).warnings == []


def test_mostly_the_same_on_both_sides_is_warned_of(tmp_path: Path) -> None:
    rows = [[source, source if n % 3 else "K AE"] for n, (source, _) in enumerate(PAIRS)]
    assert "are the same in 66 % of the rows" in found(write(tmp_path, "x.tsv", rows)).warnings[0]


def test_folders_and_files_that_are_not_meant(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="is a folder without a run in it"):
        found(tmp_path / "empty")
    one, two = write(tmp_path, "a.en", [["x"]] * 5), write(tmp_path, "a.de", [["x"]] * 4)
    with pytest.raises(DataError, match=r"a.en has 5 lines and a.de has 4"):
        inspect([one, two])
    with pytest.raises(DataError, match="3 files are given; give one table, or two files"):
        inspect([one, two, one])
    with pytest.raises(DataError, match="there is no file"):
        inspect([tmp_path / "nothing.tsv"])
    table = write(tmp_path, "t.tsv", PAIRS)
    with pytest.raises(DataError, match=r"t.tsv is a table; of two files"):
        inspect([one, table])


def test_a_column_whose_lists_are_all_different_is_no_tags(tmp_path: Path) -> None:
    rows = [[word(n) + str(n), phones(n), f"{word(n)}{n};{word(n + 1)}{n}"] for n in range(60)]
    it = found(write(tmp_path, "pairs.tsv", rows), source=0, target=1)
    assert "tags" not in it.corpora["train"]


def test_rows_with_an_empty_side_are_not_counted(tmp_path: Path) -> None:
    it = found(write(tmp_path, "pairs.tsv", [*PAIRS, *([f"{word(n)}-", ""] for n in range(20))]))
    assert it.rows == 200


@pytest.mark.parametrize(("same", "warned"), [(90, False), (110, True)])
def test_sides_that_are_mostly_the_same(tmp_path: Path, same: int, warned: bool) -> None:
    rows = [[a, a if n < same else b] for n, (a, b) in enumerate(SENTENCES)]
    warnings = found(write(tmp_path, "pairs.tsv", rows)).warnings
    assert any("source and target are the same in" in one for one in warnings) == warned


def test_a_script_of_few_letters_is_not_named(tmp_path: Path) -> None:
    rows = [[a + (" жук" if n == 7 else ""), b] for n, (a, b) in enumerate(SENTENCES)]
    it = found(write(tmp_path, "pairs.tsv", rows))
    assert it.source is not None
    assert it.source.scripts == ("Latin",)


def test_a_column_that_says_the_part_of_each_row(tmp_path: Path) -> None:
    parts = ["train"] * 8 + ["Dev", "test"]
    rows = [["word", "pron", "split"], *([*row, parts[n % 10]] for n, row in enumerate(PAIRS))]
    it = found(write(tmp_path, "all.tsv", rows))
    assert {part: corpus["where"] for part, corpus in it.corpora.items()} == {
        "train": {"column": "split", "value": "train"},
        "valid": {"column": "split", "value": "Dev"},
        "test": {"column": "split", "value": "test"},
    }
    assert (it.rows, it.corpora["test"]["target"]) == (160, "pron")
    assert "train 80 %, valid 10 %, test 10 %" in it.seen[1]
    rows = [[*row, "test"] for row in PAIRS]  # nothing to train on: the usual parts
    it = found(write(tmp_path, "tests.tsv", [["word", "pron", "split"], *rows]))
    assert list(it.corpora) == ["train"]
    assert "where" not in it.corpora["train"]


def test_letters_of_targets_that_only_held_out_rows_have() -> None:
    from transduce.automatic.found import HELD_OUT, Unseen
    from transduce.data.text.split import in_part

    outside = in_part(HELD_OUT)
    words = [f"w{n}" for n in range(100)]
    held = [word for word in words if outside(word)]

    def unseen(of_held: str, symbols: bool = False) -> Unseen:
        new = held[0]
        pairs = [(w, f"a e\u0301 o {of_held if w == new else ''}") for w in words]
        return Unseen.of(pairs, symbols)

    assert unseen("a").share == 0
    assert unseen("x").share == pytest.approx(1 / len(held))
    assert (unseen("x").in_source, unseen("w").in_source) == (0, 1)  # sources begin with w
    assert unseen("xa", symbols=True).example == "xa"
    accent = unseen("ó")  # its parts are in other targets
    assert (accent.share > 0, accent.decomposed) == (True, 0)


def test_phones_of_few_rows_are_symbols(tmp_path: Path) -> None:
    it = found(write(tmp_path, "few.tsv", PAIRS[:50]))
    assert it.target.is_symbols
    assert "symbols in the median" in it.seen[1]
    words = Side.of(["of it is", "at it", "to be or so", "as we go"] * 2 + ["if he can run"])
    assert not words.is_symbols


def test_empty_rows_are_said(tmp_path: Path) -> None:
    rows = [[source, target if n % 5 else ""] for n, (source, target) in enumerate(PAIRS)]
    it = found(write(tmp_path, "some.tsv", rows))
    assert any("20.0 % of the rows have an empty source or target" in line for line in it.seen)


def test_one_of_two_languages_alone(tmp_path: Path) -> None:
    for language in ("en", "de", "txt"):
        text = "".join(f"{sentence(n)}\n" for n in range(99))
        (tmp_path / f"corpus.{language}").write_text(text, "utf-8")
    (warning,) = found(tmp_path / "corpus.de").warnings
    assert "transduce train corpus.de corpus.en" in warning
    with pytest.raises(DataError, match=r"has corpus.de and corpus.en; to learn to translate"):
        found(tmp_path)
    (tmp_path / "corpus.en").unlink()
    assert found(tmp_path / "corpus.de").warnings == []


def test_the_parts_of_conll_2003(tmp_path: Path) -> None:
    words = [word(n) + str(n) for n in range(99)]
    text = "-DOCSTART- O\n\n" + "".join(f"the O\n{one} B-PER\n\n" for one in words)
    for part in ("train", "testa", "testb"):
        (tmp_path / f"eng.{part}").write_text(text, "utf-8")
    it = found(tmp_path / "eng.train")
    assert {part: one["file"] for part, one in it.corpora.items()} == {
        "train": "eng.train", "valid": "eng.testa", "test": "eng.testb"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("turned", "warned"), [(0, False), (1, False), (2, True), (30, True), (40, False)]
)
def test_sides_that_are_exchanged_are_warned_of(tmp_path: Path, turned: int, warned: bool) -> None:
    rows = [[sentence(n), "слово " * (n % 5 + 1) + str(n)] for n in range(90)]
    rows[:turned] = [row[::-1] for row in rows[:turned]]
    warnings = found(write(tmp_path, "x.tsv", rows)).warnings
    assert any("source and target are exchanged in" in one for one in warnings) == warned
    if warned:
        assert "go from Latin to Cyrillic, but not 'слово 0'" in warnings[-1]


def test_a_language_that_is_the_same_in_every_row_is_no_tag(tmp_path: Path) -> None:
    rows = [["lang", "word", "phones"], *(["eng", *row] for row in PAIRS)]
    it = found(write(tmp_path, "x.tsv", rows))
    assert it.corpora["train"] == {"file": "x.tsv", "source": "word", "target": "phones"}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (gzip.compress(b"a\tb\n" * 99, mtime=0), r"is compressed by gzip, .* call it my\.tsv\.gz"),
        (b"PK\x03\x04" + bytes(99), r"is a ZIP archive, .* unpack it"),
        (b"%PDF-1.4\n", r"is a PDF, .* save its text"),
        (("a\tb\n" * 99).encode("utf-16-le"), r"zero bytes: .*`iconv -f UTF-16LE -t UTF-8 my"),
        (("a\tb\n" * 99).encode("utf-32"), r"zero bytes: .*`iconv -f UTF-32 -t UTF-8 my"),
        (bytes(999), r"has many zero bytes"),
    ],
)
def test_a_file_of_another_kind_is_called_what_it_is(tmp_path: Path, raw: bytes, said: str) -> None:
    (tmp_path / "my.tsv").write_bytes(raw)
    with pytest.raises(DataError, match=said):
        found(tmp_path / "my.tsv")
