"""Parameters that wait in the file of their weights until they are used.

Search has packed copies of most matrices. What else uses them, such as scoring or a lens, is rare:
of a model that no longer changes they need not be in memory. torch tells a subclass of Parameter of
every function that is about to use it, which reads its values first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transduce.errors import CheckpointError
from transduce.runtime.int8_file import SCALE, dequantize_weights
from transduce.storage.tensor_file import TensorFile

ATTRIBUTES = ("shape", "dtype", "device", "ndim", "requires_grad", "is_meta", "is_leaf", "layout")
# What is known without the values.
KNOWN = {getattr(Tensor, name).__get__ for name in (*ATTRIBUTES, "grad_fn")}
KNOWN |= {Tensor.size, Tensor.dim, Tensor.numel, Tensor.requires_grad_, Tensor.is_floating_point}
SET_DATA: Any = Tensor.data.__set__  # type: ignore[attr-defined]
_as_parameter: Callable[..., Any] = nn.Parameter.__torch_function__
_READING = threading.Lock()


class Unloaded(nn.Parameter):
    """A parameter without values, which are read when a function is first called with it."""

    read: Callable[[], Tensor] | None
    """Gives the values; None: it has them."""

    def __new__(cls, like: nn.Parameter, read: Callable[[], Tensor]) -> Unloaded:
        with torch.inference_mode(False):  # it is made within a search, and used outside too
            nothing = torch.zeros((), dtype=like.dtype).expand(like.shape)
            made: Unloaded = super().__new__(cls, nothing, like.requires_grad)
        made.read = read
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in KNOWN:
            for parameter in _unloaded_in((args, kwargs)):
                parameter.load()
        return _as_parameter(func, types, args, kwargs or {})

    def __deepcopy__(self, copies: dict[int, Any]) -> nn.Parameter:
        """A copy has its values, and so has what is pickled."""
        if id(self) not in copies:
            copies[id(self)] = self._plain(self.detach().clone())
        found: nn.Parameter = copies[id(self)]
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._plain(self.detach()).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def _plain(self, values: Tensor) -> nn.Parameter:
        return nn.Parameter(values, self.requires_grad)

    def load(self) -> None:
        """Read the values, unless that is done already."""
        with _READING:
            if self.read is not None:
                # A later gradient may flow through what was read within a search.
                with torch.inference_mode(False), torch.no_grad():
                    values = self.read()
                    _as_parameter(SET_DATA, (), (self, values), {})
                self.read = None


def _unloaded_in(given: Any) -> Iterator[Unloaded]:
    if isinstance(given, Unloaded):
        yield given
    elif isinstance(given, list | tuple):
        for one in given:
            yield from _unloaded_in(one)
    elif isinstance(given, dict):
        yield from _unloaded_in(list(given.values()))


class WeightFile:
    """The file that a network's weights were read from, which may keep them in its place."""

    def __init__(self, network: nn.Module, path: Path) -> None:
        self._file: TensorFile | None = None
        with suppress(CheckpointError):  # another file may be there by now, or none
            self._file = TensorFile(path)
        self._names = {id(parameter): name for name, parameter in network.named_parameters()}
        self._places: dict[int, list[tuple[nn.Module, str]]] = {}
        for module in network.modules():
            for name, parameter in module.named_parameters(recurse=False):
                self._places.setdefault(id(parameter), []).append((module, name))

    def take(self, parameter: Tensor) -> Tensor:
        """Put an unloaded parameter in the place of one that has the same values in the file;
        returns the one that the network has now.

        A thread that uses the old one meanwhile still has it.
        """
        name, places = self._names.get(id(parameter)), self._places.get(id(parameter), [])
        if self._file is None or name is None or parameter.device.type != "cpu":
            return parameter
        assert isinstance(parameter, nn.Parameter)
        read = _reader(self._file, name, parameter.dtype)
        with suppress(CheckpointError, KeyError):
            if torch.equal(parameter, read()):
                made = Unloaded(parameter, read)
                for module, own in places:
                    setattr(module, own, made)
                return made
        return parameter


def _reader(file: TensorFile, name: str, dtype: torch.dtype) -> Callable[[], Tensor]:
    """A function that reads a weight as a network has it."""

    def read() -> Tensor:
        weights: Mapping[str, Tensor] = {
            each: file.read(each) for each in (name, name + SCALE) if each in file
        }
        return dequantize_weights(weights)[name].to(dtype)

    return read
