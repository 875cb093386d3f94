"""Folders that only this user can write to: code is loaded from no others."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def make_private(folder: Path) -> Path:
    """Make a folder for this user alone, and return its real path. Raises PermissionError.

    Whoever can write to a folder can replace its content, so every folder above is checked too. On
    systems without file owners (Windows), the user's profile is trusted.
    """
    for place in (*reversed(folder.parents), folder):
        if not place.exists():
            place.mkdir(mode=0o700, exist_ok=True)
    real = folder.resolve()
    if not hasattr(os, "getuid"):
        return real
    if real.stat().st_uid == os.getuid():
        real.chmod(0o700)
    for place in (real, *real.parents):
        _require_private(place, real)
    return real


def is_private_file(path: Path) -> bool:
    """Whether a regular file is owned by this user, and nobody else can write to it."""
    facts = path.lstat()
    if not stat.S_ISREG(facts.st_mode):
        return False
    if not hasattr(os, "getuid"):
        return True
    return facts.st_uid == os.getuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _require_private(place: Path, folder: Path) -> None:
    facts = place.stat()
    # The owner of / could replace anything: root, and in some containers another user id.
    above = () if place == folder else (0, Path(place.anchor).stat().st_uid)
    if facts.st_uid not in (os.getuid(), *above):
        raise PermissionError(
            f"the folder {place} belongs to another user, who could put code there; set "
            f"XDG_CACHE_HOME to a folder of your own"
        )
    shared = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    # With the sticky bit set, as in /tmp, nobody can replace another user's files.
    if not shared or facts.st_mode & stat.S_ISVTX:
        return
    if not shared & stat.S_IWOTH and _is_own_group(facts.st_gid):
        return
    raise PermissionError(
        f"others may write to the folder {place} and could put code there; change that with "
        f"`chmod go-w {place}`, or set XDG_CACHE_HOME to a folder of your own"
    )


def _is_own_group(group: int) -> bool:
    """Whether this user is the only member of a group, as many systems make one for each user."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    own = user.pw_gid == group and found.gr_name == user.pw_name
    return own and set(found.gr_mem) <= {user.pw_name}
