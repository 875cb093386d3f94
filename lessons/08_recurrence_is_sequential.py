# %% [markdown]
# # 8. Recurrence is sequential
#
# **Claim.** A recurrent network must compute one step after the other, however many processors
# there are; a Transformer computes all tokens of a sequence at once, and in wide networks this
# saves time per token even on one core.
#
# **Time.** 3 s; full size 40 s.
#
# Two things make a computation slow: how much there is to do, and how much of it has to wait for
# something else. In a recurrent network,
#
# $$h_t = \tanh(U x_t + V h_{t-1})$$
#
# step $t$ cannot begin before step $t - 1$ has ended: the longest chain of operations that wait for
# each other grows with the length $T$. In attention, with the queries, keys and values of all steps
# as the rows of $Q$, $K$ and $V$,
#
# $$H = \operatorname{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V$$
#
# no row waits for another: the chain has the same length for any $T$, though there is more to
# compute, $O(T^2)$ scores.
#
# The length of this chain is the depth of the graph that automatic differentiation keeps. It is the
# same on every machine. The time is measured on this machine, in seconds of one core, for one
# sequence forward and backward. Even one core gains from computing all tokens at once: it reads the
# weights once for all tokens rather than once for each. The wider the network, the more this
# matters.

# %%
import time

import torch

from transduce.lessons import panels, show, size, table
from transduce.models.encoders import TransformerEncoder
from transduce.nn import Recurrent

torch.manual_seed(8)
width = size(256, 512)
lengths = size([16, 64, 256], [16, 32, 64, 128, 256, 512, 1024])
repeats = size(4, 5)
networks = {
    # An LSTM layer has 8 D² weights and this Transformer block 12 D²: three are as many as two.
    "LSTM": Recurrent("lstm", width, width, layers=3),
    "Transformer": TransformerEncoder(width, heads=4, feed_forward=4 * width, layers=2),
}
parameters = {n: sum(p.numel() for p in network.parameters()) for n, network in networks.items()}


def run(name: str, x_BSD: torch.Tensor) -> torch.Tensor:
    if name == "LSTM":
        return networks[name](x_BSD)[0]
    return networks[name](x_BSD, torch.full((len(x_BSD),), x_BSD.shape[1]), None).states_BSD


# %% [markdown]
# ## The longest chain of operations that wait for each other
#
# Here the recurrent network is computed step by step from its own equation (`step`), so that each
# operation is in the graph. (For whole sequences it uses a kernel that hides the operations, but
# does them in the same order.)


# %%
def depth(tensor: torch.Tensor) -> int:
    """The longest path through the graph of automatic differentiation."""
    below: dict[object, int] = {}
    stack = [tensor.grad_fn]
    while stack:
        node = stack[-1]
        inputs = [one for one, _ in node.next_functions if one is not None]
        waiting = [one for one in inputs if one not in below]
        if waiting:
            stack.extend(waiting)
        else:
            below[node] = 1 + max((below[one] for one in inputs), default=0)
            stack.pop()
    return below[tensor.grad_fn]


def step_by_step(x_BSD: torch.Tensor) -> torch.Tensor:
    network = networks["LSTM"]
    state = network.zeros(len(x_BSD), x_BSD)
    for x_BD in x_BSD.unbind(1):
        output_BD, state = network.step(x_BD, state)
    return output_BD


chains = {name: [] for name in networks}
for length in lengths:
    x_BSD = torch.randn(1, length, width)
    chains["LSTM"].append(depth(step_by_step(x_BSD)))
    chains["Transformer"].append(depth(run("Transformer", x_BSD)))
assert len(set(chains["Transformer"])) == 1, f"the Transformer's chain grows: {chains}"
per_step = [
    (chains["LSTM"][i + 1] - chains["LSTM"][i]) / (lengths[i + 1] - lengths[i])
    for i in range(len(lengths) - 1)
]
assert min(per_step) == max(per_step) >= 1, f"operations for each step: {per_step}"

# %% [markdown]
# ## Time per token
#
# The best of several runs, in CPU seconds of this process, with one thread, so that other work on
# the machine has less influence.


# %%
def seconds(length: int) -> dict[str, float]:
    """Of each network. They take turns, so that both run under the same conditions."""
    best = dict.fromkeys(networks, float("inf"))
    for _ in range(repeats + 1):  # the first run may have to set something up
        for name in networks:
            x_BSD = torch.randn(1, length, width)
            start = time.process_time()
            run(name, x_BSD).sum().backward()
            best[name] = min(best[name], time.process_time() - start)
    return best


threads = torch.get_num_threads()
torch.set_num_threads(1)
taken = [seconds(length) for length in lengths]
per_token = {
    name: [1e6 * best[name] / n for best, n in zip(taken, lengths, strict=True)]
    for name in networks
}
torch.set_num_threads(threads)
table(
    ["network", "parameters", "length", "longest chain", "microseconds per token"],
    [
        (name, parameters[name], length, chain, each)
        for name in networks
        for length, chain, each in zip(lengths, chains[name], per_token[name], strict=True)
    ],
)

# %%
figure, (waits, times) = panels(2)
for name in networks:
    waits.loglog(lengths, chains[name], "o-", label=name, base=2)
    times.loglog(lengths, per_token[name], "o-", label=name, base=2)
waits.set(xlabel="length of the sequence", ylabel="longest chain of operations")
waits.set_title("What has to wait for what", fontsize=10, loc="left")
times.set(xlabel="length of the sequence", ylabel="microseconds per token, one core")
times.set_title("Forward and backward, one sequence", fontsize=10, loc="left")
for axes in (waits, times):
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.legend(fontsize=8, frameon=False)
show(figure, "recurrence_is_sequential")

# %% [markdown]
# **What to see.** Left: the LSTM's chain grows in proportion to the length, the Transformer's has
# the same length for all sequences. Right: microseconds per token. Short sequences cost both
# networks more per token, as each call has a fixed cost; for long ones the Transformer needs less
# time per token, until the number of scores begins to count.
#
# ## The rest of the claim, asserted

# %%
times_faster = per_token["LSTM"][-1] / per_token["Transformer"][-1]
assert times_faster > 1.3, f"the LSTM needs only {times_faster:.1f} times as long for a token"
print(
    f"Chain: {chains['Transformer'][0]} operations for any length against {per_step[0]:.0f} more "
    f"for each step. At {lengths[-1]} tokens the LSTM needs {times_faster:.1f} times as long for "
    f"each."
)

# %% [markdown]
# **What would prove it wrong.** A Transformer whose chain grows with the length, or an LSTM whose
# chain does not; or, for the longest sequence here, an LSTM that is not at least 1.3 times as slow
# per token. This last number depends on the machine.
#
# **Where it is only half true.** Only *reading* a given sequence is parallel. A Transformer that
# generates text also has to write one token after the other. The scores grow as $O(T^2)$, so for
# very long sequences recurrence is cheaper. A batch of many sequences gives a recurrent network
# something to do in parallel too. And recurrences that are linear in the state (as in state-space
# models) can be computed in parallel; the tanh and the gates of an LSTM prevent that.
#
# **To try.** With `width = 128` the weights fit into the fast memory of one core, which then needs
# nearly the same time for both: what is left of the claim? Compute 32 sequences at once: which
# network gains more? Go on to 4,096 tokens: from where on do the $O(T^2)$ scores cost time?
