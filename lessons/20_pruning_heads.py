# %% [markdown]
# # 20. Most heads can go
#
# **Claim.** In a trained Transformer some heads can go at once, if one chooses which, and most can
# go if the rest is trained longer; a few heads carry the task.
#
# **Time.** 15 s; full size 60 s.
#
# Multi-head attention joins what its heads have gathered, and a matrix mixes it:
#
# $$x_t = [g_1 h_1(t), \dots, g_h h_h(t)]\, W^O, \qquad g_i = 1$$
#
# A *gate* $g_i = 0$ switches head $i$ off, and nothing else. How much worse is the model without
# it? That is what the head is worth, to this model, when all others are there (Michel et al. 2019,
# https://arxiv.org/abs/1905.10650; Voita et al. 2019, https://aclanthology.org/P19-1580). Two heads
# that do the same are worth nothing each, and much together. So to prune, the head that hurts least
# goes, and all is measured again, until too much is lost.
#
# The model: an encoder-decoder that learns to write words backwards.

# %%
import random

import torch

from transduce import recipe
from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import Tokens
from transduce.evaluation.items import Item
from transduce.inspection.ablation.measure import Trial, measure_heads, prune_greedily
from transduce.inspection.ablation.prune import pruned
from transduce.lessons import COLORS, fit, panels, show, size, table
from transduce.tasks.transduce import Transducer

LETTERS = "abcdefgh"
layers, heads, updates = size((1, 4, 250), (2, 8, 500))
shortest, longest = size((4, 4), (4, 8))
draw = random.Random(1)


def word() -> str:
    return "".join(draw.choice(LETTERS) for _ in range(draw.randint(shortest, longest)))


tokens = Tokens.train(recipe.Tokens(level="character"), [LETTERS])
layer = {"layers": layers, "heads": heads, "feed_forward": 96}
settings = {
    "name": "backwards",
    "data": {
        "train": {"name": "reverse", "split": "train"},
        "valid": {"name": "reverse", "split": "valid"},
        "tokens": {"both": {"level": "character"}},
    },
    "model": {"width": 48, "dropout": 0.0, "encoder": layer, "decoder": layer},
    "decode": {"beam": 1},
}
torch.manual_seed(1)
model = Transducer.create(recipe.read_recipe(settings), tokens, tokens)


def backwards() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """New words, their lengths, and the same words backwards."""
    words = [word() for _ in range(48)]
    batch = collate(
        tokens.encode_batch(words), tokens.encode_batch([letters[::-1] for letters in words])
    )
    return batch.source_BS, batch.source_lengths_B, batch.target_BT


*_, right = fit(model.network, backwards, updates, lr=size(1e-2, 4e-3))
print(f"At the end of training {right:.1%} of the letters are right.")

# %% [markdown]
# ## Every head switched off in turn
#
# The measure is the loss, in nats a letter, on new words.

# %%
new = [word() for _ in range(size(24, 100))]
items = [Item(letters, [letters[::-1]]) for letters in new]
trial = Trial(model, items, "loss")
whole, worths = measure_heads(trial, resamples=100)
ordered = sorted(worths, key=lambda worth: -worth.change.value)
table(
    ["without", "nats a letter more"],
    [(str(worth.head), worth.change.value) for worth in [*ordered[:4], *ordered[-3:]]],
)

# %% [markdown]
# ## One after the other
#
# Greedy pruning goes on until every attention has one head left. For comparison, as many heads are
# removed at random, and then by the worst choice: those that are worth most.

# %%
removals = prune_greedily(trial, worths, keep=1, candidates=size(2, 3), resamples=10)
curve = [whole, *(whole + removal.change.value for removal in removals)]
BUDGET = 0.05
count, most = len(trial.heads), len(removals)
gone = max(place for place, value in enumerate(curve) if value <= whole + BUDGET)


def loss_without(off: list) -> float:
    """Nats a letter with these heads off."""
    statistics, score = trial.rows(off)
    return score(statistics.sum(axis=0))


by_chance = sum(loss_without(draw.sample(trial.heads, gone)) for _ in range(5)) / 5
by_worst = loss_without([worth.head for worth in ordered[:gone]])
table(
    ["", "heads left", "nats a letter"],
    [
        ("whole", count, whole),
        (f"pruned, within {BUDGET} nats", count - gone, curve[gone]),
        ("as many off, at random", count - gone, by_chance),
        ("as many off, the best ones", count - gone, by_worst),
        ("one head left in each attention", count - most, curve[most]),
    ],
)

# %% [markdown]
# ## Trained longer
#
# `pruned` cuts heads out for good: rows of the projections are gone, and the smaller model computes
# what the gated one computed. It is trained for half of the updates that the whole one had; and
# so is the whole one, to be fair.

# %%
smaller = pruned(model, [removal.head for removal in removals])
parameters = [sum(w.numel() for w in one.network.parameters()) for one in (model, smaller)]
again = {}
for name, one in (("whole", model), ("pruned", smaller)):
    fit(one.network, backwards, updates // 2, lr=size(5e-3, 2e-3))
    statistics, score = Trial(one, items, "loss").rows()
    right = sum(o.text == w[::-1] for o, w in zip(one.run(new), new, strict=True)) / len(new)
    again[name] = (score(statistics.sum(axis=0)), right)
table(
    ["trained longer", "heads", "parameters", "nats a letter", "words right"],
    [
        (name, heads_left, numbers, *again[name])
        for name, heads_left, numbers in zip(again, (count, count - most), parameters, strict=True)
    ],
)

# %%
figure, (each, pruning) = panels(2)
kinds = ("encoder self", "decoder self", "cross")
for kind, color in zip(kinds, COLORS, strict=False):
    mine = [place for place, worth in enumerate(worths) if worth.head.kind == kind]
    each.bar(mine, [worths[place].change.value for place in mine], color=color, label=kind)
each.set(xlabel="head", ylabel="nats a letter more without it")
each.set_title("What each head is worth", fontsize=10, loc="left")
each.legend(fontsize=8, frameon=False)
pruning.plot(range(len(curve)), curve, "o-", markersize=4)
pruning.axhline(whole + BUDGET, color="#999999", linestyle=":", label=f"{BUDGET} nats worse")
pruning.plot(gone, by_chance, "s", color=COLORS[4], label="as many at random")
pruning.plot(gone, by_worst, "v", color=COLORS[1], label="as many, the best ones")
star = {"markersize": 12, "color": COLORS[2], "clip_on": False}
pruning.plot(most, again["pruned"][0], "*", label="trained longer", **star)
pruning.set(xlabel=f"heads removed, of {count}", ylabel="nats a letter", ylim=(0, None))
pruning.set_title("Greedy pruning", fontsize=10, loc="left")
pruning.legend(fontsize=8, frameon=False)
show(figure, "pruning_heads")

# %% [markdown]
# With 48 heads (the full size) no single head is worth much: others do nearly the same. Together
# the best of them are worth everything. That is why heads must be pruned one after the other, and
# measured again each time. `transduce ablate` does all this for any model.
#
# ## The claim, asserted

# %%
assert whole < 0.5, f"the model has not learned its task: {whole} nats a letter"
assert gone >= 1, "no head can go"
assert ordered[0].change.value > 0.02, f"the best head is worth {ordered[0].change.value}"
assert by_worst > curve[gone] + 0.3, f"the best {gone} heads are not missed: {by_worst}"
assert most > count / 2, f"only {most} of {count} heads were removed"
lost = again["pruned"][0] - again["whole"][0]
assert curve[most] > whole + 2 * BUDGET, "most heads can go at once, without training"
assert lost < 0.5 * (curve[most] - whole), f"training longer does not mend it: {lost:+.3f} nats"
assert lost < 0.15, f"with {most} heads gone and trained longer, it is {lost:+.3f} nats worse"
print(
    f"{gone} of {count} heads can go at once for {curve[gone] - whole:+.3f} nats a letter; the "
    f"best {gone} would cost {by_worst - whole:+.2f}. {most} of {count} cost "
    f"{curve[most] - whole:+.2f} at once, and {lost:+.3f} after training half as long again."
)

# %% [markdown]
# **To try.** Train from the start with as few heads as were left: is it as good? Which heads are
# left, and what do they look at (`model.lens`)? Is a task that needs more than one place at once,
# such as sorting the letters, as easy to prune?
