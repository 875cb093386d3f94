"""The doctor: each ill is found, named with file and line, and a healthy corpus is left alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from transduce.data.doctor import check
from transduce.data.doctor.check import Diagnosis, Finding, examine
from transduce.data.filters import repetitions
from transduce.recipe import (
    Columns,
    Data,
    Filters,
    Recipe,
    Text,
    Tokens,
    TokensOfSides,
    read_recipe,
)


def _odd_ratios(sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Of lengths that occur once each."""
    return np.flatnonzero(check._odd_ratios(sources, targets, np.ones(len(sources), np.int64)))


GOOD = [(f"the dog {n} runs home", f"der Hund {n} läuft heim") for n in range(100, 160)]
VALID = [(f"the dog {n} runs home", f"der Hund {n} läuft heim") for n in range(200, 210)]
TEST = [(f"the dog {n} runs home", f"der Hund {n} läuft heim") for n in range(300, 310)]
CHARACTERS = TokensOfSides(both=Tokens(level="character"))


def recipe_in(folder: Path, train=GOOD, valid=VALID, test=TEST, **keys: object) -> Recipe:
    for name, pairs in (("train", train), ("valid", valid), ("test", test)):
        text = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (folder / f"{name}.tsv").write_text(text, newline="\n")
    corpora = {name: Columns(file=f"{name}.tsv") for name in ("train", "valid", "test")}
    return Recipe(data=Data(folder=str(folder), **{"tokens": CHARACTERS, **corpora, **keys}))


def the(diagnosis: Diagnosis, words: str) -> Finding:
    found = [finding for finding in diagnosis.findings if words in finding.what]
    assert len(found) == 1, [finding.what for finding in diagnosis.findings]
    assert found[0].remedy
    return found[0]


def test_a_healthy_corpus_is_fit(tmp_path: Path) -> None:
    diagnosis = examine(recipe_in(tmp_path))
    assert diagnosis.findings == []
    assert (diagnosis.verdict, diagnosis.ok) == ("Fit to train.", True)
    assert diagnosis.pairs == {"train": 60, "valid": 10, "test": 10}
    assert [(row.split, row.side, row.unit) for row in diagnosis.lengths[:4]] == [
        ("train", "source", "characters"),
        ("train", "source", "tokens"),
        ("train", "target", "characters"),
        ("train", "target", "tokens"),
    ]
    row = diagnosis.lengths[0]
    assert (row.least, row.median, row.mean, row.most_below, row.greatest) == (21, 21, 21, 21, 21)


@pytest.mark.parametrize(
    ("pair", "words", "severity"),
    [
        (("", "leer"), "1 pair with an empty source", "warning"),
        (("empty", " "), "1 pair with an empty target", "warning"),
        (GOOD[0], "1 pair repeating an earlier one", "note"),
        ((GOOD[0][0], "ganz anders, aber lang"), "occurs earlier with another target", "note"),
        (
            ("a", "ein sehr, sehr langer Satz, der nicht passt"),
            "with an unusual length ratio",
            "warning",
        ),
        (("the dog runs home", "the dog runs home"), "source and target are identical", "note"),
        (("a bell\x07 rings out", "eine Glocke läutet"), "control characters", "warning"),
        (("two\u2028lines of it", "zwei Zeilen davon"), "control characters", "warning"),
        (("caf\ufffd au lait here", "Milchkaffee ist hier"), "U+FFFD", "warning"),
    ],
)
def test_what_is_odd_in_train(tmp_path: Path, pair, words: str, severity: str) -> None:
    diagnosis = examine(recipe_in(tmp_path, train=[*GOOD, pair]))
    finding = the(diagnosis, words)
    assert (finding.what[:7], finding.severity, finding.count) == ("train: ", severity, 1)
    assert finding.examples[0].startswith("train.tsv:61")
    assert "\x07" not in finding.examples[0]
    assert diagnosis.ok


def test_lengths_are_odd_beyond_five_deviations() -> None:
    """Of 100 tokens, most translations are 10 away from 100: one root of the length each."""
    sources, targets = np.full(101, 100, np.int32), np.full(101, 100, np.int32)
    targets[:60:2], targets[1:60:2] = 90, 110
    for odd, found in ((240, [100]), (160, []), (45, [100]), (55, [])):
        targets[100] = odd
        assert _odd_ratios(sources, targets).tolist() == found


MANY = [(f"the dog {n} runs home", f"der Hund {n} läuft heim") for n in range(1000, 1400)]
LONG_PAIR = ("the dog runs home again", "der Hund läuft heim und wieder heim")
ODD_PAIR = ("the dog 1 runs on", "er")


@pytest.mark.parametrize(
    ("pair", "words"), [(LONG_PAIR, "longer than"), (ODD_PAIR, "with an unusual length ratio")]
)
def test_a_few_in_train_are_a_note_and_many_a_warning(
    tmp_path: Path, pair: tuple[str, str], words: str
) -> None:
    def severity(**corpora: list[tuple[str, str]]) -> str:
        recipe = recipe_in(tmp_path, **{"train": MANY, **corpora}, max_length=30)
        return the(examine(recipe), words).severity

    def odd(count: int) -> list[tuple[str, str]]:
        return [(f"{pair[0]} {n}", pair[1]) for n in range(count)]

    assert severity(train=[*MANY, *odd(2)]) == "note"
    assert severity(train=[*MANY, *odd(9)]) == "warning"
    if words == "longer than":  # scores are of fewer pairs than it seems
        held_out = [(f"the dog {n} runs home", "der Hund läuft heim") for n in range(5000, 5400)]
        assert severity(valid=[*held_out, *odd(1)]) == "warning"


def test_one_is_a_pair_and_two_are_pairs(tmp_path: Path) -> None:
    for count, noun in ((1, "1 pair "), (2, "2 pairs ")):
        odd = [(f"a bell\x07 rings {n}", f"eine Glocke läutet {n}") for n in range(count)]
        finding = the(examine(recipe_in(tmp_path, train=[*GOOD, *odd])), "control characters")
        assert finding.what.startswith(f"train: {noun}")
        assert finding.count == count


def test_overlong_pairs_are_counted_in_tokens(tmp_path: Path) -> None:
    long = ("the dog runs home again and again", "der Hund läuft heim und wieder heim")
    diagnosis = examine(recipe_in(tmp_path, train=[*GOOD, long], max_length=30))
    finding = the(diagnosis, "1 pair longer than data.max_length = 30 tokens, to be skipped")
    assert finding.examples == [
        "train.tsv:61: the dog runs home again and again → der Hund läuft heim und wieder heim"
    ]


def test_leakage_is_found(tmp_path: Path) -> None:
    train = [*GOOD, TEST[3], (TEST[5][0], "jener Hund 3 geht heim")]
    diagnosis = examine(recipe_in(tmp_path, train=train))
    pairs = the(diagnosis, "test: 1 pair also in train")
    assert (pairs.severity, pairs.examples[0][:11]) == ("warning", "test.tsv:4:")
    sources = the(diagnosis, "test: 1 pair whose source is in train")
    assert sources.examples[0].startswith("test.tsv:6:")
    assert diagnosis.verdict == "Fit to train, with 2 warnings."


def test_what_train_never_showed(tmp_path: Path) -> None:
    alone = [("dog", "Hund")] * 30
    diagnosis = examine(recipe_in(tmp_path, train=alone, valid=[("dog", "Hund Hund")]))
    space = the(diagnosis, "valid: 1 character of the target never")
    assert space.examples == ["space (U+0020), 1 times"]
    valid = [*VALID, ("the dog 漢 runs home", "der Hund 漢字 läuft heim")]
    diagnosis = examine(recipe_in(tmp_path, valid=valid))
    characters = the(diagnosis, "valid: 2 characters of the target never seen in train")
    assert characters.examples == ["漢 (U+6F22), 1 times", "字 (U+5B57), 1 times"]
    unknown = the(diagnosis, "of the target tokens are unknown")
    assert (unknown.count, unknown.severity) == (2, "note")
    assert "Add rows that have them" in unknown.remedy  # smaller units there are not
    words = TokensOfSides(both=Tokens(level="word"))
    unknown = the(examine(recipe_in(tmp_path, tokens=words)), "valid: 20.00% of the source tokens")
    assert (unknown.count, unknown.severity) == (10, "warning")
    assert "smaller units" in unknown.remedy


def test_new_words_are_no_trouble_for_a_tagger_that_reads_letters(tmp_path: Path) -> None:
    pairs = [(f"dog {n} runs", "N X V") for n in range(60)]
    new = [(f"dog {n} barks", "N X V") for n in range(90, 99)]
    data = recipe_in(tmp_path, pairs, new, new).data.model_dump(exclude={"tokens"})
    tagger = {"encoder": {"kind": "recurrent"}, "characters": {}}
    recipe = Recipe.model_validate({"task": "tag", "data": data, "model": tagger})
    words = the(examine(recipe), "valid: 66.67% of the source tokens are unknown")
    assert (words.severity, words.remedy) == ("note", "The model knows them by their letters.")


def test_a_corpus_that_cannot_be_read_is_not_fit(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("no tab here\n")
    diagnosis = examine(recipe)
    assert not diagnosis.ok
    assert diagnosis.verdict.startswith("Not fit to train: train: train.tsv:61: the line has 1")
    assert diagnosis.pairs == {"valid": 10, "test": 10}
    assert diagnosis.lengths[1].unit == "words"
    (tmp_path / "test.tsv").unlink()
    errors = [f.what for f in examine(recipe).findings if f.severity == "error"]
    assert len(errors) == 2


def test_tokens_that_cannot_be_trained_are_an_error(tmp_path: Path) -> None:
    tokens = TokensOfSides(both=Tokens(size=5))
    diagnosis = examine(recipe_in(tmp_path, tokens=tokens))
    assert diagnosis.verdict.startswith("Not fit to train: a vocabulary of 5 cannot hold")
    asking = Finding("error", "did you mean train.en?", 1, [], "Mend it.")
    assert Diagnosis(findings=[asking]).verdict == "Not fit to train: did you mean train.en?"


def test_a_corpus_of_copies_is_a_task_not_an_ill(tmp_path: Path) -> None:
    copies = [(f"abc{n}", f"abc{n}") for n in range(100, 120)]
    findings = examine(recipe_in(tmp_path, train=copies)).findings
    assert not [f for f in findings if "same text" in f.what]


def test_words_and_labels_must_be_as_many(tmp_path: Path) -> None:
    train = [(f"the dog {n}", "DET NOUN NUM") for n in range(9)] + [("a dog", "DET"), ("b", "X Y")]
    data = recipe_in(
        tmp_path,
        train,
        train[:1],
        train[:1],
        tokens=TokensOfSides(source=Tokens(level="symbol"), target=Tokens(level="symbol")),
    ).data
    recipe = Recipe.model_validate({"task": "tag", "data": data.model_dump()})
    finding = the(examine(recipe), "train: 2 pairs with another number of labels than of words")
    assert finding.examples == ["train.tsv:10: a dog → DET", "train.tsv:11: b → X Y"]


def test_a_label_is_shorter_than_its_text_and_that_is_well(tmp_path: Path) -> None:
    train = [(f"the {'dog ' * n}", "long" if n > 5 else "short") for n in range(1, 60)]
    data = recipe_in(tmp_path, train, train[:1], train[:1]).data.model_dump(exclude={"tokens"})
    diagnosis = examine(Recipe.model_validate({"task": "classify", "data": data}))
    assert not [finding for finding in diagnosis.findings if "lengths" in finding.what]


def test_labels_that_train_has_not_are_told_as_labels(tmp_path: Path) -> None:
    train = [(f"dog {n}", "short" if n % 2 else "long") for n in range(60)]
    data = recipe_in(tmp_path, train, [("dog", "odd")], train[:1]).data
    reported = data.model_dump(exclude={"tokens"})
    diagnosis = examine(Recipe.model_validate({"task": "classify", "data": reported}))
    finding = the(diagnosis, "valid: 100.00% of the labels are unknown")
    assert finding.remedy.startswith("Train has none of them")
    assert not [f for f in diagnosis.findings if "of the target never seen" in f.what]


def play(first: int, lines: int) -> str:
    return "".join(
        f"SPEAKER {n % 3}:\nThis is the {n}th of many lines of a play.\n\n"
        for n in range(first, first + lines)
    )


PLAY, OTHER = play(0, 90), play(200, 30)


def text_in(folder: Path, train: str = PLAY, valid: str = OTHER, **keys: object) -> Diagnosis:
    for name, text in (("train", train), ("valid", valid)):
        (folder / f"{name}.txt").write_text(text, "utf-8", newline="\n")
    corpora = {
        name: Text(text=f"{name}.txt", lines=str(keys.get("lines", "joined")))
        for name in ("train", "valid")
    }
    data = Data(folder=str(folder), tokens=CHARACTERS, max_length=64, **corpora)
    return examine(Recipe.model_validate({"task": "language_modeling", "data": data.model_dump()}))


def test_running_text_is_left_alone_for_what_text_is_like(tmp_path: Path) -> None:
    """Empty lines, and short ones that come again and again."""
    diagnosis = text_in(tmp_path)
    assert diagnosis.findings == []
    assert diagnosis.noun == "line"
    assert diagnosis.pairs == {"train": 270, "valid": 90}
    assert {row.side for row in diagnosis.lengths} == {"text"}


@pytest.mark.parametrize(
    ("train", "valid", "words", "severity"),
    [
        (
            PLAY * 2,
            OTHER,
            "train: 90 lines of 40 characters or more repeating an earlier",
            "warning",
        ),
        (PLAY, PLAY, "valid: 90 lines of 40 characters or more also in train", "warning"),
        ("too short\n", OTHER, "train: 10 tokens of text, less than a block", "warning"),
        (PLAY + "a bell\x07\n", OTHER, "1 line with control characters", "warning"),
        (PLAY + "caf\ufffd\n", OTHER, "1 line with the replacement character", "warning"),
        (PLAY, OTHER + "Ω\n", "1 character of the text never seen in train", "note"),
    ],
)
def test_what_is_odd_in_running_text(
    tmp_path: Path, train: str, valid: str, words: str, severity: str
) -> None:
    assert the(text_in(tmp_path, train, valid), words).severity == severity


def test_a_block_needs_one_token_more_than_it_is_long(tmp_path: Path) -> None:
    """Each of its tokens predicts the next."""
    words = "train: 64 tokens of text, less than a block"
    assert the(text_in(tmp_path, "x" * 63 + "\n"), words).severity == "warning"
    found = text_in(tmp_path, "x" * 64 + "\n").findings
    assert not any("less than a block" in finding.what for finding in found)


def test_lines_apart_are_texts_of_their_own(tmp_path: Path) -> None:
    train = "anna\nbob\n\nanna\n" + "x" * 65 + "\n"
    diagnosis = text_in(tmp_path, train, "bob\ncarl\n", lines="apart")
    assert the(diagnosis, "train: 1 empty line").examples == ["train.txt:3"]
    assert the(diagnosis, "1 line repeating an earlier").examples == ["train.txt:4: anna"]
    assert "to be skipped" in the(diagnosis, "1 line longer than data.max_length = 64").what
    assert the(diagnosis, "valid: 1 line also in train").examples == ["valid.txt:1: bob"]


def test_of_many_recordings_that_cannot_be_read_a_few_are_named(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    rows = "".join(f"{number}.wav\tabc\n" for number in range(8))
    for number in range(8):
        (tmp_path / f"{number}.wav").write_text("no audio")
    (tmp_path / "all.tsv").write_text(f"path\ttext\n{rows}", "utf-8")
    corpus = {"file": "all.tsv", "audio": "path", "target": "text"}
    data = {"folder": str(tmp_path), "train": corpus, "valid": corpus, "tokens": CHARACTERS}
    finding = the(examine(Recipe.model_validate({"data": data})), "train: 8 recordings that cannot")
    assert finding.count == 8
    assert len(finding.examples) == 5


def test_recordings_that_are_too_short_for_ctc(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    texts = [*["abcde"] * 9, "abccde"]  # half a second, 12 states; and 0.3 seconds, 6 states
    for number in range(10):
        wave = np.random.default_rng(number).normal(0, 0.1, 2000 if number < 9 else 1200)
        soundfile.write(tmp_path / f"{number}.wav", wave, 4000)
    rows = "".join(f"{number}.wav\t{text}\n" for number, text in enumerate(texts))
    (tmp_path / "all.tsv").write_text(f"path\ttext\n{rows}", "utf-8")
    corpus = {"file": "all.tsv", "audio": "path", "target": "text"}
    data = {"folder": str(tmp_path), "train": corpus, "valid": corpus, "tokens": CHARACTERS}
    audio = {"sample_rate": 4000, "mel_bands": 16}

    def found(weight: float, **more: object) -> list[Finding]:
        given = {"data": data, "audio": audio | more, "model": {"ctc_weight": weight}}
        given["model"] |= {"tie_embeddings": "none"}  # type: ignore[operator]
        diagnosis = examine(Recipe.model_validate(given))
        return [one for one in diagnosis.findings if one.what.startswith("train: 1 pair too short")]

    (finding,) = found(0.3)
    assert (finding.severity, finding.count) == ("warning", 1)
    assert "(10.0%)" in finding.what
    assert [one.split(":")[1] for one in finding.examples] == ["11"]
    assert "audio.subsampling=2 leaves 0 of them" in finding.remedy
    assert found(0.0) == found(0.3, subsampling=2) == []


def test_short_sentences_of_other_lengths_are_usual() -> None:
    """Who? → Qui est-ce ? and the like: as lengths vary when each word is translated by itself."""
    random = np.random.default_rng(3)
    sources = 1 + random.poisson(4, 20_000).astype(np.int32)
    targets = np.maximum(1, random.poisson(1.1 * sources)).astype(np.int32)
    assert len(_odd_ratios(sources, targets)) < 10
    targets[:3], sources[:3] = [1, 40, 30], [30, 8, 2]
    assert set(_odd_ratios(sources, targets).tolist()) >= {0, 1, 2}
    # All with the same ratio: three tokens more or fewer are not unusual yet.
    sources, targets = np.full(20, 60, np.int32), np.full(20, 10, np.int32)
    sources[7], targets[7] = 18, 1
    assert not len(_odd_ratios(sources, targets))
    sources[7], targets[7] = 120, 4
    assert _odd_ratios(sources, targets).tolist() == [7]
    assert _odd_ratios(targets, sources).tolist() == [7]


def test_nfkc_is_advised_only_for_characters_that_it_makes_known(tmp_path: Path) -> None:
    def advice(letter: str) -> str:
        valid = [*VALID, (f"the dog {letter} home", "der Hund heim")]
        return the(examine(recipe_in(tmp_path, valid=valid)), "never seen in train").remedy

    assert "nfkc" not in advice("%")
    assert "nfkc" not in advice("Ω")  # its form is not in train either
    assert "Normalise them (ｄ) with data.tokens normalize: nfkc" in advice("ｄ")


def test_odd_tags_and_what_was_assumed_of_a_header_are_found(tmp_path: Path) -> None:
    train = [(source, f"{target}\tN;ABL(PL") for source, target in GOOD]
    valid = [("source", "target\tfeatures"), ("a dog", "ein Hund\tN;DAT(SG)")]
    recipe = recipe_in(tmp_path, train=train, valid=valid)
    corpora = {name: Columns(file=f"{name}.tsv", tags=2) for name in ("train", "valid")}
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update=corpora)})
    diagnosis = examine(recipe)
    finding = the(diagnosis, "train: 1 tag with brackets that do not match")
    assert finding.examples == [f"ABL(PL, {len(GOOD)} times"]
    assert the(diagnosis, "valid: 1 tag that train does not have").examples == ["DAT(SG), 1 times"]
    assert the(diagnosis, "that train does not have").remedy.startswith("They are read as text:")
    hidden = recipe.model_copy(
        update={"data": recipe.data.model_copy(update={"unknown_tags": 0.1})}
    )
    remedy = the(examine(hidden), "that train does not have").remedy
    assert remedy.startswith("They are read as the tag <?>:")
    joint = {"valid": [("a dog", "ein Hund\tN;IN+ESS"), ("a cat", "Katze\tN;IN+ABL")]}
    train = [(source, f"{target}\tN;IN+ESS") for source, target in GOOD[:-1]]
    recipe_in(tmp_path, train=[*train, (GOOD[-1][0], f"{GOOD[-1][1]}\tABL+SG")], **joint)
    whole = "valid: 1 tag that train does not have"
    assert the(examine(recipe), whole).examples == ["IN+ABL, 1 times"]
    parts = {"data": recipe.data.model_copy(update={"split_tags": True})}
    found = examine(recipe.model_copy(update=parts)).findings
    assert not [one for one in found if "train does not have" in one.what and "tag" in one.what]
    assert the(diagnosis, "is read as a header").severity == "warning"
    assert diagnosis.pairs["valid"] == 1
    # Letters of tags are not letters of sources.
    assert not [f for f in diagnosis.findings if "character" in f.what and "D" in str(f.examples)]


def test_a_corpus_larger_than_memory_has_the_same_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashes in files, and pairs read a few at a time."""
    odd = [GOOD[3], GOOD[5], (GOOD[7][0], "etwas anderes, aber lang"), ("a", "ein langer Satz, ja")]
    recipe = recipe_in(tmp_path, train=[*GOOD, *odd, GOOD[3]], valid=[*VALID, GOOD[9], odd[2]])
    expected = examine(recipe)
    assert the(expected, "repeating an earlier one").count == 3
    assert the(expected, "leakage").count == 2
    monkeypatch.setattr(check, "AT_ONCE", 5)
    monkeypatch.setattr(repetitions, "HELD", 7)
    assert examine(recipe) == expected


def test_what_filters_leave_out_is_listed(tmp_path: Path) -> None:
    short = ("a", "ein sehr, sehr langer Satz, der nicht passt")
    filters = Filters(length_ratio=4, duplicates=True)
    diagnosis = examine(recipe_in(tmp_path, train=[*GOOD, short], filters=filters))
    finding = the(diagnosis, "1 pair with a side more than 4 times as long as the other left out")
    assert finding.examples == ["train.tsv:61"]


def test_filters_that_leave_nothing_are_an_error(tmp_path: Path) -> None:
    diagnosis = examine(recipe_in(tmp_path, train=GOOD, filters=Filters(min_length=900)))
    assert not diagnosis.ok
    assert "no pair is left to use" in diagnosis.verdict
    assert "leave some filters out" in diagnosis.verdict


def test_quantiles_of_counted_values_are_those_of_all_values() -> None:
    random = np.random.default_rng(1)
    values, counts = random.permutation(30)[:9].astype(float), random.integers(1, 6, 9)
    whole = np.repeat(values, counts)
    for share in (0.0, 0.3, 0.5, 0.95, 1.0):
        assert check.quantile(values, counts, share) == pytest.approx(np.quantile(whole, share))


def test_what_was_assumed_of_a_file_is_said_once(tmp_path: Path) -> None:
    lines = ["word\tphones", *(f"word{n}\tw {n}" for n in range(50)), "word\tphones"]
    (tmp_path / "a.tsv").write_text("\n".join(lines), "utf-8")
    parts = {"train": "0-80%", "valid": "80-100%"}
    data = {name: {"file": "a.tsv", "split": part} for name, part in parts.items()}
    recipe = read_recipe({"data": {**data, "folder": str(tmp_path)}})
    told: list[str] = []
    diagnosis = examine(recipe, told.append)
    said = [finding.what for finding in diagnosis.findings if "repeats the header" in finding.what]
    assert said == ["train: a.tsv:52: the line repeats the header (line 1), and is left out"]
    assert told[0] == "making the vocabulary"
    assert [what.split(":")[0] for what in told[1:]] == ["train", "valid"]
    assert f"train: {diagnosis.pairs['train']} pairs are read" in told
