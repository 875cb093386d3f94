"""A digest of a model folder: of the files that its outputs depend on."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from transduce.checksums import digest_of
from transduce.errors import ModelError
from transduce.tasks.folder import RECIPE, TOKENS, missing_weights_message

WEIGHTS = ("*.safetensors", "*.bin", "*.onnx", "*.onnx.data")


def digest_of_model(folder: Path) -> str:
    """SHA-256 of recipe, vocabularies and weights, also of an exported model. Raises ModelError."""
    weights = sorted({path for pattern in WEIGHTS for path in folder.glob(pattern)})
    if not weights:
        raise ModelError(missing_weights_message(folder))
    others = [path for name in (RECIPE, *TOKENS) if (path := folder / name).is_file()]
    found = sha256()
    try:
        for path in [*others, *weights]:
            found.update(f"{digest_of(path)}  {path.name}\n".encode())
    except OSError as error:
        raise ModelError(f"{error.filename} cannot be read ({error.strerror})") from None
    return found.hexdigest()
