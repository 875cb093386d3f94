"""Copies of a network that search works on, and who watches them.

A copy shares the forward hooks and the lens of its original, so that whoever watches the network
sees what its copy computes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from copy import copy, deepcopy
from typing import TypeVar

from torch import Tensor, nn

from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.torch_private import MODULE_DICTIONARIES, forward_hooks, has_forward_hooks
from transduce.nn.transformer import FeedForward
from transduce.nn.watchable import Watchable

WATCHED = (
    "the network has a lens or forward hooks, so search calls its modules one by one, which is "
    "slower and may differ by rounding; model.lens shows the attention of outputs at full speed"
)
GATED = (
    "gates are set, so search calls the network's modules one by one: slower, and with factors of "
    "1 the same but for rounding"
)
Copied = TypeVar("Copied", bound=nn.Module)


def copy_for_search(network: Copied, keep: Iterable[Tensor] = ()) -> Copied:
    """A deep copy that shares hooks and lens with its original, and the tensors to `keep`."""
    shared: list[object] = [*keep]
    copies: dict[int, object] = {}
    for module in network.modules():
        shared += forward_hooks(module)
        if isinstance(module, Watchable):
            shared += [module.watching, module.gating]
        for own in vars(module).values():
            # Most of what a module holds; deepcopy takes long for each.
            if type(own) in (OrderedDict, set) and not own:
                copies[id(own)] = type(own)()
    return deepcopy(network, copies | {id(one): one for one in shared})


def view_of(network: Copied) -> Copied:
    """The same network once more, for one call alone: it has the same weights, hooks, lens and
    gates, but hooks that are put on it, and its mode, are its own. Quick: no tensor is copied."""
    views: dict[int, nn.Module] = {}

    def view(module: nn.Module) -> nn.Module:
        if id(module) not in views:
            made = views[id(module)] = module.__class__.__new__(module.__class__)
            own = vars(made)
            own.update(vars(module))
            own.update({name: copy(own[name]) for name in MODULE_DICTIONARIES})
            for name, child in vars(module)["_modules"].items():
                own["_modules"][name] = None if child is None else view(child)
        return views[id(module)]

    found = view(network)
    assert isinstance(found, type(network))
    return found


def is_watched(modules: Iterable[nn.Module]) -> bool:
    """Whether a lens or a gate of this thread, or a forward hook, is on any of these modules."""
    for module in modules:
        if has_forward_hooks(module):
            return True
        if isinstance(module, Watchable) and (module.watch is not None or module.gate is not None):
            return True
    return False


def is_gated(modules: Iterable[nn.Module]) -> bool:
    """Whether any of these modules has a gate."""
    return any(isinstance(module, Watchable) and module.gate is not None for module in modules)


def silent_hooks(network: nn.Module) -> list[str]:
    """The names of modules with forward hooks that search never calls.

    Search calls encoder and decoder, not the whole network; and attention and feed-forward nets
    multiply with the weights of their linear layers without calling these.
    """
    names = []
    modules = dict(network.named_modules())
    for name, module in modules.items():
        parent = modules[name.rpartition(".")[0]]
        inner = isinstance(parent, MultiHeadAttention | FeedForward)
        silent = module is network or inner or isinstance(module, nn.ModuleList)
        if silent and has_forward_hooks(module):
            names.append(name or "the whole network")
    return names


def watch_warnings(network: nn.Module, gates: bool = True) -> list[str]:
    """What a user should know of a search in a watched network; of gates only if asked."""
    if is_gated(network.modules()):
        messages = [GATED] if gates else []
    else:
        messages = [WATCHED]
    if silent := silent_hooks(network):
        named = ", ".join(silent[:3]) + (", …" if len(silent) > 3 else "")
        messages.append(
            f"search does not call {named}, so forward hooks there are never called; put them "
            f"on the encoder, the decoder or the head, on their blocks, or on an attention or "
            f"feed-forward module in these"
        )
    return messages
