"""A Transformer for decode_speed.py with weights that need no training and still say something.

Random weights of a Transformer with tied embeddings write one token over and over: what the
residual stream carries of the last token looks most like itself. Here the table of embeddings is
made of walks, each row the row before it turned by one orthogonal matrix, and the last feed-forward
layer turns what it is given by that matrix: outputs walk through the table, with jumps that the
source decides on. Margins are wide, so that systems of less precision can still be seen to say the
same. END, PAD and BEGIN never come, so an output is as long as it may be.
"""

from __future__ import annotations

from pathlib import Path

import torch
from systems import Size

from transduce import recipe
from transduce.data.tokens.tokenizer import SPECIALS, Tokens
from transduce.tasks.transduce import Transducer

WALK = 40  # rows of the table: longer than an output
GAIN = 3.0  # of attention to the source, whose average over places is small
BANNED_BIAS = -30.0


def make_model(size: Size, folder: Path, decode: recipe.Decode | None = None) -> None:
    """Post-norm, as Marian is; tokens are named t4, t5, ... decode: the settings of its recipe."""
    part = {
        "layers": size.layers,
        "heads": size.heads,
        "feed_forward": size.feed_forward,
        "norm_position": "post",
    }
    files = recipe.ParallelFiles(source="none", target="none")
    sides = recipe.TokensOfSides(both=recipe.Tokens(level="symbol", size=size.vocabulary))
    whole = recipe.Recipe(
        data=recipe.Data(train=files, valid=files, tokens=sides),
        model=recipe.Model(
            width=size.width,
            dropout=0.0,
            tie_embeddings="all",
            encoder=recipe.TransformerEncoder(**part),
            decoder=recipe.TransformerDecoder(**part),
        ),
        decode=decode or recipe.Decode(),
    )
    names = " ".join(f"t{number}" for number in range(len(SPECIALS), size.vocabulary))
    tokens = Tokens.train(recipe.Tokens(level="symbol", size=size.vocabulary), [names])
    assert len(tokens) == size.vocabulary
    torch.manual_seed(1)
    model = Transducer.create(whole, tokens, tokens)
    with torch.no_grad():
        _let_walk(model)
    model.save(folder)


def _let_walk(model: Transducer) -> None:
    network, D = model.network, model.recipe.model.width
    for block in network.decoder.blocks:
        block.cross_attention.out_projection.weight.mul_(GAIN)
    turn_DD = torch.linalg.qr(torch.randn(D, D)).Q
    table_VD = network.front.table.weight
    for row in range(len(SPECIALS), len(table_VD)):
        if (row - len(SPECIALS)) % WALK:
            table_VD[row] = turn_DD @ table_VD[row - 1]
    # max(0, x) - max(0, -x) = x: a layer with a kink can still be linear.
    last = network.decoder.blocks[-1].feed_forward
    unit_DD = torch.eye(D)
    last.expand.weight[: 2 * D] = torch.cat([unit_DD, -unit_DD])
    last.contract.weight[:, : 2 * D] = torch.cat([turn_DD - unit_DD, unit_DD - turn_DD], dim=1)
    last.expand.bias[: 2 * D] = 0.0
    network.head.bias[: len(SPECIALS)] = BANNED_BIAS
