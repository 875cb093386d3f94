# %% [markdown]
# # 15. Argmax, sampling and beam search
#
# **Claim.** On average beam search finds likelier outputs than argmax and sampling finds more
# varied ones, but the likeliest output of all may be a bad one: in a model trained on some empty
# targets, too wide a beam gives empty translations.
#
# **Time.** 4 s; full size 16 s.
#
# A decoder gives a distribution over the next token $y_t$, given the source $x$ and the tokens
# $y_{<t}$ before it, and so a distribution over whole outputs $y$:
#
# $$\log P(y \mid x) = \sum_t \log P(y_t \mid y_{<t}, x)$$
#
# *Argmax* (greedy search) takes the best token at every step. *Sampling* draws tokens by their
# probabilities. *Beam search* keeps the $N$ best beginnings. All three only ask the model; none of
# them knows what a good output is.
#
# To know what a good output is, we make up a language. Each of three words has four translations,
# two casual and two formal, and a translation keeps to one style. Translators are casual in 60 % of
# all sentences, and use both casual words equally often; of the two formal words they use the first
# in 70 %. And as in real corpora, something went wrong: 6 % of the training pairs have an empty
# target. So the likeliest translation of $n$ words has the probability
#
# $$P = 0.6 \cdot 0.5^n \text{ (casual)}, \qquad P = 0.4 \cdot 0.7^n \text{ (formal)}, \qquad
# P = 0.06 \text{ (empty)}$$
#
# (times 0.94 for the first two). For one word casual is best; from two on formal, though casual
# still has the likelier first word, $0.6 \cdot 0.5 > 0.4 \cdot 0.7$; and from six on *the empty
# output is the likeliest of all*.

# %%
import math

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD, SPECIALS
from transduce.decoding import Hypothesis, beam, greedy, sample
from transduce.lessons import COLORS, panels, show, size, table
from transduce.models import RecurrentSeq2Seq

WORDS, EMPTY, FORMAL = 3, 0.06, 0.4
FIRST_OF_TWO = torch.tensor([0.5, 0.7])  # casual, formal
longest, updates, batch, asked = size((7, 100, 64, 20), (10, 300, 64, 100))


def pairs(count: int, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """Sources of these lengths, and targets drawn as translators write them."""
    source_BS = torch.randint(WORDS, (count, longest))
    style_B1 = (torch.rand(count, 1) < FORMAL).long()
    second_BS = (torch.rand(count, longest) > FIRST_OF_TWO[style_B1]).long()
    translated_BS = len(SPECIALS) + 4 * source_BS + 2 * style_B1 + second_BS
    written_B = lengths_B.masked_fill(torch.rand(count) < EMPTY, 0)
    target_BT = torch.full((count, longest + 2), PAD)
    target_BT[:, 0], target_BT[:, 1:-1] = BEGIN, translated_BS
    target_BT[torch.arange(longest + 2) > written_B[:, None]] = PAD
    target_BT[torch.arange(count), written_B + 1] = END
    beyond_BS = torch.arange(longest) >= lengths_B[:, None]
    return (source_BS + len(SPECIALS)).masked_fill(beyond_BS, PAD), target_BT


def is_right(source: list[int], output: list[int]) -> bool:
    """Whether an output translates every word, in one style."""
    words = [token - len(SPECIALS) for token in source if token != PAD]
    said = [token - len(SPECIALS) for token in output]
    return [one // 4 for one in said] == words and len({one // 2 % 2 for one in said}) == 1


# %% [markdown]
# A recurrent network with attention is trained on such pairs. Source and target have the same
# order, so the location-based score will do.

# %%
torch.manual_seed(1)
network = RecurrentSeq2Seq(
    len(SPECIALS) + WORDS,
    len(SPECIALS) + 4 * WORDS,
    width=40,
    attention="location",
    max_positions=longest,
    dropout=0.0,
)
optimizer = torch.optim.AdamW(network.parameters(), lr=2e-2)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, updates)
for _ in range(updates):
    lengths_B = torch.randint(1, longest + 1, (batch,))
    source_BS, target_BT = pairs(batch, lengths_B)
    loss = network.loss(source_BS, lengths_B, target_BT)
    optimizer.zero_grad()
    (loss.total / loss.tokens).backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    schedule.step()
network.eval()

# %% [markdown]
# ## The same model, asked in different ways
#
# The score of beam search is the log-probability divided by $((5 + n) / 6)^p$, where $n$ is the
# length; with a length penalty of $p = 0$ it is the plain log-probability.

# %%
ways = {
    "argmax": lambda *source: greedy(network, *source),
    "sampling": lambda *source: sample(network, *source, seeds=range(len(source[0]))),
    "sampling, temperature 0.3": lambda *source: sample(
        network, *source, seeds=range(len(source[0])), temperature=0.3
    ),
    "beam 2": lambda *source: beam(network, *source, size=2, length_penalty=0.0),
    "beam 4": lambda *source: beam(network, *source, size=4, length_penalty=0.0),
    "beam 16": lambda *source: beam(network, *source, size=16, length_penalty=0.0),
    "beam 16, length penalty 1": lambda *source: beam(
        network, *source, size=16, length_penalty=1.0
    ),
}


@torch.inference_mode()
def ask(way: str, length: int) -> tuple[list[list[int]], list[Hypothesis]]:
    """Sources of one length, and the first output of each."""
    torch.manual_seed(2)
    lengths_B = torch.full((asked,), length)
    source_BS, _ = pairs(asked, lengths_B)
    outputs = ways[way](source_BS, lengths_B, lengths_B + 4)
    return source_BS.tolist(), [hypotheses[0] for hypotheses in outputs]


found = {}
for way in ways:
    for length in (3, longest):
        sources, outputs = ask(way, length)
        right = sum(is_right(s, o.tokens) for s, o in zip(sources, outputs, strict=True))
        found[way, length] = (
            sum(one.log_probability for one in outputs) / asked,
            right / asked,
            sum(not one.tokens for one in outputs) / asked,
        )
print(f"Means over {asked} sources of 3 words, and of {longest} words:")
table(
    ["", "log P", "right", "empty", f"log P, {longest}", f"right, {longest}", f"empty, {longest}"],
    [(way, *found[way, 3], *found[way, longest]) for way in ways],
)

# %% [markdown]
# ## Variety
#
# Translators are formal in 40 % of their sentences. Asking for the best output always gives the
# same style; only samples have both styles, as the training data have.


# %%
def formal(way: str) -> float:
    """The share of formal words in outputs of three words."""
    said = [token - len(SPECIALS) for one in ask(way, 3)[1] for token in one.tokens]
    return sum(token // 2 % 2 for token in said) / len(said)


torch.manual_seed(3)
three = torch.tensor([3])
source_1S, _ = pairs(1, three)
with torch.inference_mode():
    (drawn,) = sample(network, source_1S, three, three + 4, seeds=[1], copies=16)
variety = {way: formal(way) for way in ("argmax", "sampling", "beam 16")}
table(["", "share of formal words"], [*variety.items(), ("training data", FORMAL)])
different = len({tuple(one.tokens) for one in drawn})
print(f"16 samples of one sentence of 3 words have {different} different outputs.")

# %%
lengths = range(1, longest + 1, size(2, 1))
empties = {}
for way in ("argmax", "beam 2", "beam 16", "beam 16, length penalty 1"):
    empties[way] = [
        sum(not one.tokens for one in ask(way, length)[1]) / asked for length in lengths
    ]
figure, (theory, practice) = panels(2)
curves = {
    "casual": [math.log(0.94 * 0.6 * 0.5**n) for n in lengths],
    "formal": [math.log(0.94 * 0.4 * 0.7**n) for n in lengths],
    "empty": [math.log(EMPTY) for _ in lengths],
}
for (name, curve), color in zip(curves.items(), COLORS, strict=False):
    theory.plot(lengths, curve, color=color, label=name)
theory.set(xlabel="words in the source", ylabel="log P of the best output of a kind")
theory.set_title("Which output is the likeliest", fontsize=10, loc="left")
for (way, shares), style in zip(empties.items(), ("-", "--", "-", ":"), strict=True):
    practice.plot(lengths, shares, style, marker="o", markersize=4, label=way)
practice.set(xlabel="words in the source", ylabel="share of empty outputs", ylim=(-0.04, 1.04))
practice.set_title("What is found", fontsize=10, loc="left")
for axes in (theory, practice):
    axes.legend(fontsize=8, frameon=False)
show(figure, "search")

# %% [markdown]
# **What to see.** Left: log-probability of the likeliest output of each kind, computed from the
# numbers above. The highest line is the likeliest output: casual for one word, formal from two
# words on, empty from six on. Right: how often each search gives an empty output. A beam of 16
# finds the empty output about where the left panel says that it is the likeliest; argmax, a beam of
# 2 and a beam of 16 with a length penalty lie on top of each other at zero.
#
# Argmax never finds the empty output, because END is never the likeliest *first* token. The wide
# beam finds it, and nothing is likelier: the search does what it was asked to do. What is wrong is
# the question, or the data. Dividing by the length asks another question; training data without
# empty targets would give another answer. Stahlberg and Byrne (2019,
# https://aclanthology.org/D19-1331) found that for more than half of the sentences the empty output
# was the likeliest one of a good translation model.
#
# ## The claim, asserted

# %%
for length in (3, longest):
    gain = found["beam 16", length][0] - found["argmax", length][0]
    assert gain > 0.1, f"the beam's outputs of {length} words are no likelier: {gain}"
assert found["beam 16", 3][1] > 0.9, found["beam 16", 3]
assert found["argmax", longest][2] < 0.1, found["argmax", longest]
assert found["beam 16", longest][2] > 0.6, found["beam 16", longest]
rescued = found["beam 16, length penalty 1", longest]
assert rescued[1] > 0.7, f"with a length penalty only {rescued[1]} are right"
drop = found["argmax", longest][0] - found["sampling", longest][0]
assert drop > 0.3, f"samples of {longest} words are as likely as the argmax: {drop}"
assert variety["argmax"] + 0.1 < variety["sampling"] < variety["beam 16"] - 0.1, variety
assert different >= 6, f"16 samples have only {different} different outputs"
print(
    f"Sources of {longest} words: log P {found['sampling', longest][0]:.1f} by sampling, "
    f"{found['argmax', longest][0]:.1f} by argmax, {found['beam 16', longest][0]:.1f} by a beam of "
    f"16, which is empty in {found['beam 16', longest][2]:.0%}; right are "
    f"{found['argmax', longest][1]:.0%}, {found['beam 16', longest][1]:.0%}, and with a length "
    f"penalty {rescued[1]:.0%}. Formal words: {variety['argmax']:.0%}, "
    f"{variety['beam 16']:.0%} of the beam, {variety['sampling']:.0%} of samples, 40% in training."
)

# %% [markdown]
# **What would prove it wrong.** Outputs of a beam of 16 that are not likelier on average than those
# of argmax; samples that are as likely as argmax, or no more varied; or a wide beam that does not
# give empty outputs for long sources.
#
# **Where it is only half true.** Beam search promises nothing for a single source: a hypothesis
# that greedy search follows to the end may fall out of a beam, so for some sources a wider beam is
# worse even in likelihood. That wide beams give empty outputs depends on the empty targets in this
# data and on the missing length penalty; real systems use both a penalty and small beams. And
# "varied" is not "good": the table shows that samples are right less often.
#
# **To try.** From which beam size on are long outputs empty? Set `EMPTY = 0.001`: how long must a
# source be now? With `length_penalty=2.0`, what goes wrong at the other end?
