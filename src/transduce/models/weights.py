"""A network's weights by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transduce.errors import ModelError
from transduce.models.trainable import TrainableNetwork

DRAWING = {"normal_", "uniform_", "kaiming_uniform_", "xavier_uniform_"}
"""The functions that give parameters their first values, at random."""


@contextmanager
def no_weights() -> Iterator[None]:
    """Networks built here are on the meta device: names and sizes of parameters, no values."""
    with torch.device("meta"), undrawn():
        yield


@contextmanager
def undrawn() -> Iterator[None]:
    """The parameters of networks built here have no values yet: those of a file are to follow.

    Memory that nothing is written to takes no space, and drawing numbers takes longer than reading
    a file. For a tensor of the meta device torch would even import its compiler first.
    """
    with _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    """Parameters are not drawn; other tensors are, as nobody else gives them values."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in DRAWING:
            tensor = args[0] if args else kwargs["tensor"]
            if isinstance(tensor, nn.Parameter) or tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


def weights_of(network: TrainableNetwork) -> dict[str, Tensor]:
    """Every parameter once, by its first name: tied ones are not written twice."""
    return {name: parameter.detach() for name, parameter in network.named_parameters()}


def set_weights(network: TrainableNetwork, weights: dict[str, Tensor], path: Path) -> None:
    own = dict(network.named_parameters())
    strange = sorted(set(own) ^ set(weights))
    if strange:
        raise ModelError(
            f"{path} does not fit the recipe beside it: {strange[0]} is in only one of them "
            f"({len(strange)} such parts); use the recipe that the model was trained with"
        )
    for name, parameter in own.items():
        if parameter.shape != weights[name].shape:
            raise ModelError(
                f"{path} does not fit the recipe beside it: {name} is "
                f"{tuple(weights[name].shape)} in the file, {tuple(parameter.shape)} by recipe"
            )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])


def fingerprint_of(weights: Mapping[str, Tensor]) -> str:
    """A SHA-256 sum of weights by name, shape and value, whatever file they are in."""
    digest = sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
