"""The Hugging Face hub: models that are there, and publishing one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from transduce.checksums import SUMS, digest_of, read_sums
from transduce.errors import ModelError, load_package

# ----------------------------------------------------------------------------------------------
# The folder of a model: a local one, or hf://user/name@revision from the Hugging Face hub.
#
# Only files of known kinds are downloaded: safetensors, JSON, YAML and text; no pickles, no code.

SCHEME = "hf://"
REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
REVISION = re.compile(r"[\w-][\w./-]*", re.ASCII)

# What a model folder may hold: weights, vocabularies, the recipe, metrics, the card.
ALLOWED = (
    "*.safetensors",
    "*.json",
    "recipe.yaml",
    "*.md",
    "*.txt",
    "*.model",
    "*.spm",
    "model.sha256",
)
LEFT_OUT = ("state/*", "tensorboard/*", "*.hypotheses.txt", "log.jsonl")
# For an import besides: CTranslate2's weights, which are no pickle; and, only where a repository
# has neither these nor safetensors, the pickle that the import reads without running any of it
# (interop/imports/pickled.py).
CTRANSLATE2_WEIGHTS = ("model.bin",)
PICKLED_WEIGHTS = ("pytorch_model*.bin",)


class HubAddress(NamedTuple):
    """hf://user/name or hf://user/name@revision; the revision is a branch, a tag or a commit."""

    repository: str
    revision: str | None

    def __str__(self) -> str:
        return SCHEME + self.repository + (f"@{self.revision}" if self.revision else "")


def is_hub_address(text: str | Path) -> bool:
    return str(text).startswith(SCHEME)


def parse_address(text: str) -> HubAddress:
    """The parts of hf://user/name@revision. Raises ModelError."""
    repository, at, revision = text.removeprefix(SCHEME).partition("@")
    well_formed = REPOSITORY.fullmatch(repository) and (REVISION.fullmatch(revision) or not at)
    if not well_formed or ".." in text:
        raise ModelError(
            f"{text!r} is not the address of a model on the hub; write hf://user/name, or "
            f"hf://user/name@revision with a branch, a tag or a commit"
        )
    return HubAddress(repository, revision or None)


def resolve_model(place: str | Path) -> Path:
    """The folder of a model: the path itself, or the downloaded snapshot of an hf:// address.

    A model that is in the cache of the package huggingface_hub already is not downloaded again.
    Its token, where one is needed, comes from that package's own places: `hf auth login` or
    HF_TOKEN. Raises ModelError.
    """
    if not is_hub_address(place):
        return Path(place).expanduser()
    return _download(parse_address(str(place)), ALLOWED)


def resolve_import(place: str | Path) -> Path:
    """As `resolve_model`, for a model of another toolkit: with the files that an import reads."""
    if not is_hub_address(place):
        return Path(place).expanduser()
    address = parse_address(str(place))
    folder = _download(address, (*ALLOWED, *CTRANSLATE2_WEIGHTS))
    if any(folder.glob("*.safetensors")) or any(folder.glob(CTRANSLATE2_WEIGHTS[0])):
        return folder
    return _download(address, (*ALLOWED, *PICKLED_WEIGHTS))


def _download(address: HubAddress, allowed: Sequence[str]) -> Path:
    """The snapshot of a model, with the files of these patterns alone. Raises ModelError."""
    hub = load_hub()
    try:
        folder = hub.snapshot_download(
            address.repository,
            revision=address.revision,
            allow_patterns=list(allowed),
            ignore_patterns=list(LEFT_OUT),
        )
    except Exception as error:  # network, file system and the hub raise errors of many kinds
        if (kept := _kept_commit(hub, address)) is not None:
            return kept
        raise ModelError(f"{address} cannot be had: {hub_problem(error, address)}") from None
    return Path(folder)


def _kept_commit(hub: Any, address: HubAddress) -> Path | None:
    """The snapshot of a commit that is in the cache; not all versions of the package find it."""
    name = f"models--{address.repository.replace('/', '--')}"
    folder = Path(hub.constants.HF_HUB_CACHE) / name / "snapshots" / (address.revision or "")
    return folder if address.revision and folder.is_dir() else None


def in_hub_cache(folder: Path) -> bool:
    """Whether a folder is a snapshot in the cache of huggingface_hub, where nothing is written."""
    return folder.parent.name == "snapshots" and (folder.parent.parent / "blobs").is_dir()


def load_hub() -> Any:
    """The package huggingface_hub, imported only when it is needed."""
    return load_package("huggingface_hub", "hub", "a model on the Hugging Face hub")


def hub_problem(error: Exception, address: HubAddress) -> str:
    """What went wrong, in a sentence; errors of the package are told by their names."""
    names = {kind.__name__ for one in (error, error.__cause__) if one for kind in type(one).__mro__}
    if "RevisionNotFoundError" in names:
        return f"there is no revision {address.revision or 'main'} of {address.repository}"
    if "GatedRepoError" in names:
        return "access must be asked for on its page first; then `hf auth login`"
    if "RepositoryNotFoundError" in names:
        return (
            "there is no such model on the hub, or it is private and there is no token for it: "
            "`hf auth login`"
        )
    if "LocalEntryNotFoundError" in names or "OfflineModeIsEnabled" in names:
        return (
            "it is not in the cache of this machine, and the hub cannot be reached (or "
            "HF_HUB_OFFLINE is set)"
        )
    return " ".join((str(error) or type(error).__name__).split())[:300]


# ----------------------------------------------------------------------------------------------
# Publish a model folder on the Hugging Face hub: its weights, vocabularies, recipe and card.

Content = Path | bytes

# Facts of this machine: paths of files that were evaluated on. The card has the results.
PRIVATE = ("metrics*.json", "parity.json", "MODEL_CARD.md")


def published_files(folder: Path, changed: Mapping[str, str]) -> dict[str, Content]:
    """What is uploaded of a model folder, by name: the files that transduce wrote, `changed` texts
    in place of some, and checksums that fit.

    Raises ModelError where a file is missing.
    """
    files: dict[str, Content] = {}
    for name in read_sums(folder):
        allowed = any(fnmatch(name, pattern) for pattern in ALLOWED)
        if allowed and not any(fnmatch(name, pattern) for pattern in (*LEFT_OUT, *PRIVATE)):
            files[name] = folder / name
    files |= {name: text.encode("utf-8") for name, text in changed.items()}
    lines = []
    for name, content in sorted(files.items()):
        if isinstance(content, bytes):
            digest = sha256(content).hexdigest()
        elif content.is_file():
            digest = digest_of(content)
        else:
            raise ModelError(f"{content} is missing, but {SUMS} lists it; restore it from a copy")
        lines.append(f"{digest}  {name}\n")
    return {**files, SUMS: "".join(lines).encode("utf-8")}


def upload(address: HubAddress, files: Mapping[str, Content], private: bool) -> str:
    """Upload files as one commit, and make the repository and the branch where they are missing.

    Returns the address of the commit. The token comes from huggingface_hub's own places: `hf auth
    login` or HF_TOKEN. Raises ModelError.
    """
    hub = load_hub()
    api = hub.HfApi(library_name="transduce")
    operations = [
        hub.CommitOperationAdd(name, str(one) if isinstance(one, Path) else one)
        for name, one in sorted(files.items())
    ]
    try:
        api.create_repo(address.repository, private=private, exist_ok=True)
        if address.revision:
            api.create_branch(address.repository, branch=address.revision, exist_ok=True)
        commit = api.create_commit(
            address.repository,
            operations,
            commit_message="Model trained with transduce",
            revision=address.revision,
        )
    except Exception as error:  # network and hub raise errors of many kinds
        raise ModelError(f"{address} was not published: {_problem(error, address)}") from None
    return str(commit.commit_url)


def _problem(error: Exception, address: HubAddress) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401 or "LocalTokenNotFoundError" in {k.__name__ for k in type(error).__mro__}:
        return "the hub does not know who you are; run `hf auth login`, or set HF_TOKEN"
    if status == 403:
        return f"you may not write to {address.repository}; check the name and your token's rights"
    return hub_problem(error, address)
