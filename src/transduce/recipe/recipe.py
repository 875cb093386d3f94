"""A recipe: all that a run is made of, typed, and validated whole before any work starts.

The description of every key, here and in the files of its parts, is what `transduce recipes --keys`
and docs/recipes.md print.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, NonNegativeInt, model_validator

from transduce.recipe.audio import SUBSAMPLING, Audio
from transduce.recipe.corpus import (
    Column,
    Columns,
    Corpus,
    Hub,
    Mixture,
    Named,
    ParallelFiles,
    Recordings,
    Text,
    corpus_form,
    is_tagged,
    plain_tag,
)
from transduce.recipe.data import Data, Tokens, TokensOfSides
from transduce.recipe.model import (
    Characters,
    ConformerEncoder,
    ConvolutionalDecoder,
    ConvolutionalEncoder,
    Decoder,
    Encoder,
    Model,
    NGrams,
    PooledEncoder,
    RecurrentDecoder,
    RecurrentEncoder,
    TransformerDecoder,
    TransformerEncoder,
)
from transduce.recipe.section import InvalidValue, Section
from transduce.recipe.tasks import RULES
from transduce.recipe.training import Average, BleuTokenizer, Decode, MetricName, Train, Validation

__all__ = [
    "Audio",
    "Average",
    "Characters",
    "Column",
    "Columns",
    "ConformerEncoder",
    "ConvolutionalDecoder",
    "ConvolutionalEncoder",
    "Corpus",
    "Data",
    "Decode",
    "Decoder",
    "Encoder",
    "Hub",
    "InvalidValue",
    "MetricName",
    "Mixture",
    "Model",
    "NGrams",
    "Named",
    "ParallelFiles",
    "PooledEncoder",
    "Recipe",
    "Recordings",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "Section",
    "Text",
    "Tokens",
    "TokensOfSides",
    "Train",
    "TransformerDecoder",
    "TransformerEncoder",
    "Validation",
    "is_tagged",
    "plain_tag",
]


def _plain_name(name: str) -> str:
    # It becomes a folder: "" or ".." would put a run, and --overwrite, above its place.
    if not name.strip(" .") or any(sign in name for sign in "/\\\n\0"):
        raise InvalidValue(
            "", f"is {name!r}; it must be a plain name, as it becomes a folder in runs/"
        )
    return name


# A string in an annotation is what errors and the list of keys call such a value.
Name = Annotated[str, AfterValidator(_plain_name), "a plain name"]
PARTS = ("encoder", "decoder")
OF_SOUND = ("transduce", "classify")  # tasks whose sources may be audio


def _task(name: str) -> str:
    if name not in RULES:
        raise InvalidValue("", f"is {name}; it must be one of {', '.join(RULES)}")
    return name


class Recipe(Section):
    name: Name = Field("model", description="what the run is called; its folder is runs/NAME")
    task: Annotated[str, AfterValidator(_task), "the name of a task"] = Field(
        "transduce",
        description="what the model does: "
        + "; ".join(f"{name}: a {rules.about}" for name, rules in RULES.items()),
    )
    seed: NonNegativeInt = Field(1, description="of weights, order, dropout and sampling")
    data: Data = Field(description="what it learns from")
    audio: Audio | None = Field(None, description="how audio is heard, where sources are audio")
    model: Model = Field(Model(), description="what learns")
    train: Train = Field(Train(), description="how it learns")
    validation: Validation = Field(Validation(), description="how it is watched")
    decode: Decode = Field(Decode(), description="how it is used")
    metrics: list[MetricName] = Field(
        ["bleu", "chrf"], description="how it is judged; each task has metrics of its own"
    )
    bleu_tokenizer: BleuTokenizer = Field(
        "auto",
        description="how BLEU finds words, by sacrebleu's names; auto: as the language of the "
        "targets asks where the recipe shows it (pair: en-zh, train.ja), else 13a; ja-mecab, "
        "ko-mecab and flores200 need an extra: pip install 'transduce[ja]', [ko], [flores]",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_the_task_has_it(cls, values: Any) -> Any:
        """What a recipe does not say, as its task has it: parts left out, levels, metrics."""
        rules = (
            RULES.get(str(values.get("task", "transduce"))) if isinstance(values, dict) else None
        )
        if rules is None:
            return values
        # Parts made in Python are filled in as those of a file are.
        given = {key: _as_given(value) for key, value in values.items()}
        filled = {"metrics": list(rules.judged_by), **given}
        if _names_audio(filled.get("data")):
            filled = {"audio": {}, **filled}
        absent = {part: None for part in PARTS if f"model.{part}" in rules.without}
        filled["model"] = _below(absent, filled.get("model", {}))
        if rules.target_level is not None:
            levels = {"source": rules.source_level, "target": rules.target_level}
            tokens = {side: {"level": level} if level else {} for side, level in levels.items()}
            data = filled.get("data")
            if isinstance(data, dict) and "both" not in (data.get("tokens") or {}):
                filled["data"] = _below({"tokens": tokens}, data)
        return filled

    @model_validator(mode="after")
    def _keys_are_the_tasks(self) -> Self:
        rules = RULES[self.task]
        it = f"a {rules.about} (task: {self.task})"
        for part in PARTS:
            if f"model.{part}" not in rules.without and getattr(self.model, part) is None:
                raise InvalidValue(
                    f"model.{part}", "has nothing under it; give it keys, or leave it out"
                )
        for key, value in _set_among(rules.without, self):
            raise InvalidValue(key, f"is {value}, but that is not for {it}; leave it out")
        if rules.target_level is not None and self.data.tokens.both is not None:
            raise InvalidValue(
                "data.tokens.both",
                f"is one vocabulary, but the labels of {it} have one of their own; write source "
                f"instead",
            )
        for side, level in (("source", rules.source_level), ("target", rules.target_level)):
            tokens = getattr(self.data.tokens, side)
            if level is not None and tokens.level != level:
                raise InvalidValue(
                    f"data.tokens.{side}.level", f"is {tokens.level}; for {it} it must be {level}"
                )
        for name in self.metrics:
            if name not in rules.metrics:
                known = ", ".join(rules.metrics)
                raise InvalidValue(
                    "metrics", f"has {name}, which does not judge {it}; there are {known}"
                )
        return self

    @model_validator(mode="after")
    def _text_is_continued(self) -> Self:
        """Text without sources is for language models, and they learn from nothing else."""
        continued = self.task == "continue"
        corpora = {"train": self.data.train, "valid": self.data.valid, "test": self.data.test}
        for split, corpus in corpora.items():
            if corpus is None or isinstance(corpus, Named):
                continue
            if continued != isinstance(corpus, Text):
                wanted = "text alone, as in {text: FILE}" if continued else "sources and targets"
                raise InvalidValue(
                    f"data.{split}",
                    f"does not fit task: {self.task}, which learns from {wanted}",
                )
        if not continued:
            return self
        texts = {split: corpus for split, corpus in corpora.items() if isinstance(corpus, Text)}
        for split, corpus in texts.items():
            if corpus.lines != texts.get("train", corpus).lines:
                raise InvalidValue(
                    f"data.{split}.lines",
                    f"is {corpus.lines}; it must be as in data.train",
                )
        if self.data.tokens.both is None:
            raise InvalidValue("data.tokens", "has two sides; a language model has one: use both")
        if isinstance(self.model.decoder, RecurrentDecoder) and (
            self.model.decoder.attention != "none"
        ):
            raise InvalidValue(
                "model.decoder.attention",
                f"is {self.model.decoder.attention}, but a language model has no source to attend "
                f"to; set it to none",
            )
        return self

    @model_validator(mode="after")
    def _tags_have_a_place(self) -> Self:
        """Before a source; and where each word has its label, or there is no source, they have
        none."""
        if self.task != "continue" and RULES[self.task].labels != "words":
            return self
        for split in ("train", "valid", "test"):
            if is_tagged(getattr(self.data, split)):
                raise InvalidValue(
                    f"data.{split}",
                    f"has a tag before each source, but task: {self.task} has no place for it; "
                    f"leave it out",
                )
        return self

    @model_validator(mode="after")
    def _audio_fits(self) -> Self:
        """What audio asks of the other keys, and what has no meaning without it."""
        corpora = {"train": self.data.train, "valid": self.data.valid, "test": self.data.test}
        for split, corpus in corpora.items():
            for one in corpus.of if isinstance(corpus, Mixture) else [corpus]:
                known = one is not None and not isinstance(one, Named)
                if known and isinstance(one, Recordings) != (self.audio is not None):
                    heard = "audio" if self.audio is not None else "text"
                    raise InvalidValue(
                        f"data.{split}", f"does not fit the others, whose sources are {heard}"
                    )
        if self.audio is None:
            for key, value in (
                ("model.ctc_weight", self.model.ctc_weight),
                ("decode.ctc_weight", self.decode.ctc_weight),
            ):
                if value:
                    raise InvalidValue(key, f"is {value}, but CTC is for audio; leave it out")
            return self
        if self.task not in OF_SOUND:
            tasks = " or ".join(OF_SOUND)
            raise InvalidValue("audio", f"is for task: {tasks}, not for {self.task}")
        labels = self.task == "classify"
        without = {
            "model.ctc_weight": (
                labels and self.model.ctc_weight,
                "CTC writes a text, and a label is none",
            ),
            "model.ngrams": (self.model.ngrams, "audio has no words"),
            "model.word_dropout": (self.model.word_dropout, "audio has no words"),
            "data.streaming": (self.data.streaming, "audio is never held in memory anyway"),
            "data.overlong": (
                self.data.overlong == "truncate",
                "half of an utterance has another text",
            ),
            "train.batch_tokens": (
                self.train.batch_tokens == "auto",
                "of audio it must be a number of frames",
            ),
            "train.fsdp": (self.train.fsdp, "models of audio are not cut into parts"),
            "model.tie_embeddings": (
                self.model.tie_embeddings == "all",
                "audio has no embeddings; take target or none",
            ),
            "decode.coverage_penalty": (
                self.decode.coverage_penalty > 0,
                "it counts tokens, and audio has none",
            ),
        }
        for key, (given, why) in without.items():
            if given:
                part, _, name = key.partition(".")
                said = str(getattr(getattr(self, part), name)).lower()
                raise InvalidValue(key, f"is {said}, but {why}")
        if self.decode.ctc_weight and not self.model.ctc_weight:
            raise InvalidValue(
                "decode.ctc_weight",
                f"is {self.decode.ctc_weight}, but model.ctc_weight has learnt none",
            )
        if self.decode.ctc_weight and self.data.tokens.both is None:
            raise InvalidValue(
                "decode.ctc_weight",
                f"is {self.decode.ctc_weight}, but CTC has tokens of its own: use data.tokens.both",
            )
        return self

    @model_validator(mode="after")
    def _choices_fit(self) -> Self:
        watched = self.validation.metric
        if watched != "loss" and watched not in self.metrics:
            raise InvalidValue(
                "validation.metric",
                f"is {watched}, which is not measured; add it to metrics, now "
                f"{', '.join(self.metrics) or 'empty'}",
            )
        if self.model.tie_embeddings == "all" and self.data.tokens.both is None:
            raise InvalidValue(
                "model.tie_embeddings",
                "is all, which needs one vocabulary for source and target: data.tokens.both",
            )
        if self.decode.coverage_penalty and getattr(self.model.decoder, "attention", "") == "none":
            raise InvalidValue(
                "decode.coverage_penalty",
                f"is {self.decode.coverage_penalty}, but it counts attention to the source, and "
                f"model.decoder.attention is none",
            )
        for name, part in self.model.parts.items():
            longest = self.data.max_length + 1  # END comes on top
            if self.audio is not None and name == "encoder":
                longest = self.data.max_length // SUBSAMPLING
            limited = (
                getattr(part, "positions", "") == "learned"
                or getattr(part, "attention", "") == "location"
            )
            room = getattr(part, "max_positions", longest)
            if limited and room < longest:
                raise InvalidValue(
                    f"model.{name}.max_positions",
                    f"is {room}, but data.max_length lets {longest} tokens through",
                )
        return self


def _names_audio(data: Any) -> bool:
    train = data.get("train") if isinstance(data, dict) else None
    if isinstance(train, dict) and isinstance(train.get("of"), list):
        train = train["of"]
    first = train[0] if isinstance(train, list) and train else train
    return isinstance(first, dict | Recordings) and corpus_form(first) == "audio"


def _as_given(value: Any) -> Any:
    """Of a part, the keys that were given."""
    if not isinstance(value, Section):
        return value
    return {name: getattr(value, name) for name in value.model_fields_set}


def _below(under: Mapping[str, Any], values: Any) -> Any:
    """What was written, on top of `under`; what cannot be mixed stays as it is."""
    if not isinstance(values, dict):
        return values
    mixed = {**under, **values}
    for key, value in under.items():
        if isinstance(value, dict) and key in values:
            mixed[key] = _below(value, values[key])
    return mixed


def _set_among(keys: tuple[str, ...], whole: Section) -> Iterator[tuple[str, Any]]:
    """Those of the keys, or of the keys below them, that are not as without being said."""
    for key in keys:
        here: Any = whole
        for step in key.split("."):
            usual = type(here).model_fields[step].default
            here = getattr(here, step)
        if key.removeprefix("model.") in PARTS:
            usual = None
        if isinstance(here, Section) and isinstance(usual, Section):
            below = _set_among(tuple(type(here).model_fields), here)
            yield from ((f"{key}.{name}", value) for name, value in below)
        elif here != usual:
            yield key, "given" if isinstance(here, Section) else here
