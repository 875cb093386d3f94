# %% [markdown]
# # 16. Tied embeddings
#
# **Claim.** Logits are the output embedding times the predicted embedding, so one table can serve
# input and output; this saves a table of parameters, and with little text the tied model predicts
# better.
#
# **Time.** 3 s; full size 35 s.
#
# A decoder gives a vector $\hat y_t$ for each step, the *predicted embedding*. Its product with
# every row $E_i$ of the output embedding $E$ says how well token $i$ fits ($b$ is a bias), and a
# softmax turns these logits into probabilities:
#
# $$\text{logits}_t = E\,\hat y_t + b, \qquad P(Y_t = i) = \frac{e^{E_i \cdot \hat y_t + b_i}}
# {\sum_j e^{E_j \cdot \hat y_t + b_j}}$$
#
# The input has a table too: its row $i$ is what the network reads for token $i$. Both tables have a
# row of width $D$ for each of $V$ tokens. *Tied*, they are the same table (Press and Wolf 2017,
# https://aclanthology.org/E17-2025), which saves $V D$ parameters. Each row then learns from both
# sides: whenever its token is read, and at every step as a right or wrong answer.

# %%
import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD, SPECIALS
from transduce.lessons import COLORS, panels, show, size, table
from transduce.models import RecurrentLanguageModel, Transformer

# %% [markdown]
# ## Logits are a product
#
# An encoder-decoder can be tied in three ways: not at all (`none`), the decoder's input with its
# output (`target`), or the encoder's input as well (`all`). We take the decoder's output vectors
# and multiply them by the table.

# %%
VOCABULARY, WIDTH = 1000, 64
ways = {}
for tie in ("none", "target", "all"):
    torch.manual_seed(1)
    network = Transformer(
        VOCABULARY, VOCABULARY, width=WIDTH, heads=4, layers=1, feed_forward=128, tie_embeddings=tie
    ).eval()
    source_BS = torch.randint(len(SPECIALS), VOCABULARY, (8, 10))
    target_BT = torch.randint(len(SPECIALS), VOCABULARY, (8, 7))
    lengths_B = torch.full((8,), 10)
    with torch.no_grad():
        predicted_BTD = network(source_BS, lengths_B, target_BT)
        logits_BTV = network.logits(source_BS, lengths_B, target_BT)
    head, embedding_VD = network.head, network.decoder.embedding.table.weight
    product_BTV = predicted_BTD @ head.weight.T + head.bias
    by_table_BTV = predicted_BTD @ embedding_VD.T + head.bias
    ways[tie] = (
        sum(weights.numel() for weights in network.parameters()),
        (logits_BTV - product_BTV).abs().max().item(),
        (logits_BTV - by_table_BTV).abs().max().item(),
    )
table(
    ["tied", "parameters", "logits − (E ŷ + b)", "with the input's table for E"],
    [(tie, *row) for tie, row in ways.items()],
)

# %% [markdown]
# ## What it does to quality
#
# A made-up language with articles, adjectives, nouns and verbs, in which most words are rare (the
# $r$-th word of a class has a frequency proportional to $1/r$, Zipf's law). Some nouns occur once
# or never in a small training set, yet the network should know that a verb follows each of them.
# Recurrent language models, tied and not, learn from the same sentences. The measure is the loss on
# new sentences in nats per word (natural logarithms; lower is better).

# %%
CLASSES = {"article": 5, "adjective": 100, "noun": 200, "verb": 100}
ORDER = ["article", "adjective", "noun", "verb", "article", "noun"]
FIRST = dict(zip(CLASSES, [4, 9, 109, 309], strict=True))
WORDS = len(SPECIALS) + sum(CLASSES.values())
updates, seeds = size(60, 150), size((1, 2), (1, 2, 3))
amounts = size((500,), (250, 500, 1000, 4000))


def sentences(count: int) -> Tensor:
    """[count, 8]: BEGIN, five or six words, END, PAD; every second sentence has no adjective."""
    columns = []
    for kind in ORDER:
        often = 1 / torch.arange(1.0, CLASSES[kind] + 1)
        columns.append(torch.multinomial(often, count, replacement=True) + FIRST[kind])
    words = torch.stack(columns, dim=1)
    ends = torch.tensor([[END, PAD]]).expand(count, 2)
    long = torch.cat([words, ends[:, :1]], dim=1)
    short = torch.cat([words[:, :1], words[:, 2:], ends], dim=1)
    chosen = torch.where(torch.rand(count, 1) < 0.5, long, short)
    return torch.cat([torch.full((count, 1), BEGIN), chosen], dim=1)


def test_loss(tied: bool, seed: int, amount: int) -> float:
    """Nats per word of new sentences, after training."""
    torch.manual_seed(seed)
    train_BT, test_BT = sentences(amount), sentences(400)
    network = RecurrentLanguageModel(WORDS, width=32, dropout=0.0, tie_embeddings=tied)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        some_BT = train_BT[torch.randint(amount, (32,), generator=generator)]
        loss = network.loss(some_BT, None, some_BT)
        optimizer.zero_grad()
        (loss.total / loss.tokens).backward()
        optimizer.step()
    with torch.no_grad():
        loss = network.loss(test_BT, None, test_BT)
    return (loss.nll / loss.tokens).item()


losses = {
    tied: [[test_loss(tied, seed, amount) for seed in seeds] for amount in amounts]
    for tied in (True, False)
}
table(
    ["sentences", *(f"{name}, seed {s}" for name in ("tied", "untied") for s in seeds)],
    [(amount, *losses[True][place], *losses[False][place]) for place, amount in enumerate(amounts)],
)

# %%
figure, (cost, quality) = panels(2)
table_size = VOCABULARY * WIDTH
for place, (tie, (count, *_)) in enumerate(ways.items()):
    tables = {"none": 3, "target": 2, "all": 1}[tie]
    cost.bar(place, count - tables * table_size, color="#999999")
    for number in range(tables):
        bottom = count - (tables - number) * table_size
        cost.bar(place, table_size, bottom=bottom, color=COLORS[number], edgecolor="white")
    cost.text(place, count, f"{count:,}", ha="center", va="bottom", fontsize=8)
cost.set_xticks(range(3), ["none", "target", "all"])
cost.set(xlabel="tied", ylabel="parameters")
cost.yaxis.set_major_formatter("{x:,.0f}")
cost.set_title("Tables (colours) and the rest (grey)", fontsize=10, loc="left")
for tied, name, color, shift in (
    (True, "tied", COLORS[0], 0.97),
    (False, "untied", COLORS[1], 1.03),
):
    means = [sum(of_seeds) / len(seeds) for of_seeds in losses[tied]]
    quality.plot([a * shift for a in amounts], means, "o-", markersize=7, color=color, label=name)
    for amount, of_seeds in zip(amounts, losses[tied], strict=True):
        quality.plot([amount * shift] * len(seeds), of_seeds, "_", color=color, markersize=14)
quality.set(xlabel="sentences in training (log)", xscale="log")
quality.set(ylabel="nats per word (lower is better)")
quality.set_xticks(amounts, [f"{amount:,}" for amount in amounts])
quality.minorticks_off()
quality.set_xlim(amounts[0] / 2, amounts[-1] * 2)
quality.set_title("Loss on new text; dashes are single seeds", fontsize=10, loc="left")
quality.legend(fontsize=8, frameon=False)
show(figure, "tying")

# %% [markdown]
# **What to see.** Left: parameters of the same network, tied in three ways; each coloured block is
# one embedding table, grey is everything else. Right: the loss on new sentences by the amount of
# training text (in the reduced size there is one amount). With little text the tied model is
# better; in the full size one sees that the two meet as the text grows.
#
# ## The claim, asserted

# %%
for tie, (_, error, error_by_table) in ways.items():
    assert error < 1e-4, f"{tie}: logits differ from E ŷ + b by {error}"
    if tie == "none":
        assert error_by_table > 0.1, "not tied, the input's table gives the logits all the same"
    else:
        assert error_by_table < 1e-4, f"{tie}: the input's table misses by {error_by_table}"
saved = [ways["none"][0] - ways["target"][0], ways["target"][0] - ways["all"][0]]
assert saved == [table_size, table_size], f"tying saves {saved}, not V D = {table_size} each time"
place = amounts.index(500)
gains = [a - t for t, a in zip(losses[True][place], losses[False][place], strict=True)]
gain = sum(gains) / len(gains)
assert gain > 0.01, f"with 500 sentences the tied network is not better: {gain} nats per word"
print(
    f"Each tie saves {VOCABULARY} x {WIDTH} = {table_size:,} parameters; with 500 sentences the "
    f"tied network needs {gain:.3f} nats per word less ({', '.join(f'{g:+.3f}' for g in gains)})."
)

# %% [markdown]
# **What would prove it wrong.** Logits that are not the product of table and prediction; a tie that
# saves more or less than one table; or, with 500 sentences, an untied model that is as good (on
# average over the seeds).
#
# **Where it is only half true.** The gain in quality belongs to small data: with 4,000 sentences
# (full size) it has nearly gone. It was measured for one small recurrent network and one made-up
# language. And tying has a price: input and output embeddings must have the same width and
# vocabulary, and a word must have one vector for both roles.
#
# **To try.** Does the gain last with 100 times the text? Leave out the rare words
# (`often = torch.ones(...)` over 5 words per class): is there still a gain? Change `width=32` to
# 128. What are the nearest neighbours of a noun in the tied table?
