"""A recipe: all that a run is made of, typed, and validated whole before any work starts.

Every key's description below is what `transduce recipes --keys` and docs/recipes.md print.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
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

Share = Annotated[float, Field(ge=0, lt=1)]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


# ---------------------------------------------------------------------------------------- data


class ParallelFiles(Part):
    """Two text files, line n of one belonging to line n of the other; plain, .gz or .xz."""

    source: str | list[str] = Field(description="file, glob or list of them, one source a line")
    target: str | list[str] = Field(description="the same number of files, one target a line")
    limit: PositiveInt | None = Field(None, description="read only the first so many pairs")


class Columns(Part):
    """TSV, JSONL or Parquet files that hold both sides; plain, .gz or .xz."""

    file: str | list[str] = Field(description="file, glob or list: .tsv, .jsonl or .parquet")
    source: int | str = Field(0, description="column number (TSV, from 0) or name of the source")
    target: int | str = Field(1, description="column number (TSV, from 0) or name of the target")
    limit: PositiveInt | None = Field(None, description="read only the first so many pairs")


class Named(Part):
    """A corpus that transduce knows by name."""

    name: str = Field(description="cmudict, copy or reverse")
    split: Literal["train", "valid", "test"] = Field(description="which part of it")
    limit: PositiveInt | None = Field(None, description="read only the first so many pairs")


def _corpus_form(value: Any) -> str:
    keys = value if isinstance(value, Mapping) else vars(value)
    if "file" in keys:
        return "columns"
    return "named" if "name" in keys else "parallel"


Corpus = Annotated[
    Annotated[ParallelFiles, Tag("parallel")]
    | Annotated[Columns, Tag("columns")]
    | Annotated[Named, Tag("named")],
    Discriminator(_corpus_form),
]


class Tokens(Part):
    """How text is cut into tokens."""

    level: Literal["character", "subword", "word", "symbol", "byte"] = Field(
        "subword",
        description="what a token is; symbol: whatever white space separates (phones, tags)",
    )
    algorithm: Literal["bpe", "unigram"] = Field("bpe", description="for subwords")
    size: PositiveInt = Field(8000, description="the most tokens in the vocabulary")
    min_count: PositiveInt = Field(1, description="what is rarer in training text is unknown")
    lowercase: bool = Field(False, description="lower-case before cutting")
    normalize: Literal["none", "nfc", "nfkc"] = Field("none", description="Unicode normal form")
    file: str | None = Field(None, description="load this tokens file instead of training one")


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
            raise ValueError("give either `both`, or `source` and `target`")
        return self


class Data(Part):
    folder: str | None = Field(
        None, description="where relative paths start; without it, at the recipe's own folder"
    )
    train: Corpus = Field(description="pairs to learn from")
    valid: Corpus = Field(description="pairs to choose by: early stopping, best checkpoint")
    test: Corpus | None = Field(None, description="pairs to report on, never used for choosing")
    tokens: TokensOfSides = Field(TokensOfSides(both=Tokens()), description="how text is cut")
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
    kind: Literal["transformer"] = "transformer"
    layers: PositiveInt = Field(6, description="blocks one upon the other")
    heads: PositiveInt = Field(8, description="attention heads; they divide the width")
    feed_forward: PositiveInt = Field(2048, description="inner width of the feed-forward layers")
    activation: Literal["relu", "gelu", "swiglu"] = Field("relu", description="between them")
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
    def _rotary_turns(self) -> Self:
        if self.positions in ("rotary", "none") and self.combine == "concatenate":
            raise ValueError(f"positions: {self.positions} cannot be concatenated")
        return self


class TransformerEncoder(_Transformer):
    """Self-attention over the whole source (Vaswani et al. 2017)."""


class TransformerDecoder(_Transformer):
    """Masked self-attention and attention to the source (Vaswani et al. 2017)."""


Cell = Literal["elman", "gru", "lstm", "lstm-peephole"]
Score = Literal[
    "cosine", "additive", "location", "general", "dot", "scaled-dot", "additive-free", "none"
]


class RecurrentEncoder(Part):
    kind: Literal["recurrent"] = "recurrent"
    cell: Cell = Field("lstm", description="the recurrent unit")
    layers: PositiveInt = Field(1, description="layers one upon the other")
    bidirectional: bool = Field(True, description="half of the width reads backwards")
    reverse: bool = Field(False, description="read the source from its end (Sutskever 2014)")
    skip: bool = Field(False, description="input to every layer, output from every layer")


class RecurrentDecoder(Part):
    kind: Literal["recurrent"] = "recurrent"
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
    found = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return str(found or "transformer")


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
    preset: str | None = Field(None, description="a shape by name; the other keys override it")
    width: PositiveInt = Field(512, description="width of embeddings and hidden states")
    dropout: Share = Field(0.1, description="of embeddings and of each sublayer's output")
    tie: Literal["all", "target", "none"] = Field(
        "target",
        description="which embeddings are one: source, target and output; target and output",
    )
    encoder: Encoder = Field(TransformerEncoder(), description="reads the source")
    decoder: Decoder = Field(TransformerDecoder(), description="writes the target")

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        for name, part in (("encoder", self.encoder), ("decoder", self.decoder)):
            if isinstance(part, (TransformerEncoder, TransformerDecoder)):
                if self.width % part.heads:
                    raise ValueError(
                        f"width {self.width} cannot be divided among {part.heads} heads "
                        f"({name}.heads)"
                    )
                if part.positions == "rotary" and (self.width // part.heads) % 2:
                    raise ValueError(f"rotary positions need an even head width ({name}.heads)")
        if self.width % 2:
            raise ValueError(f"width {self.width} is odd; positions and directions need halves")
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
    tokens: PositiveInt = Field(4096, description="tokens a batch, padding counted, longer side")
    accumulate: PositiveInt = Field(1, description="batches summed up into one update")
    lr: PositiveFloat = Field(1e-3, description="peak learning rate of AdamW")
    betas: tuple[Share, Share] = Field((0.9, 0.98), description="AdamW's decay rates")
    weight_decay: NonNegativeFloat = Field(0.01, description="of matrices; never of biases, norms")
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
    device: str = Field("auto", description="auto, cpu, cuda or cuda:1")
    log_every: PositiveInt = Field(50, description="updates between two lines of the log")


class Validation(Part):
    every: PositiveInt = Field(500, description="updates between two validations")
    limit: PositiveInt | None = Field(500, description="pairs that are decoded; loss sees all")
    beam: PositiveInt = Field(1, description="beam of validation decoding; 1 is greedy")
    metric: str = Field(
        "loss", description="what best and patience go by: loss, or one of the recipe's metrics"
    )
    patience: PositiveInt | None = Field(
        None, description="stop after so many validations without a better value"
    )


class Decode(Part):
    beam: PositiveInt = Field(5, description="hypotheses kept; 1 is greedy")
    length_penalty: float = Field(
        1.0, description="a score is divided by ((5 + length) / 6) to this power (Wu et al. 2016)"
    )
    max_ratio: PositiveFloat = Field(2.0, description="longest output: ratio x source + extra")
    max_extra: NonNegativeInt = Field(20, description="longest output: ratio x source + extra")


MetricName = Literal["bleu", "chrf", "ter", "wer", "cer", "per", "exact", "accuracy"]


class Recipe(Part):
    name: str = Field("model", description="what the run is called; its folder is runs/NAME")
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
            raise ValueError(
                f"validation.metric is {watched}, which is not among metrics: "
                f"{', '.join(['loss', *self.metrics])}"
            )
        if self.model.tie == "all" and self.data.tokens.both is None:
            raise ValueError("model.tie: all needs one vocabulary: data.tokens.both")
        return self
