"""model.safetensors as transformers reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from transduce.storage import write_file

NAME = "model.safetensors"
FORMAT = {"format": "pt"}  # without it, transformers refuses the file


def write_weights(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by their names there, each with its own memory."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    ready = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}

    def write(part: Path) -> None:
        try:
            save_file(ready, part, FORMAT)
        except SafetensorError as error:  # how the library reports a full disk
            raise OSError(str(error)) from None

    write_file(folder / NAME, write)
