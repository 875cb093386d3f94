# %% [markdown]
# # 1. Attention is a convex average
#
# **Claim.** Attention weights are never negative and sum to one, so the output lies inside the
# convex hull of the values; picking the single best value is the limit as the scores grow.
#
# **Time.** 1 s; full size 2 s.
#
# A query $q$ is compared with every key $k_\tau$, which gives a score $s(q, k_\tau)$. A softmax
# turns the scores into weights $\alpha_\tau$, and the output $h$ is the weighted sum of the values
# $v_\tau$. Whatever the score function is, the softmax makes the weights non-negative with sum one.
# Such a weighted mean is called a *convex combination*. It cannot leave the convex hull of the
# values: the smallest convex region that contains them all.
#
# $$\alpha_\tau = \frac{e^{s(q, k_\tau)}}{\sum_{\tau'} e^{s(q, k_{\tau'})}}, \qquad
# h = \sum_\tau \alpha_\tau v_\tau, \qquad \alpha_\tau \ge 0, \quad \sum_\tau \alpha_\tau = 1$$
#
# What one would really like is to pick the $\tau$ with the best score, but such a choice has no
# gradient. The softmax is a differentiable replacement. Multiply all scores by a factor $c$: for
# $c \to \infty$ all weight goes to the best key, and for $c = 0$ all weights are equal and $h$ is
# the plain mean.

# %%
import torch

from transduce.lessons import COLORS, panels, show, size, table
from transduce.nn import Dot, attend
from transduce.nn.attention.attention import SCORES

torch.manual_seed(1)
queries, keys, width = size(50, 2000), 12, 8

# %% [markdown]
# ## Any score, the same property
#
# Random queries, keys and values, with each score function that the package has. The last column
# says how far outputs lie outside the convex hull of the values, in the worst of 500 random
# directions: for a direction $u$, no point of the hull has a larger $u \cdot h$ than the largest
# $u \cdot v_\tau$. A negative number means that all outputs lie inside.

# %%
query_BTD = 3 * torch.randn(1, queries, width, dtype=torch.float64)
keys_BSD = torch.randn(1, keys, width, dtype=torch.float64)
values_BSD = torch.randn(1, keys, width, dtype=torch.float64)
directions = torch.randn(width, 500, dtype=torch.float64)

measured = {}
for name, score_class in SCORES.items():
    score = score_class(width, width).double()
    with torch.no_grad():
        context_BTD, weights_BTS = attend(
            query_BTD, keys_BSD, values_BSD, score=score, weights=True
        )
    furthest_out = (context_BTD @ directions).amax(1) - (values_BSD @ directions).amax(1)
    measured[name] = (
        weights_BTS.min().item(),
        (weights_BTS.sum(-1) - 1).abs().max().item(),
        furthest_out.max().item(),
    )
table(
    ["score", "least weight", "|sum - 1|", "out of the hull by"],
    [(name, *values) for name, values in measured.items()],
)

# %% [markdown]
# ## Hard selection is the limit
#
# One query over seven values in the plane, with all scores multiplied by a growing $c$. (With the
# dot product as the score, this is the same as a longer query.)

# %%
sharpness = torch.cat([torch.zeros(1), torch.logspace(-1.5, 2.5, 60)]).double()
points_1SD = torch.randn(1, 7, 2, dtype=torch.float64)
point_keys_1SD = torch.randn(1, 7, 4, dtype=torch.float64)
one_query_D = torch.randn(4, dtype=torch.float64)
longer_1TD = (sharpness[:, None] * one_query_D)[None]

path_1TD, path_weights_1TS = attend(
    longer_1TD, point_keys_1SD, points_1SD, score=Dot(4, 4), weights=True
)
best = int((point_keys_1SD[0] @ one_query_D).argmax())
to_mean = float((path_1TD[0, 0] - points_1SD[0].mean(0)).norm())
to_best = (path_1TD[0] - points_1SD[0, best]).norm(dim=-1)
table(
    ["c", "largest weight", "distance to the best value"],
    [
        (sharpness[i].item(), path_weights_1TS[0, i].max().item(), to_best[i].item())
        for i in (0, 15, 25, 35, 45, 60)
    ],
)

# %%
figure, (plane, curve) = panels(2)
x, y = points_1SD[0].unbind(-1)
plane.tripcolor(x, y, torch.full((7,), 0.15), cmap="Greys", vmin=0, vmax=1, linewidth=0)
plane.scatter(x, y, s=45, color=COLORS[0], label="values")
plane.plot(*path_1TD[0].T, color=COLORS[1], label="output as c grows")
plane.plot(*path_1TD[0, 0], "o", color=COLORS[1], markerfacecolor="white", label="c = 0: the mean")
plane.plot(x[best], y[best], "*", markersize=15, color=COLORS[1], label="the best key's value")
plane.set(xlabel="first coordinate", ylabel="second coordinate")
plane.set_title("The output never leaves the values' hull", fontsize=10, loc="left")
plane.legend(fontsize=8, frameon=False)
curve.semilogx(sharpness[1:], path_weights_1TS[0, 1:])
curve.set(xlabel="c, the factor of all scores", ylabel="weight of each of the 7 values")
curve.set_title("A softmax hardens into a choice", fontsize=10, loc="left")
show(figure, "convex_average")

# %% [markdown]
# **What to see.** Left: the output starts at the mean of the seven values (white circle) and moves
# to the value of the best key (star) as $c$ grows; it never leaves the grey hull. Right: all seven
# weights start at 1/7; with growing $c$ one of them goes to 1 and the others to 0.
#
# ## The claim, asserted

# %%
for name, (minimum, sum_error, out_by) in measured.items():
    assert minimum >= 0, f"{name}: a weight is negative, {minimum}"
    assert sum_error < 1e-12, f"{name}: weights sum to one only within {sum_error}"
    assert out_by < 1e-12, f"{name}: an output lies outside of the values' hull by {out_by}"
assert to_mean < 1e-12, f"with all scores equal, the output misses the mean by {to_mean}"
assert to_best[-1] < 1e-6, f"sharp attention misses the best value by {to_best[-1]}"
print(
    f"All {len(measured)} scores: weights >= 0, sums within "
    f"{max(error for _, error, _ in measured.values()):.1e} of 1; "
    f"at c = {sharpness[-1]:.0f} the output is {to_best[-1]:.1e} from the best value."
)

# %% [markdown]
# **What would prove it wrong.** A negative weight, weights whose sum is not one, or an output
# outside the hull, for any of the scores; or an output that does not approach the best value as $c$
# grows.
#
# **Where it is only half true.** This describes one head before its output projection $W^O$. The
# projection, the residual connection and the next layer move the vector out of the hull again.
# Dropout on the weights, used only in training, breaks the sum. And the limit is a choice only if
# one score is the largest: two equal best scores share the weight for any $c$.
#
# **To try.** Replace the softmax in `masked_softmax` (file `nn/attention/attention.py`) by
# `torch.sigmoid`: which of the assertions fails? Give two keys the same best score: where does the
# output go as $c$ grows? Change the 2.5 in `sharpness` to 0.5: how far from the best value does the
# output end, and which assertion notices?
