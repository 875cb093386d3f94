# %% [markdown]
# # 12. One head against eight
#
# **Claim.** Eight heads of an eighth of the width have as many parameters and multiplications as
# one, and can look at several places at once where one head mixes them; averaging the heads instead
# of concatenating them loses that.
#
# **Time.** 4 s; full size 20 s.
#
# A softmax gives one distribution, so one head gives one weighted mean of the values. If a task
# needs two of them, one head can look at one, or at both and mix them. Several heads look at
# several places, each in its own subspace, and the results stay separate because they are
# *concatenated*. With $D$ the width, $h_i(t)$ the output of head $i$ at step $t$ and $W$ learned
# matrices:
#
# $$x_t = [h_1(t), \ldots, h_8(t)]\, W^O, \qquad h_i(t) = \operatorname{softmax}\!\left(
# \frac{Q W_i^Q (K W_i^K)^\top}{\sqrt{D/8}} \right) V W_i^V$$
#
# The matrices $W_i^Q$ of all heads side by side form one $D \times D$ matrix again, so neither the
# parameters nor the multiplications grow. Averaging, $\frac18 \sum_i h_i(t)\, W$, is the special
# case in which all eight blocks of $W^O$ are equal: everything has to pass through $D/8$ numbers.

# %%
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.flop_counter import FlopCounterMode

from transduce.lessons import fit, panels, show, size, table
from transduce.nn import Fourier, Loss, MultiHeadAttention, Positioned

WIDTH, LETTERS, BACK, LENGTH = 64, 8, 6, 16

# %% [markdown]
# ## The same cost
#
# The number of parameters, and the multiplications of a forward pass over 16 tokens, counted by
# PyTorch.

# %%
costs = {}
for heads in (1, 8):
    layer = MultiHeadAttention(WIDTH, heads)
    layer.watch = lambda weights_BHTS: None  # each product by itself, so that it is counted
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(torch.randn(1, LENGTH, WIDTH))
    multiplications = counter.get_total_flops() // 2
    costs[heads] = (sum(p.numel() for p in layer.parameters()), multiplications)
table(["heads", "parameters", "multiplications"], [(h, *cost) for h, cost in costs.items()])

# %% [markdown]
# ## Different power
#
# The task: at each step, name the last six letters. The network has attention and a linear output
# layer for each of the six letters, and nothing else, so all information must come through
# attention. In the third network the eight blocks of $W^O$ are constrained to be equal, so that it
# averages its heads.


# %%
class Averaging(nn.Module):
    """Makes all blocks of W^O equal, so that heads are averaged rather than concatenated."""

    def forward(self, weight_DE: torch.Tensor) -> torch.Tensor:
        blocks_DHK = weight_DE.unflatten(1, (8, -1))
        return blocks_DHK.mean(1, keepdim=True).expand_as(blocks_DHK).flatten(1)


class LastLetters(nn.Module):
    def __init__(self, heads: int, averaging: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, WIDTH)
        self.positions = Positioned(Fourier(WIDTH, 2 * LENGTH))
        self.attention = MultiHeadAttention(WIDTH, heads)
        self.readouts = nn.Linear(WIDTH, BACK * LETTERS)
        if averaging:
            projection = self.attention.out_projection
            parametrize.register_parametrization(projection, "weight", Averaging())

    def logits(self, letters_BT: torch.Tensor) -> torch.Tensor:
        """[B, T - 6, 6, letters]: of each of the last six."""
        x_BTD = self.attention(self.positions(self.embedding(letters_BT)))
        return self.readouts(x_BTD).unflatten(-1, (BACK, LETTERS))[:, BACK:]

    def loss(self, letters_BT: torch.Tensor) -> Loss:
        logits, labels = self.logits(letters_BT), last_letters(letters_BT)
        total = nn.functional.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="sum")
        correct = (logits.argmax(-1) == labels).sum()
        return Loss(total, total.detach(), correct, torch.tensor(labels.numel()))


def last_letters(letters_BT: torch.Tensor) -> torch.Tensor:
    T = letters_BT.shape[1]
    return torch.stack([letters_BT[:, BACK - k : T - k] for k in range(1, BACK + 1)], dim=-1)


def words(count: int = 32) -> tuple[torch.Tensor]:
    return (torch.randint(0, LETTERS, (count, LENGTH)),)


kinds = {"one head": (1, False), "eight heads": (8, False), "eight, averaged": (8, True)}
right, looks = {}, {}
for name, (heads, averaging) in kinds.items():
    torch.manual_seed(12)
    network = LastLetters(heads, averaging)
    fit(network, words, size(100, 600), lr=3e-2)
    seen: list[torch.Tensor] = []
    network.attention.watch = seen.append
    (test_BT,) = words(256)
    with torch.no_grad():
        hits = network.logits(test_BT).argmax(-1) == last_letters(test_BT)
    right[name] = hits.float().mean((0, 1))
    weights_HTS = seen[0].mean(0)
    by_distance = [weights_HTS.diagonal(-k, 1, 2)[:, BACK - k :].mean(1) for k in range(BACK + 2)]
    looks[name] = torch.stack(by_distance, dim=1)
table(
    ["right letters", *(f"{k} back" for k in range(1, BACK + 1)), "all"],
    [(name, *values.tolist(), values.mean().item()) for name, values in right.items()],
)

# %%
figure, (bars, map_of_one, map_of_eight) = panels(3, width=4.2)
for number, (name, values) in enumerate(right.items()):
    places = [k + 0.27 * (number - 1) for k in range(1, BACK + 1)]
    bars.bar(places, values.tolist(), 0.25, label=name)
bars.axhline(1 / LETTERS, linestyle=":", color="#222222", label="chance")
bars.set(xlabel="letter, steps back", ylabel="share of letters right", ylim=(0, 1.4))
bars.set_yticks([0, 0.25, 0.5, 0.75, 1])
bars.set_title("Which of the last six letters are known", fontsize=10, loc="left")
bars.legend(fontsize=8, frameon=False, ncols=2, loc="upper center")
for axes, name in ((map_of_one, "one head"), (map_of_eight, "eight heads")):
    image = axes.imshow(looks[name].numpy(), cmap="BuPu", vmin=0, vmax=1, aspect="auto")
    axes.set_yticks(range(len(looks[name])), [f"head {h + 1}" for h in range(len(looks[name]))])
    axes.set(xlabel="looks so many steps back")
    axes.set_title(f"{name}: mean weight", fontsize=10, loc="left")
    axes.grid(visible=False)
figure.colorbar(image, ax=[map_of_one, map_of_eight], label="mean attention weight")
show(figure, "heads")

# %% [markdown]
# **What to see.** Left: for each of the last six letters, how often each network knows it. Eight
# heads know all six, one head hardly more than one of them, and averaged heads some. Middle and
# right: where the heads look, averaged over texts. The single head has one distribution for all six
# letters; of the eight, different heads look at different steps.
#
# ## The claim, asserted

# %%
assert costs[1] == costs[8], f"the costs differ: {costs}"
of_one, of_eight, of_average = (values.mean().item() for values in right.values())
assert of_eight > 0.9, f"eight heads know {of_eight:.0%} of the letters"
assert of_one < 0.6, f"one head knows {of_one:.0%} of the letters"
assert of_average < 0.8, f"eight averaged heads know {of_average:.0%} of the letters"
print(
    f"Equal cost ({costs[8][0]:,} parameters, {costs[8][1]:,} multiplications); of the last six "
    f"letters one head knows {of_one:.0%}, eight heads {of_eight:.0%}, averaged {of_average:.0%}."
)

# %% [markdown]
# **What would prove it wrong.** Different numbers of parameters or multiplications; one head that
# knows 60 % of the letters or more; eight heads that do not know 90 %; or averaged heads that know
# 80 % or more.
#
# **Where it is only half true.** Equal cost means parameters and multiplications. Eight heads
# compute eight times as many attention weights, so softmax and memory do cost more. The task is
# made to need several places at once; for a task that needs one, one head is as good, and trained
# models often use only few of their heads (lesson 20). And averaging does not destroy everything:
# eight numbers can still hold some letters.
#
# **To try.** Use two and four heads: how many letters do they know? Ask for four letters
# (`BACK = 4`): in the full size even the averaged heads know them then. (Eight letters can lie on a
# circle, in two of its eight dimensions, and four times two is eight.)
