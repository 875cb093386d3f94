# %% [markdown]
# # 17. Embeddings
#
# **Claim.** Words that do the same for a task get similar vectors by training alone: in a
# classifier of film reviews, words of praise lie near each other and far from words of blame.
#
# **Time.** 2 s; full size 18 s.
#
# An embedding is a look-up table $E$ of $V \times D$ numbers, random at first: the vector of word
# $i$ is row $E_i$. The classifier of this lesson has such a table and an output layer ($W$, $b$),
# and nothing else. It reads the first 200 words $x_1, \dots, x_n$ of a review, averages their rows,
# and decides whether the review is good or bad:
#
# $$P(\text{good}) = \text{softmax}\left(W \cdot \frac{1}{n} \sum_{t=1}^{n} E_{x_t} + b\right)$$
#
# With 20,000 words of width 32 it has 20,000 · 32 + 2 · 32 + 2 = 640,066 parameters. Nobody tells
# it what words mean. But words that have the same effect on the label are pushed in the same
# direction.
#
# The distance is that of directions, $D(a, b) = 1 - \cos(E_a, E_b)$: 0 for the same direction, 1
# for a right angle, 2 for opposite directions.

# %%
import random

import numpy as np
import torch

import transduce
from transduce import recipe
from transduce.data.batches.batch import collate
from transduce.data.text.pairs import read_pairs
from transduce.data.tokens.tokenizer import BEGIN, SPECIALS, Tokens
from transduce.errors import TransduceError
from transduce.inspection.look.collect import nearest, plane_of
from transduce.lessons import COLORS, panels, show, size, table

network = transduce.build("imdb-pooled", 20_000, len(SPECIALS) + 2)
parameters = sum(weights.numel() for weights in network.parameters())
print(f"The classifier of the recipe imdb-pooled has {parameters:,} parameters.")

# %% [markdown]
# ## Reviews
#
# In the full size these are the 22,500 training reviews of IMDB, if they are on this machine
# (`transduce corpus get imdb`, 84 MB). Otherwise, and always in the reduced size, they are made
# here: 70 % of the words are neutral, the others are opinions, of which 15 % contradict the label.

# %%
LISTS = (
    "great wonderful excellent superb brilliant perfect amazing favorite beautiful loved",
    "bad awful terrible worst boring waste poor stupid horrible dull",
    "the a film movie was with and it story of music scene plot in actor dog cat ticket",
)
PRAISE, BLAME, OTHERS = (words.split() for words in LISTS)


def made_reviews(count: int) -> list[tuple[str, str]]:
    """Reviews and their labels, drawn at random."""
    draw = random.Random(1)
    found = []
    for number in range(count):
        mine, not_mine = (PRAISE, BLAME) if number % 2 else (BLAME, PRAISE)
        words = []
        for _ in range(draw.randint(8, 16)):
            opinion = mine if draw.random() < 0.85 else not_mine
            words.append(draw.choice(opinion if draw.random() < 0.3 else OTHERS))
        found.append((" ".join(words), "pos" if number % 2 else "neg"))
    return found


def imdb() -> list[tuple[str, str]]:
    """The reviews of IMDB; none if they are not here."""
    try:
        corpus = recipe.Named(name="imdb", split="train")
        return [(pair.source, pair.target) for pair in read_pairs(corpus, None)]
    except TransduceError:
        print("IMDB is not on this machine; the reviews are made up here.")
        return []


reviews = size(list, imdb)() or made_reviews(size(400, 5000))
tokens = Tokens.train(
    recipe.Tokens(level="word", size=20_000, lowercase=True), (text for text, _ in reviews)
)
print(f"{len(reviews):,} reviews, {len(tokens):,} words. The first: {reviews[0][0][:70]} …")

# %% [markdown]
# ## Training
#
# Adam with batches of 32 reviews.

# %%
torch.manual_seed(1)
network = transduce.build("imdb-pooled", tokens, len(SPECIALS) + 2)
table_VD = network.front.table.weight
at_first_VD = table_VD.detach().double().numpy().copy()
optimizer = torch.optim.Adam(network.parameters(), lr=size(2e-2, 5e-3))
held_out = len(reviews) // 10
ids = [row[:200] for row in tokens.encode_batch([text for text, _ in reviews])]
labels = [len(SPECIALS) + (label == "pos") for _, label in reviews]
draw = random.Random(1)
network.train()
for _ in range(size(80, 2500)):
    some = draw.sample(range(held_out, len(ids)), 32)
    batch = collate([ids[place] for place in some], None, ends=False)
    target_BT = torch.tensor([[BEGIN, labels[place]] for place in some])
    loss = network.loss(batch.source_BS, batch.source_lengths_B, target_BT)
    optimizer.zero_grad()
    (loss.total / loss.tokens).backward()
    optimizer.step()

network.eval()
batch = collate(ids[:held_out], None, ends=False)
with torch.no_grad():
    guessed_B = network.logits(batch.source_BS, batch.source_lengths_B)[:, 0].argmax(-1)
wanted_B = torch.tensor(labels[:held_out]) - len(SPECIALS)
accuracy = (guessed_B == wanted_B).float().mean().item()
print(f"{accuracy:.1%} of {held_out:,} other reviews are classified right.")

# %% [markdown]
# ## Neighbours and distances

# %%
trained_VD = table_VD.detach().double().numpy()
for word in ("wonderful", "awful", "the"):
    (number,) = tokens.encode(word)
    near = nearest(trained_VD, number)
    print(f"{word:10}", ", ".join(f"{tokens.pieces([one])[0]} {cos:.2f}" for one, cos in near))


def mean_distance(vectors_VD: np.ndarray, ones: list[str], others: list[str]) -> float:
    """1 − cos, averaged over all pairs of different words."""
    rows = [vectors_VD[[tokens.encode(word)[0] for word in words]] for words in (ones, others)]
    one, other = (row / np.linalg.norm(row, axis=1, keepdims=True) for row in rows)
    cosines = one @ other.T
    different = np.array([[a != b for b in others] for a in ones])
    return float(1 - cosines[different].mean())


kinds = {
    "praise and praise": (PRAISE, PRAISE),
    "blame and blame": (BLAME, BLAME),
    "praise and blame": (PRAISE, BLAME),
}
distances = {
    name: [mean_distance(vectors_VD, *pair) for vectors_VD in (at_first_VD, trained_VD)]
    for name, pair in kinds.items()
}
table(
    ["mean distance of", "before training", "trained"],
    [(name, *both) for name, both in distances.items()],
)

# %%
figure, drawings = panels(2)
groups = {"praise": (PRAISE, COLORS[0]), "blame": (BLAME, COLORS[1]), "others": (OTHERS, "#999999")}
listed = [word for words, _ in groups.values() for word in words]
numbers = [tokens.encode(word)[0] for word in listed]
for axes, vectors_VD, title in zip(
    drawings, (at_first_VD, trained_VD), ("Before training", "After training"), strict=True
):
    places_N2 = plane_of(vectors_VD, numbers)
    for name, (words, color) in groups.items():
        which = [listed.index(word) for word in words]
        axes.plot(*places_N2[which].T, "o", markersize=4, color=color, label=name)
        for place, word in zip(which, words, strict=True):
            if name != "others" or word in ("the", "dog", "cat", "ticket"):
                where = {"xytext": (3, 2), "textcoords": "offset points"}
                axes.annotate(word, places_N2[place], fontsize=7, color=color, **where)
    axes.set(xlabel="first main axis", ylabel="second main axis", xlim=(-1.1, 1.35))
    axes.set_title(title, fontsize=10, loc="left")
drawings[1].legend(fontsize=8, frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 0.99))
show(figure, "embeddings")

# %% [markdown]
# **What to see.** The two main axes (principal components) of the vectors of some words. Before
# training, praise, blame and neutral words are mixed. After training the first axis separates
# praise from blame, and neutral words lie between them. (In the reduced size there are few reviews;
# the groups are looser.)
#
# The main axis after training is the label. The lecture's example,
# $D(\text{cat}, \text{dog}) < D(\text{cat}, \text{ticket})$, is *not* to be expected here: none of
# the three words says anything about how good a film is. What counts as the same meaning is what
# the task asks for. A model that has to predict the next word has reason to put cats near dogs.
#
# ## The claim, asserted

# %%
assert parameters == 640_066, f"the classifier has {parameters:,} parameters"
assert accuracy > 0.8, f"only {accuracy:.1%} of the reviews are classified right"
unlike = distances["praise and blame"][1]
for name in ("praise and praise", "blame and blame"):
    at_first, alike = distances[name]
    assert abs(at_first - 1) < 0.15, f"{name}: random vectors are {at_first} apart, not about 1"
    assert alike < unlike - 0.5, f"{name} are {alike} apart, praise and blame {unlike}"
print(
    f"640,066 parameters; accuracy {accuracy:.1%}; distance of praise from praise "
    f"{distances['praise and praise'][1]:.2f}, of blame from blame "
    f"{distances['blame and blame'][1]:.2f}, of praise from blame {unlike:.2f}; before "
    f"training all are about {distances['praise and blame'][0]:.2f}."
)

# %% [markdown]
# **What would prove it wrong.** Another number of parameters; a classifier that does not learn;
# random vectors that are not about a right angle apart; or, after training, praise that is not
# clearly nearer to praise than to blame (by 0.5 at least).
#
# **Where it is only half true.** "Like meanings lie near" holds for the meaning that the task
# needs, and for no other: this classifier knows two directions. Antonyms such as *good* and *bad*,
# which are opposite here, are often neighbours in models of running text, because they occur in the
# same places. A word that occurs once or never stays near its random start.
#
# **To try.** Measure the distances of cat, dog and ticket. How far have rare words moved from where
# they began? Make half of the opinions contradict the label (0.5 in place of 0.85): what is left of
# the two groups?
