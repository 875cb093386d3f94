"""The parts of a recipe that say how a model learns, how it is watched and how it is used."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from transduce.recipe.section import InvalidValue, Section, Share


class Average(Section):
    """The final weights as the mean of several checkpoints."""

    of: Literal["last", "best"] = Field("last", description="which validated checkpoints")
    count: PositiveInt = Field(5, description="how many of them")


class Train(Section):
    steps: PositiveInt = Field(10_000, description="the most updates")
    epochs: PositiveInt | None = Field(None, description="the most passes over the corpus")
    minutes: PositiveFloat | None = Field(None, description="the most minutes of training")
    batch_tokens: PositiveInt | Literal["auto"] = Field(
        4096,
        description="tokens a batch (of audio, frames), padding counted, longer side; auto: what "
        "memory holds, up to 4,096 on a CPU and 65,536 on a GPU (larger batches may want a higher "
        "lr and fewer steps)",
    )
    accumulate: PositiveInt = Field(1, description="batches summed up into one update")
    lr: PositiveFloat = Field(1e-3, description="peak learning rate of AdamW")
    betas: tuple[Share, Share] = Field((0.9, 0.98), strict=False, description="AdamW's decay rates")
    weight_decay: NonNegativeFloat = Field(
        0.01, description="of matrices; never of biases and norms"
    )
    schedule: Literal["inverse-sqrt", "linear", "cosine", "constant"] = Field(
        "inverse-sqrt", description="how the learning rate falls after warm-up"
    )
    warmup: NonNegativeInt = Field(1000, description="updates over which the rate rises")
    label_smoothing: Share = Field(0.1, description="label smoothing")
    r_drop: NonNegativeFloat = Field(
        0.0,
        description="how much two passes with other dropout must agree, R-Drop (Liang et al. 2021);"
        " 0: one pass",
    )
    clip_norm: NonNegativeFloat = Field(1.0, description="largest gradient norm; 0 for none")
    average: Average | None = Field(None, description="average checkpoints at the end")
    ema: Share | None = Field(None, description="decay of a moving average of the weights")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="of matrix products; auto: bfloat16 where it is faster"
    )
    device: Annotated[str, "the name of a device"] = Field(
        "auto", description="auto, cpu, cuda or cuda:1; auto: a GPU where there is one"
    )
    fsdp: bool = Field(
        False, description="cut weights and moments into parts, one for each process of torchrun"
    )
    log_every: PositiveInt = Field(50, description="updates between two lines of the log")
    save_every: PositiveFloat = Field(
        15.0, description="minutes of training between two saved states; each validation saves too"
    )

    @model_validator(mode="after")
    def _budget_can_be_found(self) -> Self:
        if self.fsdp and self.batch_tokens == "auto":
            raise InvalidValue(
                "batch_tokens",
                "is auto, which cannot try out weights that are cut into parts; give a number",
            )
        return self


MetricName = Literal[
    "bleu",
    "chrf",
    "chrf++",
    "ter",
    "wer",
    "cer",
    "per",
    "exact",
    "accuracy",
    "known",
    "unknown",
    "f1",
    "calibration",
    "perplexity",
    "bits_per_character",
    "bits_per_byte",
]


BleuTokenizer = Literal[
    "auto", "13a", "zh", "ja-mecab", "ko-mecab", "flores200", "char", "intl", "none"
]


class Validation(Section):
    every: PositiveInt = Field(500, description="updates between two validations")
    limit: PositiveInt | None = Field(500, description="pairs that are decoded; loss sees all")
    beam: Annotated[int, Field(gt=0, le=10_000)] = Field(
        1, description="beam of validation decoding; 1 is greedy"
    )
    metric: Literal["loss", MetricName] = Field(
        "loss", description="what best and patience go by: loss, or one of the recipe's metrics"
    )
    patience: PositiveInt | None = Field(
        None, description="stop after so many validations without a better value"
    )


class Decode(Section):
    beam: Annotated[int, Field(gt=0, le=10_000)] = Field(
        5, description="hypotheses kept; 1 is greedy"
    )
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = Field(
        1.0, description="a score is divided by ((5 + length) / 6) to this power (Wu et al. 2016)"
    )
    coverage_penalty: Annotated[float, Field(ge=0, le=100)] = Field(
        0.0, description="what source tokens without attention cost (Wu et al. 2016); 0: nothing"
    )
    no_repeat_ngram: NonNegativeInt = Field(
        0, description="no sequence of so many tokens is written twice; 0: any may be"
    )
    max_ratio: Annotated[float, Field(gt=0, le=100)] = Field(
        2.0,
        description="longest output: ratio x source + extra; a source of audio has a token for "
        "every four frames",
    )
    max_extra: Annotated[int, Field(ge=0, le=100_000)] = Field(
        20, description="longest output: ratio x source + extra; of a language model, these tokens"
    )
    ctc_weight: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0,
        description="of audio, CTC's share in what a hypothesis is worth; 0: none, 1: CTC alone",
    )
