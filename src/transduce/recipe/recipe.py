"""The recipe: the typed configuration of a run, validated as a whole before any work starts.

`transduce recipes --keys` and docs/reference/recipes.md print the description of every key, from
here and from the modules of the sections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, NonNegativeInt, model_validator

from transduce.recipe.audio import Audio
from transduce.recipe.corpus import (
    Mixture,
    Named,
    Recordings,
    Text,
    corpus_form,
    is_tagged,
)
from transduce.recipe.data import Data
from transduce.recipe.model import (
    Model,
    RecurrentDecoder,
    RecurrentEncoder,
    TransformerDecoder,
    check_chunk,
    check_transducer,
)
from transduce.recipe.section import InvalidValue, Section
from transduce.recipe.tasks import TASK_RULES, task_name
from transduce.recipe.training import BleuTokenizer, Decode, MetricName, Train, Validation


def _plain_name(name: str) -> str:
    # It becomes a folder name: "" or ".." would put the run, and --overwrite, outside runs/.
    if not name.strip(" .") or any(sign in name for sign in "/\\\n\0"):
        raise InvalidValue(
            "", f"is {name!r}; it must be a plain name, as it becomes a folder in runs/"
        )
    return name


# A string in an annotation is the name of the type in errors and in the list of keys.
Name = Annotated[str, AfterValidator(_plain_name), "a plain name"]
PARTS = ("encoder", "decoder")
AUDIO_TASKS = ("transduce", "classify")  # tasks whose sources may be audio


def _task(name: str) -> str:
    name = task_name(name)
    if name not in TASK_RULES:
        raise InvalidValue("", f"is {name}; it must be one of {', '.join(TASK_RULES)}")
    return name


class Recipe(Section):
    """All of an experiment: data, network, training, decoding and metrics."""

    name: Name = Field("model", description="name of the run; its run directory is runs/NAME")
    task: Annotated[str, AfterValidator(_task), "the name of a task"] = Field(
        "transduce",
        description="what the model does: "
        + "; ".join(f"{name}: a {rules.about}" for name, rules in TASK_RULES.items()),
    )
    plugins: list[Annotated[str, "a file name"]] = Field(
        [],
        description="Python files that register parts of your own (docs/guides/extending.md), "
        "relative to the recipe's folder; they are run when the recipe is read",
    )
    seed: NonNegativeInt = Field(
        1, description="random seed of weights, data order, dropout and sampling"
    )
    data: Data = Field(description="corpora and tokenization")
    audio: Audio | None = Field(None, description="audio features, where sources are audio")
    model: Model = Field(Model(), description="the network")
    train: Train = Field(Train(), description="optimization")
    validation: Validation = Field(
        Validation(), description="validation during training, and early stopping"
    )
    decode: Decode = Field(Decode(), description="decoding: beam search and its limits")
    metrics: list[MetricName] = Field(
        ["bleu", "chrf"], description="evaluation metrics; each task has its own"
    )
    bleu_tokenizer: BleuTokenizer = Field(
        "auto",
        description="sacrebleu tokenizer for BLEU; auto: chosen by the target language where the "
        "recipe shows it (pair: en-zh, train.ja), else 13a; ja-mecab, ko-mecab and flores200 need "
        "an extra: pip install '.[ja]', [ko], [flores]",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_task_defaults(cls, values: Any) -> Any:
        """Fill in the task's defaults: encoders and decoders that it lacks, levels, metrics."""
        rules = (
            TASK_RULES.get(task_name(str(values.get("task", "transduce"))))
            if isinstance(values, dict)
            else None
        )
        if rules is None:
            return values
        # Sections made in Python are filled in as those of a file are.
        given = {key: _given_keys(value) for key, value in values.items()}
        filled = {"metrics": list(rules.default_metrics), **given}
        if _names_audio(filled.get("data")):
            filled = {"audio": {}, **filled}
        absent = {part: None for part in PARTS if f"model.{part}" in rules.unused_keys}
        filled["model"] = _fill_in(absent, filled.get("model", {}))
        if rules.target_level is not None:
            levels = {"source": rules.source_level, "target": rules.target_level}
            tokens = {side: {"level": level} if level else {} for side, level in levels.items()}
            data = filled.get("data")
            if isinstance(data, dict) and "both" not in (data.get("tokens") or {}):
                filled["data"] = _fill_in({"tokens": tokens}, data)
        return filled

    @model_validator(mode="after")
    def _check_task_keys(self) -> Self:
        rules = TASK_RULES[self.task]
        it = f"a {rules.about} (task: {self.task})"
        for part in PARTS:
            if f"model.{part}" not in rules.unused_keys and getattr(self.model, part) is None:
                raise InvalidValue(f"model.{part}", "is empty; give it keys, or leave it out")
        for key, value in _changed_keys(rules.unused_keys, self):
            raise InvalidValue(key, f"is {value}, but {it} does not use it; leave it out")
        if rules.target_level is not None and self.data.tokens.both is not None:
            raise InvalidValue(
                "data.tokens.both",
                f"is one vocabulary, but the labels of {it} need their own; use "
                f"data.tokens.source instead",
            )
        for side, level in (("source", rules.source_level), ("target", rules.target_level)):
            tokens = getattr(self.data.tokens, side)
            if level is not None and tokens.level != level:
                raise InvalidValue(
                    f"data.tokens.{side}.level", f"is {tokens.level}; for {it} it must be {level}"
                )
        for name in self.metrics:
            if name not in rules.known_metrics:
                known = ", ".join(rules.known_metrics)
                raise InvalidValue(
                    "metrics", f"has {name}, which is not for {it}; choose among {known}"
                )
        return self

    @model_validator(mode="after")
    def _check_language_model(self) -> Self:
        """Plain text is for language models, and they train on nothing else."""
        continued = self.task == "language_modeling"
        corpora = {"train": self.data.train, "valid": self.data.valid, "test": self.data.test}
        for split, corpus in corpora.items():
            if corpus is None or isinstance(corpus, Named):
                continue
            if continued != isinstance(corpus, Text):
                wanted = "text alone, as in {text: FILE}" if continued else "sources and targets"
                raise InvalidValue(
                    f"data.{split}",
                    f"does not fit task: {self.task}, which trains on {wanted}",
                )
        if not continued:
            return self
        texts = {split: corpus for split, corpus in corpora.items() if isinstance(corpus, Text)}
        for split, corpus in texts.items():
            if corpus.lines != texts.get("train", corpus).lines:
                raise InvalidValue(
                    f"data.{split}.lines",
                    f"is {corpus.lines}; it must equal data.train.lines",
                )
        if self.data.tokens.both is None:
            raise InvalidValue(
                "data.tokens",
                "has source and target, but a language model has one vocabulary; use both",
            )
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
    def _check_source_end(self) -> Self:
        if not self.model.source_end and (self.task != "transduce" or self.audio is not None):
            raise InvalidValue(
                "model.source_end",
                "is false, but only sources that are text, in task: transduce, have an end token; "
                "leave it out",
            )
        return self

    @model_validator(mode="after")
    def _check_embeddings(self) -> Self:
        """Encoders of audio, of classifiers and of taggers have embeddings of their own kinds."""
        if self.task == "transduce" and self.audio is None:
            return self
        for key, usual in (("norm_embeddings", False), ("scale_embeddings", True)):
            if getattr(self.model.encoder, key, usual) != usual:
                raise InvalidValue(
                    f"model.encoder.{key}",
                    f"is {str(not usual).lower()}, which only an encoder of text in task: "
                    f"transduce has; leave it out",
                )
        return self

    @model_validator(mode="after")
    def _check_tags(self) -> Self:
        """Tags go before a source: taggers and language models have no place for them."""
        if self.task != "language_modeling" and TASK_RULES[self.task].labels != "words":
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
    def _check_audio(self) -> Self:
        """What audio sources require of other keys, and which keys need audio sources."""
        corpora = {"train": self.data.train, "valid": self.data.valid, "test": self.data.test}
        for split, corpus in corpora.items():
            for one in corpus.of if isinstance(corpus, Mixture) else [corpus]:
                known = one is not None and not isinstance(one, Named)
                if known and isinstance(one, Recordings) != (self.audio is not None):
                    source = "audio" if self.audio is not None else "text"
                    raise InvalidValue(
                        f"data.{split}",
                        f"does not match the other corpora, whose sources are {source}",
                    )
        if self.audio is None:
            for key, value in (
                ("model.ctc_weight", self.model.ctc_weight),
                ("decode.ctc_weight", self.decode.ctc_weight),
            ):
                if value:
                    raise InvalidValue(key, f"is {value}, but CTC needs audio; leave it out")
            if self.train.cr_ctc is not None:
                raise InvalidValue("train.cr_ctc", "is given, but CTC needs audio; leave it out")
            if self.data.concatenate is not None:
                raise InvalidValue("data.concatenate", "is for audio; leave it out")
            if self.train.guided_attention:
                raise InvalidValue("train.guided_attention", "is for audio; leave it out")
            return self
        if self.task not in AUDIO_TASKS:
            tasks = " or ".join(AUDIO_TASKS)
            raise InvalidValue("audio", f"is for task: {tasks}, not for {self.task}")
        labels = self.task == "classify"
        without = {
            "model.ctc_weight": (
                labels and self.model.ctc_weight,
                "CTC needs a text as target, not a label",
            ),
            "model.ngrams": (self.model.ngrams, "audio has no words"),
            "model.word_dropout": (self.model.word_dropout, "audio has no words"),
            "data.split_tags": (
                self.data.split_tags,
                "audio has no features of words; leave it out",
            ),
            "data.streaming": (self.data.streaming, "audio is always streamed; leave it out"),
            "data.overlong": (
                self.data.overlong == "truncate",
                "a truncated utterance would not match its transcript; use skip",
            ),
            "train.batch_tokens": (
                self.train.batch_tokens == "auto",
                "for audio it must be a number of frames",
            ),
            "train.fsdp": (self.train.fsdp, "speech models cannot be sharded; leave it out"),
            "model.tie_embeddings": (
                self.model.tie_embeddings == "all",
                "audio has no embeddings; use target or none",
            ),
        }
        for key, (given, why) in without.items():
            if given:
                part, _, name = key.partition(".")
                shown = str(getattr(getattr(self, part), name)).lower()
                raise InvalidValue(key, f"is {shown}, but {why}")
        if self.data.concatenate is not None and (labels or self.audio.prompt is not None):
            why = "a label is of one recording" if labels else "audio.prompt begins every target"
            raise InvalidValue("data.concatenate", f"is given, but {why}; leave it out")
        decoder = self.model.decoder
        attends = isinstance(decoder, TransformerDecoder) or (
            isinstance(decoder, RecurrentDecoder) and decoder.attention != "none"
        )
        if self.train.guided_attention and (labels or not attends):
            raise InvalidValue(
                "train.guided_attention",
                "is for a transformer decoder, or a recurrent one with attention; leave it out",
            )
        if self.train.cr_ctc is not None and not self.model.ctc_weight:
            raise InvalidValue(
                "train.cr_ctc",
                "is given, but model.ctc_weight is 0, so there is no CTC that could agree; "
                "leave it out, or set model.ctc_weight, such as 0.5",
            )
        if self.decode.ctc_weight and not self.model.ctc_weight:
            raise InvalidValue(
                "decode.ctc_weight",
                f"is {self.decode.ctc_weight}, but model.ctc_weight is 0, so no CTC layer is "
                f"trained; raise one or set the other to 0",
            )
        if self.decode.ctc_weight and self.data.tokens.both is None:
            raise InvalidValue(
                "decode.ctc_weight",
                f"is {self.decode.ctc_weight}, which needs one vocabulary for CTC and the decoder: "
                f"use data.tokens.both",
            )
        return self

    @model_validator(mode="after")
    def _check_chunk(self) -> Self:
        audio = self.audio if self.task == "transduce" else None
        check_chunk(self.model, audio)
        return self

    @model_validator(mode="after")
    def _check_transducer(self) -> Self:
        check_transducer(self.model, self.audio if self.task == "transduce" else None)
        if self.model.transducer is None:
            return self
        for key in (
            "train.r_drop",
            "train.cr_ctc",
            "decode.ctc_weight",
            "decode.coverage_penalty",
            "decode.no_repeat_ngram",
        ):
            section, _, name = key.partition(".")
            if value := getattr(getattr(self, section), name):
                shown = value if isinstance(value, int | float) else "given"
                raise InvalidValue(
                    key, f"is {shown}, which a transducer (model.transducer) does not have; omit it"
                )
        return self

    @model_validator(mode="after")
    def _check_copying(self) -> Self:
        if not self.model.copies:
            return self
        sides = (self.data.tokens.both, self.data.tokens.source, self.data.tokens.target)
        reasons = {
            "a language model has no source to copy from": self.task == "language_modeling",
            "audio has no tokens that could be copied": self.audio is not None,
            "what is copied is what attention points at, and model.decoder.attention is none": (
                getattr(self.model.decoder, "attention", "") == "none"
            ),
            "train.teacher has no probabilities of copies to learn from": (
                self.train.teacher is not None
            ),
            "bpe_dropout of data.tokens would move the tokens that are copied": any(
                side.bpe_dropout for side in sides if side is not None
            ),
        }
        for why, given in reasons.items():
            if given:
                raise InvalidValue("model.decoder.copying", f"is true, but {why}; leave one out")
        return self

    @model_validator(mode="after")
    def _check_tag_attention(self) -> Self:
        encoder, decoder = self.model.encoder, self.model.decoder
        if not isinstance(decoder, RecurrentDecoder) or not decoder.tag_attention:
            return self
        reasons = {
            **self._sources_without_tags(),
            f"model.encoder is {encoder.kind if encoder else 'missing'}, and only a recurrent one "
            f"leaves tags out": not isinstance(encoder, RecurrentEncoder),
            "model.decoder.attention is none": decoder.attention == "none",
            "model.decoder.context is input, and the context of tags enters the output": (
                decoder.context == "input"
            ),
        }
        for why, given in reasons.items():
            if given:
                raise InvalidValue(
                    "model.decoder.tag_attention", f"is true, but {why}; leave one out"
                )
        return self

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.train.teacher is not None and (
            self.task not in ("transduce", "language_modeling") or self.audio is not None
        ):
            raise InvalidValue(
                "train.teacher",
                "is for task: transduce with text sources, or language_modeling; leave it out",
            )
        if self.data.hallucination is not None and (
            self.task != "transduce" or self.audio is not None
        ):
            raise InvalidValue(
                "data.hallucination",
                "is for task: transduce with text sources; leave it out",
            )
        if self.data.bidirectional and (self.task != "transduce" or self.audio is not None):
            raise InvalidValue(
                "data.bidirectional", "is for task: transduce with text sources; leave it out"
            )
        if self.decode.bidirectional and not self.data.bidirectional:
            raise InvalidValue(
                "decode.bidirectional",
                "is true, but the model learns to write from left to right alone; set "
                "data.bidirectional: true as well, or leave it out",
            )
        both = self.data.bidirectional and self.decode.bidirectional is not False
        if both and self.decode.coverage_penalty:
            raise InvalidValue(
                "decode.coverage_penalty",
                f"is {self.decode.coverage_penalty}, which is for one direction, but outputs are "
                f"searched in both (data.bidirectional); leave it out, or set "
                f"decode.bidirectional: false",
            )
        kinds = {getattr(part, "kind", "") for part in self.model.parts.values()}
        if self.train.checkpoint_activations and kinds <= {"recurrent", "pooled"}:
            raise InvalidValue(
                "train.checkpoint_activations",
                f"is true, but the model has no blocks (kind: {', '.join(sorted(kinds))}); leave "
                f"it out",
            )
        watched = self.validation.metric
        if watched != "loss" and watched not in self.metrics:
            raise InvalidValue(
                "validation.metric",
                f"is {watched}, which is not computed; add it to metrics, now "
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
                f"is {self.decode.coverage_penalty}, but it needs attention to the source, and "
                f"model.decoder.attention is none",
            )
        if getattr(self.model.encoder, "tag_positions", "counted") == "zero":
            self._check_tag_positions()
        for name, part in self.model.parts.items():
            longest = self.data.max_length + 1  # and END
            if name == "encoder" and self.data.bidirectional:
                longest += 1  # and the token that asks for the other direction
            if self.audio is not None and name == "encoder":
                frames = self.audio.longest_in_training(self.data.max_length)
                longest = self.audio.max_states(frames)
            elif self.audio is not None and self.audio.features == "whisper":
                continue  # max_length counts frames; longer targets are left out of the corpus
            limited = (
                getattr(part, "positions", "") == "learned"
                or getattr(part, "attention", "") == "location"
            )
            capacity = getattr(part, "max_positions", longest)
            if limited and capacity < longest:
                raise InvalidValue(
                    f"model.{name}.max_positions",
                    f"is {capacity}, but data.max_length allows {longest} tokens; raise it",
                )
        return self

    def _sources_without_tags(self) -> dict[str, bool]:
        """Why keys for the tags of sources are not given, and whether it is so."""
        return {
            "it is for task: transduce with text sources": (
                self.task != "transduce" or self.audio is not None
            ),
            "the sources of data.train have no tags": not (
                is_tagged(self.data.train) or isinstance(self.data.train, Named)
            ),
        }

    def _check_tag_positions(self) -> None:
        placed = getattr(self.model.encoder, "positions", "")
        reasons = {
            **self._sources_without_tags(),
            f"model.encoder.positions is {placed}, and only sinusoidal positions are counted from "
            f"the beginning of a source": placed != "sinusoidal",
        }
        for why, given in reasons.items():
            if given:
                raise InvalidValue(
                    "model.encoder.tag_positions", f"is zero, but {why}; leave it out"
                )


def _names_audio(data: Any) -> bool:
    train = data.get("train") if isinstance(data, dict) else None
    if isinstance(train, dict) and isinstance(train.get("of"), list):
        train = train["of"]
    first = train[0] if isinstance(train, list) and train else train
    return isinstance(first, dict | Recordings) and corpus_form(first) == "audio"


def _given_keys(value: Any) -> Any:
    """The keys of a section that were given explicitly."""
    if not isinstance(value, Section):
        return value
    return {name: getattr(value, name) for name in value.model_fields_set}


def _fill_in(under: Mapping[str, Any], values: Any) -> Any:
    """`values` merged over the defaults `under`; values that are not dicts stay as they are."""
    if not isinstance(values, dict):
        return values
    mixed = {**under, **values}
    for key, value in under.items():
        if isinstance(value, dict) and key in values:
            mixed[key] = _fill_in(value, values[key])
    return mixed


def _changed_keys(keys: tuple[str, ...], whole: Section) -> Iterator[tuple[str, Any]]:
    """Those of the keys, or of the keys below them, that differ from their default."""
    for key in keys:
        here: Any = whole
        for step in key.split("."):
            usual = type(here).model_fields[step].default
            here = getattr(here, step)
        if key.removeprefix("model.") in PARTS:
            usual = None
        if isinstance(here, Section) and isinstance(usual, Section):
            below = _changed_keys(tuple(type(here).model_fields), here)
            yield from ((f"{key}.{name}", value) for name, value in below)
        elif here != usual:
            yield key, "given" if isinstance(here, Section) else here
