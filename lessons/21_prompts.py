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
# Every factor depends on the prompt, so every word $y_t$ does. A model that was trained on texts
# about many topics has all of them in its weights; the first words decide which of them it
# continues. Nothing is trained for this, and the weights do not change.
#
# Our model is trained on weather reports, recipes and announcements of a railway station. Each
# topic has its own words, and some words are common to several: *the*, *in*, *now*.

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
    "task": "language_modeling",
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
    """Empty sources, and texts as targets."""
    batch = collate([[]] * 24, tokens.encode_batch(draw.sample(texts, 24)))
    return batch.source_BS, batch.source_lengths_B, batch.target_BT


fit(network, reports, size(160, 400), lr=1e-2)
with torch.no_grad():
    loss = network.loss(*reports())
print(f"Perplexity {(loss.nll / loss.tokens).exp():.2f}; the vocabulary has {len(tokens)} words.")

# %% [markdown]
# ## Different first words
#
# Each prompt is continued many times by sampling. A word of the continuation counts for a topic if
# no other topic has it. The last two prompts have only words that several topics share. But in the
# training texts only announcements begin with *the*, and no text begins with *now in the*.

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
# `compare` puts the same words after each of two prompts and compares the predicted distributions
# of the next word. Their Jensen-Shannon divergence is 0 bits where they are equal and 1 bit where
# they have nothing in common.

# %%
pairs = {"same topic": ["rain is", "snow was"], "other topic": ["rain is", "stir the"]}
divergence = {}
for name, two in pairs.items():
    scored = compare(model, two).scored
    divergence[name] = sum(float(one.mean_PP[0, 1]) for one in scored) / len(scored)
table(
    ["prompts", "", "bits per word"],
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
bars.set_title("The same model after different prompts", fontsize=10, loc="left")
bars.legend(fontsize=8, frameon=False, ncols=3, loc="upper center")
one = compare(model, pairs["other topic"]).scored[0]
shown = min(10, len(one.tokens))
for prompt, row, color in zip(pairs["other topic"], one.probabilities_PK, COLORS, strict=False):
    steps.plot(row[:shown], "o-", markersize=4, color=color, label=f"after “{prompt}”")
steps.set_xticks(range(shown), one.tokens[:shown], rotation=60, fontsize=8)
steps.set(ylabel="probability of the word", ylim=(-0.03, 1.05))
steps.set_title("The continuation of “rain is”, word by word", fontsize=10, loc="left")
steps.legend(fontsize=8, frameon=False)
show(figure, "prompts")

# %% [markdown]
# **What to see.** Left: for each prompt, the share of each topic's words in the continuations.
# Right: one continuation of "rain is", word by word, and the probability of each word after that
# prompt and after "stir the". At the first words the two prompts disagree. Once there are enough
# words about the weather, these steer as well, and the prompt matters less.
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
    f"Words: {steered}. Divergence {divergence['same topic']:.4f} bits per word within a topic, "
    f"{divergence['other topic']:.3f} between topics."
)

# %% [markdown]
# **What would prove it wrong.** A prompt of one topic after which fewer than 80 % of the topical
# words belong to that topic; or prompts of different topics whose predictions differ less than
# three times as much as those of one topic.
#
# **Where it is only half true.** The prompt steers among what training has put into the model, and
# nowhere else: *now in the*, which begins no training text, still gives fluent text about one of
# the three topics. How clearly the topics separate here comes from their different words. And the
# effect fades: a long continuation steers itself.
#
# **To try.** What does a prompt from two topics do, "stir the express"? Train on ten times as many
# recipes: what does "now in the" give then? Add `temperature=2.0` to `model.run`: at which
# temperature do topics begin to mix?
