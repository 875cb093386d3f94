"""A cache of huggingface_hub, made by hand, with a model folder in it."""

from __future__ import annotations

import os
import shutil
from hashlib import sha1
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put_into_cache(home: Path, repository: str, model: Path, revision: str = "main") -> Path:
    """The snapshot folder of a model in HF_HOME: links to blobs, as the package makes them."""
    place = home / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot = place / "snapshots" / COMMIT
    for folder in (snapshot, place / "blobs", place / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(path for path in model.iterdir() if path.is_file()):
        blob = place / "blobs" / sha1(file.read_bytes()).hexdigest()
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    (place / "refs" / revision).write_text(COMMIT)
    return snapshot


def offline(home: Path) -> dict[str, str]:
    """The environment of a process that has this cache and no network."""
    return {
        **os.environ,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN": "",
    }
