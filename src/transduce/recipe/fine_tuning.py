"""The sections `train.start` and `train.adapter` of a recipe: fine-tuning a trained model."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, create_model, model_validator

from transduce.recipe.section import Fraction, InvalidValue, Section

Patterns = list[Annotated[str, Field(min_length=1), "names of parameters, * for any text"]]

# `from` is a keyword of Python, so this key cannot be written as an attribute.
_From = create_model(
    "_From",
    __base__=Section,
    **{  # type: ignore[call-overload]
        "from": (
            Annotated[str, Field(min_length=1), "a model folder"],
            Field(description="the trained model whose weights training starts from"),
        )
    },
)


class Start(_From):
    """Fine-tuning: training starts from the weights of a trained model."""

    parts: Patterns | None = Field(
        None,
        description="parts to load, such as encoder or decoder.embedding; front=decoder.embedding "
        "loads a part from another one; null: all that fits by name and shape",
    )
    tokens: Literal["keep", "extend"] | None = Field(
        None,
        description="keep: the vocabularies of that model; extend: these and new tokens of the "
        "training set, up to data.tokens' size; null: keep where task and sides are the same, else "
        "the recipe's own vocabularies",
    )
    add_tokens: list[Annotated[str, Field(min_length=1), "a token"]] = Field(
        [],
        description="further tokens, such as [µm, <name>], each never cut apart; with tokens: "
        "extend",
    )
    freeze: Patterns = Field(
        [], description="parameters that are not trained, such as encoder or decoder.embedding"
    )
    rates: Annotated[dict[str, PositiveFloat], "numbers by pattern, such as {head: 10}"] = Field(
        {},
        description="factors of the learning rate by pattern, such as {head: 10, front: 0.1}; the "
        "last one that fits counts",
    )

    @model_validator(mode="after")
    def _check_add_tokens(self) -> Self:
        if self.add_tokens and self.tokens != "extend":
            raise InvalidValue("add_tokens", "needs tokens: extend beside it")
        return self

    @property
    def folder(self) -> str:
        """The model folder, as the recipe has it."""
        return str(getattr(self, "from"))


class Adapter(Section):
    """Adapters: small matrices beside frozen weights are trained, on top of train.start."""

    kind: Literal["lora", "dora"] = Field(
        "lora",
        description="LoRA (Hu et al. 2021): W + alpha / rank x B A; DoRA (Liu et al. 2024): the "
        "same, with the length of each row of W trained too",
    )
    rank: PositiveInt = Field(8, description="rank of B A")
    alpha: PositiveFloat = Field(16.0, description="B A is multiplied by alpha / rank")
    parts: Patterns = Field(
        ["*_attention.*", "*feed_forward.*"],
        description="weight matrices that get an adapter, such as decoder.*.q, *.v or "
        "*feed_forward*; q, k and v are the projections of attention",
    )
    dropout: Fraction = Field(
        0.0, description="dropout of the inputs of A, the same for all positions of a batch"
    )
    unfreeze: Patterns = Field(
        [],
        description="further parameters that are trained as a whole and saved with the adapter, "
        "such as *norm* or head.bias",
    )
