# %% [markdown]
# # 6. Positions concatenated or added
#
# **Claim.** Concatenating positions as wide as the embeddings doubles every vector and makes every
# matrix four times as large; adding them costs nothing, and an added position can still be used to
# look by place or by content.
#
# **Time.** 5 s; full size 25 s.
#
# A word's embedding $e_t$ and its position vector $p_t$, both of width $D$, have to become one
# input $x_t$. There are two ways:
#
# $$x_t = [e_t; p_t] \in \mathbb{R}^{2D} \qquad\text{or}\qquad x_t = e_t + p_t \in \mathbb{R}^{D}$$
#
# Concatenated, a matrix $W = \begin{pmatrix} W_e \\ W_p \end{pmatrix}$ has rows for the content and
# rows for the position and can treat them separately: $x_t W = e_t W_e + p_t W_p$. But everything
# that follows is twice as wide: biases and norms double, and matrices grow from $D \times D$ to
# $2D \times 2D$, four times as many numbers. Added, $x_t W = e_t W + p_t W$: one matrix for both.
# This works if there are more dimensions than content and position need: training then finds
# separate directions for each.

# %%
import torch

from transduce.lessons import COLORS, fit, panels, show, size, table
from transduce.models import LabelNetwork, TransformerTagger

WORDS, SPECIAL, LENGTH = 12, 4, size(8, 12)
VOCABULARY = 4 + WORDS + SPECIAL  # tokens 0 to 3 are reserved
width = size(32, 64)


def tagger(combine: str, width: int) -> LabelNetwork:
    torch.manual_seed(6)
    return TransformerTagger(
        VOCABULARY,
        WORDS + SPECIAL,
        width=width,
        heads=1,
        layers=1,
        feed_forward=2 * width,
        dropout=0.0,
        positions="sinusoidal",
        combine=combine,
    )


# %% [markdown]
# ## The price
#
# The same encoder layer for vectors of $D$ and of $2D$ numbers. "Vectors" are biases and norms.


# %%
def count(network: LabelNetwork) -> tuple[int, int]:
    """Numbers in the matrices and in the vectors of the encoder."""
    parameters = list(network.encoder.parameters())
    matrices = sum(p.numel() for p in parameters if p.dim() == 2)
    return matrices, sum(p.numel() for p in parameters if p.dim() == 1)


added, joined = tagger("add", width), tagger("concatenate", 2 * width)
(added_matrices, added_vectors), (joined_matrices, joined_vectors) = count(added), count(joined)
table(
    ["encoder layer", "added", "concatenated", "times"],
    [
        ("in matrices", added_matrices, joined_matrices, joined_matrices / added_matrices),
        ("in vectors", added_vectors, joined_vectors, joined_vectors / added_vectors),
    ],
)
assert joined_matrices == 4 * added_matrices, f"{joined_matrices / added_matrices:.2f} times"
assert joined_vectors == 2 * added_vectors, f"{joined_vectors / added_vectors:.2f} times"

# %% [markdown]
# ## What each learns
#
# Two tasks for one layer with one head. **By place**: the label of each token is the token before
# it. **By content**: one token of the sequence, anywhere, is a special one; it is the label of all
# tokens.
#
# After training we ask what the attention scores depend on. If they depended only on the places $t$
# and $\tau$, they would be the same for every sequence. So we average the scores over sequences and
# take the variance of this mean as a share of the total variance. A share of one means that the
# head looks by place, zero that it looks by content.


# %%
def by_place(batch: int = 32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source_BS = torch.randint(4, 4 + WORDS, (batch, LENGTH))
    before_BS = torch.cat([source_BS[:, :1], source_BS[:, :-1]], dim=1)
    return source_BS, torch.full((batch,), LENGTH), with_begin(before_BS)


def by_content(batch: int = 32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source_BS = torch.randint(4, 4 + WORDS, (batch, LENGTH))
    special_B1 = torch.randint(4 + WORDS, VOCABULARY, (batch, 1))
    source_BS.scatter_(1, torch.randint(0, LENGTH, (batch, 1)), special_B1)
    return source_BS, torch.full((batch,), LENGTH), with_begin(special_B1.expand(-1, LENGTH))


def with_begin(labels_BS: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.full((len(labels_BS), 1), 2), labels_BS], dim=1)


def share_of_place(network: LabelNetwork) -> tuple[float, torch.Tensor]:
    """What share of the scores' variance the places explain; and the mean weights."""
    seen = []
    network.encoder.blocks[0].self_attention.watch = seen.append
    with torch.no_grad():
        network.logits(*by_content(512)[:2])
    weights_BTS = seen[0][:, 0]
    scores_BTS = weights_BTS.clamp(min=1e-30).log()
    scores_BTS = scores_BTS - scores_BTS.mean(-1, keepdim=True)  # softmax forgets a constant
    return (scores_BTS.mean(0).var() / scores_BTS.var()).item(), weights_BTS.mean(0)


networks = {
    "added": ("add", width),
    "concatenated": ("concatenate", 2 * width),
}
right, shares, maps = {}, {}, {}
tasks = {"by place": (by_place, size(100, 600)), "by content": (by_content, size(60, 300))}
for task, (batch, updates) in tasks.items():
    for name, shape in networks.items():
        network = tagger(*shape)
        fit(network, batch, updates, lr=1e-2)
        with torch.no_grad():
            loss = network.loss(*batch(512))
        right[task, name] = float(loss.correct / loss.tokens)
        shares[task, name], maps[task, name] = share_of_place(network)
table(
    ["task", "positions", "right labels", "share by place"],
    [(task, name, right[task, name], shares[task, name]) for task, name in right],
)

# %%
figure, every = panels(3, width=4.0, height=3.6)
for axes, name in zip(every[:2], ("added", "concatenated"), strict=True):
    axes.imshow(maps["by place", name].numpy(), cmap="BuPu", vmin=0, vmax=1)
    axes.set_title(f"{name}: looks one back", fontsize=10, loc="left")
    axes.set(xlabel="key τ", ylabel="query t")
    axes.grid(visible=False)
for number, task in enumerate(("by place", "by content")):
    values = [shares[task, name] for name in networks]
    places = [place + 0.4 * number for place in range(len(values))]
    every[2].bar(places, values, 0.35, color=COLORS[number], label=f"task {task}")
every[2].set_xticks([0.2, 1.2], list(networks))
every[2].set(ylabel="share of the variance", ylim=(0, 1.25))
every[2].set_title("How much of the scores depends on place", fontsize=10, loc="left")
every[2].legend(fontsize=8, frameon=False, ncols=2, loc="upper center")
show(figure, "concatenate_or_add")

# %% [markdown]
# **What to see.** Left and middle: the mean attention of the two networks trained on the task by
# place; in both the dark cells lie one step below the diagonal (key $t - 1$). Right: for both ways
# to combine, the share is near 1 on the task by place and near 0 on the task by content.
#
# ## The rest of the claim, asserted

# %%
for name in networks:
    for task in ("by place", "by content"):
        assert right[task, name] > 0.9, f"{name}, {task}: {right[task, name]:.0%} right"
    assert shares["by place", name] > 0.7, f"{name}: {shares['by place', name]:.2f} is place"
    assert shares["by content", name] < 0.3, f"{name}: {shares['by content', name]:.2f} is place"
print(
    f"Matrices 4 times, vectors 2 times as large. Added, {right['by place', 'added']:.0%} right by "
    f"place ({shares['by place', 'added']:.0%} of the scores are place) and "
    f"{right['by content', 'added']:.0%} by content ({shares['by content', 'added']:.0%})."
)

# %% [markdown]
# **What would prove it wrong.** Another ratio than 4 for matrices or 2 for vectors; or a network
# with added positions that does not learn one of the tasks, or solves it with scores of the wrong
# kind.
#
# **Where it is only half true.** The factors 2 and 4 hold if the position vector is as wide as the
# embedding; a narrow one costs little. The embedding table does not grow at all. The two tasks are
# easy and the networks have room to spare, so this shows that adding *can* work, not that it is
# always as good: the concatenated networks here have four times the parameters, and their scores
# separate place and content at least as clearly.
#
# **To try.** Make the width as small as 8: which of the two ways suffers first? How large a part of
# all parameters is the embedding table with a vocabulary of 32,000 words? Change `lr=1e-2` to
# `1e-3`: which task suffers?
