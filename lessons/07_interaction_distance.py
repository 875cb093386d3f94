# %% [markdown]
# # 7. Interaction distance: how far back a network can reach
#
# **Claim.** Before training, the gradient from an output to an input k steps back shrinks
# exponentially with k in a recurrent network, more slowly in an LSTM, and not at all with
# attention; with the same training, the recurrent network does not learn to recall what lies far
# back, attention does.
#
# **Time.** 3 s; full size 60 s.
#
# What a recurrent network knows of an input $x_{T-k}$, $k$ steps before the last state $h_T$, has
# passed through $k$ updates of the state: $k$ opportunities to forget it. The gradient takes the
# same path back and is multiplied by a Jacobian matrix at each step:
#
# $$\frac{\partial h_T}{\partial x_{T-k}} = \left( \prod_{j=0}^{k-1}
# \frac{\partial h_{T-j}}{\partial h_{T-j-1}} \right) \frac{\partial h_{T-k}}{\partial x_{T-k}},
# \qquad \text{Elman: } \frac{\partial h_t}{\partial h_{t-1}} = \operatorname{diag}(1 - h_t^2) V$$
#
# $V$ is the matrix that multiplies the state; an *Elman* network is the plain recurrent network
# $h_t = \tanh(U x_t + V h_{t-1})$. If each Jacobian shrinks vectors by a factor $\lambda < 1$, the
# product of $k$ of them shrinks as $\lambda^k$. The memory $c_t$ of an LSTM is mainly multiplied by
# its forget gate, $\partial c_t / \partial c_{t-1} \approx f_t$, which can be near one. With
# attention the path from any input has length one: the *interaction distance* is $O(1)$ rather than
# $O(k)$, and the gradient is shared among the inputs, whatever their distance.

# %%
import torch

from transduce.lessons import fit, panels, show, size, table
from transduce.models import LabelNetwork, TransformerClassifier
from transduce.models.encoders import RecurrentEncoder
from transduce.models.label_network import assemble_label_network
from transduce.models.word_embedding import WordEmbedding
from transduce.nn import EncoderBlock, Recurrent, causal

length, width = size(50, 100), 32
kinds = ["elman", "lstm", "attention"]

# %% [markdown]
# ## The gradient, before any training
#
# The gradient of the last output of each network with respect to every input; the mean over 16
# random sequences.


# %%
def gradient_by_distance(kind: str) -> torch.Tensor:
    """The norm of the gradient from the last output to the input k steps back, for each k."""
    torch.manual_seed(7)
    x_BTD = torch.randn(16, length + 1, width, requires_grad=True)
    if kind == "attention":
        output_BTD = EncoderBlock(width, 4, 64)(x_BTD, causal())
    else:
        output_BTD, _ = Recurrent(kind, width, width, layers=1)(x_BTD)
    (output_BTD[:, -1] * torch.randn(16, width)).sum().backward()
    return x_BTD.grad.norm(dim=-1).mean(0).flip(0)


gradients = {kind: gradient_by_distance(kind) for kind in kinds}
far = length
left = {kind: (gradient[far] / gradient[1]).item() for kind, gradient in gradients.items()}
table(
    ["network", "k = 1", "k = 10", f"k = {far}", f"k = {far} / k = 1"],
    [
        (n, *(g[k].item() for k in (1, 10, far)), (g[far] / g[1]).item())
        for n, g in gradients.items()
    ],
)
assert left["elman"] < 1e-6, f"Elman: {left['elman']:.1e} of the gradient is left"
assert left["elman"] < left["lstm"] < 1e-2, f"LSTM: {left['lstm']:.1e} of the gradient is left"
assert 0.3 < left["attention"] < 3, f"attention: {left['attention']:.2f} of the gradient is left"

# %% [markdown]
# ## Recall
#
# A symbol is followed by $k$ other tokens; which symbol was it? Each network is trained from
# scratch for each $k$, with the same number of updates, and answers from its last state. With four
# symbols, chance is 25 %.

# %%
SYMBOLS, FILLERS = 4, 8


def recall(distance: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    symbol_B1 = torch.randint(4, 4 + SYMBOLS, (32, 1))
    rest_BS = torch.randint(4 + SYMBOLS, 4 + SYMBOLS + FILLERS, (32, distance))
    begin_B1 = torch.full((32, 1), 2)
    source_BS = torch.cat([symbol_B1, rest_BS], dim=1)
    return source_BS, torch.full((32,), distance + 1), torch.cat([begin_B1, symbol_B1], dim=1)


def network_of(kind: str) -> LabelNetwork:
    torch.manual_seed(7)
    vocabulary = 4 + SYMBOLS + FILLERS
    if kind == "attention":
        return TransformerClassifier(
            vocabulary, SYMBOLS, width=width, heads=4, layers=1, feed_forward=64, dropout=0.0,
            pooling="last",
        )  # fmt: skip
    encoder = RecurrentEncoder(width, kind, bidirectional=False)
    embedding = WordEmbedding(vocabulary, width, positions=None, dropout=0.0)
    return assemble_label_network(embedding, encoder, width, SYMBOLS, "last")


distances = size([3, 30], [5, 10, 20, 40])
updates = size(40, 300)
accuracy = {}
for kind in kinds:
    for distance in distances:
        network = network_of(kind)
        # The mean over the last ten updates; every batch is new, so this is a test.
        found = fit(network, lambda distance=distance: recall(distance), updates, lr=1e-2)
        accuracy[kind, distance] = sum(found[-10:]) / 10
table(
    ["network", *(f"k = {distance}" for distance in distances)],
    [(kind, *(accuracy[kind, distance] for distance in distances)) for kind in kinds],
)

# %%
figure, (reach, recalled) = panels(2)
for kind in kinds:
    reach.semilogy(range(1, length + 1), gradients[kind][1:], label=kind)
    recalled.plot(distances, [accuracy[kind, k] for k in distances], "o-", label=kind)
reach.set(xlabel="distance k", ylabel="gradient to the input k steps back")
reach.set_title("Gradient by distance, before training", fontsize=10, loc="left")
recalled.axhline(1 / SYMBOLS, linestyle=":", color="#222222", label="chance")
recalled.set(xlabel="distance k", ylabel="symbols recalled", ylim=(0, 1.05))
recalled.set_title(f"Recall after {updates} updates", fontsize=10, loc="left")
for axes in (reach, recalled):
    axes.legend(fontsize=8, frameon=False)
show(figure, "interaction_distance")

# %% [markdown]
# **What to see.** Left (a logarithmic axis): a straight line down is an exponential decay; the
# Elman network's is the steepest, the LSTM's is flatter, and that of attention is level. Right: the
# share of symbols recalled, by distance. The dotted line is chance.
#
# ## The rest of the claim, asserted

# %%
near, distant = distances[0], distances[-1]
assert accuracy["elman", near] > 0.9, f"Elman recalls {accuracy['elman', near]:.0%} at k = {near}"
assert accuracy["elman", distant] < 0.5, f"Elman recalls {accuracy['elman', distant]:.0%} of far"
for k in distances:
    assert accuracy["attention", k] > 0.8, f"attention recalls {accuracy['attention', k]:.0%}"
print(
    f"At k = {far}, of the gradient at k = 1 are left: Elman {left['elman']:.0e}, LSTM "
    f"{left['lstm']:.0e}, attention {left['attention']:.2f}. Recalled at k = {distant}: "
    + ", ".join(f"{kind} {accuracy[kind, distant]:.0%}" for kind in kinds)
)

# %% [markdown]
# **What would prove it wrong.** An Elman gradient that does not shrink by a factor of a million, an
# LSTM gradient that shrinks faster than it, or a gradient of attention that depends on the
# distance; an Elman network that recalls the symbol at the greatest distance, or attention that
# does not.
#
# **Where it is only half true.** The decay depends on the weights: with a larger $V$ the gradient
# of a recurrent network explodes instead, and an LSTM whose forget gate is open reaches far (lesson
# 18). What an LSTM recalls is shown, but not asserted: it depends on the number of updates. And
# attention pays for its short path: each of $k$ inputs gets about $1/k$ of the gradient before
# training, and every step reads all inputs.
#
# **To try.** Set the bias of the LSTM's forget gate to 5 before training (`network.encoder`, second
# quarter of the biases of its kernel): how far does it reach then? Change `updates` to ten times as
# many: does the Elman network learn the longest distance? Make the task harder: two symbols at
# random places.
