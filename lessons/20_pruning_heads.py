# %% [markdown]
# # 20. Most heads can be pruned
#
# **Claim.** In a trained Transformer some heads can be removed at once, if they are chosen well,
# and most of them if the rest is trained a little longer; a few heads carry the task.
#
# **Time.** 15 s; full size 60 s.
#
# Multi-head attention concatenates the outputs $h_i(t)$ of its heads, and a matrix $W^O$ mixes
# them:
#
# $$x_t = [g_1 h_1(t), \dots, g_h h_h(t)]\, W^O, \qquad g_i = 1$$
#
# A *gate* $g_i = 0$ switches head $i$ off and changes nothing else. How much worse is the model
# without it? This difference is the head's *importance*, to this model, with all other heads in
# place (Michel et al. 2019, https://arxiv.org/abs/1905.10650; Voita et al. 2019,
# https://aclanthology.org/P19-1580). If two heads do the same, each of them has an importance of
# nearly zero, and the two together may have a large one. So pruning removes the head that hurts
# least, measures all again, and goes on until too much is lost.
#
# The model: an encoder-decoder that learns to write words backwards.

# %%
import random

import torch

from transduce import recipe
from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import Tokens
from transduce.evaluation.items import Item
from transduce.inspection.ablation.measure import Trial, measure_heads, prune_greedily, pruned
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
# The measure is the loss on new words, in nats per letter (natural logarithms).

# %%
new = [word() for _ in range(size(24, 100))]
items = [Item(letters, [letters[::-1]]) for letters in new]
trial = Trial(model, items, "loss")
whole, worths = measure_heads(trial, resamples=100)
ordered = sorted(worths, key=lambda worth: -worth.change.value)
table(
    ["without", "loss rises by, nats per letter"],
    [(str(worth.head), worth.change.value) for worth in [*ordered[:4], *ordered[-3:]]],
)

# %% [markdown]
# ## One head after the other
#
# Greedy pruning goes on until every attention module has one head left. For comparison, the same
# number of heads is removed at random, and then by the worst choice: those with the greatest
# importance.

# %%
removals = prune_greedily(trial, worths, keep=1, candidates=size(2, 3), resamples=10)
curve = [whole, *(whole + removal.change.value for removal in removals)]
BUDGET = 0.05
count, maximum = len(trial.heads), len(removals)
gone = max(place for place, value in enumerate(curve) if value <= whole + BUDGET)


def loss_without(off: list) -> float:
    """The loss with these heads off, in nats per letter."""
    statistics, score = trial.rows(off)
    return score(statistics.sum(axis=0))


by_chance = sum(loss_without(draw.sample(trial.heads, gone)) for _ in range(5)) / 5
by_worst = loss_without([worth.head for worth in ordered[:gone]])
table(
    ["", "heads left", "loss, nats per letter"],
    [
        ("whole", count, whole),
        (f"pruned, within {BUDGET} nats", count - gone, curve[gone]),
        ("as many removed at random", count - gone, by_chance),
        ("as many removed, most important first", count - gone, by_worst),
        ("one head left in each module", count - maximum, curve[maximum]),
    ],
)

# %% [markdown]
# ## Trained longer
#
# `pruned` removes heads for good: their rows and columns of the projections are gone, and the
# smaller model computes what the gated one computed. It is then trained for half as many updates as
# the whole model had; for a fair comparison, so is the whole model.

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
    ["trained longer", "heads", "parameters", "loss, nats per letter", "words right"],
    [
        (name, heads_left, numbers, *again[name])
        for name, heads_left, numbers in zip(
            again, (count, count - maximum), parameters, strict=True
        )
    ],
)

# %%
figure, (each, pruning) = panels(2)
kinds = ("encoder self", "decoder self", "cross")
for kind, color in zip(kinds, COLORS, strict=False):
    mine = [place for place, worth in enumerate(worths) if worth.head.kind == kind]
    each.bar(mine, [worths[place].change.value for place in mine], color=color, label=kind)
each.set(xlabel="head", ylabel="loss rises by, nats per letter")
each.set_title("One head switched off", fontsize=10, loc="left")
each.legend(fontsize=8, frameon=False)
pruning.plot(range(len(curve)), curve, "o-", markersize=4)
pruning.axhline(whole + BUDGET, color="#999999", linestyle=":", label=f"{BUDGET} nats worse")
pruning.plot(gone, by_chance, "s", color=COLORS[4], label="as many, at random")
pruning.plot(gone, by_worst, "v", color=COLORS[1], label="as many, most important first")
star = {"markersize": 12, "color": COLORS[2], "clip_on": False}
pruning.plot(maximum, again["pruned"][0], "*", label="pruned, trained longer", **star)
pruning.set(xlabel=f"heads removed, of {count}", ylabel="loss, nats per letter", ylim=(0, None))
pruning.set_title("Greedy pruning", fontsize=10, loc="left")
pruning.legend(fontsize=8, frameon=False)
show(figure, "pruning_heads")

# %% [markdown]
# **What to see.** Left: for each head, how much the loss rises when it alone is switched off; a few
# bars are much higher than the others. Right: the loss as heads are removed one after the other,
# the least important first. At first it hardly rises, then steeply. The square and the triangle
# show the same number of heads removed at random, or the most important first. The star is the
# model with one head per module after more training: its loss is low again.
#
# With 48 heads (the full size) no single head is worth much, because others do nearly the same.
# Together the most important ones are worth everything. That is why heads must be pruned one after
# the other, and measured again each time. `transduce ablate` does all this for any model.
#
# ## The claim, asserted

# %%
assert whole < 0.5, f"the model has not learned its task: {whole} nats per letter"
assert gone >= 1, "no head can go"
assert ordered[0].change.value > 0.02, f"the best head is worth {ordered[0].change.value}"
assert by_worst > curve[gone] + 0.3, f"the best {gone} heads are not missed: {by_worst}"
assert maximum > count / 2, f"only {maximum} of {count} heads were removed"
lost = again["pruned"][0] - again["whole"][0]
assert curve[maximum] > whole + 2 * BUDGET, "most heads can go at once, without training"
assert lost < 0.5 * (curve[maximum] - whole), f"training longer does not mend it: {lost:+.3f} nats"
assert lost < 0.15, f"with {maximum} heads gone and trained longer, it is {lost:+.3f} nats worse"
print(
    f"{gone} of {count} heads can be removed at once for {curve[gone] - whole:+.3f} nats per "
    f"letter; the most important {gone} would cost {by_worst - whole:+.2f}. {maximum} of {count} "
    f"cost {curve[maximum] - whole:+.2f} at once, and {lost:+.3f} after training half as long "
    f"again."
)

# %% [markdown]
# **What would prove it wrong.** No head that can be removed for 0.05 nats; a loss that does not
# rise when the most important heads are removed; or a model with one head per module that stays
# much worse after more training.
#
# **Where it is only half true.** Without more training most heads can *not* go: the curve rises
# long before its end. The importance of a head depends on which others are there, so it is a
# property of the set, not of the head. Here heads are chosen and measured on the same words, which
# makes pruning look a little better than it is. And one head per module is enough for writing a
# word backwards; a real translation model loses more (figures are in the guide "Looking inside a
# model").
#
# **To try.** Train from the start with as few heads as were left: is it as good? Which heads are
# left, and what do they look at (`model.lens`)? Change `BUDGET` from 0.05 to 0.5. Is a task that
# needs several places at once, such as sorting the letters, as easy to prune?
