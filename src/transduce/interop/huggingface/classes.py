"""The encoder-decoder classes of transformers that compute what our Transformers compute.

They differ in where norms are, in positions, and in names of the configuration; their blocks are
the same. https://huggingface.co/docs/transformers
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from transduce import recipe
from transduce.errors import ModelError


@dataclass(frozen=True)
class Family:
    """One class: its name there, and the options of our recipe that it is equal to."""

    type: str
    """`model_type` in config.json."""
    architecture: str
    norm_position: Literal["pre", "post"]
    norm_embeddings: bool
    positions: Literal["sinusoidal", "learned", "fairseq"]
    """fairseq: waves of its own frequencies, which we have as a table of learned positions."""
    offset: int = 0
    """Rows of the table of positions before the first position."""

    @property
    def halves(self) -> bool:
        """Whether sines fill the first half of the features and cosines the second; ours
        alternate, so all features change places."""
        return self.positions == "sinusoidal"


FAMILIES = {
    family.type: family
    for family in (
        Family("marian", "MarianMTModel", "post", False, "sinusoidal"),
        Family("pegasus", "PegasusForConditionalGeneration", "pre", False, "sinusoidal"),
        Family("blenderbot", "BlenderbotForConditionalGeneration", "pre", False, "learned"),
        Family("bart", "BartForConditionalGeneration", "post", True, "learned", 2),
        Family("mbart", "MBartForConditionalGeneration", "pre", True, "learned", 2),
        Family("m2m_100", "M2M100ForConditionalGeneration", "pre", False, "fairseq", 2),
    )
}
# What transformers calls our activations.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
SAME_ON_BOTH_SIDES = (
    "norm_position",
    "positions",
    "norm_embeddings",
    "scale_embeddings",
    "activation",
)


def choose_family(settings: recipe.Model) -> Family:
    """The class that is exactly equal to an encoder-decoder. Raises ModelError, with the reason,
    where there is none."""
    parts = {}
    for name, part in settings.parts.items():
        if not isinstance(part, recipe.TransformerEncoder | recipe.TransformerDecoder):
            raise _none(f"its {name} is {part.kind}, and only Transformers have an equal there")
        reasons = {
            "heads of its {} were pruned, and all layers there have as many heads": part.is_pruned,
            "its {} has norm: rms, and encoder-decoders there have LayerNorm": part.norm == "rms",
            "its {} concatenates positions, and all classes there add them": part.combine != "add",
            "its {} has positions: " + part.positions: part.positions
            not in ("sinusoidal", "learned"),
            "its {} has activation: " + part.activation: part.activation not in ACTIVATIONS,
        }
        for reason, holds in reasons.items():
            if holds:
                raise _none(reason.format(name))
        parts[name] = part
    encoder, decoder = parts["encoder"], parts["decoder"]
    for key in SAME_ON_BOTH_SIDES:
        if (one := getattr(encoder, key)) != (other := getattr(decoder, key)):
            raise _none(f"{key} is {one} in its encoder, but {other} in its decoder")
    if settings.tie_embeddings == "none":
        raise _none(
            "it has tie_embeddings: none, and classes there share embeddings with the output layer"
        )
    for family in FAMILIES.values():
        if (
            family.norm_position == decoder.norm_position
            and family.norm_embeddings == decoder.norm_embeddings
            and family.positions == decoder.positions
        ):
            return family
    normed = "with" if decoder.norm_embeddings else "without"
    raise _none(
        f"{decoder.norm_position}-norm with {decoder.positions} positions and {normed} a norm of "
        f"the embeddings is no class there"
    )


def _none(reason: str) -> ModelError:
    return ModelError(f"no class of Hugging Face's transformers is equal to this model: {reason}")
