# %% [markdown]
# # 4. Attention alone cannot see word order
#
# **Claim.** Without positions, self-attention gives each word of "Zuko made his uncle tea" the same
# vector as in "his uncle made Zuko tea"; with positions it tells the sentences apart.
#
# **Time.** 2 s; full size 10 s.
#
# Self-attention compares every word with every other one by content alone. Nothing in
#
# $$h_t = \sum_\tau \operatorname{softmax}_\tau\!\left(\frac{(x_t W^Q)(x_\tau W^K)^\top}{\sqrt{d_k}}
# \right) x_\tau W^V$$
#
# says which of the words came first ($x_t$ is the vector of word $t$, $h_t$ the output, $d_k$ the
# width of queries and keys): a sum does not depend on the order of its terms. If the words change
# places, the outputs change places with them and are otherwise the same. For a matrix $\Pi$ that
# permutes rows, $\operatorname{attention}(\Pi X) = \Pi \operatorname{attention}(X)$. The
# feed-forward layers work on each word by itself, so the whole encoder has this property. But only
# the order says who made the tea.
#
# The cure: add to each word's embedding $e_t$ a vector $p_t$ that depends on its position,
# $x_t = e_t + p_t$.

# %%
import torch

from transduce.lessons import COLORS, fit, panels, show, size, table
from transduce.models import TransformerClassifier
from transduce.nn import EncoderBlock, Positioned, Sinusoidal

torch.manual_seed(4)
one, other = ["Zuko", "made", "his", "uncle", "tea"], ["his", "uncle", "made", "Zuko", "tea"]
assert sorted(one) == sorted(other)
width = 32
embedding = {word: torch.randn(width) for word in sorted(one)}
blocks = [EncoderBlock(width, 4, 64).eval() for _ in range(2)]


# %% [markdown]
# ## The same vectors for both sentences
#
# Two blocks of an encoder with random weights; the claim holds for any weights. For each word the
# table has the distance between its vectors in the two sentences, divided by the norm of the first.


# %%
def encode(sentence: list[str], positions: Positioned | None) -> dict[str, torch.Tensor]:
    x_BSD = torch.stack([embedding[word] for word in sentence])[None]
    x_BSD = x_BSD if positions is None else positions(x_BSD)
    with torch.no_grad():
        for block in blocks:
            x_BSD = block(x_BSD)
    return dict(zip(sentence, x_BSD[0], strict=True))


def distances(positions: Positioned | None) -> dict[str, float]:
    first, second = encode(one, positions), encode(other, positions)
    return {word: float((first[word] - second[word]).norm() / first[word].norm()) for word in one}


without, with_positions = distances(None), distances(Positioned(Sinusoidal(width)))
table(
    ["word", "distance without positions", "with positions"],
    [(word, without[word], with_positions[word]) for word in one],
)
assert max(without.values()) < 1e-5, f"without positions vectors differ by {max(without.values())}"
assert min(with_positions.values()) > 0.01, "with positions some word has the same vector"

# %% [markdown]
# "tea" is the last word of both sentences, yet with positions even its vector differs, because the
# words before it have other positions.
#
# ## Who made the tea?
#
# A classifier is trained on sentences "A made B tea" with eight names. It has to say who made the
# tea. Without positions "A made B tea" and "B made A tea" are the same to it, so it can only guess
# one of the two names.

# %%
MADE, TEA, NAMES = 4, 5, 8  # tokens 0 to 3 are special ones; names are 6 to 13


def sentences(count: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pairs_B2 = torch.stack([torch.randperm(NAMES)[:2] for _ in range(count)])
    first_B, second_B = (pairs_B2 + 6).unbind(1)
    made_B, tea_B = torch.full((count,), MADE), torch.full((count,), TEA)
    source_BS = torch.stack([first_B, made_B, second_B, tea_B], dim=1)
    begin_B, label_B = torch.full((count,), 2), pairs_B2[:, 0] + 4  # label n is token n + 4
    return source_BS, torch.full((count,), 4), torch.stack([begin_B, label_B], dim=1)


curves, right = {}, {}
for positions in ("none", "sinusoidal"):
    torch.manual_seed(4)
    network = TransformerClassifier(
        14, NAMES, width=32, heads=4, layers=1, feed_forward=64, dropout=0.0, positions=positions
    )
    curves[positions] = fit(network, sentences, size(50, 300), lr=1e-2)
    with torch.no_grad():
        source_BS, lengths_B, target_BT = sentences(1000)
        answers_B = network.logits(source_BS, lengths_B)[:, 0].argmax(-1)
    right[positions] = (answers_B == target_BT[:, 1] - 4).float().mean().item()
table(["positions", "right answers"], right.items())

# %%
figure, (bars, learning) = panels(2)
places = range(len(one))
for shift, found, color, label in (
    (-0.2, without, COLORS[1], "without positions"),
    (0.2, with_positions, COLORS[0], "with positions"),
):
    bars.bar([p + shift for p in places], list(found.values()), 0.4, color=color, label=label)
bars.set_xticks(places, one)
bars.set(ylabel="distance of its two vectors", yscale="log", ylim=(1e-9, 1e3))
bars.set_title("The same word in the two sentences (log)", fontsize=10, loc="left")
learning.plot(curves["none"], color=COLORS[1], label="without positions")
learning.plot(curves["sinusoidal"], color=COLORS[0], label="with positions")
learning.axhline(0.5, linestyle=":", color=COLORS[-1], label="chance: one of two names")
learning.set(xlabel="update", ylabel="right answers of a batch", ylim=(0, 1.05))
learning.set_title("Who made the tea?", fontsize=10, loc="left")
for axes in (bars, learning):
    axes.legend(fontsize=8, frameon=False, loc="upper left" if axes is bars else "best")
show(figure, "word_order")

# %% [markdown]
# **What to see.** Left (a logarithmic axis): without positions the two vectors of each word differ
# by rounding only, about $10^{-7}$; with positions they differ by 3 to 50 %. Right: without
# positions the classifier stays at 50 % right answers however long it is trained; with positions it
# soon has 100 %.
#
# ## The rest of the claim, asserted

# %%
assert 0.4 < right["none"] < 0.6, f"without positions {right['none']:.0%} are right, not half"
assert right["sinusoidal"] > 0.95, f"with positions only {right['sinusoidal']:.0%} are right"
print(
    f"Without positions vectors differ by {max(without.values()):.1e} and {right['none']:.0%} of "
    f"the answers are right; with positions by at least {min(with_positions.values()):.2f}, and "
    f"{right['sinusoidal']:.0%} are right."
)

# %% [markdown]
# **What would prove it wrong.** A word whose vectors differ by more than rounding without
# positions; a classifier without positions that does better than one of two; or one with positions
# that does not learn it.
#
# **Where it is only half true.** This is true of self-attention that sees all words. With a *causal
# mask* the first word sees one word, the second two, and so on; so a masked decoder can learn
# something about order without any position vectors. And many tasks do not need the order: lesson
# 17 classifies reviews by an average of word vectors.
#
# **To try.** Give the encoder the mask `causal()` and no positions: are the vectors still the same?
# Make the sentence longer ("A made B tea in C's house"). Change `NAMES = 8` to 2: what is chance
# now?
