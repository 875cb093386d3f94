# %% [markdown]
# # 10. The fixed context vector is a bottleneck
#
# **Claim.** An encoder-decoder that passes on one fixed vector gets worse as the source gets
# longer; reading the source in reverse helps it; attention to all encoder states prevents most of
# the decline.
#
# **Time.** 10 s; full size 35 s.
#
# The first neural translators read the whole source of $S$ words into the final state $h^{enc}_S$
# of an LSTM and started the decoder with it. Whatever the source says must be in that one vector,
# for three words or for thirty:
#
# $$h^{dec}_0 = h^{enc}_S \qquad \text{against} \qquad
# c_t = \sum_i \alpha_{t,i}\, h^{enc}_i, \quad
# \alpha_t = \operatorname{softmax}_i \operatorname{score}(h^{dec}_t, h^{enc}_i)$$
#
# With attention each target word has its own context vector $c_t$: the mean of all encoder states
# $h^{enc}_i$ with weights $\alpha_{t,i}$ that depend on the state $h^{dec}_t$ of the decoder.
#
# Sutskever et al. (2014) found a trick for the fixed vector: read the source backwards. Then its
# first words, which the decoder needs first, are the last ones that the encoder has read. The mean
# distance between a word and its translation stays the same, but some are now very near, and
# training can begin with those.
#
# Here the "translation" is a copy of a random string of letters. Nothing in it can be guessed: what
# is not in the context is lost.

# %%
import torch

from transduce.decoding import greedy
from transduce.evaluation.metrics import measure
from transduce.lessons import fit, panels, show, size, table
from transduce.models import RecurrentSeq2Seq

LETTERS = 8
longest, width, updates = size((10, 48, 160), (12, 64, 280))
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def copies(count: int = 48, length: int | None = None) -> Batch:
    """Sources of 2 to `longest` letters, or all of one length; targets are BEGIN, the same, END."""
    lengths_B = torch.randint(2, longest + 1, (count,)) if length is None else [length] * count
    lengths_B = torch.as_tensor(lengths_B)
    source_BS = torch.randint(4, 4 + LETTERS, (count, int(lengths_B.max())))
    source_BS *= torch.arange(source_BS.shape[1]) < lengths_B[:, None]  # PAD is 0
    target_BT = torch.nn.functional.pad(source_BS, (1, 1))
    target_BT[:, 0] = 2
    target_BT[torch.arange(count), lengths_B + 1] = 3
    return source_BS, lengths_B, target_BT


# %% [markdown]
# ## Three models that differ only in what the decoder gets

# %%
kinds = {
    "fixed context": {"attention": None},
    "fixed, reversed source": {"attention": None, "reverse": True},
    "attention": {"attention": "general"},
}
lengths = list(range(2, longest + 1, 2))


def accuracy(network: torch.nn.Module, length: int) -> float:
    """The share of letters that are right at their position, decoded greedily."""
    torch.manual_seed(1000 + length)  # the same strings for each model
    source_BS, lengths_B, _ = copies(200, length)
    with torch.inference_mode():
        found = greedy(network, source_BS, lengths_B, lengths_B + 2)
    outputs = [" ".join(map(str, best.tokens)) for (best,) in found]
    wanted = [[" ".join(map(str, source))] for source in source_BS.tolist()]
    return measure(["accuracy"], outputs, wanted, bootstrap=0)["accuracy"].value / 100


right = {}
for name, options in kinds.items():
    torch.manual_seed(10)
    network = RecurrentSeq2Seq(
        4 + LETTERS, 4 + LETTERS, width=width, bidirectional=False, dropout=0.0, **options
    )
    fit(network, copies, updates, lr=1e-2)
    right[name] = {length: accuracy(network, length) for length in lengths}
table(
    ["letters right", *(f"length {length}" for length in lengths)],
    [(name, *by_length.values()) for name, by_length in right.items()],
)

# %%
figure, (curve,) = panels(1, width=5.5, height=3.8)
for name, by_length in right.items():
    curve.plot(lengths, list(by_length.values()), "o-", label=name)
curve.axhline(1 / LETTERS, linestyle=":", color="#222222", label="chance")
curve.set(xlabel="length of the source, letters", ylabel="share of letters right", ylim=(0, 1.05))
curve.set_title(f"Copying after {updates} updates, LSTM of width {width}", fontsize=10, loc="left")
curve.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 0.13))
show(figure, "fixed_context")

# %% [markdown]
# **What to see.** Each curve is one model. Short strings are easy for all three. As strings get
# longer, the fixed context loses most, the reversed source less, and attention stays near 1. The
# dotted line is chance: one of eight letters.
#
# ## The claim, asserted

# %%
fixed, reverse, attention = right.values()
short, long = lengths[0], lengths[-1]
assert fixed[short] - fixed[long] > 0.2, f"fixed: {fixed[short]:.2f} short, {fixed[long]:.2f} long"
assert reverse[long] > fixed[long] + 0.03, f"reversed {reverse[long]:.2f}, plain {fixed[long]:.2f}"
assert attention[long] > 0.85, f"attention has {attention[long]:.2f} of long sentences right"
assert attention[long] > reverse[long] + 0.05, "attention is hardly better than a reversed source"
assert attention[short] - attention[long] < 0.15, "attention too falls with the length"
print(
    f"At length {long}: fixed context {fixed[long]:.0%}, reversed source {reverse[long]:.0%}, "
    f"attention {attention[long]:.0%} (at length {short}: {fixed[short]:.0%}, "
    f"{reverse[short]:.0%}, {attention[short]:.0%})."
)

# %% [markdown]
# **What would prove it wrong.** A fixed context that copies the longest strings as well as the
# shortest; a reversed source that does not help; or attention that also falls with the length.
#
# **Where it is only half true.** The bottleneck is relative: a wider state, or more training, moves
# the curve of the fixed context to the right. Reversing helps because source and target have the
# same order here, as English and French nearly do; other orders may profit less, or not at all. And
# attention is tested only at lengths that occur in training; beyond them it may fail too.
#
# **To try.** Double the width: how far does the curve of the fixed context move? Let the target be
# the source in reverse: which of the two fixed contexts is better now? Test strings that are twice
# as long as those in training.
