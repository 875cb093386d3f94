# %% [markdown]
# # 3. A causal mask leaves exactly no influence of the future
#
# **Claim.** With a causal mask neither outputs nor gradients at step t depend on anything after t:
# the influence is not small, it is zero.
#
# **Time.** 1 s; full size 3 s.
#
# In training the whole target sequence is known, and step $t$ could read the answer from step
# $t + 1$. When the model is used, step $t + 1$ does not exist yet. So the scores $c(t, \tau)$ of
# the future are replaced by $-\infty$ before the softmax:
#
# $$e(t, \tau) = \begin{cases} c(t, \tau) & \tau \le t \\ -\infty & \tau > t \end{cases}
# \qquad\Rightarrow\qquad \alpha(t, \tau) = 0 \text{ for } \tau > t$$
#
# Note the $\le$: a step sees itself. That is correct because the decoder's *input* is shifted by
# one: at step $t$ it is the label of step $t - 1$. The mask is needed in every layer. All other
# parts of a Transformer work on each step by itself, so nothing else can bring in the future.
#
# A penalty of $-10$ in place of $-\infty$ would leave a weight of about $e^{-10}$ on the future,
# which training could make use of. Here everything is compared with `==`, not with a tolerance.

# %%
import torch

from transduce.lessons import panels, show, size, table
from transduce.models import TransformerLanguageModel
from transduce.nn import EncoderBlock, Mask, causal

torch.manual_seed(3)
steps, width, layers = size(12, 48), size(16, 64), size(2, 4)
blocks = [EncoderBlock(width, 4, 2 * width) for _ in range(layers)]


def outputs(x_BTD: torch.Tensor, mask: Mask | None) -> torch.Tensor:
    for block in blocks:
        x_BTD = block(x_BTD, mask)
    return x_BTD


# %% [markdown]
# ## Influence by gradients
#
# A stack of Transformer blocks with inputs $i_\tau$ and outputs $o_t$. The influence of input
# $\tau$ on output $t$ is the norm of the gradient $\partial\, o_t / \partial\, i_\tau$ (of a random
# combination of the features of $o_t$), for all $T \times T$ pairs.


# %%
def influence(mask: Mask | None) -> torch.Tensor:
    """[T, T]: how much each output (row) depends on each input (column)."""
    x_BTD = torch.randn(1, steps, width, requires_grad=True)
    output_BTD = outputs(x_BTD, mask)
    rows = []
    for t in range(steps):
        mixed = (output_BTD[0, t] * torch.randn(width)).sum()  # any combination of its features
        (gradient_BTD,) = torch.autograd.grad(mixed, x_BTD, retain_graph=True)
        rows.append(gradient_BTD[0].norm(dim=-1))
    return torch.stack(rows)


of_masks = {"no mask": influence(None), "causal mask": influence(causal())}
future = torch.ones(steps, steps).triu(1).bool()

# %% [markdown]
# ## Influence by changing the future
#
# Another way to see the same: replace every input after step $t$ by random numbers that are a
# hundred times as large. The outputs up to $t$ must stay the same to the last bit.

# %%
x_BTD = torch.randn(1, steps, width)
changed = {"no mask": 0.0, "causal mask": 0.0}
with torch.no_grad():
    for name, mask in (("no mask", None), ("causal mask", causal())):
        before_BTD = outputs(x_BTD, mask)
        for t in range(steps - 1):
            other_BTD = x_BTD.clone()
            other_BTD[:, t + 1 :] = 100 * torch.randn(1, steps - t - 1, width)
            difference = (outputs(other_BTD, mask) - before_BTD)[:, : t + 1].abs().max()
            changed[name] = max(changed[name], difference.item())

table(
    ["", "largest gradient, future", "smallest, past and present", "largest change of outputs"],
    [
        (name, found[future].max().item(), found[~future].min().item(), changed[name])
        for name, found in of_masks.items()
    ],
)

# %% [markdown]
# ## A whole language model
#
# The same for `TransformerLanguageModel`: do the predictions for a prefix change when other tokens
# follow it?

# %%
model = TransformerLanguageModel(30, width=32, heads=4, layers=2, feed_forward=64).eval()
tokens_BT = torch.randint(4, 30, (1, steps))
other_BT = torch.cat([tokens_BT[:, : steps // 2], torch.randint(4, 30, (1, steps // 2))], dim=1)
with torch.no_grad():
    first, second = model.logits(tokens_BT)[0], model.logits(other_BT)[0]
prefix_changed = (first - second)[: steps // 2].abs().max().item()
rest_changed = (first - second)[steps // 2 :].abs().max().item()
print(f"logits of the common prefix change by {prefix_changed}, of the rest by {rest_changed:.2f}")

# %%
figure, every = panels(2, width=4.2, height=3.8)
for axes, (name, found) in zip(every, of_masks.items(), strict=True):
    shown = found.clone().masked_fill(found == 0, torch.nan)
    image = axes.imshow(shown.log10().numpy(), cmap="BuPu", vmin=-2, vmax=0)
    axes.set_facecolor("#dddddd")
    axes.grid(visible=False)
    axes.set(xlabel="input τ", ylabel="output t")
    axes.set_title(f"Influence, {name}", fontsize=10, loc="left")
every[1].text(0.97, 0.95, "grey: exactly 0", transform=every[1].transAxes, ha="right", va="top")
figure.colorbar(image, ax=every, shrink=0.8, label="log10 of the gradient")
show(figure, "causal_mask")

# %% [markdown]
# **What to see.** Without a mask (left) every output depends on every input, most on its own. With
# the causal mask (right) the part above the diagonal is grey: these gradients are exactly 0. Early
# outputs depend more on each of their inputs, because they have fewer of them.
#
# ## The claim, asserted

# %%
masked, unmasked = of_masks["causal mask"], of_masks["no mask"]
assert (masked[future] == 0).all(), f"gradient from the future: {masked[future].max():.1e}"
assert (masked[~future] > 0).all(), "some step of the past, or the present, has no influence"
assert changed["causal mask"] == 0, f"outputs changed by {changed['causal mask']:.1e}"
assert prefix_changed == 0, f"logits changed by {prefix_changed:.1e}"
assert unmasked[future].min() > 0, "without the mask there should be influence"
assert changed["no mask"] > 0.01, "without the mask the outputs should change"
print(
    f"{int(future.sum())} gradients from the future are exactly 0; without the mask the smallest "
    f"is {unmasked[future].min():.1e}."
)

# %% [markdown]
# **What would prove it wrong.** A single gradient from the future that is not exactly 0, or one bit
# of an output that changes when only the future changes. The assertions also check the opposite:
# without the mask the future must have an influence, else the test would show nothing.
#
# **Where it is only half true.** The mask stops attention, and nothing else. A batch norm over
# time, a bidirectional layer or features normalized over a whole recording would bring the future
# back in. Lectures differ in whether they write $\tau < t$ or $\tau \le t$: with $\le$ and a
# decoder input that is *not* shifted, the model reads its own answer, although the mask is causal.
#
# **To try.** Give only the first block the mask: which outputs see the future then, and which
# gradients stay zero? Use `transduce.nn.masks.window(back, ahead)` in place of `causal()`: how far
# does influence reach after two layers? Change `layers` from 2 to 6.
