"""A recipe: all that a run is made of, typed, and validated whole before any work starts.

Every key's description below is what `transduce recipes --keys` and docs/recipes.md print.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    model_validator,
)


class Misfit(ValueError):
    """Keys that do not go together: the key to blame, and what is said of it after its name."""

    def __init__(self, key: str, said: str) -> None:
        super().__init__(f"{key} {said}".strip())
        self.key, self.said = key, said


def _plain_name(name: str) -> str:
    # It becomes a folder: "" or ".." would put a run, and --overwrite, above its place.
    if not name.strip(" .") or any(sign in name for sign in "/\\\n\0"):
        raise Misfit("", f"is {name!r}; it must be a plain name, as it becomes a folder in runs/")
    return name


# A string in an annotation is what errors and the list of keys call such a value.
Share = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, AfterValidator(_plain_name), "a plain name"]
File = Annotated[str, Field(min_length=1), "a file name"]
Files = Annotated[
    File | Annotated[list[File], Field(min_length=1)], "a file name, a glob, or a list of them"
]
Column = Annotated[NonNegativeInt | str, "a number from 0, or a name"]


class Part(BaseModel):
    # Strict, as `seed: yes` should be an error and not 1.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


# ---------------------------------------------------------------------------------------- data


class ParallelFiles(Part):
    """Two text files, line n of one belonging to line n of the other; plain, .gz or .xz."""

    source: Files = Field(description="one source a line")
    target: Files = Field(description="one target a line; as many files as of the source")
    limit: PositiveInt | None = Field(None, description="read only the first so many pairs")


class Columns(Part):
    """TSV, JSONL or Parquet files that hold both sides; plain, .gz or .xz."""

    file: Files = Field(description="their names end in .tsv, .jsonl or .parquet")
    source: Column = Field(0, description="the column of the source; numbers are for TSV only")
    target: Column = Field(1, description="the column of the target; numbers are for TSV only")
    limit: PositiveInt | None = Field(None, description="read only the first so many pairs")


class Named(Part):
    """A corpus that transduce knows by name: `transduce corpus list` lists them."""

    name: Annotated[str, "a name"] = Field(description="such as cmudict or multi30k")
    split: Literal["train", "valid", "test", "test-2017", "test-coco"] = Field(
        description="which part of it; the last two are of multi30k"
    )
    pair: Annotated[str, "two languages, such as en-de"] | None = Field(
        None, description="from which into which; multi30k and udhr need it"
    )
    language: Annotated[str, "a language"] | None = Field(
        None, description="sigmorphon2020 needs it; all: each source begins with its language"
    )
    limit: PositiveInt | None = Field(None, description="read only the first so many pairs")


class Hub(Part):
    """A dataset of the Hugging Face hub, or a folder of such form: pip install transduce[hub]."""

    hub: Annotated[str, "the name of a dataset"] = Field(description="such as wmt14")
    config: Annotated[str, "a name"] | None = Field(
        None, description="which of its configurations, such as de-en"
    )
    split: Annotated[str, "the name of a split"] = Field(description="such as train or validation")
    source: Annotated[str, "the name of a column"] = Field(
        description="the column of the source; translation.de is de within translation"
    )
    target: Annotated[str, "the name of a column"] = Field(description="the column of the target")
    limit: PositiveInt | None = Field(None, description="read only the first so many pairs")


def _corpus_form(value: Any) -> str:
    keys = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    telling = {"file": "columns", "name": "named", "hub": "hub"}
    return next((form for key, form in telling.items() if key in keys), "parallel")


Corpus = Annotated[
    Annotated[ParallelFiles, Tag("parallel")]
    | Annotated[Columns, Tag("columns")]
    | Annotated[Named, Tag("named")]
    | Annotated[Hub, Tag("hub")],
    Discriminator(_corpus_form),
]


class Tokens(Part):
    """How text is cut into tokens."""

    level: Literal["character", "subword", "word", "symbol", "byte"] = Field(
        "subword",
        description="what a token is; symbol: whatever white space separates (phones, tags)",
    )
    algorithm: Literal["bpe", "unigram"] = Field("bpe", description="how subwords are found")
    size: PositiveInt = Field(8000, description="the most tokens in the vocabulary")
    min_count: PositiveInt = Field(1, description="what is rarer in training text is unknown")
    lowercase: bool = Field(False, description="lower-case before cutting")
    normalize: Literal["none", "nfc", "nfkc"] = Field("none", description="Unicode normal form")
    file: File | None = Field(None, description="load this tokens file instead of training one")


class TokensOfSides(Part):
    """Tokens of source and target: `both` where they share one vocabulary, or each its own."""

    both: Tokens | None = Field(None, description="one vocabulary, trained on both sides")
    source: Tokens | None = Field(None, description="the source's own")
    target: Tokens | None = Field(None, description="the target's own")

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        apart = self.source is not None and self.target is not None
        either = self.source is not None or self.target is not None
        if (self.both is not None) == apart or (self.both is not None and either):
            raise Misfit("", "needs either both, or source and target")
        return self


class Data(Part):
    folder: Annotated[str, "a folder"] | None = Field(
        None, description="where relative paths start; without it, at the recipe's own folder"
    )
    train: Corpus = Field(description="pairs to learn from")
    valid: Corpus = Field(description="pairs to choose by: early stopping, best checkpoint")
    test: Corpus | None = Field(None, description="pairs to report on, never used for choosing")
    tokens: TokensOfSides = Field(
        TokensOfSides(both=Tokens()),
        description="how text is cut; without it, into subwords of one vocabulary",
    )
    alternatives: bool = Field(
        False, description="pairs of the same source are alternatives, any of them right"
    )
    max_length: PositiveInt = Field(256, description="the longest side of a pair, in tokens")
    overlong: Literal["skip", "cut"] = Field("skip", description="what to do with longer pairs")
    streaming: bool = Field(
        False, description="read the corpus as it is needed: for what memory does not hold"
    )
    pool: PositiveInt = Field(
        200_000, description="when streaming, how many pairs are shuffled and bucketed at a time"
    )


# --------------------------------------------------------------------------------------- model


class _Transformer(Part):
    kind: Literal["transformer"] = Field("transformer", description="blocks of self-attention")
    layers: PositiveInt = Field(6, description="blocks one upon the other")
    heads: PositiveInt = Field(8, description="attention heads; they divide the width")
    feed_forward: PositiveInt = Field(2048, description="inner width of the feed-forward layers")
    activation: Literal["relu", "gelu", "swiglu"] = Field(
        "relu", description="between them; swiglu has a gate"
    )
    norm: Literal["layer", "rms"] = Field("layer", description="LayerNorm or RMSNorm")
    norm_position: Literal["pre", "post"] = Field(
        "pre", description="before each sublayer (trains easily) or after it (the paper)"
    )
    attention_dropout: Share = Field(0.0, description="of attention weights")
    activation_dropout: Share = Field(0.0, description="inside the feed-forward layers")
    positions: Literal["sinusoidal", "fourier", "learned", "rotary", "none"] = Field(
        "sinusoidal", description="how the order of tokens is told"
    )
    combine: Literal["add", "concatenate"] = Field(
        "add", description="positions added to the embeddings, or half of the width beside them"
    )
    max_positions: PositiveInt = Field(
        1024, description="longest sequence for learned, half the period for fourier positions"
    )

    @model_validator(mode="after")
    def _something_to_combine(self) -> Self:
        if self.positions in ("rotary", "none") and self.combine == "concatenate":
            if self.positions == "rotary":
                why = "rotary positions turn queries and keys, there is nothing to put beside them"
            else:
                why = "there are no positions to put beside the embeddings"
            raise Misfit("combine", f"is concatenate, but {why}; leave it out")
        return self


class TransformerEncoder(_Transformer):
    """Encoder: self-attention over the whole source (Vaswani et al. 2017)."""


class TransformerDecoder(_Transformer):
    """Decoder: masked self-attention, and attention to the source."""


Cell = Literal["elman", "gru", "lstm", "lstm-peephole"]
Score = Literal[
    "cosine", "additive", "location", "general", "dot", "scaled-dot", "additive-free", "none"
]


class RecurrentEncoder(Part):
    """Reads the source token by token, forwards, backwards or both."""

    kind: Literal["recurrent"] = Field("recurrent", description="one token after the other")
    cell: Cell = Field("lstm", description="the recurrent unit")
    layers: PositiveInt = Field(1, description="layers one upon the other")
    bidirectional: bool = Field(True, description="half of the width reads backwards")
    reverse: bool = Field(False, description="read the source from its end (Sutskever 2014)")
    skip: bool = Field(False, description="input to every layer, output from every layer")


class RecurrentDecoder(Part):
    """Writes the target token by token, with attention to the source or without."""

    kind: Literal["recurrent"] = Field("recurrent", description="one token after the other")
    cell: Cell = Field("lstm", description="the recurrent unit")
    layers: PositiveInt = Field(1, description="layers one upon the other")
    attention: Score = Field(
        "general", description="alignment score; none: the encoder's final state is all it gets"
    )
    context: Literal["input", "output", "both"] = Field(
        "output", description="where the attended source enters: the next input, the output"
    )
    max_positions: PositiveInt = Field(
        1024, description="longest source that location attention can point into"
    )
    skip: bool = Field(False, description="input to every layer, output from every layer")


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("kind", "transformer"))
    return str(getattr(value, "kind", "transformer"))


Encoder = Annotated[
    Annotated[TransformerEncoder, Tag("transformer")]
    | Annotated[RecurrentEncoder, Tag("recurrent")],
    Discriminator(_kind),
]
Decoder = Annotated[
    Annotated[TransformerDecoder, Tag("transformer")]
    | Annotated[RecurrentDecoder, Tag("recurrent")],
    Discriminator(_kind),
]


class Model(Part):
    preset: Annotated[str, "the name of a preset"] | None = Field(
        None, description="a shape by name; the other keys override it"
    )
    width: PositiveInt = Field(512, description="width of embeddings and hidden states")
    dropout: Share = Field(0.1, description="of embeddings and of each sublayer's output")
    tie: Literal["all", "target", "none"] = Field(
        "target",
        description="which embeddings are one: all (source, target, output), target and output",
    )
    encoder: Encoder = Field(TransformerEncoder(), description="reads the source")
    decoder: Decoder = Field(TransformerDecoder(), description="writes the target")

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if self.width % 2:
            raise Misfit("width", f"is {self.width}; it must be even, as parts take half of it")
        for name, part in (("encoder", self.encoder), ("decoder", self.decoder)):
            if isinstance(part, RecurrentEncoder | RecurrentDecoder):
                continue
            share, rest = divmod(self.width, part.heads)
            if rest:
                raise Misfit(
                    f"{name}.heads",
                    f"is {part.heads}, which does not divide model.width, {self.width}",
                )
            if part.positions == "rotary" and share % 2:
                raise Misfit(
                    f"{name}.heads",
                    f"is {part.heads}, which leaves {share} of model.width, {self.width}, for each "
                    f"head; rotary positions need an even number there",
                )
            if part.combine == "concatenate" and self.width % 4:
                raise Misfit(
                    f"{name}.combine",
                    f"is concatenate, which gives positions half of model.width, {self.width}; "
                    f"that half must be even",
                )
        sides = [getattr(part, "combine", "add") for part in (self.encoder, self.decoder)]
        if self.tie == "all" and sides[0] != sides[1]:
            raise Misfit(
                "tie", "is all, which needs the same combine in model.encoder and model.decoder"
            )
        return self


# ------------------------------------------------------------------------------------ training


class Average(Part):
    """The final weights as the mean of several checkpoints."""

    of: Literal["last", "best"] = Field("last", description="which validated checkpoints")
    count: PositiveInt = Field(5, description="how many of them")


class Train(Part):
    steps: PositiveInt = Field(10_000, description="the most updates")
    epochs: PositiveInt | None = Field(None, description="the most passes over the corpus")
    minutes: PositiveFloat | None = Field(None, description="the most minutes of training")
    tokens: PositiveInt | Literal["auto"] = Field(
        4096,
        description="tokens a batch, padding counted, longer side; auto: what memory holds, up to "
        "4,096 on a CPU and 65,536 on a GPU (larger batches may want a higher lr and fewer steps)",
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
    smoothing: Share = Field(0.1, description="label smoothing")
    clip: NonNegativeFloat = Field(1.0, description="largest gradient norm; 0 for none")
    average: Average | None = Field(None, description="average checkpoints at the end")
    ema: Share | None = Field(None, description="decay of a moving average of the weights")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="of matrix products; auto: bfloat16 where it is faster"
    )
    device: Annotated[str, "the name of a device"] = Field(
        "auto", description="auto, cpu, cuda or cuda:1; auto: a GPU where there is one"
    )
    shard: bool = Field(
        False, description="cut weights and moments into parts, one for each process of torchrun"
    )
    log_every: PositiveInt = Field(50, description="updates between two lines of the log")

    @model_validator(mode="after")
    def _budget_can_be_found(self) -> Self:
        if self.shard and self.tokens == "auto":
            raise Misfit(
                "tokens",
                "is auto, which cannot try out weights that are cut into parts; give a number",
            )
        return self


MetricName = Literal["bleu", "chrf", "ter", "wer", "cer", "per", "exact", "accuracy"]


class Validation(Part):
    every: PositiveInt = Field(500, description="updates between two validations")
    limit: PositiveInt | None = Field(500, description="pairs that are decoded; loss sees all")
    beam: PositiveInt = Field(1, description="beam of validation decoding; 1 is greedy")
    metric: Literal["loss", MetricName] = Field(
        "loss", description="what best and patience go by: loss, or one of the recipe's metrics"
    )
    patience: PositiveInt | None = Field(
        None, description="stop after so many validations without a better value"
    )


class Decode(Part):
    beam: PositiveInt = Field(5, description="hypotheses kept; 1 is greedy")
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = Field(
        1.0, description="a score is divided by ((5 + length) / 6) to this power (Wu et al. 2016)"
    )
    coverage: Annotated[float, Field(ge=0, le=100)] = Field(
        0.0, description="what source tokens without attention cost (Wu et al. 2016); 0: nothing"
    )
    no_repeat: NonNegativeInt = Field(
        0, description="no sequence of so many tokens is written twice; 0: any may be"
    )
    max_ratio: PositiveFloat = Field(2.0, description="longest output: ratio x source + extra")
    max_extra: NonNegativeInt = Field(20, description="longest output: ratio x source + extra")


class Recipe(Part):
    name: Name = Field("model", description="what the run is called; its folder is runs/NAME")
    seed: NonNegativeInt = Field(1, description="of weights, order, dropout and sampling")
    data: Data = Field(description="what it learns from")
    model: Model = Field(Model(), description="what learns")
    train: Train = Field(Train(), description="how it learns")
    validation: Validation = Field(Validation(), description="how it is watched")
    decode: Decode = Field(Decode(), description="how it is used")
    metrics: list[MetricName] = Field(["bleu", "chrf"], description="how it is judged")

    @model_validator(mode="after")
    def _choices_fit(self) -> Self:
        watched = self.validation.metric
        if watched != "loss" and watched not in self.metrics:
            raise Misfit(
                "validation.metric",
                f"is {watched}, which is not measured; add it to metrics, now "
                f"{', '.join(self.metrics) or 'empty'}",
            )
        if self.model.tie == "all" and self.data.tokens.both is None:
            raise Misfit(
                "model.tie",
                "is all, which needs one vocabulary for source and target: data.tokens.both",
            )
        if self.decode.coverage and getattr(self.model.decoder, "attention", "") == "none":
            raise Misfit(
                "decode.coverage",
                f"is {self.decode.coverage}, but it is counted by attention to the source, and "
                f"model.decoder.attention is none",
            )
        longest = self.data.max_length + 1  # END comes on top
        for name, part in (("encoder", self.model.encoder), ("decoder", self.model.decoder)):
            limited = (
                getattr(part, "positions", "") == "learned"
                or getattr(part, "attention", "") == "location"
            )
            room = getattr(part, "max_positions", longest)
            if limited and room < longest:
                raise Misfit(
                    f"model.{name}.max_positions",
                    f"is {room}, but data.max_length lets {longest} tokens through",
                )
        return self
