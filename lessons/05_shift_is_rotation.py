# %% [markdown]
# # 5. A shift in time is a rotation of the position code
#
# **Claim.** Shifting a Fourier or sinusoidal position code by d steps is multiplication by one
# rotation matrix, the same for all t, so a head whose weights contain that matrix attends exactly d
# steps back.
#
# **Time.** 1 s; full size 2 s.
#
# A position code consists of pairs of waves, a cosine and a sine, each pair with its own frequency
# $\omega_k$. In a Fourier code $\omega_k = \pi k / T$ with $k = 1, \dots, D/2$, where $D$ is the
# width and $T$ the greatest length. In the sinusoidal code of the Transformer
# $\omega_k = 10000^{-2k/D}$ with $k = 0, \dots, D/2 - 1$. Moving on by $d$ steps turns each pair by
# the angle $\omega_k d$, at every position $t$:
#
# $$\begin{pmatrix} \cos \omega_k (t + d) & \sin \omega_k (t + d) \end{pmatrix} =
# \begin{pmatrix} \cos \omega_k t & \sin \omega_k t \end{pmatrix}
# \begin{pmatrix} \cos \omega_k d & \sin \omega_k d \\ -\sin \omega_k d & \cos \omega_k d
# \end{pmatrix}$$
#
# For all pairs together, $p_{t+d} = p_t R(d)$, where $p_t$ is the code of position $t$ and $R(d)$
# is one block-diagonal matrix that does not depend on $t$. Now let $W^Q = R(-d)$ and $W^K = I$.
# Then the query of step $t$ is $p_{t-d}$, and of all keys $p_\tau$ the one that fits it best is
# that of $\tau = t - d$.

# %%
import torch

from transduce.lessons import panels, show, size, table
from transduce.nn import Fourier, Learned, MultiHeadAttention, Sinusoidal

torch.manual_seed(5)
length, width = size(64, 256), size(64, 128)
codes = {
    "Fourier": Fourier(width, length).double(),
    "sinusoidal": Sinusoidal(width).double(),
    "learned (random here)": Learned(width, 4 * length, std=1.0).double(),
}

# %% [markdown]
# ## One matrix for all t
#
# Is there one matrix $M$ with $p_{t+d} = p_t M$ for all $t$? It is fitted by least squares on half
# of all $t$, and its error is measured on the other half. For waves there is one. For a table of
# random numbers, as learned positions are before training, there is none: what fits one half of the
# positions says nothing about the other. `Fourier.shift_matrix` gives the matrix of the formula,
# without any fitting.

# %%
shifts = [1, 5, 12]
errors = {}
with torch.no_grad():
    for name, code in codes.items():
        code_TD = code(4 * length)
        for d in shifts:
            now_TD, later_TD = code_TD[:-d], code_TD[d:]
            fitted, tested = torch.randperm(len(now_TD)).chunk(2)
            found_DD = torch.linalg.pinv(now_TD[fitted], rtol=1e-12) @ later_TD[fitted]
            wrong = now_TD[tested] @ found_DD - later_TD[tested]
            errors[name, d] = (wrong.norm() / later_TD[tested].norm()).item()
fourier = codes["Fourier"]
code_TD = fourier(length + max(shifts))
by_formula = max(
    (code_TD[:length] @ fourier.shift_matrix(d) - code_TD[d : length + d]).abs().max().item()
    for d in shifts
)
turns_DD = fourier.shift_matrix(5)
orthogonal = (turns_DD @ turns_DD.T - torch.eye(width, dtype=torch.float64)).abs().max().item()
together = (fourier.shift_matrix(2) @ fourier.shift_matrix(3) - turns_DD).abs().max().item()
table(
    ["code", "shift d", "relative error of one matrix for all t"],
    [(name, d, error) for (name, d), error in errors.items()],
)
print(f"largest error of the formula: {by_formula:.1e}; of R Rᵀ = I: {orthogonal:.1e}; ", end="")
print(f"of R(2) R(3) = R(5): {together:.1e}")

# %% [markdown]
# ## A head that attends exactly d steps back
#
# `MultiHeadAttention` with one head and weights set by hand: $W^Q = c R(-d)$ with a factor $c = 10$
# that makes the softmax sharp, and the identity for all other matrices. Its input is the position
# code alone. (A linear layer of PyTorch multiplies by its transposed weight, therefore the `.T`.)

# %%
head = MultiHeadAttention(width, heads=1, bias=False).double()
seen = []
head.watch = lambda weights_BHTS: seen.append(weights_BHTS[0, 0])
maps = {}
identity_DD = torch.eye(width, dtype=torch.float64)
with torch.no_grad():
    for d in shifts:
        query_DD = 10 * fourier.shift_matrix(-d).T
        head.in_projection.weight.copy_(torch.cat([query_DD, identity_DD, identity_DD]))
        head.out_projection.weight.copy_(identity_DD)
        output_1TD = head(fourier(length)[None])
        maps[d] = seen.pop()
on_target = {d: maps[d].diagonal(-d).min().item() for d in shifts}
right_place = {
    d: (maps[d][d:].argmax(-1) == torch.arange(length - d)).double().mean().item() for d in shifts
}
table(
    ["d", "steps that attend most to t - d", "smallest weight there"],
    [(d, right_place[d], on_target[d]) for d in shifts],
)

# %%
figure, every = panels(2, 2, width=4.3, height=3.7)
every[0].imshow(fourier(length)[:, :24].T.numpy(), aspect="auto", cmap="RdBu", vmin=-1, vmax=1)
every[0].set_title("The code: each row a wave over time", fontsize=10, loc="left")
every[0].set(xlabel="position t", ylabel="component (the first 24)")
for axes, d in zip(every[1:], shifts, strict=True):
    image = axes.imshow(maps[d][:32, :32].numpy(), cmap="BuPu", vmin=0, vmax=1)
    axes.set_title(f"$W^Q = c R(-{d})$: attends {d} back", fontsize=10, loc="left")
    axes.set(xlabel="key τ (the first 32)", ylabel="query t")
for axes in every:
    axes.grid(visible=False)
figure.colorbar(image, ax=every[1::2], shrink=0.6, label="attention weight")
show(figure, "shift_is_rotation")

# %% [markdown]
# **What to see.** Top left: the code, each row a wave over time, the slow ones on top. The other
# three panels are attention weights: each dark diagonal lies exactly 1, 5 or 12 steps below the
# main diagonal, so each query attends to the key $d$ steps before it. The first $d$ queries have
# nothing $d$ steps back; their weights go to other positions with a similar code.
#
# ## The claim, asserted

# %%
for (name, d), error in errors.items():
    if name.startswith("learned"):
        assert error > 0.3, f"random positions were shifted by one matrix: {error:.1e}"
    else:
        assert error < 1e-3, f"{name} positions shifted by {d}: {error:.1e}"
assert by_formula < 1e-12, f"shift_matrix is wrong by {by_formula:.1e}"
assert max(orthogonal, together) < 1e-12, "R(d) is not a rotation"
assert min(right_place.values()) == 1, f"attends elsewhere: {right_place}"
assert min(on_target.values()) > 0.99, f"not sharply: {on_target}"
print(
    f"R(d) shifts any t within {by_formula:.1e}; heads with it give t - d at least "
    f"{min(on_target.values()):.4f} of their weight."
)

# %% [markdown]
# **What would prove it wrong.** A fitted matrix that works for some $t$ and not for others; a
# matrix of the formula that is not orthogonal, or with $R(2) R(3) \ne R(5)$; or one query whose
# largest weight is not $d$ steps back.
#
# **Where it is only half true.** A head *can* do this; that training finds such a matrix is another
# claim (lesson 6 shows a head that learns to look one step back). The input here is the position
# code alone: in a Transformer the word's embedding is added to it, and its dot products disturb the
# scores. A large $c$ is needed, since neighbouring positions have similar codes. And the sinusoidal
# code was tested only for the shift; its slowest waves hardly change over a sentence.
#
# **To try.** Make the factor 10 smaller: which neighbours get weight first? Use a negative $d$: the
# head attends to the future. Use `Sinusoidal` in place of `Fourier` for the head: how large must
# $c$ be? Rotary positions (`transduce.nn.Rotary`) build this rotation into every query and key.
