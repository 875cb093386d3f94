"""The choice of settings: parts, tokens, network, updates; and the recipe that is written of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from transduce.automatic import Choice, Found, Machine, choose, commented
from transduce.automatic.choose import FEW, RECIPE_TASKS
from transduce.automatic.found import Lengths, Side, Sound, Unseen
from transduce.automatic.machine import rounded
from transduce.automatic.plans import PLANS, Plan
from transduce.data.text.split import in_part
from transduce.recipe import Recipe, load_recipe, parse_recipe
from transduce.recipe.read import shipped

CPU, GPU = Machine("cpu", 1.0), Machine("cuda", 1.0)
WORDS = ["cat", "dog", "singing", "sang", "house", "houses", "mouse", "mice"]


def side(kind: str) -> Side:
    texts = {
        "words": [f"{one}{other}" for one in WORDS for other in WORDS],
        "phones": ["K AE T", "D AO G", "S IH NG", "M AW S"] * 20,
        "sentences": [f"{one} and {other} ran away home ." for one in WORDS for other in WORDS],
        "Greek": ["ο σκύλος και η γάτα έτρεξαν σπίτι", "η γάτα και ο σκύλος έφυγαν"] * 20,
        "Hangul": ["나무", "사람", "바다"] * 20,
        "numbers": [f"two hundred and {one} thousand" for one in WORDS],
        "digits": ["17611", "420", "99", "1234567890"],
        "tags": ["DET NOUN VERB", "NOUN VERB PUNCT"] * 20,
        "labels": ["good", "bad"] * 20,
    }  # fmt: skip
    return Side.of(texts[kind])


def found(task: Any = "text to text", rows: int = 5000, **changes: Any) -> Found:
    corpus: dict[str, Any] = {"file": "mine.tsv"}
    source: Side | None = side("sentences")
    labels = 2 if "label" in task or "tags" in task else 0
    target = side("tags" if "tags" in task else "labels" if labels else "sentences")
    sound = None
    if task == "language model":
        corpus, source = {"text": "mine.txt"}, None
    if task.startswith("audio"):
        corpus, source = {"file": "mine.tsv", "audio": "path", "target": "text"}, None
        sound = Sound(Lengths(300, 500, 900, 300.0), rows * 0.05, 16_000)
    it = Found(
        task, "mine", Path("/data"), {"train": corpus}, rows, rows, True, source, target,
        labels=labels, sound=sound, seen=["mine.tsv: a table."],
    )  # fmt: skip
    return replace(it, **changes)


def recipe_of(it: Found, choice: Choice) -> Recipe:
    return parse_recipe(commented(choice, it.seen, "/data"), "chosen", Path("/data"))


@pytest.mark.parametrize("task", RECIPE_TASKS)
@pytest.mark.parametrize("machine", [CPU, GPU, Machine("cpu", 0.125)])
@pytest.mark.parametrize("rows", [50, 5000, 400_000, 50_000_000])
def test_every_choice_is_a_valid_recipe(task: str, machine: Machine, rows: int) -> None:
    it = found(task, rows * 100 if task == "language model" else rows)
    for minutes in (0.2, 10.0, 600.0):
        choice = choose(it, machine, minutes)
        recipe = recipe_of(it, choice)
        assert recipe.train.minutes == minutes
        assert recipe.task == RECIPE_TASKS[it.task]
        assert recipe.train.warmup < recipe.train.steps
        assert (recipe.data.test is None) == (it.sources < FEW)
        keys = [
            f"{key}.{name}"
            for key, value in choice.values.items()
            if isinstance(value, dict)
            for name in value
        ]
        told = [
            key
            for key in keys
            if key in choice.reasons or any(one.startswith(f"{key}.") for one in choice.reasons)
        ]
        assert set(keys) - set(told) <= {"data.valid", "data.test"}  # a reason at each value


def test_the_recipe_holds_the_values_and_what_was_seen() -> None:
    it = found(seen=["x\ny: a name with a line break"], rows=300)
    choice = choose(it, CPU)
    text = commented(choice, it.seen, None)
    assert text.startswith("# x y: a name with a line break\n")
    assert "folder:" not in text
    recipe = parse_recipe(text, "chosen", Path())
    assert recipe.train.steps == choice.get("train.steps")
    assert recipe.model.dropout == choice.get("model.dropout")


@pytest.mark.parametrize(
    ("source", "target", "tokens"),
    [
        ("words", "phones", {"source": "character", "target": "symbol"}),
        ("words", "words", {"both": "character"}),
        ("sentences", "sentences", {"both": "subword"}),
        ("sentences", "Greek", {"source": "subword", "target": "subword"}),
        ("phones", "words", {"source": "symbol", "target": "character"}),
        ("numbers", "digits", {"source": "character", "target": "character"}),
    ],
)
def test_tokens_by_lengths_and_scripts(source: str, target: str, tokens: dict[str, str]) -> None:
    choice = choose(found(source=side(source), target=side(target)), CPU)
    sides = choice.values["data"]["tokens"]
    assert {name: value["level"] for name, value in sides.items()} == tokens
    tied = {"both": "all"}.get(
        next(iter(tokens)), "target" if "subword" in tokens.values() else "none"
    )
    assert choice.get("model.tie_embeddings") == tied


@pytest.mark.parametrize(
    ("source", "target", "rows", "copies"),
    [
        ("words", "words", 700, True),
        ("words", "phones", 700, False),
        ("sentences", "sentences", 50_000, False),
    ],
)
@pytest.mark.parametrize("machine", [CPU, GPU])
def test_letters_are_copied_where_both_sides_have_the_same(
    machine: Machine, source: str, target: str, rows: int, copies: bool
) -> None:
    it = found(rows=rows, source=side(source), target=side(target))
    chosen = recipe_of(it, choose(it, machine))
    assert chosen.model.copies is copies
    assert getattr(chosen.model.decoder, "context", "output") == "output"


def test_labels_of_texts_whose_words_are_rare() -> None:
    often, rare = side("sentences"), replace(side("sentences"), frequency=2.0)
    for source, level in ((often, "word"), (rare, "subword"), (side("words"), "character")):
        choice = choose(found("text to label", source=source), CPU)
        assert choice.get("data.tokens.source.level") == level


def test_a_batch_has_enough_rows_whatever_their_length() -> None:
    words = choose(found(source=side("words"), target=side("words")), CPU)
    phrases = choose(found(source=side("numbers"), target=side("digits")), CPU)
    assert words.get("train.batch_tokens") == 512
    median = side("numbers").characters.median
    assert phrases.get("train.batch_tokens") >= 20 * median > 512


def test_syllables_are_read_as_letters() -> None:
    choice = choose(found(source=side("Hangul"), target=side("phones")), CPU)
    assert choice.get("data.tokens.source.normalize") == "nfd"
    # They are written as syllables, so the vocabularies differ.
    tokens = choose(found(source=side("Hangul"), target=side("Hangul")), CPU).get("data.tokens")
    assert tokens == {
        "source": {"level": "character", "normalize": "nfd"},
        "target": {"level": "character"},
    }


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        (100, ["0-70%", "70-85%", "85-100%"]),
        (1000, ["0-80%", "80-90%", "90-100%"]),
        (20_000, ["0-90%", "90-95%", "95-100%"]),
        (1_000_000, ["0-99.6%", "99.6-99.8%", "99.8-100%"]),
    ],
)
def test_parts_by_the_number_of_rows(rows: int, parts: list[str]) -> None:
    choice = choose(found(rows=rows), GPU, 60)
    assert [choice.get(f"data.{part}.split") for part in ("train", "valid", "test")] == parts


def test_files_of_parts_are_used_and_only_what_is_missing_is_split() -> None:
    files = {part: {"file": f"{part}.tsv"} for part in ("train", "valid", "test")}
    choice = choose(found(corpora=files), CPU)
    assert [choice.get(f"data.{part}") for part in files] == list(files.values())
    choice = choose(found(corpora={"train": files["train"], "test": files["test"]}), CPU)
    assert choice.get("data.train.split") == "0-95%"
    assert choice.get("data.valid") == {"file": "train.tsv", "split": "95-100%"}
    assert choice.get("data.test") == files["test"]
    choice = choose(found(corpora={"train": files["train"], "valid": files["valid"]}), CPU)
    assert choice.get("data.train") == files["train"]
    assert choice.get("data.test") is None


def test_a_part_that_a_hash_leaves_empty_becomes_larger() -> None:
    few = [f"example {n}" for n in range(110)]
    shares = [choose(found(rows=110, sources=110, examples=few[:n]), CPU) for n in (0, 30)]
    assert [choice.get("data.test.split") for choice in shares] == ["85-100%", "77.5-100%"]
    for part in ("valid", "test"):
        assert sum(map(in_part(shares[1].get(f"data.{part}.split")), few[:30])) >= 5


@pytest.mark.parametrize("count", [40, 50, 99])
def test_of_few_rows_one_small_part_is_held_out_and_its_score_means_little(count: int) -> None:
    few = [f"example {n}" for n in range(count)]
    it = found(rows=count, sources=count, examples=few)
    choice = choose(it, CPU)
    held = sum(map(in_part(choice.get("data.valid.split")), few))
    assert held == max(5, round(0.15 * count))
    assert sum(map(in_part(choice.get("data.train.split")), few)) == count - held
    assert choice.get("data.test") is None
    assert any("means little" in line for line in choice.about)
    recipe_of(it, choice)
    more = choose(replace(it, sources=100), CPU)
    assert more.get("data.test") is not None
    assert not any("means little" in line for line in more.about)
    # With a test file, the score is of that one.
    tested = choose(replace(it, corpora={**it.corpora, "test": {"file": "test.tsv"}}), CPU)
    assert not any("means little" in line for line in tested.about)
    assert any("checkpoint is chosen by" in line for line in tested.about)


@pytest.mark.parametrize(
    ("unseen", "target", "tokens", "said"),
    [
        (Unseen(0.009), "words", {"level": "character"}, ""),
        (Unseen(0.2, decomposed=0.1), "words", {"level": "character", "normalize": "nfd"}, "nfd"),
        (Unseen(0.2, decomposed=0.11), "words", {"level": "byte"}, "bytes"),
        (Unseen(0.2, 0.5, 0.2), "words", {"level": "character"}, "it is copied from the source"),
        (Unseen(0.04, 0.4, 0.2), "words", {"level": "character"}, "cannot be right"),
        (Unseen(0.04, decomposed=0.04), "words", {"level": "character"}, "cannot be right"),
        (Unseen(0.2, decomposed=0.2), "phones", {"level": "symbol"}, "cannot be right"),
    ],
)
def test_letters_that_only_held_out_targets_have_are_written_or_said(
    unseen: Unseen, target: str, tokens: dict[str, str], said: str
) -> None:
    it = found(source=side("words"), target=side(target), unseen=unseen)
    choice = choose(it, CPU)
    assert (choice.get("data.tokens.target") or choice.get("data.tokens.both")) == tokens
    assert any("held-out part" in line for line in choice.about) == bool(said)
    assert all(said in line for line in choice.notes)
    recipe_of(it, choice)


def test_recordings_too_short_for_ctc_have_more_states() -> None:
    for share, expected in ((0.0, None), (0.005, None), (0.2, 2)):
        sound = Sound(Lengths(30, 50, 90, 30.0), 20.0, 16_000, share)
        choice = choose(found("audio to text", sound=sound), CPU)
        audio = recipe_of(found("audio to text"), choice).audio
        assert audio is not None
        assert audio.subsampling == expected


@pytest.mark.parametrize("task", ["audio to text", "audio to label"])
def test_words_are_not_normalised_by_themselves(task: str) -> None:
    for median, expected in ((45, "global"), (99, "global"), (100, "utterance")):
        sound = Sound(Lengths(median, 110, 200, 60.0), 20.0, 16_000)
        it = found(task, sound=sound)
        audio = recipe_of(it, choose(it, CPU)).audio
        assert audio is not None
        assert audio.normalize == expected


def test_recordings_that_have_much_of_the_sound_are_not_skipped() -> None:
    """By the plans for which that paid; a small network skips them."""

    def longest(in_long: float, maximum: int, minutes: float = 20.0, machine: Machine = GPU) -> int:
        sound = Sound(Lengths(120, 900, maximum, 300.0), minutes, 8000, 0.0, in_long)
        frames: int = choose(found("audio to text", sound=sound), machine).get("data.max_length")
        return frames

    assert longest(0.3, 7350) == 8000
    assert longest(0.3, 60_000) == 9000
    assert longest(0.04, 7350) == 3000
    assert longest(0.3, 7350, minutes=250.0) == 8000
    assert longest(0.3, 7350, machine=CPU) == 3000


def test_of_half_the_bands_half_as_many_are_masked() -> None:
    for minutes, masked in ((20.0, (16, 8)), (250.0, (27, 13))):
        for rate, bands in ((16_000, masked[0]), (8000, masked[1])):
            choice = choose(of_sound(rate, minutes), GPU)
            audio = recipe_of(of_sound(rate, minutes), choice).audio
            assert audio is not None
            assert audio.spec_augment is not None
            assert audio.mel_bands == rate // 200
            assert audio.spec_augment.frequency_mask_bands == bands
            assert audio.spec_augment.time_mask_frames == 40


def test_recordings_of_words_are_read_in_a_row() -> None:
    sound = Sound(Lengths(40, 80, 100, 45.0), 20.0, 8000)
    it = found("audio to text", sound=sound, target=side("words"))
    data = recipe_of(it, choose(it, CPU)).data
    assert data.concatenate is not None
    assert data.max_length == 400
    sentences = found("audio to text", sound=sound)
    assert recipe_of(sentences, choose(sentences, CPU)).data.concatenate is None
    assert choose(sentences, CPU).get("data.max_length") == 300


def test_many_hours_of_speech_are_written_in_subwords() -> None:
    letters, subwords = {"level": "character"}, {"level": "subword", "size": 128}
    for hours, expected in ((4, letters), (49, letters), (100, subwords)):
        it = found(
            "audio to text", sound=Sound(Lengths(300, 500, 900, 300.0), 60.0 * hours, 16_000)
        )
        assert choose(it, GPU).get("data.tokens.both") == expected
    many = replace(it.target, letters=frozenset(map(chr, range(200))))
    assert choose(replace(it, target=many), GPU).get("data.tokens.both") == letters


def test_letters_that_training_lacks_keep_one_vocabulary_and_are_said_of_sound_too() -> None:
    words: dict[str, Any] = {"source": side("words"), "target": side("words")}
    choice = choose(found(unseen=Unseen(0.2), **words), CPU)
    assert choice.get("data.tokens.both.normalize") == "nfd"
    speech = choose(found("audio to text", unseen=Unseen(0.2, example="x")), CPU)
    assert any("letter such as x" in line for line in speech.about)
    assert speech.get("data.tokens.both") == {"level": "character"}


def test_a_fine_metric_chooses_the_checkpoint_of_few_held_out_rows() -> None:
    words: dict[str, Any] = {"source": side("words"), "target": side("phones")}
    for rows, metric in ((50, "per"), (1900, "per"), (2100, "exact")):
        choice = choose(found(rows=rows, sources=rows, **words), CPU)
        assert choice.get("validation.metric") == metric
        assert choice.get("metrics") == ["exact", "per"]
    files = {part: {"file": f"{part}.tsv"} for part in ("train", "valid")}
    assert choose(found(rows=50, corpora=files, **words), CPU).get("validation.metric") == "exact"


def test_the_loss_chooses_the_checkpoint_of_sentences_with_few_updates() -> None:
    it = found(rows=100_000)
    for minutes, metric in ((1.0, "loss"), (10.0, "bleu")):
        assert choose(it, CPU, minutes).get("validation.metric") == metric
    assert choose(it, CPU, 1.0).get("metrics") == ["bleu", "chrf"]


def test_rows_of_a_table_are_the_parts() -> None:
    files = {
        part: {"file": "all.tsv", "where": {"column": "split", "value": part}}
        for part in ("train", "test")
    }
    it = found(corpora=files)
    choice = choose(it, CPU)
    assert choice.get("data.test") == files["test"]
    assert choice.get("data.valid") == {**files["train"], "split": "95-100%"}
    assert (
        "train split = train 0-95%, valid split = train 95-100%, test split = test"
        in (choice.about[0])
    )
    recipe_of(it, choice)  # train and test are other rows: they do not overlap


def test_tags_have_room_also_those_that_are_read_as_text() -> None:
    plain = choose(found(source=side("words"), target=side("words")), CPU)
    tagged = choose(found(source=side("words"), target=side("words"), tags=30), CPU)
    assert tagged.get("data.max_length") >= plain.get("data.max_length") + 32


def test_few_inflected_forms_get_invented_stems() -> None:
    words = {"source": side("words"), "target": side("words")}
    it = found(rows=700, tags=30, **words)
    chosen = choose(it, CPU)
    stems = {"share": 0.5, "letters": "substrings", "kept": 3}
    assert chosen.get("data.hallucination") == stems
    assert chosen.get("data.unknown_tags") is None
    hallucination = recipe_of(it, chosen).data.hallucination
    assert hallucination is not None
    assert hallucination.share == 0.5
    for other in (
        found(rows=7000, tags=30, **words),
        found(rows=700, **words),
        found(rows=700, tags=30, source=side("words"), target=side("phones")),
    ):
        assert choose(other, CPU).get("data.hallucination") is None


@pytest.mark.parametrize(("rows", "share"), [(700, 0.5), (7000, 0.0)])
def test_unknown_features_are_thought_of(rows: int, share: float) -> None:
    words = {"source": side("words"), "target": side("words")}
    corpora = {"train": {"file": "mine.tsv", "tags": 2}}
    it = found(rows=rows, tags=30, features=True, corpora=corpora, **words)
    for machine, minutes in ((CPU, 10), (GPU, 10)):
        data = recipe_of(it, chosen := choose(it, machine, minutes)).data
        assert data.unknown_tags > 0
        assert data.hallucination is not None
        assert (data.hallucination.share, data.hallucination.copies > 0) == (share, True)
        sinusoidal = machine is GPU  # a recurrent network has no positions
        assert (chosen.get("model.encoder.tag_positions") == "zero") == sinusoidal
        assert bool(chosen.get("model.decoder.tag_attention")) != sinusoidal
        assert not data.split_tags
    # However long a core has, a Conformer is no better; without features it is taken.
    for what, preset in ((it, "gru-attention"), (found(rows=rows, **words), None)):
        assert choose(what, CPU, 100_000).get("model.preset") == preset
    joint = found(rows=rows, tags=30, features=True, joint_tags="A+B", corpora=corpora, **words)
    assert recipe_of(joint, choose(joint, CPU)).data.split_tags
    assert not recipe_of(joint, choose(joint, GPU)).data.split_tags  # was not measured
    phones = found(rows=rows, tags=30, features=True, source=side("words"), target=side("phones"))
    assert choose(phones, GPU).get("data.unknown_tags") is None
    assert choose(phones, GPU).get("model.encoder.tag_positions") is None
    assert choose(phones, CPU).get("model.decoder.tag_attention") is None


def test_few_updates_have_little_dropout() -> None:
    words = found(rows=1000, source=side("words"), target=side("phones"))
    for minutes, dropout in ((0.3, 0.1), (10.0, 0.3)):
        choice = choose(words, CPU, minutes)
        assert choice.get("model.preset") == "gru-attention"
        assert (choice.expected < 800) == (minutes < 1)
        assert choice.get("model.dropout") == dropout
    many = found(rows=100_000, source=side("words"), target=side("phones"))
    assert choose(many, CPU, 0.3).get("model.dropout") == 0.0


def test_sentences_in_little_time_have_a_narrow_network() -> None:
    widths = [
        choose(found(rows=10_000), Machine("cpu", 4.0), minutes).get("model.width")
        for minutes in (1, 2, 4)
    ]
    assert widths == [64, None, None]  # None: that of the preset, 128
    assert choose(found(rows=1000), Machine("cpu", 4.0), 0.5).get("model.width") == 64


def test_few_sentences_have_few_subwords_and_many_updates() -> None:
    rows = (999, 1000, 9999, 10_000)  # fewer are read in letters
    sizes = [choose(found(rows=n), CPU).get("data.tokens.both.size") for n in rows]
    assert sizes == [None, 2000, 2000, 4000]
    narrow, small = choose(found(rows=10_000), CPU, 0.5), choose(found(rows=10_000), CPU, 10)
    assert (narrow.get("train.lr"), small.get("train.lr")) == (0.008, 0.004)
    assert choose(found(rows=1000), CPU).get("train.steps") == 4000
    large = choose(found(rows=1000), GPU, 1)
    assert (large.get("model.width"), large.get("train.steps")) == (256, 8000)


@pytest.mark.parametrize(
    ("rows", "minutes", "dropout"), [(2000, 2, 0.2), (2000, 0.6, 0.1), (10_000, 4, 0.0)]
)
def test_sentences_that_are_seen_seldom_have_little_dropout(
    rows: int, minutes: float, dropout: float
) -> None:
    choice = choose(found(rows=rows), CPU, minutes)
    assert choice.get("model.preset") == "transformer-tiny"
    assert choice.get("model.dropout") == dropout


@pytest.mark.parametrize(
    ("task", "rows", "rates", "dropouts"),
    [
        ("text to label", 10_000, (0.01, 0.005), (0.0, 0.0)),
        ("words to tags", 1000, (0.008, 0.004), (0.1, 0.4)),
    ],
)
def test_few_updates_of_labels_and_tags_have_a_higher_rate(
    task: str, rows: int, rates: tuple[float, float], dropouts: tuple[float, float]
) -> None:
    for minutes, rate, dropout in zip((0.2, 2.0), rates, dropouts, strict=True):
        choice = choose(found(task, rows), CPU, minutes, PLANS[task][0])
        assert (choice.get("train.lr"), choice.get("model.dropout")) == (rate, dropout)
        assert ("more as updates are few" in choice.reasons["train.lr"]) == (rate == rates[0])


def test_words_are_read_often_and_forms_less() -> None:
    """From 800 words a recurrent network learns for thousands of updates; from 700 forms with
    features it does not, and further seeds of the same minutes bring more."""
    words = found(rows=800, source=side("words"), target=side("phones"))
    choice = choose(words, CPU, 10.0)
    assert 4000 < choice.get("train.steps") <= 6000
    assert "290 passes" in choice.reasons["train.steps"]
    forms = found(rows=700, source=side("words"), target=side("words"), tags=30, features=True)
    assert choose(forms, CPU, 10.0).get("train.steps") < 1500


def test_a_wider_network_for_words_has_time_for_all_its_updates() -> None:
    """With half of them it is no better than the narrow one."""

    def width(rows: int, minutes: float, speed: float = 4.0, **changes: Any) -> int:
        sides = {"source": side("words"), "target": side("phones"), **changes}
        it = found(rows=rows, **sides)
        choice = choose(it, Machine("cpu", speed), minutes)
        if choice.get("model.width") == 192:
            assert choice.expected == choice.get("train.steps")
        found_width: int = choice.get("model.width")
        return found_width

    assert [width(800, minutes) for minutes in (1.0, 2.0, 10.0)] == [128, 128, 192]
    assert width(3600, 10.0) == 192
    assert width(3600, 10.0, speed=1.0) == 128
    assert width(100, 10.0) == 192
    assert width(800, 10.0, target=side("words"), tags=30, features=True) == 128  # forms


def test_on_a_gpu_words_are_read_often() -> None:
    words = found(rows=800, source=side("words"), target=side("phones"))
    assert choose(words, GPU, 10.0).get("train.steps") == 4000


def test_the_rate_is_lower_for_smaller_batches() -> None:
    words = {"source": side("words"), "target": side("phones")}
    for rows, batch, rate in ((100, 192, 0.0024), (100_000, 512, 0.004)):
        choice = choose(found(rows=rows, **words), CPU, 1.0)
        assert (choice.get("train.batch_tokens"), choice.get("train.lr")) == (batch, rate)
    assert choose(found(rows=100, **words), GPU).get("train.lr") == 1e-3  # another network
    long = found(rows=100, source=texts(100), target=texts(100))  # batches larger than the plan's
    assert choose(long, CPU, 1.0).get("train.batch_tokens") > 512
    assert choose(long, CPU, 1.0).get("train.lr") == 0.004


@pytest.mark.parametrize("hours", [0.5, 4])
def test_an_average_of_checkpoints_has_twice_as_many_to_choose_from(hours: float) -> None:
    it = found("audio to text", sound=Sound(Lengths(300, 500, 900, 300.0), 60.0 * hours, 16_000))
    values = choose(it, GPU).values
    count = values["train"]["average"]["count"]
    assert values["train"]["steps"] / values["validation"]["every"] > 2 * count - 1


def test_validations_end_with_the_updates() -> None:
    """One that comes a few updates before the last says the same twice."""
    for rows in (500, 5003, 27_777):
        choice = choose(found(rows=rows, source=side("words"), target=side("phones")), GPU)
        steps, every = choice.get("train.steps"), choice.get("validation.every")
        assert steps % every == 0 or steps % every > every / 2


def test_the_table_of_n_grams_is_as_large_as_the_training_set_can_fill() -> None:
    sizes = {}
    for rows in (100, 1000, 10**6):
        it = found("text to label", rows)
        assert it.source is not None
        size = choose(it, CPU).get("model.ngrams.size")
        pairs = rows * it.source.words.times(1.4).mean  # subwords, of all parts
        sizes[rows] = size
        assert size == 500_000 or pairs < size < 3 * pairs
    assert sizes[100] < sizes[1000] < sizes[10**6] == 500_000
    words = found("text to label", 100, source=side("words"))
    assert choose(words, CPU).get("model.ngrams.max_n") == 5
    letters = 100 * side("words").characters.mean
    assert choose(words, CPU).get("model.ngrams.size") > 4 * letters


def test_the_table_of_n_grams_is_updated_often_enough_on_a_cpu() -> None:
    """All its rows are at each update, which takes most of the time of a large one."""
    it, plan = found("text to label", 10**4), PLANS["text to label"][0]
    for minutes in (0.2, 1.0):
        choice = choose(it, CPU, minutes)
        size = choice.get("model.ngrams.size")
        each = plan.overhead * size / plan.model["ngrams"]["size"]
        assert each * plan.updates[0] == pytest.approx(0.5 * 0.85 * 60 * minutes, rel=0.05)
        assert "updated often enough" in choice.reasons["model.ngrams"]
        share = choice.get("train.batch_tokens") / plan.batch[1]
        products = (plan.seconds["cpu"] - plan.overhead) * share
        updates = 0.85 * 60 * minutes / (products + each)
        assert choice.expected == pytest.approx(min(updates, 1200), rel=0.01)
        assert choose(it, CPU, minutes, plan).values == choice.values
    for machine, minutes in ((CPU, 10.0), (GPU, 0.2)):
        choice = choose(found("text to label", 10**6), machine, minutes)
        assert choice.get("model.ngrams.size") == 500_000
        assert choice.reasons["model.ngrams"] == "pairs of words; as in imdb-pairs"


def test_a_sample_of_the_rows_is_said_to_be_one() -> None:
    for minutes, said in ((1, True), (10_000, False)):
        choice = choose(found(rows=1_000_000), CPU, minutes)
        assert any("a sample of" in note for note in choice.notes) == said
        assert (choice.get("data.train.split") < "0-9%") == said


def test_letters_are_searched_while_a_better_output_is_possible() -> None:
    for it in (found(source=side("words"), target=side("words")), found("audio to text")):
        assert recipe_of(it, choose(it, CPU)).decode.patience is None


def test_decoding_is_chosen_where_there_is_a_search() -> None:
    for task in RECIPE_TASKS:
        chosen = choose(found(task), CPU).get("validation.decoding")
        assert chosen == ("chosen" if task in ("text to text", "audio to text") else None)


def test_alternatives_are_references() -> None:
    assert choose(found(alternatives=0.1), CPU).get("data.multiple_references") is True
    assert choose(found(), CPU).get("data.multiple_references") is None


def test_more_time_and_a_faster_machine_mean_a_larger_model() -> None:
    it = found(source=side("words"), target=side("phones"))
    small = choose(it, CPU, 10)
    assert small.get("model.preset") == "gru-attention"
    assert choose(it, GPU, 10).get("model.encoder.kind") == "conformer"
    assert choose(it, CPU, 3000).get("model.encoder.kind") == "conformer"
    assert choose(it, GPU, 0.2).get("model.preset") == "gru-attention"
    assert choose(found(rows=2_000_000), GPU, 30).get("model.preset") == "transformer-base"


def test_little_time_means_little_dropout() -> None:
    it = found(rows=100_000, source=side("words"), target=side("phones"))
    assert choose(it, CPU, 3).get("model.dropout") == 0.0
    assert (
        choose(found(rows=500, source=side("words"), target=side("phones")), CPU, 10).get(
            "model.dropout"
        )
        == 0.3
    )


def test_of_more_rows_than_the_time_allows_a_sample_is_read() -> None:
    it = found(rows=1_000_000, source=side("words"), target=side("phones"))
    choice = choose(it, CPU, 10)
    assert choice.get("data.train.split") == "0-62%"
    assert choice.get("data.test.split") == "99.8-100%"
    files = {part: {"file": f"{part}.tsv"} for part in ("train", "valid", "test")}
    assert choose(replace(it, corpora=files), CPU, 1).get("data.train.split") == "0-6.2%"
    assert choose(it, CPU, 600).get("data.train.split") == "0-99.6%"


@pytest.mark.parametrize("rows", [22_800_000, 50_000_000])
def test_of_large_sets_which_are_streamed_a_bounded_part_of_all_rows_is_held_out(rows: int) -> None:
    choice = choose(found(rows=rows), GPU)
    assert choice.get("data.streaming") is True
    ends = []
    for part in ("train", "valid", "test"):
        first, _, last = str(choice.get(f"data.{part}.split")).rstrip("%").partition("-")
        ends += [float(first), float(last)]
        if part != "train":  # a limit would take the first rows of the file
            assert choice.get(f"data.{part}.limit") is None
            assert 1500 < (ends[-1] - ends[-2]) / 100 * rows < 3000
    assert ends[1::2] == [*ends[2::2], 100.0]
    # Of the largest, as many rows are read as take minutes.
    largest = choose(found(rows=900_000_000), GPU)
    assert largest.get("data.test.split") == "99.996-100%"
    assert largest.get("data.test.limit") == 2000


def test_targets_much_longer_than_sources_get_room() -> None:
    it = found(source=side("words"), target=side("sentences"), rows=500)
    assert choose(it, CPU).get("decode.max_ratio") > 2


def test_the_speed_is_rounded() -> None:
    assert [rounded(speed) for speed in (0.9, 1.1, 1.5, 0.3, 0.001, 1000.0)] == [
        1,
        1,
        2,
        0.25,
        0.05,
        20,
    ]


def test_plans_name_recipes_that_there_are() -> None:
    for plans in PLANS.values():
        for plan in plans:
            if plan.like.startswith("as in "):
                assert plan.like.removeprefix("as in ") in shipped()
            assert plan.evidence
            assert plan.updates[0] <= plan.updates[1]


def plan_of(recipe: str) -> Plan:
    fitting = [p for plans in PLANS.values() for p in plans if p.evidence.startswith(recipe + ":")]
    assert len(fitting) == 1
    return fitting[0]


@pytest.mark.parametrize(
    "name",
    [
        "cmudict",
        "multi30k-en-de",
        "multi30k-en-de-small",
        "imdb-pairs",
        "ewt-tagger",
        "ewt-small",
        "shakespeare",
        "mboshi",
    ],
)
def test_plans_have_what_the_recipes_found(name: str) -> None:
    """A recipe that is tuned further, or a plan that is changed, is seen here."""
    plan, recipe = plan_of(f"recipe {name}"), load_recipe(name)
    own = recipe.model_dump(mode="json")

    def same(plan_has: Any, recipe_has: Any, where: str) -> None:
        if isinstance(plan_has, dict):
            for key, value in plan_has.items():
                same(value, recipe_has[key], f"{where}.{key}")
        else:
            assert plan_has == recipe_has, where

    for section in ("model", "train", "audio", "decode"):
        given = {key: value for key, value in getattr(plan, section).items() if key != "preset"}
        same(given, own[section], section)
    dropouts = [plan.dropout] if isinstance(plan.dropout, float) else dict(plan.dropout).values()
    assert recipe.model.dropout in dropouts
    assert plan.batch[1] == recipe.train.batch_tokens
    assert plan.warmup == pytest.approx(recipe.train.warmup / recipe.train.steps, abs=0.02)
    both = own["data"]["tokens"]["both"]
    if not plan.tokens_from:
        same(plan.tokens, both, "data.tokens.both")
        assert plan.tokens.get("bpe_dropout", 0) == (both or {}).get("bpe_dropout", 0)


def test_sentences_of_one_script_share_a_vocabulary_and_split_it_anew() -> None:
    german = Side.of(["Ein Hund läuft über die grüne Straße", "Zwei Mädchen spielen"] * 20)
    it = found(rows=29_000, source=Side.of(["a dog runs over a green street"] * 40), target=german)
    tokens = choose(it, GPU).get("data.tokens")
    assert tokens == {"both": {"level": "subword", "size": 10_000, "bpe_dropout": 0.1}}
    seldom = choose(it, CPU, 1.0)
    assert seldom.get("data.tokens.both.bpe_dropout") is None  # seen once or twice
    few = replace(it, rows=1000)
    assert choose(few, CPU, 10.0).get("data.tokens.both.bpe_dropout") == 0.1
    assert choose(few, CPU, 2.0).get("data.tokens.both.bpe_dropout") is None
    greek = choose(replace(it, target=side("Greek")), GPU).get("data.tokens")
    assert sorted(greek) == ["source", "target"]
    assert greek["target"]["bpe_dropout"] == 0.1


def test_a_short_training_on_a_cpu_validates_on_a_part() -> None:
    limits = [choose(found("text to label"), CPU, m).get("validation.limit") for m in (0.01, 1, 9)]
    assert limits == [100, 1000, None]
    assert choose(found("text to label"), GPU, 1).get("validation.limit") is None


def test_updates_are_counted_by_the_mean_length() -> None:
    """Of reviews a few are very long: by the median, a third of the words are not seen."""
    skewed = Side.of(["good " * 100] * 60 + ["bad " * 600] * 40)
    it = found("text to label", 20_000, source=skewed)
    steps, batch = (choose(it, GPU).get(f"train.{key}") for key in ("steps", "batch_tokens"))
    assert steps * batch == pytest.approx(6 * 0.8 * 20_000 * 300, rel=0.15)


# Limits and counts, each seen from both sides.


def texts(length: int, letters: str = "abcdefg", count: int = 40) -> Side:
    """Words of seven letters, so many characters of them in a text."""
    words = ["".join(letters[(n * 5 + p) % len(letters)] for p in range(7)) for n in range(count)]
    return Side.of([" ".join([one] * (-(-length // 8))) for one in words])


def of_sound(rate: int = 16_000, minutes: float = 250.0, longest: int = 900) -> Found:
    sound = Sound(Lengths(300, 500, longest, 300.0), minutes, rate)
    return found("audio to text", 5000, sound=sound)


@pytest.mark.parametrize(
    ("letters", "train"),
    [(300_000, "0-80%"), (1_000_000, "0-90%"), (5_000_000, "0-98%"), (50_000_000, "0-99.8%")],
)
def test_of_much_running_text_a_small_part_is_held_out(letters: int, train: str) -> None:
    assert choose(found("language model", letters), GPU).get("data.train.split") == train


def test_long_phrases_are_read_in_subwords() -> None:
    short, long = texts(100), texts(200)
    for rows in (500, 5000):
        many = found(rows=rows, source=long, target=side("digits"))
        assert choose(many, CPU).get("data.tokens.source.level") == "subword"
    few = found(rows=5000, source=short, target=side("digits"))
    assert choose(few, CPU).get("data.tokens.source.level") == "character"
    assert choose(found(rows=500, source=long, target=long), CPU).get("data.tokens.both.level") == (
        "subword"
    )


def test_of_long_sources_with_short_targets_the_beginning_is_read() -> None:
    """As of articles and summaries; where both are long, cut ends would not belong together."""
    article, summary = texts(8000), texts(300)  # about 1,000 and 40 words
    for source, target, overlong in (
        (article, summary, "truncate"),
        (article, article, None),
        (summary, summary, None),
        (summary, article, None),
    ):
        choice = choose(found(rows=5000, source=source, target=target), GPU)
        assert choice.get("data.overlong") == overlong
        long = article in (source, target)
        assert choice.get("data.max_length") == 512 or not long
        assert ("square" in choice.reasons["data.max_length"]) == long


def test_every_word_has_its_letters_and_frequent_ones_an_embedding() -> None:
    words = [f"w{n}" for n in range(3000)]
    several = Side.of([" ".join(words), " ".join(words[:40])])
    choice = choose(found("words to tags", source=several), CPU)
    assert choice.get("data.tokens.source.size") == 6000
    assert choice.get("model.characters.words") == 40


def test_words_without_spaces_between_them() -> None:
    clauses = Side.of(
        ["これは長い文ですねとても長いとおもいます", "みじかくないぶんもここにあります"] * 20
    )
    labels = choose(found("text to label", source=clauses), CPU)
    assert labels.get("data.tokens.source.level") == "character"
    assert labels.get("model.ngrams.max_n") == 5
    translated = choose(found(target=clauses), GPU)
    assert translated.get("metrics") == ["chrf", "bleu"]


def test_running_text_of_many_signs_or_much_of_it_is_read_in_subwords() -> None:
    signs = Side.of(["".join(map(chr, range(0x4E00, 0x4E00 + 500)))])
    for it in (found("language model", 10**6, target=signs), found("language model", 30_000_000)):
        tokens = choose(it, GPU).get("data.tokens.both")
        assert tokens["level"] == "subword"
        assert tokens["size"] == 8000
    few = choose(found("language model", 10**6), GPU)
    assert few.get("data.tokens.both.level") == "character"
    # A subword is about four letters.
    much = choose(found("language model", 400_000_000), GPU, 10**5)
    read = much.get("train.steps") * much.get("train.batch_tokens")
    assert read == pytest.approx(10 * 400_000_000 / 4, rel=0.01)


def test_letters_are_shared_where_most_are_the_same() -> None:
    for letters, sides in (("abcdefg", ["both"]), ("abcuvwxyz", ["source", "target"])):
        it = found(rows=500, source=texts(7), target=texts(7, letters))
        assert sorted(choose(it, CPU).get("data.tokens")) == sides


def test_vocabularies_are_small_on_a_cpu_and_large_enough_for_all_signs() -> None:
    it = found(rows=29_000)
    assert choose(it, CPU).get("data.tokens.both.size") == 4000
    assert choose(it, GPU).get("data.tokens.both.size") == 10_000
    signs = Side.of([f"{chr(n)} {chr(n + 1)} 字" for n in range(0x4E00, 0x4E00 + 6000)] * 2)
    assert choose(replace(it, source=signs), GPU).get("data.tokens.source.size") == 12_002


def test_lengths_have_room() -> None:
    # A sample of the recordings was opened: others may be twice as long.
    assert choose(of_sound(longest=100), CPU).get("data.max_length") == 300
    assert choose(of_sound(longest=900), CPU).get("data.max_length") == 1800
    assert choose(of_sound(longest=9000), CPU).get("data.max_length") == 3000
    words = found(rows=500, source=texts(40), target=texts(40))
    assert choose(words, CPU).get("data.max_length") == 64
    assert choose(replace(words, whole=False), CPU).get("data.max_length") == 96


@pytest.mark.parametrize(
    ("rate", "read"), [(44_100, 16_000), (16_000, 16_000), (11_025, 11_025), (4000, 8000)]
)
def test_the_sampling_rate_is_that_of_the_recordings_where_it_is_lower(
    rate: int, read: int
) -> None:
    assert choose(of_sound(rate), CPU).get("audio.sample_rate") == read


def test_telephone_speech_has_fewer_bands() -> None:
    bands = [choose(of_sound(rate), GPU).get("audio.mel_bands") for rate in (8000, 16_000)]
    assert bands == [40, 80]


def test_speech_is_counted_in_minutes() -> None:
    """Not in recordings, of which there are as many; and the part that is held out is not read."""
    little, much = choose(of_sound(minutes=20.0), GPU), choose(of_sound(minutes=250.0), GPU)
    assert (little.get("model.dropout"), much.get("model.dropout")) == (0.2, 0.1)
    read = much.get("train.steps") * much.get("train.batch_tokens")
    assert read == pytest.approx(70 * 0.9 * 250 * 6000, rel=0.01)


def test_little_speech_has_a_small_network_where_a_larger_one_would_take_too_long() -> None:
    little = of_sound(minutes=20.0)
    widths = [choose(little, machine, 10).get("model.width") for machine in (CPU, GPU)]
    assert widths == [128, 144]
    assert choose(little, GPU, 10).get("audio.normalize") == "global"


def test_a_batch_of_very_long_rows_is_bounded() -> None:
    it = found("text to label", source=texts(30_000))
    assert choose(it, GPU).get("train.batch_tokens") == 4 * 8192 // 64 * 64


def test_a_small_batch_saves_less_time_on_a_gpu() -> None:
    it = found(rows=300, source=side("words"), target=side("phones"))
    seconds = 0.012 * (0.3 + 0.7 * 192 / 512)
    assert choose(it, GPU, 0.2).expected == int((0.85 * 12 - 8) / seconds)


def test_many_small_operations_take_their_time_on_a_fast_cpu() -> None:
    it = found(rows=300, source=side("words"), target=side("phones"))
    plan = PLANS["words"][0]
    for speed in (1, 4):
        products = (plan.seconds["cpu"] - plan.overhead) * 192 / 512 / speed
        updates = 0.85 * 12 / (plan.overhead + products)
        expected = choose(it, Machine("cpu", speed), 0.2).expected
        assert expected == pytest.approx(updates, abs=1)
        assert expected < 0.85 * 12 / plan.overhead < 800


def test_more_pairs_than_the_time_allows_have_a_smaller_network_not_the_smallest() -> None:
    it = found(rows=1_000_000)
    assert choose(it, GPU, 600).get("model.preset") == "transformer-base"
    assert choose(it, GPU, 2).get("model.encoder.layers") == 4
    assert choose(it, GPU, 0.3).get("model.preset") == "transformer-tiny"


def test_a_sample_has_enough_rows_and_a_stream_is_not_cut() -> None:
    it = found(rows=1_000_000, source=side("words"), target=side("phones"))
    assert choose(it, CPU, 0.05).get("data.train.split") == "0-5%"
    large = choose(replace(it, rows=50_000_000, sources=50_000_000), CPU, 1)
    assert large.get("data.train.split") == "0-99.992%"
    assert large.get("data.streaming")
    learned = large.get("data.tokens").values()
    assert [tokens["sample"] for tokens in learned] == [1_000_000] * len(learned)
    assert not choose(found("language model", 50_000_000), GPU).get("data.streaming")


def test_the_metric_fits_what_is_written() -> None:
    def metrics(it: Found) -> Any:
        return choose(it, CPU).get("metrics")

    assert metrics(found(source=side("words"), target=side("phones"))) == ["exact", "per"]
    assert metrics(found(source=side("words"), target=side("words"))) == ["exact", "cer"]
    assert metrics(found(rows=500)) == ["chrf", "exact"]  # phrases, in letters
    assert metrics(found(rows=5000)) == ["bleu", "chrf"]
    assert metrics(replace(of_sound(), target=side("phones"))) == ["per"]
    assert metrics(of_sound()) == ["cer", "wer"]


def test_validations_are_few_where_decoding_takes_the_time() -> None:
    it = found(source=side("words"), target=side("phones"))
    for minutes, times in ((1.0, 4), (5.0, 8)):
        choice = choose(it, CPU, minutes)
        assert choice.get("validation.every") == -(-choice.expected // times)
    labels = choose(found("text to label"), CPU, 1.0)
    assert labels.get("validation.every") == -(-labels.expected // 8)
    # A core reads the held-out part of running text as long as it takes for many updates.
    for machine, minutes, times in ((CPU, 2.9, 4), (CPU, 3.0, 8), (GPU, 2.9, 8)):
        text = choose(found("language model", 1_000_000), machine, minutes)
        assert text.get("validation.every") == -(-text.expected // times)


def test_the_warmup_is_of_the_updates_that_there_is_time_for() -> None:
    it = found(rows=100_000)
    short, long = choose(it, CPU, 2.0), choose(it, CPU, 1000.0)
    assert short.get("train.warmup") == round(0.1 * short.expected)
    assert short.get("train.warmup") < long.get("train.warmup") / 10


def test_validations_are_counted_of_the_updates_that_there_is_time_for() -> None:
    """Not of those that the data would be worth: else a short run would never be validated."""
    it, slow = found(rows=400_000), Machine("cpu", 0.125)
    short = recipe_of(it, choose(it, slow, 1.0))
    assert short.train.steps > 20 * short.validation.every
    assert short.train.log_every <= short.validation.every
