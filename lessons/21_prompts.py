# %% [markdown]
# # 21. Prompts steer
#
# **Claim.** The same language model, with the same weights, writes about what its first words are
# about.
#
# **Time.** 5 s; full size 20 s.
#
# A language model gives the probability of the next word after all words before it:
#
# $$P(y_1 \dots y_n \mid \text{prompt}) = \prod_{t=1}^{n} P(y_t \mid \text{prompt}, y_1 \dots
# y_{t-1})$$
#
# The prompt is in every condition, so every word depends on it. A model that has read texts about
# many things has all of them in its weights; the first words say which one goes on. Nothing is
# trained for this, and nothing in the weights changes.
#
# Ours reads weather reports, recipes and announcements of a railway station. All three have words
# of their own and words in common: *the*, *in*, *now*.

# %%
import random

import torch

from transduce import recipe
from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import Tokens
from transduce.inspection.prompts import compare
from transduce.lessons import COLORS, fit, panels, show, size, table
from transduce.tasks import LanguageModel

TOPICS = {
    "weather": [
        ["rain", "snow", "wind", "fog"],
        ["is", "was"],
        ["expected", "possible", "likely"],
        ["in"],
        ["the"],
        ["north", "south", "east", "west"],
        ["now", "tonight", "tomorrow"],
    ],
    "kitchen": [
        ["stir", "heat", "slice", "fry"],
        ["the"],
        ["butter", "onion", "bread", "soup"],
        ["in"],
        ["the"],
        ["pan", "oven", "bowl", "pot"],
        ["now", "slowly", "again"],
    ],
    "station": [
        ["the"],
        ["express", "local", "night"],
        ["train", "service"],
        ["to"],
        ["paris", "london", "rome", "oslo"],
        ["is", "was"],
        ["late", "cancelled", "full"],
        ["now"],
    ],
}
every = {name: {word for words in topic for word in words} for name, topic in TOPICS.items()}
own = {
    name: words - set().union(*(every[other] for other in every if other != name))
    for name, words in every.items()
}


def text(draw: random.Random, topic: str) -> str:
    """Three sentences about one topic."""
    return " ".join(draw.choice(words) for _ in range(3) for words in TOPICS[topic])


draw = random.Random(1)
texts = [text(draw, topic) for _ in range(200) for topic in TOPICS]
print("\n".join(texts[:3]))

# %% [markdown]
# ## One model

# %%
tokens = Tokens.train(recipe.Tokens(level="word"), texts)
layer = {"layers": 2, "heads": 4, "feed_forward": 96, "positions": "rotary"}
settings = {
    "name": "three-topics",
    "task": "continue",
    "data": {
        "train": {"name": "made here", "split": "train"},
        "valid": {"name": "made here", "split": "valid"},
        "tokens": {"both": {"level": "word"}},
    },
    "model": {"width": 48, "dropout": 0.0, "decoder": layer},
    "decode": {"beam": 1, "max_extra": 24},
}
torch.manual_seed(1)
model = LanguageModel.create(recipe.read_recipe(settings), tokens, tokens)
network = model.network


def reports() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Nothing to read, and texts to write."""
    batch = collate([[]] * 24, tokens.encode_batch(draw.sample(texts, 24)))
    return batch.source_BS, batch.source_lengths_B, batch.target_BT


fit(network, reports, size(160, 400), lr=1e-2)
with torch.no_grad():
    loss = network.loss(*reports())
print(f"Perplexity: {(loss.nll / loss.tokens).exp():.2f} of {len(tokens)} words.")

# %% [markdown]
# ## Different first words
#
# Each prompt is continued many times, by sampling. Of what follows, a word counts for a topic if no
# other topic has it. The last two prompts have only words that several topics share: but of all
# texts only announcements begin with *the*, and no text begins with *now in the*.

# %%
prompts = ["rain is", "stir the", "the express", "the", "now in the"]
samples = size(12, 60)
shares: dict[str, dict[str, float]] = {}
for prompt in prompts:
    outputs = model.run([prompt] * samples, sample=True, seed=1)
    words = [word for one in outputs for word in one.text.removeprefix(prompt).split()]
    counts = {topic: sum(word in mine for word in words) for topic, mine in own.items()}
    shares[prompt] = {name: count / max(sum(counts.values()), 1) for name, count in counts.items()}
    print(f"{prompt} …{outputs[0].text.removeprefix(prompt)}")
print()
table(["prompt", *TOPICS], [(prompt, *share.values()) for prompt, share in shares.items()])

# %% [markdown]
# ## How far apart are the predictions?
#
# `compare` lets each prompt be followed by the same words and asks for the distributions of the
# next one. Their Jensen-Shannon divergence is 0 bits where they are equal and 1 bit where they
# have nothing in common.

# %%
pairs = {"same topic": ["rain is", "snow was"], "other topic": ["rain is", "stir the"]}
divergence = {}
for name, two in pairs.items():
    followed = compare(model, two).followed
    divergence[name] = sum(float(one.mean_PP[0, 1]) for one in followed) / len(followed)
table(
    ["prompts", "", "bits a word"],
    [(" | ".join(pairs[name]), name, bits) for name, bits in divergence.items()],
)

# %%
figure, (bars, steps) = panels(2)
left = [0.0] * len(prompts)
for topic, color in zip(TOPICS, COLORS, strict=False):
    widths = [shares[prompt][topic] for prompt in prompts]
    bars.barh(prompts, widths, left=left, color=color, label=topic)
    left = [start + width for start, width in zip(left, widths, strict=True)]
bars.invert_yaxis()
bars.set(xlabel="share of the topic's words in what follows", ylabel="prompt", ylim=(4.6, -1.1))
bars.set_title("The same model, other first words", fontsize=10, loc="left")
bars.legend(fontsize=8, frameon=False, ncols=3, loc="upper center")
one = compare(model, pairs["other topic"]).followed[0]
shown = min(10, len(one.tokens))
for prompt, row, color in zip(pairs["other topic"], one.probabilities_PK, COLORS, strict=False):
    steps.plot(row[:shown], "o-", markersize=4, color=color, label=f"after “{prompt}”")
steps.set_xticks(range(shown), one.tokens[:shown], rotation=60, fontsize=8)
steps.set(ylabel="probability of the word", ylim=(-0.03, 1.05))
steps.set_title("The continuation of “rain is”, word by word", fontsize=10, loc="left")
steps.legend(fontsize=8, frameon=False)
show(figure, "prompts")

# %% [markdown]
# The right panel shows how long a prompt lasts. At the first words the two prompts disagree; once
# enough words about the weather stand there, these steer as well, and the first ones matter less.
#
# ## The claim, asserted

# %%
for prompt, topic in (("rain is", "weather"), ("stir the", "kitchen"), ("the express", "station")):
    share = shares[prompt][topic]
    assert share > 0.8, f"after {prompt!r} only {share:.0%} of the words are about the {topic}"
assert divergence["other topic"] > 3 * divergence["same topic"], divergence
steered = ", ".join(
    f"{share:.0%} {topic} after {prompt!r}"
    for prompt, topic in (
        ("rain is", "weather"),
        ("stir the", "kitchen"),
        ("the express", "station"),
    )
    for share in [shares[prompt][topic]]
)
print(
    f"Words: {steered}. Divergence {divergence['same topic']:.4f} bits a word within a topic, "
    f"{divergence['other topic']:.3f} between topics."
)

# %% [markdown]
# **To try.** What does a prompt from two topics do, "stir the express"? How does the balance change
# if the model reads ten times as many recipes? At which temperature do topics begin to mix?
