# %% [markdown]
# # 9. Back-propagation through time is back-propagation through a deep network
#
# **Claim.** The recursion for the gradient of a recurrent network, done by hand from the last step
# to the first, gives the same numbers as automatic differentiation, and as a deep network with one
# layer for each step.
#
# **Time.** 1 s; full size 2 s.
#
# A recurrent network unrolled over $T$ steps *is* a network of $T$ layers that share their weights.
# At step $t$ it reads $x_t$, has the state $h_t$ and gives the probabilities $o_t$; $y_t$ is the
# right label. The loss $L$ depends on the state $h_t$ directly, through the output at $t$, and
# indirectly, through the next state:
#
# $$h_t = \tanh(U x_t + V h_{t-1}), \qquad o_t = \operatorname{softmax}(W h_t), \qquad
# L = -\sum_t \ln o_t[y_t]$$
#
# $$\frac{dL}{dh_{i,t}} = \frac{\partial L}{\partial h_{i,t}} +
# \sum_j \frac{dL}{dh_{j,t+1}} \frac{\partial h_{j,t+1}}{\partial h_{i,t}}, \qquad
# \frac{\partial h_{j,t+1}}{\partial h_{i,t}} = (1 - h_{j,t+1}^2)\, V_{ji}$$
#
# ($i$ and $j$ number the units of the state.) From $dL/dh_t$ follow the gradients of the weights.
# They are sums over time, because every step uses the same weights:
# $dL/dV = \sum_t \big((1 - h_t^2) \odot dL/dh_t\big)^\top h_{t-1}$, where $\odot$ multiplies
# element by element, and $dL/dU$ likewise with $x_t$ in place of $h_{t-1}$. The example is a small
# part-of-speech tagger: a tag for each word vector.

# %%
import torch
from torch.nn.functional import cross_entropy

from transduce.lessons import panels, show, size, table
from transduce.nn import Elman

torch.manual_seed(9)
steps, width, tags, batch = size(20, 80), 16, 5, 4
cell = Elman(width, width).double()
U, V, bias_U, bias_V = cell.weights()
W = torch.randn(tags, width, dtype=torch.float64, requires_grad=True)
words_BTD = torch.randn(batch, steps, width, dtype=torch.float64)
tags_BT = torch.randint(0, tags, (batch, steps))

# %% [markdown]
# ## By automatic differentiation

# %%
h_BTD, _ = cell(words_BTD)
h_BTD.retain_grad()
loss = cross_entropy((h_BTD @ W.T).flatten(0, 1), tags_BT.flatten(), reduction="sum")
loss.backward()

# %% [markdown]
# What PyTorch keeps as the gradient of `h_BTD` is only the *direct* part,
# $\partial L / \partial h_t$: the path through the later states lies inside the recurrent kernel.
# That part is computed by hand now.
#
# ## By hand
#
# Each row is one sequence of the batch. The loop starts at the last step, which has no later one,
# and goes back to the first.

# %%
with torch.no_grad():
    error_BTV = (h_BTD @ W.T).softmax(-1) - torch.nn.functional.one_hot(tags_BT, tags)
    direct_BTD = error_BTV @ W  # by the output at t
    total_BTD = torch.zeros_like(h_BTD)
    from_later_BD = torch.zeros(batch, width, dtype=torch.float64)
    hand_U, hand_V, layers_of_V = torch.zeros_like(U), torch.zeros_like(V), []
    for t in reversed(range(steps)):
        total_BTD[:, t] = direct_BTD[:, t] + from_later_BD
        before_tanh_BD = total_BTD[:, t] * (1 - h_BTD[:, t] ** 2)
        h_before_BD = h_BTD[:, t - 1] if t > 0 else torch.zeros(batch, width, dtype=torch.float64)
        hand_U += before_tanh_BD.T @ words_BTD[:, t]
        layers_of_V.append(before_tanh_BD.T @ h_before_BD)
        hand_V += layers_of_V[-1]
        from_later_BD = before_tanh_BD @ V  # through h_t to h_{t-1}

# %% [markdown]
# ## As a deep network
#
# Now the same with a copy of the cell for each step, as $T$ layers with their own weights: the sum
# of the gradients of all copies must be the gradient of the one shared cell.

# %%
layers = [Elman(width, width).double() for _ in range(steps)]
for layer in layers:
    layer.load_state_dict(cell.state_dict())
state, outputs = cell.zeros(batch, words_BTD), []
for layer, word_BD in zip(layers, words_BTD.unbind(1), strict=True):
    output_BD, state = layer.step(word_BD, state)
    outputs.append(output_BD)
deep_BTD = torch.stack(outputs, dim=1)
cross_entropy(
    (deep_BTD @ W.detach().T).flatten(0, 1), tags_BT.flatten(), reduction="sum"
).backward()
deep_V = sum(layer.weights()[1].grad for layer in layers)
deep_U = sum(layer.weights()[0].grad for layer in layers)


# %%
def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return ((one - other).norm() / other.norm()).item()


differences = {
    ("dL/dU", "by hand"): apart(hand_U, U.grad),
    ("dL/dV", "by hand"): apart(hand_V, V.grad),
    ("dL/dU", "deep network, layers summed"): apart(deep_U, U.grad),
    ("dL/dV", "deep network, layers summed"): apart(deep_V, V.grad),
    ("direct dL/dh", "by hand"): apart(direct_BTD, h_BTD.grad),
}
table(
    ["gradient", "computed", "relative difference from autograd"],
    [(*names, value) for names, value in differences.items()],
)

# %% [markdown]
# ## Where the gradient comes from
#
# Once the parts of the gradient are known by hand, they can be looked at separately. The second
# panel follows the loss of the last word alone back through the layers.

# %%
with torch.no_grad():
    followed = [direct_BTD[:, -1]]
    for t in reversed(range(1, steps)):
        followed.append((followed[-1] * (1 - h_BTD[:, t] ** 2)) @ V)
    last_word = torch.stack([one_BD.norm() for one_BD in followed])
figure, (parts, back) = panels(2)
parts.plot(direct_BTD.norm(dim=(0, 2)), "o-", markersize=3, label="by its own output")
parts.plot((total_BTD - direct_BTD).norm(dim=(0, 2)), "o-", markersize=3, label="by later states")
parts.set(xlabel="step t", ylabel="norm of the part of dL/dh")
parts.set_title("Two ways from the loss to a state", fontsize=10, loc="left")
parts.legend(fontsize=8, frameon=False)
back.semilogy(last_word)
back.set(xlabel="steps back from the last word", ylabel="norm of dL(last word)/dh")
back.set_title("Followed back through the layers", fontsize=10, loc="left")
for axes in (parts, back):
    axes.xaxis.get_major_locator().set_params(integer=True)
show(figure, "back_propagation_through_time")

# %% [markdown]
# **What to see.** Left: for each step, how much of the gradient of its state comes directly from
# its own output, and how much from later states; the last step has no later ones. Right (a
# logarithmic axis): the gradient of the last word's loss shrinks by a constant factor per step, so
# the early layers of this deep network hardly learn from it (see lesson 7).
#
# ## The claim, asserted

# %%
for (gradient, how), value in differences.items():
    assert value < 1e-10, f"{gradient} {how} differs by {value:.1e}"
print(
    f"By hand, by autograd and as {steps} layers: the same gradients within "
    f"{max(differences.values()):.0e}."
)

# %% [markdown]
# **What would prove it wrong.** A gradient by hand, or summed over the layers of the deep network,
# that differs from automatic differentiation by more than rounding (a relative difference of
# $10^{-10}$ in float64).
#
# **Where it is only half true.** The deep network is a special one: all its layers have the same
# weights, and each gets a new input and has its own loss. In practice the recursion is often cut
# off after some steps (*truncated* back-propagation through time); the result is then not the
# gradient of the loss any more.
#
# **To try.** Stop the recursion after five steps back: how far off is $dL/dV$? Multiply $V$ by 3
# before you begin: what happens in the right panel? Change `steps` from 20 to 200: how small does
# the gradient of the last word become?
