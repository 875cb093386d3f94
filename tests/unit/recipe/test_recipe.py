"""The recipe's own rules: what a value may be, and which keys do not go together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from transduce.errors import RecipeError
from transduce.recipe import (
    Columns,
    Data,
    Model,
    Named,
    ParallelFiles,
    Recipe,
    Recordings,
    dump_recipe,
    is_tagged,
    parse_recipe,
)
from transduce.recipe.presets import PRESETS
from transduce.recipe.tasks import TASK_RULES

DATA = """data:
  train: {source: a, target: b}
  valid: {source: a, target: b}
"""


def read(text: str = DATA, *overrides: str) -> Recipe:
    return parse_recipe(text, "my.yaml", Path("/data"), overrides)


def complaint(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        read(text, *overrides)
    return str(caught.value)


def test_data_is_enough() -> None:
    recipe = read()
    assert recipe.model.encoder.kind == recipe.model.decoder.kind == "transformer"
    assert recipe.data.tokens.both is not None
    assert recipe.metrics == ["bleu", "chrf"]


def test_the_keys_say_which_corpus_it_is() -> None:
    text = "data: {train: {file: a.tsv}, valid: {name: copy, split: valid}, test: {%s}}"
    data = read(text % "source: [a, b], target: [c, d]").data
    assert isinstance(data.train, Columns)
    assert isinstance(data.valid, Named)
    assert isinstance(data.test, ParallelFiles)
    assert data.test.source == ["a", "b"]


@pytest.mark.parametrize(
    "value", ["train.lr=nan", "train.lr=.inf", "train.lr=1e999", "decode.length_penalty=-.inf"]
)
def test_no_number_is_infinite(value: str) -> None:
    key = value.partition("=")[0]
    assert f"{key} is " in complaint(DATA, value)


@pytest.mark.parametrize(
    ("override", "must"),
    [
        ("train.lr=0", "a number above 0"),
        ("train.lr=[1]", "a number above 0"),
        ("train.steps=1.5", "a whole number above 0"),
        ("train.steps=many", "a whole number above 0"),
        ("train.label_smoothing=1", "a number of at least 0 and below 1"),
        ("train.ema=1", "a number of at least 0 and below 1, or null"),
        ("train.betas=[0.9]", "a list of 2, each a number of at least 0 and below 1"),
        ("seed=-1", "a whole number of at least 0"),
        ("seed=yes", "a whole number of at least 0"),
        ("data.streaming=1", "true or false"),
        ("train.schedule=linea", "inverse-sqrt, linear, cosine or constant; did you mean linear?"),
        ("metrics=bleu", "a list of bleu, chrf, "),
        ("metrics=bleu", "; write [bleu]"),
        ("data.train.source=[]", "a file name, a glob, or a list of them"),
        ("data.train.source=[a, 5]", "a file name, a glob, or a list of them"),
        ("data.train.target=''", "a file name, a glob, or a list of them"),
        ("data.train={file: a.tsv, source: -1}", "a number from 0, or a name"),
        ("data.train={file: a.tsv, target: 1.5}", "a number from 0, or a name"),
        ("data.train={file: a.tsv, target: true}", "a number from 0, or a name"),
        ("name=5", "a plain name; put quotes around it"),
        ("name=", "a plain name"),
    ],
)
def test_a_wrong_value_is_told_what_it_must_be(override: str, must: str) -> None:
    said = complaint(DATA, override)
    assert said.count("\n") == 0
    assert said.startswith("on the command line: ")
    assert must in said


@pytest.mark.parametrize("name", ["../x", "a/b", "''", ".", "..", "a\\b"])
def test_a_name_stays_inside_runs(name: str) -> None:
    assert "it becomes a folder in runs/" in complaint(DATA, f"name={name}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "model:\n  width: 64\n  encoder:\n    heads: 3\n",
            "my.yaml:7: model.encoder.heads is 3, which does not divide model.width, 64",
        ),
        ("model:\n  width: 33\n", "my.yaml:5: model.width is 33; it must be even"),
        (
            "model:\n  width: 36\n  encoder: {heads: 6}\n"
            "  decoder: {heads: 4, positions: rotary}\n",
            "my.yaml:7: model.decoder.heads is 4, which leaves 9 of model.width, 36, for each head",
        ),
        (
            "model:\n  encoder:\n    positions: rotary\n    combine: concatenate\n",
            "my.yaml:7: model.encoder.combine is concatenate, but rotary positions rotate",
        ),
        (
            "model: {decoder: {positions: none, combine: concatenate}}\n",
            "my.yaml:4: model.decoder.combine is concatenate, but there are no positions",
        ),
        (
            "  tokens: {source: {}, target: {}}\nmodel:\n  tie_embeddings: all\n",
            "my.yaml:6: model.tie_embeddings is all, which needs one vocabulary",
        ),
        ("  tokens: {source: {}}\n", "my.yaml:4: data.tokens needs either both, or source and"),
        (
            "  tokens: {both: {}, source: {}, target: {}}\n",
            "my.yaml:4: data.tokens needs either both, or source and",
        ),
        (
            "validation:\n  metric: wer\n",
            "my.yaml:5: validation.metric is wer, which is not computed; add it to metrics, now "
            "bleu, chrf",
        ),
        (
            "model:\n  encoder: {kind: recurrent}\n  decoder: {kind: recurrent, attention: none}\n"
            "decode:\n  coverage_penalty: 0.2\n",
            "my.yaml:8: decode.coverage_penalty is 0.2, but it needs attention to the source",
        ),
        ("validation: {metric: blue}\n", "; did you mean bleu?"),
        (
            "model:\n  encoder:\n    kind: convolutional\n    kernel: 4\n",
            "my.yaml:7: model.encoder.kernel is 4; it must be odd",
        ),
        (
            "model:\n  decoder:\n    kind: recurrent\n    location_kernel: 10\n",
            "my.yaml:7: model.decoder.location_kernel is 10; it must be odd",
        ),
        (
            "  max_length: 64\nmodel:\n"
            "  decoder: {kind: convolutional, positions: learned, max_positions: 64}\n",
            "my.yaml:6: model.decoder.max_positions is 64, but data.max_length allows 65 tokens",
        ),
        (
            "model: {decoder: {kind: convolutional, heads: 4}}\n",
            "my.yaml:4: model.decoder.heads is a key of kind transformer, but model.decoder is of "
            "kind convolutional",
        ),
    ],
)
def test_what_does_not_go_together(text: str, said: str) -> None:
    found = complaint(DATA + text)
    assert said in found
    assert "\n" not in found


def test_an_odd_width_is_reported_before_its_heads() -> None:
    assert "even" in complaint(DATA, "model.width=33")
    assert "even" in complaint(
        DATA, "model={width: 33, encoder: {kind: recurrent}, decoder: {kind: recurrent}}"
    )


def test_a_recipe_cannot_be_changed_by_accident() -> None:
    recipe = read()
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 2  # type: ignore[misc]


# --------------------------------------------------------------------------------------- tasks

FILES = "{train: {file: a.tsv}, valid: {file: a.tsv}}"


def test_a_task_fills_in_what_is_not_said() -> None:
    for task, levels in (("classify", ("subword", "label")), ("tag", ("symbol", "symbol"))):
        recipe = read(f"task: {task}\ndata: {FILES}\nmodel: {{preset: transformer-tiny}}\n")
        assert recipe.model.decoder is None
        assert recipe.model.encoder.layers == 2
        tokens = recipe.data.tokens
        assert (tokens.source.level, tokens.target.level) == levels
        assert recipe.metrics == list(TASK_RULES[task].default_metrics)
        assert parse_recipe(dump_recipe(recipe), "again", Path("/data")) == recipe
    source = f"task: classify\ndata: {FILES}\n"
    assert read(source, "data.tokens.source.level=word").data.tokens.target.level == "label"


SIDES = {"file": "a.tsv"}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("task", ["transduce", "classify", "tag"])
def test_a_preset_is_the_same_from_python_and_from_yaml(preset: str, task: str) -> None:
    written = read(f"task: {task}\ndata: {FILES}\nmodel: {{preset: {preset}, dropout: 0.3}}\n")
    model = {"preset": preset, "dropout": 0.3}
    made = Recipe(task=task, data={"train": SIDES, "valid": SIDES}, model=model)  # type: ignore[arg-type]
    assert made.model == written.model
    assert made.model.preset is None
    if task == "transduce":
        assert Model(preset=preset, dropout=0.3) == written.model
    assert dump_recipe(made).count("preset: null") == 1


def test_a_preset_that_there_is_not_is_told_in_python_too() -> None:
    with pytest.raises(ValueError, match=r"which is not a preset; did you mean transformer-tiny"):
        Model(preset="transformer-tny")


def test_parts_made_in_python_are_filled_in_as_the_task_has_it() -> None:
    table = Columns(file="a.tsv")
    made = Recipe(task="classify", data=Data(train=table, valid=table), model=Model(width=64))
    assert made.model.decoder is None
    assert made.model.width == 64
    assert made.data.tokens.target is not None
    assert made.data.tokens.target.level == "label"
    recordings = Recordings(file="a.tsv", audio="path")
    assert Recipe(data=Data(train=recordings, valid=recordings)).audio is not None


@pytest.mark.parametrize(
    ("task", "override", "said"),
    [
        (
            "classify",
            "model.decoder.layers=2",
            "model.decoder is given, but a classifier",
        ),
        (
            "classify",
            "model.tie_embeddings=none",
            "model.tie_embeddings is none, but a classifier (task: classify) does not use it",
        ),
        (
            "classify",
            "decode.beam=4",
            "decode.beam is 4, but a classifier (task: classify) does not use it",
        ),
        (
            "classify",
            "decode={no_repeat_ngram: 2}",
            "decode.no_repeat_ngram is 2, but a classifier",
        ),
        ("classify", "validation.beam=2", "validation.beam is 2, but a classifier"),
        (
            "classify",
            "data.multiple_references=true",
            "data.multiple_references is True, but a classifier",
        ),
        ("classify", "model.characters.width=8", "model.characters is given, but a classifier"),
        ("classify", "model.encoder=null", "model.encoder is empty"),
        ("classify", "metrics=[bleu]", "metrics has bleu, which is not for a classifier"),
        ("classify", "data.tokens={both: {}}", "data.tokens.both is one vocabulary, but the lab"),
        ("classify", "data.tokens.target.level=word", "data.tokens.target.level is word; for a cl"),
        ("tag", "data.tokens.source.level=word", "data.tokens.source.level is word; for a tagger"),
        (
            "tag",
            "model.pooling=last",
            "model.pooling is last, but a tagger (task: tag) does not use it",
        ),
        ("tag", "model.characters.width=7", "model.characters.width is 7; it must be even"),
        ("tag", "model.characters.width=512", "must be even, and below the 512 that model.width"),
        (
            "transduce",
            "model.pooling=last",
            "model.pooling is last, but a sequence-to-",
        ),
        ("transduce", "model.word_dropout=0.1", "model.word_dropout is 0.1, but a sequence"),
        ("transduce", "model.decoder=null", "model.decoder is empty"),
        ("transduce", "task=translate", "task is translate; it must be one of transduce, classify"),
    ],
)
def test_keys_that_mean_nothing_to_a_task_are_reported(task: str, override: str, said: str) -> None:
    complained = complaint(f"task: {task}\ndata: {FILES}\n", override)
    assert complained.startswith(f"on the command line: {said}") or said in complained
    assert complained.count("\n") == 0


def test_any_encoder_goes_with_any_task() -> None:
    for task in (
        name for name, rules in TASK_RULES.items() if "model.encoder" not in rules.unused_keys
    ):
        for kind in ("pooled", "recurrent", "transformer", "convolutional"):
            read(f"task: {task}\ndata: {FILES}\nmodel: {{encoder: {{kind: {kind}}}}}\n")


# -------------------------------------------------------------------------------------- audio

SOUND = """data:
  train: {file: a.tsv, audio: path}
  valid: {file: b.tsv, audio: path}
  tokens: {both: {level: character}}
"""
NAMED = """data:
  train: {name: mboshi, split: train, language: mb}
  valid: {name: mboshi, split: valid, language: mb}
"""


def test_a_table_of_sound_files_is_enough() -> None:
    recipe = read(SOUND)
    assert isinstance(recipe.data.train, Recordings)
    assert recipe.data.train.target == "text"
    assert recipe.audio is not None
    assert recipe.audio.spec_augment is not None
    again = parse_recipe(dump_recipe(recipe), "again", Path("/"))
    assert again.audio == recipe.audio
    assert read(NAMED).audio is None
    assert read(NAMED, "audio={spec_augment: null}").audio == recipe.audio.model_copy(
        update={"spec_augment": None}
    )


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "data.valid={file: b.tsv}",
            "data.valid does not match the other corpora, whose sources are audio",
        ),
        ("data.streaming=true", "data.streaming is true, but audio is always streamed"),
        (
            "data.overlong=truncate",
            "data.overlong is truncate, but a truncated utterance would not match its transcript",
        ),
        (
            "train.batch_tokens=auto",
            "train.batch_tokens is auto, but for audio it must be a number of frames",
        ),
        ("train.fsdp=true", "train.fsdp is true, but speech models cannot be sharded"),
        ("model.tie_embeddings=all", "model.tie_embeddings is all, but audio has no embeddings"),
        ("decode.ctc_weight=0.3", "decode.ctc_weight is 0.3, but model.ctc_weight is 0"),
        ("train.cr_ctc={}", "train.cr_ctc is given, but model.ctc_weight is 0"),
        (
            "data.concatenate={pause: [0.5, 0.1]}",
            "data.concatenate.pause is [0.5, 0.1]; give the shortest first",
        ),
        (
            "model.ctc_weight=1",
            "model.ctc_weight is 1; it must be a number of at least 0 and below 1",
        ),
        ("audio.hop=30", "audio.hop is 30.0 ms, longer than audio.window, 25.0 ms"),
        ("audio.mel_bands=5", "audio.mel_bands is 5; it must be a whole number of at least 7"),
        ("audio.speed_perturbation=[3.0]", "item 1 of audio.speed_perturbation is 3"),
        ("audio.background_noise={snr: [30.0, 20.0]}", "give the lowest first"),
        ("audio.background_noise={share: 2.0}", "audio.background_noise.share is 2"),
        ("model.encoder={kind: conformer, kernel: 4}", "model.encoder.kernel is 4; it must be odd"),
        ("model.encoder={kind: conformer, heads: 3}", "model.encoder.heads is 3, which does not"),
    ],
)
def test_what_does_not_go_with_sound(override: str, said: str) -> None:
    found = complaint(SOUND, override)
    assert said in found
    assert found.count("\n") == 0


def test_attention_that_is_guided_must_be_there() -> None:
    for decoder in ("{kind: convolutional}", "{kind: recurrent, attention: none}"):
        encoder = "model.encoder={kind: recurrent}"
        given = (f"model.decoder={decoder}", encoder, "train.guided_attention=1.0")
        found = complaint(SOUND, *given)
        assert "guided_attention is for a transformer decoder, or a recurrent one with" in found


def test_the_recipes_on_the_page_of_speech_are_recipes() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "speech.md").read_text("utf-8")
    found = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    corpus, manifests, shape, transducer, translation, mixture, labels = found
    assert read(corpus + shape).model.ctc_weight == 0.3
    assert read(manifests + "  tokens: {both: {level: character}}\n").audio is not None
    assert read(corpus + transducer).model.transducer is not None
    lines = [line for line in transducer.splitlines() if "kind: recurrent" not in line]
    stateless = "\n".join(lines).replace("# decoder:", "decoder:")
    assert read(corpus + stateless).model.decoder.kind == "convolutional"
    assert read(translation).data.train.transcript == "mboshi"
    several = read(mixture)
    assert several.audio is not None
    assert [one.tag for one in several.data.train.of] == ["mboshi", "french"]
    assert read(labels).task == "classify"


def test_what_sound_is_for() -> None:
    without = SOUND.replace("  tokens: {both: {level: character}}\n", "")
    assert read(without, "task=classify").audio is not None
    complaints = {
        "task=tag": "audio is for task: transduce or classify, not for tag",
        "model.ctc_weight=0.3": "CTC needs a text as target, not a label",
        "data.concatenate={}": "a label is of one recording",
        "model.word_dropout=0.1": "audio has no words",
    }
    for key, why in complaints.items():
        assert why in complaint(without, "task=classify", key)


def test_corpora_of_sound_in_a_list() -> None:
    """They make the recipe one of audio; text among them does not fit."""
    each = "{file: a.tsv, audio: path, tag: x}, {file: b.tsv, audio: path, tags: 2}"
    recipe = read(SOUND, f"data.train=[{each}]")
    assert recipe.audio is not None
    assert is_tagged(recipe.data.train)
    found = complaint(SOUND, f"data.train=[{each}, {{file: c.tsv}}]")
    assert "data.train does not match the other corpora, whose sources are audio" in found


def test_ctc_is_for_sound() -> None:
    assert "model.ctc_weight is 0.3, but CTC needs audio" in complaint(DATA, "model.ctc_weight=0.3")
    assert "train.cr_ctc is given, but CTC needs audio" in complaint(DATA, "train.cr_ctc={}")
    assert "data.concatenate is for audio" in complaint(DATA, "data.concatenate={}")
    assert "guided_attention is for audio" in complaint(DATA, "train.guided_attention=1.0")
    assert "data.train does not match the other corpora, whose sources are text" in complaint(
        DATA, "audio=", "data.train={file: a.tsv, audio: path}"
    )


def test_joint_search_needs_one_vocabulary() -> None:
    apart = "data.tokens={source: {level: character}, target: {level: character}}"
    assert read(SOUND, "model.ctc_weight=0.3", apart).model.ctc_weight == 0.3
    found = complaint(SOUND, "model.ctc_weight=0.3", "decode.ctc_weight=0.3", apart)
    assert "one vocabulary for CTC and the decoder: use data.tokens.both" in found


def test_learned_positions_count_states_not_frames() -> None:
    learned = "model.encoder={positions: learned, max_positions: 400}"
    assert read(SOUND, learned, "data.max_length=1600").model.encoder is not None
    assert "data.max_length allows 401 tokens" in complaint(SOUND, learned, "data.max_length=1604")
    noise = "audio.background_noise={before: 1.0, after: 1.0}"  # 200 frames
    assert read(SOUND, learned, noise, "data.max_length=1400").model.encoder is not None
    assert "allows 401 tokens" in complaint(SOUND, learned, noise, "data.max_length=1404")
    slow = "audio.speed_perturbation=[0.8, 1.0]"
    assert "allows 500 tokens" in complaint(SOUND, learned, slow, "data.max_length=1600")


def test_a_task_has_its_earlier_name_too() -> None:
    text = {"data": {"train": {"text": "a.txt"}, "valid": {"text": "b.txt"}}}
    earlier = Recipe.model_validate({"task": "continue", **text})
    assert earlier.task == "language_modeling"
    assert earlier == Recipe.model_validate({"task": "language_modeling", **text})
