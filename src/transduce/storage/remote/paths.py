"""A file of an object store or a web server, with the part of pathlib.Path that readers need."""

from __future__ import annotations

import errno
import io
import logging
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, BinaryIO, Literal, TypeVar, cast

from transduce.errors import DataError, TransduceError, load_package
from transduce.storage.remote.blocks import BlockCache
from transduce.storage.versions import Version

PACKAGES = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "https": "aiohttp",
    "http": "aiohttp",
    "memory": "fsspec",
}
"""The schemes, and the package that each needs besides fsspec."""
WEB = ("https", "http")
WAITS = (1.0, 4.0, 16.0)  # seconds before a store is asked again
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`",
}
LIBRARIES = ("aiohttp", "aiobotocore", "botocore", "fsspec", "gcsfs", "google", "requests", "s3fs")
"""Packages whose errors come from a store, and are no OSError."""
SETTINGS = ("Credential", "Validation", "Profile", "Config")
"""In the names of errors that come from what a user has set."""
VERSIONS = ("ETag", "etag", "generation", "LastModified", "Last-Modified", "mtime", "created")
"""What the stores call the version of an object, the surest first."""
BUFFER = 1 << 23  # bytes asked for at a time by who reads from the front to the back

Answer = TypeVar("Answer")


def is_remote(name: str) -> bool:
    """Whether a name is an address with a scheme; that of a file on this machine is not."""
    found = SCHEME.match(name)
    return found is not None and found[1].lower() != "file"


@dataclass(frozen=True, order=True)
class RemotePath:
    """A file of a store, or a folder: a common beginning of names.

    Raises DataError, in one sentence that names the address, wherever the store cannot be asked or
    does not have it.
    """

    url: str

    def __post_init__(self) -> None:
        scheme = self.scheme
        if scheme not in PACKAGES:
            known = ", ".join(f"{one}://" for one in PACKAGES if one != "memory")
            raise DataError(
                f"{self.url}: files cannot be read from {scheme}://; there are {known}, and paths "
                f"of this machine"
            )

    def __str__(self) -> str:
        return self.url

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0].lower()

    @property
    def _inside(self) -> PurePosixPath:
        """What comes behind the scheme, without the query of a web address."""
        rest = self.url.partition("://")[2]
        return PurePosixPath(re.split(r"[?#]", rest)[0] if self.scheme in WEB else rest)

    @property
    def name(self) -> str:
        return self._inside.name

    @property
    def stem(self) -> str:
        return self._inside.stem

    @property
    def suffix(self) -> str:
        return self._inside.suffix

    @property
    def is_pattern(self) -> bool:
        """Whether it has *, ? or [ of a pattern; the ? before the query of the web is none."""
        return has_magic(str(self._inside))

    @property
    def parent(self) -> RemotePath:
        return RemotePath(f"{self.scheme}://{self._inside.parent}")

    def with_name(self, name: str) -> RemotePath:
        return self.parent / name

    def __truediv__(self, name: str | PurePath) -> RemotePath:
        return RemotePath(f"{self.url.rstrip('/')}/{PurePosixPath(name)}")

    def absolute(self) -> RemotePath:
        return self

    # ----------------------------------------------------------------------------- asking

    def info(self) -> dict[str, Any] | None:
        """What the store knows of a file or folder; None where there is none."""
        try:
            found = self._ask(lambda store, path: store.info(path))
        except FileNotFoundError:
            self._check_bucket()
            return None
        return dict(found)

    def is_file(self) -> bool:
        found = self.info()
        return found is not None and found.get("type") == "file"

    def exists(self) -> bool:
        return self.info() is not None

    def is_dir(self) -> bool:
        # A web address that ends in / is a file as any other.
        found = None if self.scheme in WEB else self.info()
        return found is not None and found.get("type") == "directory"

    def version(self) -> Version:
        """Raises DataError where there is no such file."""
        found = self.info()
        if found is None or found.get("type") != "file":
            raise DataError(f"there is no file {self.url}; correct the name")
        if found.get("size") is None:
            raise DataError(
                f"{self.url}: the server does not say how long the file is, so it cannot be read "
                f"by position; download it, and give the file"
            )
        changed = next((str(found[key]) for key in VERSIONS if found.get(key)), "")
        return Version(int(found["size"]), changed)

    def names(self) -> list[str]:
        """The names of the files in a folder; none where it does not exist."""
        try:
            found = self._ask(lambda store, path: store.ls(path, detail=True))
        except FileNotFoundError:
            self._check_bucket()
            return []
        files = [one["name"] for one in found if one["type"] == "file"]
        return sorted(PurePosixPath(name).name for name in files)

    def glob(self) -> list[str]:
        """The addresses of the files that match, where the path is a pattern, sorted."""
        if self.scheme in WEB:
            raise DataError(
                f"{self.url}: a web server does not list its files, so a pattern cannot be used; "
                f"name each file in a list"
            )
        try:
            found = self._ask(lambda store, path: store.glob(path, detail=True))
        except FileNotFoundError:
            self._check_bucket()
            return []
        files = [name for name, facts in found.items() if facts["type"] == "file"]
        if not files:
            self._check_bucket()
        return sorted(f"{self.scheme}://{name.lstrip('/')}" for name in files)

    def _check_bucket(self) -> None:
        """Raise DataError where not only the file is missing, but the bucket that it is in."""
        if self.scheme not in CREDENTIALS:
            return
        bucket = self._inside.parts[0] if self._inside.parts else ""

        def ask(store: Any, path: str) -> bool:
            return bool(store.exists(bucket))

        if not bucket or not self._ask(ask):
            raise DataError(
                f"{self.url}: there is no bucket {bucket}; correct its name, or the endpoint "
                f"(AWS_ENDPOINT_URL)"
                if self.scheme == "s3"
                else f"{self.url}: there is no bucket {bucket}; correct its name"
            )

    def _ask(self, ask: Callable[[Any, str], Answer]) -> Answer:
        """The answer of the store, which is asked again where it fails for a moment.

        Raises FileNotFoundError where the store says so, DataError for all else.
        """
        load_package(PACKAGES[self.scheme], "remote", self.url, DataError)
        core = load_package("fsspec.core", "remote", self.url, DataError)
        # gcsfs waits and asks again by itself, but for too few bytes, and tells its log of it at
        # length.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
        for wait in (*WAITS, None):
            try:
                # Anew each time: a forked process must not use a connection of its parent, and
                # fsspec keeps those of this process. Lists that it keeps would be out of date.
                return ask(*core.url_to_fs(self.url, use_listings_cache=False))
            except Exception as error:
                cause = self._cause(error)
                if isinstance(cause, FileNotFoundError | TransduceError) or not _is_of_store(cause):
                    raise
                repeated = self.scheme == "gs" and not isinstance(cause, _TooShortError)
                if wait is None or _is_lasting(cause) or repeated:
                    raise DataError(self._sentence(cause)) from None
                time.sleep(wait * random.uniform(0.75, 1.25))
        raise AssertionError

    def _cause(self, error: Exception) -> Exception:
        """What has failed: of the web, fsspec says of all that there is no such file."""
        cause = error.__cause__
        if self.scheme not in WEB or not isinstance(error, FileNotFoundError):
            return error
        missing = getattr(cause, "status", None) in (404, 410)
        return error if missing or not isinstance(cause, Exception) else cause

    def _sentence(self, error: Exception) -> str:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        if "Credential" in type(error).__name__:
            how = CREDENTIALS.get(self.scheme, "give them as its library asks for them")
            return f"{self.url}: there are no credentials for it on this machine: {how}"
        if _is_refused(error):
            return (
                f"{self.url}: your credentials do not allow this ({reason}); ask its owner, or use "
                f"others"
            )
        if _is_lasting(error):
            also = (
                ", or the settings of S3, such as AWS_ENDPOINT_URL" if self.scheme == "s3" else ""
            )
            return f"{self.url} cannot be used ({reason}); correct the address{also}"
        return (
            f"{self.url}: the server fails again and again ({reason}); check the connection, or "
            f"try later: what is done stays"
        )

    # ---------------------------------------------------------------------------- reading

    def open(
        self, mode: Literal["rb"] = "rb", version: Version | None = None, buffering: int = BUFFER
    ) -> BinaryIO:
        """The file as it is now, or a version of it, to be read from the front or from anywhere.

        buffering: bytes asked for at a time.
        """
        file = _RemoteFile(self, version or self.version())
        return cast(BinaryIO, io.BufferedReader(file, buffering))

    def read(self, start: int, end: int, version: Version, keep: bool = True) -> bytes:
        """Bytes of a version of the file; raises DataError where it has changed.

        keep: in the cache, from where they are taken if they are there.
        """
        start, end = min(start, version.size), min(end, version.size)
        if start >= end:
            return b""

        def fetch(begin: int, stop: int) -> bytes:
            return self._fetch(begin, stop, version)

        if not keep:
            return fetch(start, end)
        return BlockCache.usual().read(self.url, version, start, end, fetch)

    def _fetch(self, start: int, end: int, version: Version) -> bytes:
        def ask(store: Any, path: str) -> bytes:
            try:
                found = bytes(store.cat_file(path, start=start, end=end))
            except Exception as error:
                if _is_lasting(error):  # of a file that is shorter now, there is no such part
                    self.check_version(version)
                raise
            if len(found) > end - start:
                raise DataError(
                    f"{self.url}: the server does not answer requests for a part of a file; "
                    f"download it, and give the file"
                )
            if len(found) < end - start:
                # It may be that it was replaced by a shorter one.
                self.check_version(version)
                raise _TooShortError(
                    f"it is truncated: of the {end - start:,} bytes from {start:,} on, only "
                    f"{len(found):,} came"
                )
            return found

        try:
            found = self._ask(ask)
        except FileNotFoundError:
            raise DataError(f"there is no file {self.url} any more; put it back") from None
        # Afterwards: then what came is of this version.
        self.check_version(version)
        return found

    def check_version(self, version: Version) -> None:
        """Raise DataError where the file has changed since this version was seen."""
        now = self.version()
        if now != version:
            sizes = f": it had {version.size:,} bytes, and has {now.size:,}"
            raise DataError(
                f"{self.url} has changed since it was first read"
                f"{sizes if now.size != version.size else ''}; put the file back as it was, or "
                f"start again, which reads it anew (of a run: with --resume)"
            )

    # ---------------------------------------------------------------------------- writing

    def check_writable(self) -> None:
        """Raise DataError for a place that nothing can be written to."""
        if self.scheme in WEB:
            raise DataError(
                f"{self.url}: a web server takes no files; give a folder of this machine, s3:// or "
                f"gs://"
            )

    def upload(self, file: Path) -> None:
        """Write a file in one step: nobody sees half of it."""
        self._ask(lambda store, path: store.put_file(str(file), path))

    def read_text(self, encoding: str = "utf-8") -> str:
        """The whole of a small file as it is now, past the cache. Raises FileNotFoundError."""
        found: bytes = self._ask(lambda store, path: store.cat_file(path))
        return found.decode(encoding)

    def unlink(self) -> None:
        """Remove a file. Raises FileNotFoundError."""
        self._ask(lambda store, path: store.rm_file(path))


class _TooShortError(OSError):
    """An answer with fewer bytes than were asked for."""


class _RemoteFile(io.RawIOBase):
    def __init__(self, path: RemotePath, version: Version) -> None:
        self.path, self.version, self._place = path, version, 0
        # Reading a file that is larger than the cache would only empty it.
        self.keep = version.size <= BlockCache.usual().limit

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.version.size}[whence]
        self._place = start + place
        return self._place

    def readall(self) -> bytes:
        found = self.path.read(self._place, self.version.size, self.version, self.keep)
        self._place += len(found)
        return found

    def readinto(self, buffer: Any) -> int:
        end = self._place + len(buffer)
        found = self.path.read(self._place, end, self.version, self.keep)
        buffer[: len(found)] = found
        self._place += len(found)
        return len(found)


def _is_of_store(error: Exception) -> bool:
    """Whether an error is one of a store, and none of this program."""
    # Of settings that are wrong, some are a ValueError.
    trace = error.__traceback__ if isinstance(error, ValueError) else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    modules = {type(error).__module__.split(".")[0], raised_in.split(".")[0]}
    return isinstance(error, OSError) or not modules.isdisjoint(LIBRARIES)


def _is_refused(error: Exception) -> bool:
    """Whether the store does not allow what was asked for; gcsfs says so in words alone."""
    status, said = getattr(error, "status", None), str(error).startswith("Forbidden")
    return isinstance(error, PermissionError) or said or status in (401, 403)


def _is_lasting(error: Exception) -> bool:
    """Whether the same request would fail again."""
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500:
        return status not in (408, 425, 429)
    if _is_refused(error) or isinstance(error, IsADirectoryError | NotADirectoryError):
        return True
    invalid = getattr(error, "errno", None) == errno.EINVAL or isinstance(error, ValueError)
    return invalid or any(word in type(error).__name__ for word in SETTINGS)
