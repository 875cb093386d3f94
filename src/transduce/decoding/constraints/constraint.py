"""Constraints of search: which tokens may come next, and penalties at the end of a hypothesis.

A constraint has one row for each hypothesis, as a decoder's state has, and is reordered with it. It
bans tokens and never changes the probability of the others, so a hypothesis found under any
constraints has the log-probability that the model assigns to it; the bonus of hotwords
(hotwords.py) is for search alone. All work is on whole tensors.

R rows (hypotheses of all sources), P phrases, L the longest of them, S source, T written so far.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import END, PAD, UNKNOWN
from transduce.decoding.search.rules import NEG_INF as NEG_INF
from transduce.decoding.search.rules import cut, obey, too_early
from transduce.models.call_context import attention_of

ANY = -1  # in a phrase: matches every token


class Constraint:
    """Base class: bans nothing and adds nothing."""

    def reorder(self, index_R: Tensor) -> None:
        """Row i becomes a copy of row index_R[i]."""

    def see(self, state: object) -> None:
        """Read what it needs of a model's state, once after every step."""

    def ban(self, banned_RV: Tensor, written_RT: Tensor) -> None:
        """Set banned_RV True where a token may not follow written_RT. PAD is banned anyway."""

    def closing(self) -> Tensor | None:
        """The penalty of a hypothesis that ends at this step, row by row: at most zero, or search
        would stop too early."""
        return None

    def with_bonus(self, scores_RV: Tensor, written_RT: Tensor) -> Tensor:
        """The scores of the next tokens by which search chooses, once in every step."""
        return scores_RV


class Constraints:
    """All constraints of one search."""

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        # The prefix comes last: it overrides the other constraints.
        self.constraints = sorted(constraints, key=lambda part: isinstance(part, Prefix))
        self.closes = any(isinstance(part, Coverage) for part in constraints)
        self.open = any(isinstance(part, OpenEnd) for part in constraints)

    def reorder(self, index_R: Tensor) -> None:
        for part in self.constraints:
            part.reorder(index_R)

    def permitted(
        self,
        log_probs_RV: Tensor,
        written_RT: Tensor,
        last_R: Tensor | None,
        state: object | None = None,
    ) -> Tensor:
        """The log-probabilities, NEG_INF for banned tokens; at its maximum length a row must end.

        The scores of every search pass here: NaN and infinite values become NEG_INF, so that such
        tokens are never chosen. The steps in C have done so; their state says it. A state may also
        say where a model's own rules leave no END: at its maximum length such a row is cut there.
        """
        if not getattr(state, "finite_or_neg_inf", False):
            log_probs_RV = log_probs_RV.nan_to_num_(nan=NEG_INF, posinf=NEG_INF, neginf=NEG_INF)
        unending_R = getattr(state, "unending_R", None)
        if last_R is not None and unending_R is not None:
            cut(log_probs_RV, last_R & unending_R)
        if self.constraints:
            banned_RV = torch.zeros_like(log_probs_RV, dtype=torch.bool)
            for part in self.constraints:
                part.see(state)
                part.ban(banned_RV, written_RT)
            log_probs_RV = log_probs_RV.masked_fill(banned_RV, NEG_INF)
        obey(log_probs_RV, early=False, last_R=last_R)  # MinLength is among the constraints
        if self.open and last_R is not None:
            cut(log_probs_RV, last_R)
        return log_probs_RV

    def with_bonus(self, log_probs_RV: Tensor, written_RT: Tensor) -> Tensor:
        """What search chooses by: the log-probabilities, and the bonus of hotwords."""
        for part in self.constraints:
            log_probs_RV = part.with_bonus(log_probs_RV, written_RT)
        return log_probs_RV

    def closing(self) -> Tensor:
        found = [closing for part in self.constraints if (closing := part.closing()) is not None]
        return torch.stack(found).sum(dim=0)


# -------------------------------------------------------------------------------------- bans


class AllowedTokens(Constraint):
    """Vocabulary constraint: only some tokens are allowed, and END.

    copies: whether tokens beyond the vocabulary are, which a model copies from the source.
    """

    def __init__(self, allowed_V: Tensor, *, copies: bool = False) -> None:
        self.banned_V = ~allowed_V
        self.banned_V[END] = False
        self.copies = copies

    def ban(self, banned_RV: Tensor, written_RT: Tensor) -> None:
        vocabulary = len(self.banned_V)
        banned_RV[:, :vocabulary] |= self.banned_V
        banned_RV[:, vocabulary:] |= not self.copies


class MinLength(Constraint):
    """No END before `minimum` tokens."""

    def __init__(self, minimum: int) -> None:
        self.minimum = minimum

    def ban(self, banned_RV: Tensor, written_RT: Tensor) -> None:
        if too_early(written_RT.shape[1], self.minimum + 1):
            banned_RV[:, END] = True


class OpenEnd(Constraint):
    """Continuations of prompts: stopping at the maximum length does not cost END's probability.

    With `endless`, END is banned before it as well.
    """

    def __init__(self, endless: bool) -> None:
        self.endless = endless

    def ban(self, banned_RV: Tensor, written_RT: Tensor) -> None:
        if self.endless:
            banned_RV[:, END] = True


class NoRepeat(Constraint):
    """No repeated n-grams (Paulus et al. 2018, https://arxiv.org/abs/1705.04304)."""

    def __init__(self, n: int) -> None:
        self.n = n

    def ban(self, banned_RV: Tensor, written_RT: Tensor) -> None:
        T = written_RT.shape[1]
        if self.n > T:
            return
        grams_RGn = written_RT.unfold(1, self.n, 1)
        context_R1n = written_RT[:, None, T - self.n + 1 :]
        same_RG = (grams_RGn[:, :, :-1] == context_R1n).all(dim=-1)
        _ban_where(banned_RV, same_RG, grams_RGn[:, :, -1])


class Exclude(Constraint):
    """Some phrases are never written: their last token is banned after all that goes before it.

    Tokens that have no text, such as the unknown token, do not come between the tokens of a phrase:
    the text would hold it all the same.
    """

    def __init__(
        self,
        phrases: Sequence[Sequence[Sequence[int]]],
        device: torch.device,
        silent: Sequence[int] = (UNKNOWN,),
    ) -> None:
        """phrases[b]: those of source b, each one token or more. silent: tokens without text."""
        # At the right edge, where what was written last stands too.
        self.phrases_RPL = padded_phrases(phrases, device, fill=ANY, right=True)
        self.last_RP = self.phrases_RPL[:, :, -1].clamp(min=PAD)  # of no phrase: PAD
        self.silent = torch.tensor(list(silent), device=device)

    def reorder(self, index_R: Tensor) -> None:
        self.phrases_RPL, self.last_RP = self.phrases_RPL[index_R], self.last_RP[index_R]

    def ban(self, banned_RV: Tensor, written_RT: Tensor) -> None:
        context_RPL = self.phrases_RPL[:, :, :-1]
        shown_RT = written_RT.masked_fill(torch.isin(written_RT, self.silent), PAD)
        tail_RL = last_tokens(_to_the_right(shown_RT), context_RPL.shape[2])
        fits_RP = ((context_RPL == tail_RL[:, None]) | (context_RPL == ANY)).all(dim=-1)
        _ban_where(banned_RV, fits_RP, self.last_RP)


class Prefix(Constraint):
    """Prefix constraint: each output begins with given tokens."""

    def __init__(self, prefixes: Sequence[Sequence[int]], device: torch.device) -> None:
        self.longest = max(map(len, prefixes))
        rows = [[*prefix, *[PAD] * (self.longest - len(prefix))] for prefix in prefixes]
        self.prefix_RT = torch.tensor(rows, device=device).view(len(rows), -1)

    def reorder(self, index_R: Tensor) -> None:
        self.prefix_RT = self.prefix_RT[index_R]

    def ban(self, banned_RV: Tensor, written_RT: Tensor) -> None:
        step = written_RT.shape[1]
        if step >= self.longest:
            return
        forced_R1 = self.prefix_RT[:, step, None]
        inside_R1 = forced_R1 != PAD
        only_RV = torch.ones_like(banned_RV).scatter_(1, forced_R1, False)
        torch.where(inside_R1, only_RV, banned_RV, out=banned_RV)


def _ban_where(banned_RV: Tensor, where_RP: Tensor, tokens_RP: Tensor) -> None:
    # PAD is always banned: it stands for "none".
    banned_RV.scatter_(1, tokens_RP.masked_fill(~where_RP, PAD).long(), True)


def _to_the_right(tokens_RT: Tensor) -> Tensor:
    """Each row with its padding on the left, the other tokens in their order."""
    return tokens_RT.gather(1, (tokens_RT != PAD).to(torch.uint8).argsort(dim=1, stable=True))


def last_tokens(written_RT: Tensor, count: int) -> Tensor:
    """The last `count` tokens of each row, padded with PAD on the left."""
    missing = max(count - written_RT.shape[1], 0)
    padded_RT = torch.nn.functional.pad(written_RT, (missing, 0), value=PAD)
    return padded_RT[:, padded_RT.shape[1] - count :]


def padded_phrases(
    phrases: Sequence[Sequence[Sequence[int]]],
    device: torch.device,
    fill: int = PAD,
    right: bool = False,
) -> Tensor:
    """The phrases of each source as one tensor [sources, phrases, tokens]."""
    maximum = max(map(len, phrases), default=0)
    longest = max((len(phrase) for of_one in phrases for phrase in of_one), default=1)
    filled = torch.full((len(phrases), maximum, longest), fill)
    for b, of_one in enumerate(phrases):
        for p, phrase in enumerate(of_one):
            place = slice(longest - len(phrase), None) if right else slice(len(phrase))
            filled[b, p, place] = torch.tensor(phrase)
    return filled.to(device)


# ---------------------------------------------------------------------------------- coverage


class Coverage(Constraint):
    """Coverage penalty: β Σ_i log min(Σ_t a_ti, 1) over source positions i.

    Wu et al. 2016, equation 14, https://arxiv.org/abs/1609.08144. A hypothesis that ends is
    penalized for source positions with little attention: tokens, END not counted, or encoder states
    of audio. The attention is what the model's states keep (CallContext.attention): of the last
    layer, the mean over heads.
    """

    minimum = 1e-6  # a position without any attention has a large but finite penalty

    def __init__(self, positions_B: Tensor, strength: float) -> None:
        """positions_B: how many there are in each source."""
        self.positions_R = positions_B
        self.strength = strength
        self.covered_RS: Tensor | None = None

    def see(self, state: object) -> None:
        attention_RS = attention_of(state)
        assert attention_RS is not None  # it was asked for
        before_RS = self.covered_RS
        self.covered_RS = attention_RS if before_RS is None else before_RS + attention_RS

    def reorder(self, index_R: Tensor) -> None:
        self.positions_R = self.positions_R[index_R]
        if self.covered_RS is not None:
            self.covered_RS = self.covered_RS[index_R]

    def closing(self) -> Tensor:
        assert self.covered_RS is not None  # a step has been made
        place_S = torch.arange(self.covered_RS.shape[1], device=self.covered_RS.device)
        cost_RS = self.covered_RS.clamp(self.minimum, 1.0).log()
        cost_RS = cost_RS.masked_fill(place_S >= self.positions_R[:, None], 0.0)
        return self.strength * cost_RS.sum(dim=1)
