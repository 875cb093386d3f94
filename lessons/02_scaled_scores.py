# %% [markdown]
# # 2. Why scores are divided by the root of the width
#
# **Claim.** Dot products of unit-normal vectors of width d have the standard deviation √d;
# unscaled, they saturate the softmax and its gradient vanishes as d grows; scaled, or as cosines,
# they do not.
#
# **Time.** 1 s; full size 5 s.
#
# A dot product of a query $q_t$ and a key $k_\tau$ with $d_k$ independent elements of mean zero and
# variance one is a sum of $d_k$ products, each of variance one. So its variance is $d_k$, and wider
# heads have larger scores:
#
# $$d(t, \tau) = q_t k_\tau^\top, \qquad \operatorname{Var} d = d_k, \qquad
# c(t, \tau) = \frac{d(t, \tau)}{\sqrt{d_k}}, \qquad \operatorname{Var} c = 1$$
#
# Large scores make the softmax hard: nearly all weight is on one key, and there the softmax is
# flat. With scores $e_j$ and weights $\alpha_i$ its Jacobian
#
# $$\frac{\partial \alpha_i}{\partial e_j} = \alpha_i (\delta_{ij} - \alpha_j)$$
#
# ($\delta_{ij}$ is 1 for $i = j$, else 0) is zero where every $\alpha$ is one or zero, and a layer
# without a gradient does not learn. Scaling by $1/\sqrt{d_k}$ keeps the scores at variance one. The
# cosine $q k^\top / (|q| |k|)$ is another cure: it always lies between $-1$ and $1$. The price is
# that over $S$ keys no weight can exceed $e^2 / (e^2 + S - 1)$, so in practice the cosine is
# multiplied by a learned factor before the softmax.

# %%
import math

import torch

from transduce.lessons import COLORS, panels, show, size, table
from transduce.nn import Cosine, Dot, ScaledDot
from transduce.nn.attention.attention import masked_softmax

torch.manual_seed(2)
widths = [4, 16, 64, 256, 1024]
queries, keys = size(256, 4096), 32
scores_of = {"dot": Dot, "scaled dot": ScaledDot, "cosine": Cosine}


# %% [markdown]
# ## Scores, weights and gradients at every width
#
# Unit-normal queries and keys. For each width the table has the standard deviation of the scores,
# the largest of the 32 weights (median over the queries), and the size of the softmax's gradient
# (median and mean over the queries). This size is the norm of the Jacobian, computed by automatic
# differentiation.


# %%
def gradient_norm(scores_TS: torch.Tensor) -> torch.Tensor:
    """The norm of the Jacobian of the softmax at each row of scores."""
    jacobians_TSS = torch.func.vmap(torch.func.jacrev(lambda s: masked_softmax(s, None)))(scores_TS)
    return jacobians_TSS.flatten(1).norm(dim=1)


deviation, largest, gradient, mean_gradient, weights_at = {}, {}, {}, {}, {}
for width in widths:
    query_BTD = torch.randn(1, queries, width)
    keys_BSD = torch.randn(1, keys, width)
    for name, score_class in scores_of.items():
        score = score_class(width, width)
        scores_TS = score(query_BTD, score.prepare(keys_BSD))[0]
        weights_TS = masked_softmax(scores_TS, None)
        deviation[name, width] = scores_TS.std().item()
        largest[name, width] = weights_TS.amax(1).median().item()
        norms_T = gradient_norm(scores_TS)
        gradient[name, width] = norms_T.median().item()
        mean_gradient[name, width] = norms_T.mean().item()
        weights_at[name, width] = weights_TS.sort(dim=1, descending=True).values.mean(0)

table(
    ["score", "width", "deviation", "√width", "largest weight", "median gradient", "mean gradient"],
    [
        (
            n,
            w,
            deviation[n, w],
            math.sqrt(w),
            largest[n, w],
            gradient[n, w],
            mean_gradient[n, w],
        )
        for n in scores_of
        for w in widths
    ],
)

# %%
figure, (spread, shape, slope) = panels(3)
spread.loglog(widths, [math.sqrt(w) for w in widths], ":", color=COLORS[-1], label="√d_k")
for name in scores_of:
    spread.loglog(widths, [deviation[name, w] for w in widths], "o-", label=name)
    shape.plot(range(1, keys + 1), weights_at[name, widths[-1]], ".-", label=name)
    slope.loglog(widths, [max(gradient[name, w], 1e-12) for w in widths], "o-", label=name)
spread.set(xlabel="width d_k", ylabel="standard deviation of the scores")
shape.set(xlabel="keys, the best first", ylabel=f"mean weight at d_k = {widths[-1]}")
slope.set(xlabel="width d_k", ylabel="median gradient of the softmax")
titles = ["Dot products grow with the width", "The softmax saturates", "Its gradient vanishes"]
for axes, title in zip((spread, shape, slope), titles, strict=True):
    axes.set_title(title, fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False)
show(figure, "scaled_scores")

# %% [markdown]
# **What to see.** Left: the standard deviation of plain dot products follows the dotted line
# $\sqrt{d_k}$; scaled it stays at 1; that of cosines falls. Middle: at the largest width, the plain
# dot product gives nearly all weight to one key, the cosine spreads it almost evenly, and the
# scaled dot product lies between. Right: only the gradient of the plain dot product vanishes with
# the width.
#
# ## The claim, asserted

# %%
first, last = widths[0], widths[-1]
for width in widths:
    ratio = deviation["dot", width] / math.sqrt(width)
    assert 0.85 < ratio < 1.15, f"at width {width} the deviation is {ratio:.2f} √d_k"
dies = gradient["dot", last] / gradient["dot", first]
keeps = gradient["scaled dot", last] / gradient["scaled dot", first]
keeps_cosine = gradient["cosine", last] / gradient["cosine", first]
assert dies < 1e-2, f"unscaled, the gradient keeps {dies:.1e} of itself"
assert 0.5 < keeps < 2, f"scaled, the gradient changes by the factor {keeps:.2f}"
assert 0.3 < keeps_cosine < 3, f"with the cosine, the gradient changes by {keeps_cosine:.2f}"
bound = math.e**2 / (math.e**2 + keys - 1)
assert max(largest["cosine", w] for w in widths) <= bound, "a cosine gave more than its bound"
print(
    f"From width {first} to {last} the gradient changes by the factor {dies:.1e} unscaled, "
    f"{keeps:.2f} scaled, {keeps_cosine:.2f} with the cosine."
)

# %% [markdown]
# **What would prove it wrong.** Scores whose deviation is not about $\sqrt{d_k}$; an unscaled
# gradient at the largest width that is still more than a hundredth of that at the smallest; or a
# scaled one that changes by more than a factor of two.
#
# **Where it is only half true.** Queries and keys are independent and unit-normal at best before
# training. Trained heads do have large scores and sharp weights, scaled or not; the scaling makes
# learning start well, it does not keep attention soft. And the unscaled gradient does not vanish
# for every query: the mean in the table falls much more slowly than the median, because some
# queries happen to have two keys with nearly equal best scores.
#
# **To try.** For which share of the queries is the unscaled gradient above 0.1, and how does this
# share fall with $d_k$? Scale by $1/d_k$ instead of $1/\sqrt{d_k}$: what happens to the weights of
# wide heads? Change `keys = 32` to 4: how large is the largest weight of a cosine now, and how
# large may it be?
