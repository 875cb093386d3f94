"""The pointer-generator: a decoder that writes tokens of its vocabulary, or copies from the source.

    p(w) = g · p_vocabulary(w) + (1 − g) · Σ_{s: x_s = w} α_s

(See, Liu and Manning 2017, https://arxiv.org/abs/1704.04368, equation 9). α are the weights of
attention to the source, and the gate g is learned. So a token that the vocabulary has not, such as
a letter that training never saw, is written because it stands in the source.

The extended vocabulary of a source has the V tokens of the target, and one more for each of its S
positions: a source token that the target's vocabulary has not is V + the first position that it
stands at. What cannot be copied, such as a tag, is −1: attention to it counts for the vocabulary,
so that probabilities sum to 1 whatever the source. A token that is neither in the vocabulary nor in
the source has the log-probability −∞.

X is V + S here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transduce.nn.loss import CHUNK, Loss


class PointerGenerator(nn.Module):
    """The mixture of a decoder's vocabulary with its attention to the source.

    The gate g = σ(w · features + b) sees what the logits are computed from: the decoder's state
    with the context in it. (The paper's sees the last token as well.)

    Args:
        width: of the features.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 1)
        self.copied = nn.Identity()  # is given how much is copied: a lens can see it there

    def forward(
        self, logits_BTV: Tensor, features_BTD: Tensor, weights_BTS: Tensor, copies_BS: Tensor
    ) -> Tensor:
        """Log-probabilities_BTX, in float32 or better.

        copies_BS: the number of each source token in the extended vocabulary, or −1.
        """
        exact = torch.promote_types(logits_BTV.dtype, torch.float32)
        with torch.autocast(logits_BTV.device.type, enabled=False):
            vocabulary = logits_BTV.shape[2]
            copied_BTX, left_BT1 = _copied(weights_BTS.to(exact), copies_BS, vocabulary)
            gate = (self.gate.weight.to(exact), self.gate.bias.to(exact))
            gate_BT1 = F.linear(features_BTD.to(exact), *gate)
            tiny = torch.finfo(exact).tiny
            # g + (1 − g) · (attention to what cannot be copied), in log space
            of_vocabulary_BT1 = torch.logaddexp(
                F.logsigmoid(gate_BT1), F.logsigmoid(-gate_BT1) + left_BT1.clamp(min=tiny).log()
            )
            self.copied(1 - of_vocabulary_BT1.exp())
            generated_BTV = logits_BTV.to(exact).log_softmax(dim=-1) + of_vocabulary_BT1
            generated_BTX = F.pad(generated_BTV, (0, copies_BS.shape[1]), value=-torch.inf)
            pointed_BTX = copied_BTX.clamp(min=tiny).log() + F.logsigmoid(-gate_BT1)
            # −∞ after all else: nothing that has a gradient is computed from it.
            there_B1X = _in_source(copies_BS, vocabulary)[:, None]
            pointed_BTX = torch.where(there_B1X, pointed_BTX, -torch.inf)
            return torch.logaddexp(generated_BTX, pointed_BTX)


def _copied(weights_BTS: Tensor, copies_BS: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Attention as a distribution over the extended vocabulary, and what is left of it upon tokens
    that cannot be copied."""
    B, T, S = weights_BTS.shape
    can_B1S = (copies_BS >= 0)[:, None]
    at_BTS = copies_BS.clamp(min=0)[:, None].expand(B, T, S)
    held_BTS = weights_BTS * can_B1S
    copied_BTX = weights_BTS.new_zeros(B, T, vocabulary + S).scatter_add(2, at_BTS, held_BTS)
    return copied_BTX, (weights_BTS * ~can_B1S).sum(dim=-1, keepdim=True)


def _in_source(copies_BS: Tensor, vocabulary: int) -> Tensor:
    """Which tokens [B, X] of the extended vocabulary stand in each source."""
    B, S = copies_BS.shape
    can_BS = (copies_BS >= 0).to(torch.int32)
    counts_BX = can_BS.new_zeros(B, vocabulary + S).scatter_add(1, copies_BS.clamp(min=0), can_BS)
    return counts_BX > 0


# ------------------------------------------------------------------------ numbers of source tokens


def first_positions(source_BS: Tensor) -> Tensor:
    """The first position at which the token of each position stands in its row."""
    same_BSS = source_BS[:, :, None] == source_BS[:, None, :]
    return same_BSS.to(torch.uint8).argmax(dim=2)


def hide(
    source_BS: Tensor,
    target_BT: Tensor,
    copies_BS: Tensor,
    hidden_BS: Tensor,
    sizes: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Source and target with some tokens unknown, as if training had never seen them.

    hidden_BS: drawn for each position; a token is hidden where the first one like it is, on both
    sides, if it can be copied. sizes: of the vocabularies of source and target. A hidden token has
    a number beyond the vocabulary, on either side that of its first position.
    """
    source_size, target_size = sizes
    first_BS = first_positions(source_BS)
    hidden_BS = hidden_BS.gather(1, first_BS) & (copies_BS >= 0)
    match_BTS = (target_BT[:, :, None] == copies_BS[:, None, :]) & hidden_BS[:, None]
    place_BT = match_BTS.to(torch.uint8).argmax(dim=2)
    found_BT = target_size + first_BS.gather(1, place_BT)
    target_BT = torch.where(match_BTS.any(dim=2), found_BT, target_BT)
    source_BS = torch.where(hidden_BS, source_size + target_size + first_BS, source_BS)
    return source_BS, target_BT


# --------------------------------------------------------------------------------------------- loss


def mixture_loss(
    log_probs: Callable[[slice], Tensor],
    targets_BT: Tensor,
    vocabulary: int,
    places: int,
    smoothing: float = 0.0,
    r_drop: float = 0.0,
    ignore: int = 0,
) -> Loss:
    """Cross-entropy of log-probabilities_BTX against targets, summed over tokens; with R-Drop, the
    second half of the rows is a second pass over the first half (see nn/loss.py).

    Label smoothing spreads ε over the vocabulary, not over its extension. The distributions of a
    part of the batch exist at a time; the backward pass computes them again.

    Args:
        log_probs: the log-probabilities_BTX of some rows of the batch.
        targets_BT: the right tokens, of the extended vocabulary.
        vocabulary: V, the tokens that are not of the extension.
        places: S, those that are.
        smoothing: ε of label smoothing.
        r_drop: the weight of R-Drop; 0: off.
        ignore: targets that do not count, such as padding.
    """
    passes = 2 if r_drop else 1
    rows, T = len(targets_BT) // passes, max(1, targets_BT.shape[1])
    # Several tables in float32 exist at a time, where a loss of logits has one in half of that.
    numbers = CHUNK.get(targets_BT.device.type, 2**25) // passes // (vocabulary + places)
    numbers //= 2 if targets_BT.is_cuda else 1
    step = max(1, numbers // T)
    again = step < rows and torch.is_grad_enabled()
    counted_BT = targets_BT != ignore
    wanted_BT = targets_BT.masked_fill(~counted_BT, 0)  # `ignore` need not be a token

    def of_rows(start: int) -> tuple[Tensor, Tensor, Tensor]:
        parts = [slice(at + start, at + min(start + step, rows)) for at in (0, rows)[:passes]]
        made = [log_probs(part) for part in parts]
        right = (wanted_BT[parts[0]], counted_BT[parts[0]])
        found = [_cross_entropy(each_BTX, *right, vocabulary, smoothing) for each_BTX in made]
        sums = zip(*found, strict=True)
        loss, nll, correct = (torch.stack(each).sum(dim=0) / passes for each in sums)
        if r_drop:
            loss = loss + r_drop / 2 * _divergence(made[0], made[1], right[1])
        return loss, nll, correct

    sums = [
        checkpoint(of_rows, start, use_reentrant=False, preserve_rng_state=False)
        if again
        else of_rows(start)
        for start in range(0, rows, step)
    ]
    loss, nll, correct = (torch.stack(each).sum() for each in zip(*sums, strict=True))
    return Loss(loss, nll.detach(), correct, counted_BT.sum() // passes)


def _cross_entropy(
    log_probs_BTX: Tensor, wanted_BT: Tensor, counted_BT: Tensor, vocabulary: int, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, negative log-likelihood and correct tokens, each a sum."""
    right_BT = log_probs_BTX.gather(2, wanted_BT[:, :, None]).squeeze(2)
    nll_BT = -right_BT
    loss_BT = nll_BT
    if smoothing:
        uniform_BT = -log_probs_BTX[:, :, :vocabulary].mean(dim=-1)
        loss_BT = (1 - smoothing) * nll_BT + smoothing * uniform_BT
    hit_BT = (right_BT >= log_probs_BTX.amax(dim=-1)).to(nll_BT.dtype)
    loss, nll, correct = (
        each_BT.masked_fill(~counted_BT, 0).sum() for each_BT in (loss_BT, nll_BT, hit_BT)
    )
    return loss, nll, correct


def _divergence(log_p_BTX: Tensor, log_q_BTX: Tensor, counted_BT: Tensor) -> Tensor:
    """KL(p‖q) + KL(q‖p), summed; what neither can write adds nothing."""
    apart_BTX = torch.where(log_p_BTX > -torch.inf, log_p_BTX - log_q_BTX, 0)
    both_BT = ((log_p_BTX.exp() - log_q_BTX.exp()) * apart_BTX).sum(dim=-1)
    return both_BT.masked_fill(~counted_BT, 0).sum()
