# %% [markdown]
# # 18. Gates keep
#
# **Claim.** Training opens an LSTM's forget gate, with peepholes and without, so that what it must
# remember outlasts a long gap; a plain network, trained alike, learns to keep less.
#
# **Time.** 4 s; full size 12 s.
#
# The memory cell of an LSTM is a sum. At every step the forget gate $f_t$ says how much of it is
# kept, and the input gate $i_t$ how much comes in. With peepholes, gates also look at the cell:
#
# $$f_t = \sigma(W_{xf} x_t + W_{hf} h_{t-1} + [w_{cf} \odot c_{t-1}] + b_f), \qquad
# c_t = f_t \odot c_{t-1} + i_t \odot \tanh(W_{xc} x_t + W_{hc} h_{t-1} + b_c)$$
#
# So of what is in the cell at step 0, step $n$ still has the share $\prod_t f_t$. At first our
# gates are about $\sigma(1) = 0.73$, and after 20 steps $0.73^{20} = 0.002$ is left. A plain
# network, $h_t = \tanh(U x_t + V h_{t-1})$, has nothing of the kind.
#
# The task: a letter, then a long gap of noise, then a question mark: which letter was it? In
# training, question marks also stand within the gap, so that short gaps teach the long ones.

# %%
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from transduce.data.tokens.tokenizer import BEGIN, SPECIALS
from transduce.lessons import COLORS, panels, show, size, table
from transduce.models import RecurrentLanguageModel
from transduce.models.lens import Recorder
from transduce.nn import LSTM, PeepholeLSTM

LETTERS, NOISES, WIDTH = 4, 4, 16
FIRST_NOISE = len(SPECIALS) + LETTERS
QUESTION = FIRST_NOISE + NOISES
gap, updates = size((16, 60), (40, 150))
cells = {"plain": "elman", "LSTM": "lstm", "LSTM with peepholes": "lstm-peephole"}


def strings(gap: int, count: int, questions: float = 0.0) -> tuple[Tensor, Tensor]:
    """BEGIN, a letter, the gap, a question mark; and the letters. Some of the gap may ask too."""
    letter_B1 = torch.randint(len(SPECIALS), FIRST_NOISE, (count, 1))
    noise = torch.randint(FIRST_NOISE, QUESTION, (count, gap))
    noise = noise.masked_fill(torch.rand(count, gap) < questions, QUESTION)
    ends = [torch.full((count, 1), token) for token in (BEGIN, QUESTION)]
    return torch.cat([ends[0], letter_B1, noise, ends[1]], dim=1), letter_B1


def train(cell: str) -> tuple[nn.Module, nn.Module]:
    """A network as it was drawn, and the same one trained."""
    torch.manual_seed(1)
    drawn, network = (
        RecurrentLanguageModel(
            QUESTION + 1, width=WIDTH, cell=cell, dropout=0.0, tie_embeddings=False
        )
        for _ in range(2)
    )
    network.load_state_dict(drawn.state_dict())
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-2, weight_decay=0.0)
    for _ in range(updates):
        tokens_BT, letter_B1 = strings(gap, 32, questions=0.15)
        asked_BT = tokens_BT == QUESTION
        loss = cross_entropy(
            network.logits(tokens_BT)[asked_BT], letter_B1.expand_as(tokens_BT)[asked_BT]
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    return drawn, network


@torch.no_grad()
def right(network: nn.Module, gap: int) -> float:
    """The share of letters that it knows after a gap."""
    torch.manual_seed(2)
    tokens_BT, letter_B1 = strings(gap, 200)
    return (network.logits(tokens_BT)[:, -1].argmax(-1) == letter_B1[:, 0]).float().mean().item()


networks = {name: train(cell) for name, cell in cells.items()}

# %% [markdown]
# ## The gates
#
# A `Recorder` reads gates and memory while the network runs. For each of the 16 units we multiply
# its forget gate along the gap.

# %%
FORGET = "decoder.recurrent.cells.0.forget"


@torch.no_grad()
def forget_gate(network: nn.Module, gap: int) -> Tensor:
    """The forget gate at each step of the gap, averaged over strings: [gap, units]."""
    torch.manual_seed(2)
    tokens_BT, _ = strings(gap, 100)
    with Recorder(network, [FORGET]) as recorder:
        network.logits(tokens_BT)
    return recorder.found[FORGET][:, 2:-1].mean(0)


gated = [name for name in cells if name != "plain"]
gates = {name: [forget_gate(one, gap) for one in networks[name]] for name in gated}
kept = {
    name: [gate_TD.prod(0).sort(descending=True).values for gate_TD in both]
    for name, both in gates.items()
}
table(
    ["", "share kept by the best unit", "the 4th", "the 16th"],
    [
        (f"{name}, {when}", *(kept[name][place][unit].item() for unit in (0, 3, 15)))
        for name in gated
        for place, when in enumerate(("at first", "trained"))
    ],
)

# %% [markdown]
# ## What it is good for
#
# Letters known after gaps of the length of training, and of longer ones. Two interventions on the
# trained networks show that it is these gates that do it. First, 12 is taken from the bias $b_f$
# of all forget gates, which shuts them. Then the peepholes to the forget gate are cut.


# %%
def with_forget_bias(network: nn.Module, change: float) -> float:
    """Letters known after the gap with another bias of the forget gate."""
    cell = network.decoder.recurrent.cells[0]
    bias = cell.weights()[2] if isinstance(cell, LSTM) else cell.W_x.bias
    forget = slice(WIDTH, 2 * WIDTH)  # gates lie in the order input, forget, cell, output
    with torch.no_grad():
        bias[forget] += change
        found = right(network, gap)
        bias[forget] -= change
    return found


def without_peepholes(network: nn.Module) -> float:
    """Letters known after the gap when the forget gate cannot see the memory."""
    cell = network.decoder.recurrent.cells[0]
    assert isinstance(cell, PeepholeLSTM)
    before = cell.W_cf.detach().clone()
    with torch.no_grad():
        cell.W_cf.zero_()
        found = right(network, gap)
        cell.W_cf.copy_(before)
    return found


gaps = [gap, 2 * gap, 5 * gap]
known = {name: [right(trained, one) for one in gaps] for name, (_, trained) in networks.items()}
shut = {name: with_forget_bias(networks[name][1], -12.0) for name in gated}
cut = without_peepholes(networks["LSTM with peepholes"][1])
table(
    ["letters known after", *(f"{one} steps" for one in gaps)], [(n, *k) for n, k in known.items()]
)
print(
    f"With forget gates shut, after {gap} steps: "
    + ", ".join(f"{n} {k:.2f}" for n, k in shut.items())
    + f"; chance is {1 / LETTERS}."
)
print(f"With the peepholes of the forget gate cut: {cut:.2f}.")

# %%
figure, axes = panels(3, width=4)
for drawing, place, title in ((axes[0], 0, "at first"), (axes[1], 1, "after training")):
    gate_TD = gates["LSTM"][place]
    order_D = gates["LSTM"][1].prod(0).argsort(descending=True)
    image = drawing.imshow(gate_TD[:, order_D].T, aspect="auto", vmin=0, vmax=1, cmap="viridis")
    drawing.set(xlabel="step of the gap", ylabel="unit, the one that keeps most on top")
    drawing.set_title(f"LSTM's forget gates {title}", fontsize=10, loc="left")
    drawing.grid(visible=False)
    drawing.xaxis.get_major_locator().set_params(integer=True)
    figure.colorbar(image, ax=drawing, label="1: all is kept")
for name, color, style in zip(known, COLORS, ("o-", "s-", "v:"), strict=False):
    axes[2].plot(gaps, known[name], style, markersize=5, color=color, label=name)
axes[2].axhline(1 / LETTERS, color="#999999", linestyle=":", label="chance")
axes[2].axvline(gap, color="#999999", linewidth=0.8)
axes[2].text(gap * 1.15, 0.03, "gap in training", fontsize=8)
axes[2].set(xlabel="length of the gap", ylabel="letters known", ylim=(0, 1.05))
axes[2].set_title("What is left", fontsize=10, loc="left")
axes[2].legend(fontsize=8, frameon=False, loc="center right", bbox_to_anchor=(1, 0.72))
show(figure, "gates")

# %% [markdown]
# What the plain network has learned to keep it keeps over any gap too: its state falls into one of
# a few patterns that reproduce themselves. But it finds fewer of them than there are letters. And
# the forget gate does as well without peepholes: they are there for tasks that need exact timing.
#
# ## The claim, asserted

# %%
for name in gated:
    at_first, trained = (shares[0].item() for shares in kept[name])
    assert at_first < 0.1, f"{name}: an untrained unit already keeps {at_first}"
    assert trained > 0.8, f"{name}: the best unit keeps only {trained}"
    assert known[name][0] > 0.95, f"{name} knows only {known[name][0]} of the letters"
    assert shut[name] < known[name][0] - 0.3, f"{name} does as well with its gates shut"
    print(
        f"{name}: the best unit keeps {at_first:.3f} of its memory over {gap} steps at first, "
        f"{trained:.2f} after training; it knows {known[name][0]:.0%} of the letters, with its "
        f"gates shut {shut[name]:.0%}; {gaps[-1]} steps later {known[name][-1]:.0%}."
    )
assert known["plain"][0] < known["LSTM"][0] - 0.1, (
    f"the plain network keeps as much: {known['plain'][0]}"
)

# %% [markdown]
# **To try.** Begin with shut gates (`bias_x[width : 2 * width] = -1.0` in `LSTM`, file
# `nn/recurrent/cells.py`): how many more updates does it need? Train without question marks within
# the gap (`questions=0.0`). What does the output gate do during the gap, and at the question mark?
