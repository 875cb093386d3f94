# %% [markdown]
# # 14. Characters, subwords, words
#
# **Claim.** Characters make a small vocabulary and long sequences, words a large one, short
# sequences and unknown words; subwords avoid most of both problems.
#
# **Time.** 4 s; full size 60 s.
#
# Text must be cut into tokens, each with a row in the embedding matrix $E$ of $V$ rows. With words,
# $V$ is large, and a word that is not in the training set has no row: it is *unknown*. With
# characters $V$ is tiny and nothing is unknown, but sequences are long. A decoder has as many
# steps, and chances to make a mistake, as there are tokens $y_1, \dots, y_n$ ($y_{<t}$ are those
# before $y_t$):
#
# $$P(\text{text}) = \prod_{t=1}^{n} P(y_t \mid y_{<t}), \qquad
# n_\text{characters} > n_\text{subwords} > n_\text{words}$$
#
# Subwords are in between: byte pair encoding (Sennrich et al. 2016,
# https://aclanthology.org/P16-1162) starts with characters and joins the most frequent pair of
# neighbours again and again, until the vocabulary has the size that one wants.
#
# The task here is to write numbers in German words. German writes each number below a thousand as
# one word, the ones before the tens: 342 is *dreihundertzweiundvierzig*. The model learns from 70 %
# of the numbers below 1,000 (below 200 in the reduced size) and is tested on the others.

# %%
import random
from typing import NamedTuple

import torch

from transduce import recipe
from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.decoding import greedy
from transduce.lessons import COLORS, fit, panels, show, size, table
from transduce.models import RecurrentSeq2Seq

ONES = ["", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]
ONES += ["elf", "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn"]
ONES += ["neunzehn"]
TENS = ["", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig"]
TENS += ["neunzig"]


def german(number: int) -> str:
    """A number below 1,000 in German."""
    hundreds, rest = divmod(number, 100)
    tens, ones = divmod(rest, 10)
    text = f"{ONES[hundreds]}hundert" if hundreds else ""
    if rest < 20:
        return text + ONES[rest] + ("s" if rest == 1 else "")
    return text + (f"{ONES[ones]}und" if ones else "") + TENS[tens]


numbers = list(range(1, size(200, 1000)))
random.Random(1).shuffle(numbers)
part = len(numbers) * 7 // 10
learned, new = numbers[:part], numbers[part:]
digits = Tokens.train(recipe.Tokens(level="character"), map(str, learned))
updates, batch = size((50, 20), (300, 64))

# %% [markdown]
# ## The vocabularies
#
# All are learned from the numbers of the training set.

# %%
subword_sizes = size((70,), (45, 70, 150, 400))
kinds = {
    "characters": recipe.Tokens(level="character"),
    **{f"{n} subwords": recipe.Tokens(level="subword", size=n) for n in subword_sizes},
    "words": recipe.Tokens(level="word"),
}
vocabularies = {
    name: Tokens.train(settings, map(german, learned)) for name, settings in kinds.items()
}
for name, tokens in vocabularies.items():
    print(f"{name:13}", " ".join(tokens.pieces(tokens.encode(german(new[0])))))

# %% [markdown]
# This is the first number of the test set in each vocabulary. A subword that begins a word has the
# mark `▁`. A word that is not in the vocabulary is `<unk>`.


# %%
class Measured(NamedTuple):
    vocabulary: int
    length: float
    """Tokens per number, on average."""
    unknown: float
    """The share of unknown tokens in new numbers."""
    learned: float
    """The share of right answers for numbers of the training set."""
    new: float
    """The same for numbers of the test set."""


def share_right(network: torch.nn.Module, tokens: Tokens, asked: list[int]) -> float:
    """The share of numbers that are written without a mistake."""
    sources = collate(digits.encode_batch([str(number) for number in asked]), None)
    limits_B = torch.full((len(asked),), 40)
    with torch.inference_mode():
        outputs = greedy(network, sources.source_BS, sources.source_lengths_B, limits_B)
    texts = [tokens.decode(hypotheses[0].tokens) for hypotheses in outputs]
    return sum(map(str.__eq__, texts, map(german, asked))) / len(asked)


def measure(tokens: Tokens) -> Measured:
    """Train a recurrent network with attention to write these tokens."""
    torch.manual_seed(1)
    draw = random.Random(1)
    network = RecurrentSeq2Seq(len(digits), len(tokens), width=64, dropout=0.0)

    def pairs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        some = draw.sample(learned, batch)
        sources = digits.encode_batch([str(number) for number in some])
        made = collate(sources, tokens.encode_batch([german(number) for number in some]))
        return made.source_BS, made.source_lengths_B, made.target_BT

    fit(network, pairs, updates, lr=1e-2)
    ids = tokens.encode_batch([german(number) for number in new])
    count = sum(map(len, ids))
    return Measured(
        len(tokens),
        count / len(ids),
        sum(row.count(UNKNOWN) for row in ids) / count,
        share_right(network, tokens, learned[: len(new)]),
        share_right(network, tokens, new),
    )


measured = {name: measure(tokens) for name, tokens in vocabularies.items()}
table(
    ["", "vocabulary", "tokens per number", "unknown", "right, learned", "right, new"],
    [(name, *row) for name, row in measured.items()],
)

# %%
figure, (sizes, quality) = panels(2)
for (name, row), color in zip(measured.items(), COLORS, strict=False):
    sizes.plot(row.vocabulary, row.length, "o", markersize=9, color=color)
    to_left = row.vocabulary > 400  # there is no room to the right
    sizes.annotate(
        f"{name}\n{row.unknown:.0%} unknown",
        (row.vocabulary, row.length),
        xytext=(-8 if to_left else 8, 4),
        textcoords="offset points",
        ha="right" if to_left else "left",
        fontsize=8,
    )
sizes.set(xlabel="tokens in the vocabulary (log)", ylabel="tokens per number", xscale="log")
sizes.set(xlim=(15, 1500), ylim=(0, 27))
sizes.set_title("What a vocabulary costs", fontsize=10, loc="left")
places = range(len(measured))
for shift, field, color in ((-0.2, "learned", COLORS[5]), (0.2, "new", COLORS[0])):
    heights = [getattr(row, field) for row in measured.values()]
    shifted = [place + shift for place in places]
    quality.bar(shifted, heights, 0.38, color=color, label=f"{field} numbers")
quality.set_xticks(places, [name.replace(" ", "\n") for name in measured])
quality.set(ylabel="share of numbers right", ylim=(0, 1.18))
quality.set_title("What it is good for", fontsize=10, loc="left")
quality.legend(fontsize=8, frameon=False, loc="upper right", ncols=2)
show(figure, "vocabularies")

# %% [markdown]
# **What to see.** Left: each point is a vocabulary; to the right they are larger, and further down
# sequences are shorter. Only words have unknown tokens. Right: the share of numbers written without
# a mistake. Words can repeat numbers of the training set, but are wrong for every new one. (In the
# reduced size training is short: look at which bars are missing, not at their heights.)
#
# Words are an extreme case here: each number is one word, so all new ones are unknown, and a model
# of words can only repeat what it has seen. In running text the share of unknown words is smaller,
# but never zero: names, numbers, compounds.
#
# ## The claim, asserted

# %%
letters, some, words = (measured[name] for name in ("characters", "70 subwords", "words"))
assert letters.vocabulary < some.vocabulary < words.vocabulary
assert letters.length > 2 * some.length > 4 * words.length, (letters.length, some.length)
assert letters.unknown == some.unknown == 0, "a character or a subword is unknown"
assert words.unknown > 0.9, f"only {words.unknown} of the words are unknown"
assert words.new < 0.05, f"words read {words.new} of numbers that have no token"
assert some.new > 0.4, f"subwords read only {some.new} of the new numbers"
assert letters.new > size(0.05, 0.2), f"characters read only {letters.new} of the new numbers"
print(
    "Vocabulary, tokens per number, new numbers right: "
    + "; ".join(
        f"{name} {row.vocabulary}, {row.length:.1f}, {row.new:.0%}"
        for name, row in measured.items()
    )
    + "."
)

# %% [markdown]
# **What would prove it wrong.** A vocabulary of characters that is larger than one of subwords, or
# gives shorter sequences; an unknown character or subword; a model of words that writes new
# numbers; or subwords that write fewer than 40 % of the new numbers.
#
# **Where it is only half true.** "Subwords are best" does not follow: the assertions do not compare
# their quality with that of characters, and with enough training characters do as well on such
# short texts. How well subwords do depends on their number; with too many of them they become
# words. And numbers are unusually regular: every part of a new number has been seen elsewhere.
#
# **To try.** Which numbers does the best model write wrong? Change the sizes (45, 70, 150, 400) of
# the subword vocabularies: what happens as they grow towards words? Learn from 10 % of the numbers
# in place of 70 %: which level suffers most?
