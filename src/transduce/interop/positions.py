"""What engines can compute: parts of models, and positions as a table of fixed size."""

from __future__ import annotations

import torch
from torch import Tensor

from transduce import recipe
from transduce.errors import ModelError
from transduce.nn.embedding.tokens import TokenEmbedding

ELSEWHERE = "use transduce's own engine (--to native), or a browser (--to html, --to web)"
MIN_POSITIONS = 2048  # sinusoids have no end; a table must have one


def check_parts(settings: recipe.Model, engine: str) -> None:
    """Raise ModelError, with the reason, for parts of a model that engines do not compute."""
    if settings.copies:
        raise ModelError(
            f"this model copies from the source (model.decoder.copying), which is not exported to "
            f"{engine}: {ELSEWHERE}"
        )
    for name, part in settings.parts.items():
        elsewhere = ELSEWHERE
        if not isinstance(part, recipe.TransformerEncoder | recipe.TransformerDecoder):
            reason = f"this model's {name} is {part.kind}, not a Transformer"
        elif part.is_pruned:
            reason = f"attention heads of this model's {name} were pruned"
        elif part.head_width is not None and part.head_width * part.heads != settings.width:
            reason = (
                f"heads of this model's {name} have an own width (head_width: {part.head_width})"
            )
            elsewhere = "use transduce's own engine (--to native)"
        elif getattr(part, "tag_positions", "counted") == "zero":
            reason = f"this model's {name} gives tags the position 0 (tag_positions)"
        elif part.positions == "relative":
            reason = f"this model's {name} has relative positions"
        else:
            continue
        raise ModelError(f"{reason}, which is not exported to {engine}: {elsewhere}")


def positions(part: recipe.Encoder | recipe.Decoder | None) -> int:
    """The longest sequence, including END, that an exported encoder or decoder has positions
    for.
    """
    maximum = getattr(part, "max_positions", 0)
    return maximum if getattr(part, "positions", "") == "learned" else max(maximum, MIN_POSITIONS)


def table(embedding: TokenEmbedding, rows: int) -> Tensor:
    """The table that is added to the embeddings, [rows, width]; zeros without positions."""
    if embedding.positions is None:
        return torch.zeros(rows, embedding.table.weight.shape[1])
    table_TD: Tensor = embedding.positions.positions(rows)
    return table_TD.detach().float().cpu()
