"""Publish a model folder on the Hugging Face hub: its weights, vocabularies, recipe and card."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path

from transduce.checksums import SUMS, digest_of, read_sums
from transduce.errors import ModelError
from transduce.hub.locate import ALLOWED, LEFT_OUT, HubAddress, hub_problem, load_hub

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
