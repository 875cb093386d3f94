"""The sections `train`, `validation` and `decode` of a recipe."""

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

from transduce.recipe.fine_tuning import Adapter, Start
from transduce.recipe.section import Fraction, InvalidValue, Section, decode_key


class Average(Section):
    """Checkpoint averaging: the final weights are the mean of several checkpoints."""

    of: Literal["last", "best"] = Field(
        "last", description="which checkpoints, of those saved at validations"
    )
    count: PositiveInt = Field(5, description="number of checkpoints to average")


class Teacher(Section):
    """Word-level knowledge distillation (Hinton et al. 2015, Kim and Rush 2016): learn from the
    distribution of a trained model."""

    model: Annotated[str | list[str], "a model folder, or a list of them"] = Field(
        description="folder of the trained model, or hf://user/name@revision; relative paths start "
        "at the current folder; it must have the same vocabularies; of several, the mean of their "
        "distributions teaches"
    )
    weight: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="weight of the KL divergence from the teacher; cross-entropy has the rest"
    )
    temperature: PositiveFloat = Field(
        1.0, description="both distributions are softmax(logits / temperature)"
    )

    @property
    def models(self) -> list[str]:
        return [self.model] if isinstance(self.model, str) else self.model


class CrCtc(Section):
    """CR-CTC (Yao et al. 2024): two views of each recording, with different masks and dropout, for
    which CTC must say the same; takes twice the time."""

    weight: PositiveFloat = Field(
        0.2, description="weight of the KL divergence between the two views, beside CTC's loss"
    )
    time_mask_ratio: Annotated[float, Field(ge=1, le=10)] = Field(
        2.5, description="so many times the time masks of audio.spec_augment"
    )


class Train(Section):
    steps: PositiveInt = Field(10_000, description="maximum number of updates")
    epochs: PositiveInt | None = Field(
        None, description="maximum number of epochs (passes over the training set)"
    )
    minutes: PositiveFloat | None = Field(
        None,
        description="maximum time in minutes, from the start of the command, with start-up and "
        "validation; resumed, the time of all commands together",
    )
    clock: Literal["wall", "processor"] = Field(
        "wall",
        description="what minutes counts: the wall clock; or, on a CPU, the time for which the "
        "processor worked, divided by the threads, so that a run on a machine that others use too "
        "is as long as one alone (start-up is always by the wall clock)",
    )
    batch_tokens: PositiveInt | Literal["auto"] = Field(
        4096,
        description="batch size in tokens of the longer side (of audio, frames), padding included; "
        "auto: as many as fit in memory, up to 4,096 on a CPU and 65,536 on a GPU (larger batches "
        "may need a higher lr and fewer steps)",
    )
    accumulate: PositiveInt = Field(
        1, description="gradient accumulation: number of batches per update"
    )
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw",
        description="adamw; muon: momentum made orthogonal (Jordan et al. 2024) for the matrices "
        "inside the network, AdamW for embeddings, the output layer, biases and norms",
    )
    lr: PositiveFloat = Field(1e-3, description="peak learning rate")
    betas: tuple[Fraction, Fraction] = Field(
        (0.9, 0.98), strict=False, description="betas of AdamW"
    )
    weight_decay: NonNegativeFloat = Field(
        0.01, description="weight decay of matrices; biases and norms have none"
    )
    schedule: Literal["inverse-sqrt", "linear", "cosine", "constant"] = Field(
        "inverse-sqrt", description="learning rate schedule after warm-up"
    )
    warmup: NonNegativeInt = Field(1000, description="warm-up: updates of rising learning rate")
    label_smoothing: Fraction = Field(0.1, description="label smoothing")
    r_drop: NonNegativeFloat = Field(
        0.0,
        description="R-Drop (Liang et al. 2021): weight of the KL divergence between two passes "
        "with different dropout, which takes twice the time; 0: off",
    )
    cr_ctc: CrCtc | None = Field(
        None,
        description="CR-CTC, for audio with model.ctc_weight; {}: as in its paper; null: off",
    )
    guided_attention: NonNegativeFloat = Field(
        0.0,
        description="for audio, weight of guided attention (Tachibana et al. 2017), which draws "
        "attention to the diagonal of audio and text, such as 1.0; 0: off",
    )
    teacher: Teacher | None = Field(
        None, description="word-level knowledge distillation from a trained model; null: off"
    )
    clip_norm: NonNegativeFloat = Field(
        1.0, description="gradient clipping: maximum norm of the gradient; 0: off"
    )
    average: Average | None = Field(
        None, description="checkpoint averaging at the end of training; null: off"
    )
    ema: Fraction | None = Field(
        None, description="decay of an exponential moving average of the weights; null: off"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="precision of matrix products; auto: bfloat16 where it is faster"
    )
    device: Annotated[str, "the name of a device"] = Field(
        "auto", description="auto, cpu, cuda or cuda:1; auto: a GPU if there is one"
    )
    fsdp: bool = Field(
        False,
        description="FSDP: shard weights and optimizer state across the processes of a run",
    )
    timeout: PositiveFloat = Field(
        10.0,
        description="minutes for which the processes of a run wait for one that hangs; one that "
        "dies is noticed at once",
    )
    checkpoint_activations: bool = Field(
        False,
        description="activation checkpointing: keep only the inputs of blocks and compute the rest "
        "again in the backward pass; less memory, one more forward pass, the same gradients",
    )
    log_every: PositiveInt = Field(50, description="updates between two lines of the log")
    log_to: list[Literal["wandb", "mlflow"]] = Field(
        [],
        description="send the log also to Weights & Biases (wandb) or MLflow (mlflow), as their "
        "own settings say (WANDB_MODE=offline, MLFLOW_TRACKING_URI); needs pip install "
        "'.[wandb]' or '.[mlflow]'",
    )
    save_every: PositiveFloat = Field(
        15.0,
        description="minutes between two checkpoints to resume from; each validation saves one too",
    )
    start: Start | None = Field(
        None, description="fine-tuning: the trained model to start from; null: random weights"
    )
    adapter: Adapter | None = Field(
        None, description="adapters: train small matrices beside the frozen weights; null: off"
    )

    @model_validator(mode="after")
    def _check_adapter(self) -> Self:
        if self.adapter is None:
            return self
        if self.start is None:
            raise InvalidValue("adapter", "needs a trained model beneath it: give train.start.from")
        if self.fsdp:
            raise InvalidValue(
                "fsdp", "is true, but adapters are too small to shard; leave it out with adapter"
            )
        for key, has in (
            ("optimizer", self.optimizer == "muon"),  # A and B are no hidden matrices
            ("teacher", self.teacher is not None),
            # The passes that are computed again would see the weights without the adapter.
            ("checkpoint_activations", self.checkpoint_activations),
        ):
            if has:
                raise InvalidValue(key, "does not go with train.adapter; leave one of them out")
        for key, value in (
            ("parts", self.start.parts),
            ("freeze", self.start.freeze),
            ("tokens", None if self.start.tokens == "keep" else self.start.tokens),
        ):
            if value:
                raise InvalidValue(
                    f"start.{key}",
                    f"is {value}, but an adapter keeps the whole model beneath it as it is; leave "
                    f"it out, or leave out train.adapter",
                )
        return self

    @model_validator(mode="after")
    def _check_optimizer(self) -> Self:
        if self.optimizer == "muon" and self.fsdp:
            raise InvalidValue(
                "optimizer",
                "is muon, which needs whole matrices, but train.fsdp shards them; use adamw",
            )
        return self

    @model_validator(mode="after")
    def _check_teacher(self) -> Self:
        if self.teacher is not None and self.r_drop:
            raise InvalidValue(
                "r_drop", f"is {self.r_drop}, which does not go with train.teacher; leave one out"
            )
        if self.teacher is not None and self.cr_ctc is not None:
            raise InvalidValue("cr_ctc", "does not go with train.teacher; leave one out")
        if self.teacher is not None and self.guided_attention:
            raise InvalidValue("guided_attention", "does not go with train.teacher; leave one out")
        if self.teacher is not None and self.fsdp:
            raise InvalidValue("fsdp", "is true, which does not go with train.teacher")
        return self

    @property
    def passes(self) -> int:
        """How often each batch goes through the network in an update."""
        return 2 if self.r_drop or self.cr_ctc is not None else 1

    @model_validator(mode="after")
    def _check_batch_tokens(self) -> Self:
        if self.fsdp and self.batch_tokens == "auto":
            raise InvalidValue(
                "batch_tokens",
                "is auto, which does not work with train.fsdp; give a number",
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
    "entity_f1",
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
    limit: PositiveInt | None = Field(
        500,
        description="number of pairs to decode for metrics, a random sample that is the same in "
        "every run; null: all. The loss uses all pairs",
    )
    beam: Annotated[int, Field(gt=0, le=10_000)] = Field(
        1, description="beam size of decoding during validation; 1: greedy"
    )
    decoding: Literal["fixed", "chosen"] = Field(
        "fixed",
        description="chosen: at the end of training, beam, length_penalty and, of speech with CTC, "
        "ctc_weight are tried on up to 200 validation pairs, and the best written into the model; "
        "fixed: as in decode",
    )
    metric: Literal["loss", MetricName] = Field(
        "loss",
        description="decides the best checkpoint and early stopping: loss, or one of the recipe's "
        "metrics",
    )
    patience: PositiveInt | None = Field(
        None,
        description="early stopping: stop after this many validations without improvement; null: "
        "off",
    )


class Decode(Section):
    # Their defaults, limits and descriptions are those of the declaration.
    beam: int = decode_key("beam")
    length_penalty: float = decode_key("length_penalty")
    coverage_penalty: float = decode_key("coverage_penalty")
    patience: float | None = decode_key("patience")
    bidirectional: bool | None = decode_key("bidirectional")
    no_repeat_ngram: int = decode_key("no_repeat_ngram")
    # The maximum length of an output by its source: a run may give max_length instead.
    max_ratio: Annotated[float, Field(gt=0, le=100)] = Field(
        2.0,
        description="maximum output length: max_ratio x source length + max_extra; audio counts "
        "one token per four frames",
    )
    max_extra: Annotated[int, Field(ge=0, le=100_000)] = Field(
        20,
        description="maximum output length: max_ratio x source length + max_extra; for a language "
        "model, the tokens generated after a prompt",
    )
    ctc_weight: float = decode_key("ctc_weight")
