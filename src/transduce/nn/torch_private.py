"""Everything that transduce uses of torch and torch does not document: one function for each.

A new release of torch may rename or remove these without notice. Then one test of
tests/unit/nn/test_torch_private.py says which, and the function takes the public way, where there
is one; nothing else of the package knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn

Tensors = Sequence[Tensor]

PRIVATE = {
    "addmm_relu": "_addmm_activation",
    "copy_all": "_foreach_copy_",
    "add_all": "_foreach_add_",
    "multiply_all": "_foreach_mul_",
    "differences": "_foreach_sub",
    "relu_backward": "ops.aten.threshold_backward",
    "embedding_backward": "ops.aten.embedding_dense_backward",
    "reorder_linear_weight": "ops.mkldnn._reorder_linear_weight",
    "linear_pointwise": "ops.mkldnn._linear_pointwise",
    "has_bfloat16_on_cpu": "ops.mkldnn._is_mkldnn_bf16_supported",
    "version_of": "Tensor._version",
    "stop_allocating": "_C._cuda_endAllocateToPool",
    "release_pool": "_C._cuda_releasePool",
}
"""The function here, and the name in torch that it stands for."""


def find(name: str) -> Any:
    """What torch has under a private name; None where it has not."""
    found: Any = torch
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except (AttributeError, RuntimeError):  # RuntimeError: an operator of a library not built
            return None
    return found


_found: dict[str, Any] = {name: find(private) for name, private in PRIVATE.items()}

# ------------------------------------------------------------------------------------- products


def addmm_relu(bias_F: Tensor, x_ND: Tensor, weight_DF: Tensor) -> Tensor:
    """max(0, x W + b), on a GPU in one kernel."""
    together: Callable[..., Tensor] | None = _found["addmm_relu"]
    if together is None:
        return torch.addmm(bias_F, x_ND, weight_DF).relu_()
    return together(bias_F, x_ND, weight_DF)


def relu_backward(grad: Tensor, y: Tensor) -> Tensor:
    """The gradient of x, where y = max(0, x), in one pass."""
    backward: Callable[..., Tensor] | None = _found["relu_backward"]
    return grad * (y > 0) if backward is None else backward(grad, y, 0)


def embedding_backward(grad: Tensor, tokens: Tensor, vocabulary: int) -> Tensor:
    """The gradient of an embedding's table, of the gradient of its rows."""
    backward: Callable[..., Tensor] | None = _found["embedding_backward"]
    if backward is None:
        rows = grad.reshape(-1, grad.shape[-1])
        return grad.new_zeros(vocabulary, grad.shape[-1]).index_add_(0, tokens.flatten(), rows)
    return backward(grad, tokens, vocabulary, -1, False)


# ---------------------------------------------------------------- many tensors, in few kernels


def copy_all(targets: Tensors, sources: Tensors) -> None:
    """Each target becomes its source, cast to its own type."""
    _on_all("copy_all", targets, sources, lambda target, source: target.copy_(source))


def add_all(targets: Tensors, others: Tensors) -> None:
    """To each target, its other is added."""
    _on_all("add_all", targets, others, lambda target, other: target.add_(other))


def multiply_all(targets: Tensors, factor: Tensor | float) -> None:
    """All targets are multiplied by one number."""
    _on_all("multiply_all", targets, factor, lambda target, factor: target.mul_(factor))


def differences(tensors: Tensors, others: Tensors) -> list[Tensor]:
    """Of each tensor and its other."""
    return _on_all("differences", tensors, others, lambda tensor, other: tensor - other)


def _on_all(
    name: str, tensors: Tensors, others: Any, single: Callable[[Tensor, Any], Tensor]
) -> list[Tensor]:
    """In few kernels where torch has them, else one by one. others: of each tensor, or of all."""
    together = _found[name]
    if together is not None:
        return list(together(tensors, others) or ())
    each = others if isinstance(others, Sequence) else [others] * len(tensors)
    return [single(tensor, other) for tensor, other in zip(tensors, each, strict=True)]


# ------------------------------------------------------------------------------ oneDNN on a CPU


def can_reorder() -> bool:
    """Whether weights can be laid out as oneDNN reads them, and multiplied so."""
    known = _found["reorder_linear_weight"] and _found["linear_pointwise"]
    return bool(known) and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def reorder_linear_weight(weight_FD: Tensor) -> Tensor:
    """A weight in the blocks that oneDNN reads."""
    reordered: Tensor = _found["reorder_linear_weight"](weight_FD.contiguous(), None)
    return reordered


def linear_pointwise() -> Callable[..., Tensor]:
    """oneDNN's product with such a weight, followed by a function.

    product(x, weight, bias, "relu" or "none", [], "").
    """
    product: Callable[..., Tensor] = _found["linear_pointwise"].default
    return product


def has_bfloat16_on_cpu() -> bool:
    """Whether this CPU multiplies bfloat16 itself."""
    supported = _found["has_bfloat16_on_cpu"]
    return bool(supported is not None and supported())


# ------------------------------------------------------------------------- memory of CUDA graphs


def give_back(graph: torch.cuda.CUDAGraph, pool: Any, device: int) -> None:
    """Give back the memory of a failed capture: what it has taken of `pool` can be freed again.

    Where even closing the capture fails, torch's allocator goes on as if in it: it never frees that
    memory, and frees no cached memory when there is none left.
    """
    try:
        graph.pool()
    except RuntimeError:  # not closed: otherwise the graph gives its memory back by itself
        for name in ("stop_allocating", "release_pool"):
            if _found[name] is not None:
                with suppress(RuntimeError):
                    _found[name](device, pool)


# --------------------------------------------------------------------- what objects are made of


def version_of(tensor: Tensor) -> object:
    """What differs after a tensor was changed in place; without torch's count, at every call."""
    return object() if _found["version_of"] is None else tensor._version


FORWARD_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
"""Where a module keeps its forward hooks."""
MODULE_DICTIONARIES = ("_modules", "_parameters", "_buffers", *FORWARD_HOOKS)
"""What a view of a module has for itself."""


def forward_hooks(module: nn.Module) -> list[Any]:
    """The dictionaries in which a module keeps its forward hooks; a copy may share them."""
    own = vars(module)
    return [own[name] for name in FORWARD_HOOKS]


def has_forward_hooks(module: nn.Module) -> bool:
    own = vars(module)  # every run asks this: without torch's detours
    return bool(own["_forward_hooks"] or own["_forward_pre_hooks"])


def call_hooked(module: nn.Module, method: Callable[..., Any], *arguments: Any) -> Any:
    """method(*arguments), with the module's forward hooks around it as if it were `forward`.

    Nothing is written to the module: other threads may call it meanwhile, and so may the hooks.
    """
    own = vars(module)
    for number, hook in [*own["_forward_pre_hooks"].items()]:
        if number in own["_forward_pre_hooks_with_kwargs"]:
            changed = hook(module, arguments, {})
            arguments = arguments if changed is None else changed[0]
        elif (changed := hook(module, arguments)) is not None:
            arguments = changed if isinstance(changed, tuple) else (changed,)
    output = method(*arguments)
    for number, hook in [*own["_forward_hooks"].items()]:
        named: list[Any] = [{}] if number in own["_forward_hooks_with_kwargs"] else []
        changed = hook(module, arguments, *named, output)
        output = output if changed is None else changed
    return output


def kept_tensors(module: nn.Module) -> list[Tensor]:
    """A module's own parameters, and the buffers that are stored with them."""
    computed = module._non_persistent_buffers_set
    kept = (buffer for name, buffer in module._buffers.items() if name not in computed)
    return [tensor for tensor in (*module._parameters.values(), *kept) if tensor is not None]


@contextmanager
def with_weights(weights: Sequence[tuple[nn.Module, Tensor]]) -> Iterator[None]:
    """Within, modules have other tensors as their `weight`, through which gradients flow."""
    own = [module._parameters["weight"] for module, _ in weights]
    try:
        for module, weight in weights:
            module._parameters["weight"] = weight  # type: ignore[assignment]
        yield
    finally:
        for (module, _), parameter in zip(weights, own, strict=True):
            module._parameters["weight"] = parameter


# ------------------------------------------------------------------------------------ optimizers


class Uncompiled(torch.optim.Optimizer):
    """An optimizer that does not load torch's compiler, which takes seconds.

    torch wraps methods of its optimizers to keep the compiler out of them, and each wrapper loads
    the compiler for that. Nothing here is compiled: the methods are called as they are.
    """

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)


class AdamW(Uncompiled, torch.optim.AdamW):
    """torch's AdamW, without its compiler."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
