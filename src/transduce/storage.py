"""Files that are whole or not there: written beside, flushed to the disk, then renamed."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transduce.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor


def write_text(path: Path, text: str) -> None:
    _replace(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_json(path: Path, values: Any) -> None:
    write_text(path, json.dumps(values, ensure_ascii=False, indent=2) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Tensors and a few JSON facts in one safetensors file, with a checksum of each tensor."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    sums = {name: _checksum(tensor) for name, tensor in ready.items()}
    metadata = {"facts": json.dumps(facts), "checksums": json.dumps(sums)}

    def write(part: Path) -> None:
        try:
            save_file(ready, part, metadata)
        except SafetensorError as error:  # how the library tells of a full disk
            raise OSError(str(error)) from None

    _replace(path, write)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of a file of `write_tensors`; CheckpointError if it was damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        sums = json.loads(metadata.get("checksums", "{}"))
        facts = json.loads(metadata.get("facts", "{}"))
    except FileNotFoundError:
        raise CheckpointError(f"the file {path} is missing") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"the file {path} is damaged or cut short ({error}); restore it from a copy"
        ) from None
    for name, tensor in tensors.items():
        if name in sums and sums[name] != _checksum(tensor):
            raise CheckpointError(
                f"the file {path} is damaged: the bytes of {name} are not those that were "
                f"written; restore it from a copy"
            )
    return tensors, facts


def _checksum(tensor: Tensor) -> int:
    import torch

    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    part = path.with_name(path.name + ".part")
    try:
        write(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise CheckpointError(
            f"{path} could not be written ({error.strerror or error}); what was there before is "
            f"untouched: free some space or choose another folder"
        ) from None
