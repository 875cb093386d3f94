"""What belongs to one call: what is asked of all models in it, by name (`Call`), and the context of
each network, made from it (`CallContext`): passed down, never kept on the network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Call:
    """What is asked of every source of a call: of the model, of others in an ensemble with it, and
    of a reranker. Names travel between models, as numbers differ between vocabularies."""

    tags: tuple[str, ...] = ()
    chunk_ms: float | None = None
    language: str | None = None
    """For Whisper, as all that follows."""
    task: str | None = None
    timestamps: bool = False
    previous: tuple[int, ...] = ()
    """Tokens of the text before, in the target vocabulary that an ensemble shares."""


@dataclass(frozen=True)
class CallContext:
    """The context of a call, made for one network; threads that share the network have their own.

    memory = network.encode(source_BS, lengths_B, CallContext(tags=(2,)))
    state = network.start(source_BS, lengths_B, CallContext(attention=True))
    """

    tags: tuple[int, ...] = ()
    """Of all sources, such as a language: their numbers among the tags of this network."""
    chunk: int | None = None
    """A streaming encoder reads in chunks of so many states; None: whole sources."""
    words: tuple[str, ...] = ()
    """Words that the vocabulary has not, in the order of their ids, which follow its own."""
    attention: bool = False
    """Whether decoder states keep the attention to the source of their last step."""

    @property
    def keywords(self) -> dict[str, Any]:
        """To pass on as keywords. None where nothing is asked for: a network that a user wrote
        need not know of contexts."""
        asked = self.tags or self.words or self.attention or self.chunk is not None
        return {"context": self} if asked else {}

    @property
    def of_encoder(self) -> dict[str, Any]:
        """The keywords of an encoder: those of one that reads in chunks, where it is to."""
        return {} if self.chunk is None else {"chunk": self.chunk}


NO_CONTEXT = CallContext()


@dataclass(kw_only=True)
class KeptAttention:
    """The base of decoder states, which keep the attention to the source if a context asks."""

    keeps_attention: bool = False
    attention_BS: Tensor | None = field(default=None, repr=False)
    """Of the last step and the last layer, the mean over heads; its rows are those of the step."""

    def keep(self, weights_BHTS: Tensor) -> None:
        self.attention_BS = weights_BHTS[:, :, -1].mean(dim=1).float()


def attention_of(state: object) -> Tensor | None:
    """The attention_BS that a state keeps, or the state within it."""
    found: Tensor | None = getattr(state, "attention_BS", None)
    return found
