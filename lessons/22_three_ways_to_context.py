# %% [markdown]
# # 22. Three ways to context
#
# **Claim.** A causal convolution sees only its receptive field, a recurrent network sees all of the
# past but fades, attention sees all of it equally well in one step; what each network learns
# follows what it sees.
#
# **Time.** 6 s; full size 37 s.
#
# A sequence network computes each output $o_t$ from the input $i_t$ and from *context vectors*
# $h_1(t), \dots, h_h(t)$, so $o_t = f(i_t, h_1(t), \dots, h_h(t))$. There are three ways to get
# these:
#
# $$\text{convolution: } h(t) = \sum_{j=0}^{k-1} i_{t-j} W_j, \qquad
# \text{recurrence: } h(t) = g(i_t, h(t-1)), \qquad
# \text{attention: } h(t) = \sum_{\tau \le t} \alpha(t, \tau)\, i_\tau W^V$$
#
# ($W_j$ and $W^V$ are learned matrices, $g$ is the recurrent cell, $\alpha$ are attention weights.)
# A convolution with a kernel of $k$ steps sees $k$ steps, and $n$ layers of it see $n(k-1) + 1$:
# its *receptive field*. A recurrent network sees everything before $t$, through as many
# applications of $g$ as it is steps away. Attention sees everything in one step. Here all three are
# language models of about the same size. Their task is as simple as can be: strings that repeat
# themselves, such as "fadgfadgfadg". After the first period, each letter is the letter one period
# ago.

# %%
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from transduce.data.tokens.tokenizer import BEGIN, SPECIALS
from transduce.lessons import COLORS, panels, show, size, table
from transduce.models import (
    ConvolutionalLanguageModel,
    RecurrentLanguageModel,
    TransformerLanguageModel,
)

LETTERS, LENGTH = 8, 24
VOCABULARY = len(SPECIALS) + LETTERS
LAYERS, KERNEL = 3, 3
FIELD = LAYERS * (KERNEL - 1) + 1
periods = size((3, 10), (2, 4, 6, 7, 8, 10, 12))
updates = size(60, 120)


def three_networks() -> dict[str, nn.Module]:
    """One network of each kind, with random weights."""
    torch.manual_seed(1)
    convolution = ConvolutionalLanguageModel(
        VOCABULARY, width=32, layers=LAYERS, kernel=KERNEL, dropout=0.0
    )
    recurrence = RecurrentLanguageModel(VOCABULARY, width=50, cell="lstm", dropout=0.0)
    attention = TransformerLanguageModel(
        VOCABULARY,
        width=48,
        heads=4,
        layers=1,
        feed_forward=96,
        positions="rotary",
        dropout=0.0,
    )
    return {"convolution": convolution, "recurrence": recurrence, "attention": attention}


# %% [markdown]
# ## What each sees
#
# The gradient of the last output with respect to the input $d$ steps before it says how much a
# small change there would matter. It is exactly zero if the network cannot see that input.


# %%
def sight(network: nn.Module, distance: int) -> list[float]:
    """Size of the gradient of the last output by each input, from distance 0 to `distance`."""
    embedded = []
    keep = network.decoder.embedding.register_forward_hook(
        lambda module, inputs, output: embedded.append(output.requires_grad_())
    )
    torch.manual_seed(2)
    tokens_BT = torch.randint(len(SPECIALS), VOCABULARY, (32, distance + 1))
    features_BTD = network(tokens_BT)
    keep.remove()
    last_BD = features_BTD[:, -1]
    (gradient_BTD,) = torch.autograd.grad((last_BD * torch.randn_like(last_BD)).sum(), embedded)
    return gradient_BTD.norm(dim=-1).mean(0).flip(0).tolist()


seen = {name: sight(network, LENGTH - 1) for name, network in three_networks().items()}
table(
    ["steps back", *seen],
    [(back, *(sizes[back] for sizes in seen.values())) for back in (0, 2, 4, 6, 7, 10, 16, 23)],
)

# %% [markdown]
# The receptive field of the convolutions has 3 · (3 − 1) + 1 = 7 steps, from 0 to 6; beyond it the
# gradient is exactly zero. The LSTM's gradient shrinks with every step. That of attention does not
# depend on the distance, apart from the present input (0 steps back), which also reaches the output
# through the residual connection.
#
# ## What each costs
#
# A recurrent network must compute its steps one after the other. Convolution and attention compute
# all steps of a layer at once; but attention compares all pairs of steps, so its work grows with
# the square of the length.


# %%
@torch.no_grad()
def milliseconds(network: nn.Module, length: int) -> float:
    """Of one pass over a string of this length; the fastest of three, on this machine."""
    tokens_BT = torch.randint(len(SPECIALS), VOCABULARY, (1, length))
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        network(tokens_BT)
        taken.append(1000 * (time.perf_counter() - start))
    return min(taken)


in_a_row = {"convolution": "3 layers", "recurrence": "every step", "attention": "1 layer"}
compares = {"convolution": "3 inputs", "recurrence": "input, state", "attention": "all before"}
lengths = (32, 128, size(512, 2048))
table(
    ["", "parameters", "in sequence", "each step reads", *(f"ms, {n} steps" for n in lengths)],
    [
        (
            name,
            sum(weights.numel() for weights in network.parameters()),
            in_a_row[name],
            compares[name],
            *(milliseconds(network, length) for length in lengths),
        )
        for name, network in three_networks().items()
    ],
)

# %% [markdown]
# ## What each learns
#
# For each period every network is trained from scratch, with equally many strings. Only letters
# that can be known are counted: those after the first period.


# %%
def repeating(period: int, count: int) -> torch.Tensor:
    """Strings of LENGTH letters that repeat after `period` letters: [count, 1 + LENGTH]."""
    first = torch.randint(len(SPECIALS), VOCABULARY, (count, period))
    letters = first.repeat(1, LENGTH // period + 1)[:, :LENGTH]
    return torch.cat([torch.full((count, 1), BEGIN), letters], dim=1)


def learn(network: nn.Module, period: int) -> float:
    """Train, then the share of right letters in new strings."""
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(updates):
        strings_BT = repeating(period, size(16, 32))
        logits_BTV = network.logits(strings_BT[:, :-1])
        loss = cross_entropy(
            logits_BTV[:, period:].flatten(0, 1), strings_BT[:, period + 1 :].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    strings_BT = repeating(period, 200)
    with torch.no_grad():
        guessed_BT = network.logits(strings_BT[:, :-1])[:, period:].argmax(-1)
    return (guessed_BT == strings_BT[:, period + 1 :]).float().mean().item()


right: dict[str, list[float]] = {name: [] for name in seen}
for period in periods:
    for name, network in three_networks().items():
        right[name].append(learn(network, period))
table(["period", *right], zip(periods, *right.values(), strict=True))

# %%
figure, (sees, learns) = panels(2)
for name, sizes, color in zip(seen, seen.values(), COLORS, strict=False):
    shown = [value if value > 0 else float("nan") for value in sizes]
    sees.semilogy(shown, "o-", markersize=3, color=color, label=name)
    learns.plot(periods, right[name], "o-", markersize=4, color=color, label=name)
sees.set(xlabel="steps back", ylabel="gradient of the last output (log)")
sees.set_title("What each sees, before training", fontsize=10, loc="left")
learns.axhline(1 / LETTERS, color="#999999", linestyle=":", label="chance")
learns.set(xlabel="period: letters to look back", ylabel="share of letters right", ylim=(0, 1.05))
learns.set_title("What each learns", fontsize=10, loc="left")
# A period of FIELD letters ends with the letter FIELD - 1 steps before the last one read.
for axes, end in ((sees, FIELD - 0.5), (learns, FIELD + 0.5)):
    axes.axvline(end, color="#999999", linewidth=0.8)
    axes.legend(fontsize=8, frameon=False)
sees.text(FIELD - 0.2, sees.get_ylim()[1] * 0.6, "end of the receptive field", fontsize=8)
show(figure, "three_ways_to_context")

# %% [markdown]
# **What to see.** Left (a logarithmic axis): how much the last output depends on inputs further
# back, before training. The convolutions stop at the end of their receptive field, the LSTM fades
# along a straight line, attention is level. Right: the share of letters predicted right, by period.
# Inside their receptive field the convolutions are right, beyond it they are at chance; the LSTM
# gets worse with the period; attention is right at all of them. (The reduced size has two periods;
# in the full size one sees that the convolutions break off after a period of 7.)
#
# To predict the next letter one must look back one period, counted from that letter: with a
# receptive field of 7 letters, a period of 7 is the longest that the convolutions can learn.
#
# ## The claim, asserted

# %%
chance, near, far = 1 / LETTERS, 0, len(periods) - 1
assert all(size_ > 0 for size_ in seen["convolution"][:FIELD])
beyond = max(seen["convolution"][FIELD:])
assert beyond == 0.0, f"convolutions see beyond their field: gradient {beyond}"
fades = seen["recurrence"][-1] / seen["recurrence"][0]
flat = seen["attention"][-1] / seen["attention"][1]
assert 0 < fades < 0.01, f"the LSTM's gradient over {LENGTH - 1} steps should fade, not be {fades}"
assert flat > 0.3, f"attention should see far as well as near; its ratio is {flat}"
assert right["convolution"][near] > 0.9, right["convolution"]
assert right["convolution"][far] < chance + 0.1, right["convolution"]
assert min(right["attention"]) > 0.9, right["attention"]
assert right["recurrence"][near] > right["recurrence"][far] + 0.2, right["recurrence"]
print(
    f"Gradient {LENGTH - 1} steps back against here: convolution 0, LSTM {fades:.1e}, attention "
    f"{flat:.2f} (of that 1 step back). Letters right, {periods[near]} and {periods[far]} back: "
    + ", ".join(f"{name} {all_[near]:.2f} and {all_[far]:.2f}" for name, all_ in right.items())
    + "."
)

# %% [markdown]
# **What would prove it wrong.** A convolution with any gradient beyond its receptive field, or that
# learns a period beyond it; an LSTM whose gradient does not fade; attention whose gradient does; or
# an LSTM that learns the longest period as well as the shortest.
#
# **Where it is only half true.** Each limit can be moved. More layers, larger kernels or dilation
# widen a receptive field. An LSTM may learn longer periods with more updates: its curve shows what
# is learned in a given time, not what can be represented. Attention sees all inputs equally only
# before training, and only up to the length that its positions allow. And for long inputs it costs
# most of the three, as the table of costs shows.
#
# **To try.** Which `LAYERS` and `KERNEL` let the convolutions learn a period of 10? What does the
# LSTM learn with ten times as many updates? Give the Transformer `positions="none"`: what is left,
# and why is it more than chance?
