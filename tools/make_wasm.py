"""Build the C library for browsers: python tools/make_wasm.py [--check]

Compiles src/transduce/runtime/c to src/transduce/web/runtime: transduce.wasm for every browser with
SIMD, transduce-relaxed.wasm for those with relaxed SIMD, which is faster; and writes the structures
that JavaScript shares with them to structures.js beside them. The compiler is clang as in the
package ziglang (pip install ziglang==0.13.0), which is the same on every machine. With --check
nothing is written; exit status 1 says that the files are not what the source gives.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from transduce.runtime import structures  # noqa: E402

C = ROOT / "src/transduce/runtime/c"
WEB = ROOT / "src/transduce/web/runtime"
SOURCES, STRUCTURES = WEB / "transduce.sources", WEB / "structures.js"
COMPILER = "0.13.0"  # the version of ziglang
SIMD = "generic+simd128+bulk_memory"
CPUS = {"transduce.wasm": SIMD, "transduce-relaxed.wasm": f"{SIMD}+relaxed_simd"}
FILES = (
    *("products", "parts", "stack", "recurrent", "copying", "best", "slots", "threads", "mel"),
)
FLAGS = (
    *("--target=wasm32-wasi", "-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math"),
    "-ffp-contract=off",
    *("-DVARIANT=web", "-mexec-model=reactor", "-fno-sanitize=undefined"),
)
FUNCTIONS = (
    *("multiply", "has_kernel", "weight_offset", "weight_block", "product_workspace"),
    *("normalise", "attend", "rotate", "activate", "softmax", "log_softmax", "find_log_probs"),
    *("encode", "decoder_step"),
    *("stack_workspace", "read_sequences", "sequences_workspace", "start_decoder"),
    *("start_workspace", "recurrent_step", "recurrent_workspace", "next_rows", "end_step"),
    *("find_best", "find_copied", "copying_layout", "copying_layout_length"),
    *("layout", "layout_length", "recurrent_layout", "recurrent_layout_length"),
    *("slots_layout", "slots_layout_length", "mel_features"),
)
COMMAND = (sys.executable, "-m", "ziglang")
TYPES: dict[Any, str] = {
    ctypes.c_int32: "i32",
    ctypes.c_int64: "i64",
    ctypes.c_float: "f32",
    ctypes.c_void_p: "pointer",
}


def digest() -> str:
    """Of all that decides the file: sources, flags and exports."""
    made = hashlib.sha256(repr((FLAGS, FUNCTIONS, FILES, CPUS, COMPILER)).encode())
    for path in sorted(C.iterdir()):
        made.update(path.name.encode() + path.read_bytes())
    return made.hexdigest()


def compiler_version() -> str:
    """The version of the compiler that is installed; empty where there is none."""
    found = subprocess.run([*COMMAND, "version"], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else ""


def compiled(name: str) -> bytes:
    """One of the files, built anew."""
    exports = [f"--export={one}_web" for one in FUNCTIONS]
    link = ["--no-entry", "--gc-sections", "--strip-all", "--export=malloc", "--export=free"]
    linked = [f"-Wl,{one}" for one in (*link, *exports)]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, name)
        sources = [str(C / f"{one}.c") for one in FILES]
        cpu = f"-mcpu={CPUS[name]}"
        subprocess.run(
            [*COMMAND, "cc", *FLAGS, cpu, *linked, *sources, "-o", str(made)], check=True
        )
        return made.read_bytes()


def structures_js() -> str:
    """The fields of each structure and their types, in the order of the C headers."""
    names: dict[Any, str] = {
        one: one.__name__ for group in structures.LAYOUTS.values() for one in group
    }

    def kind(field: Any) -> str:
        return names.get(field) or TYPES.get(field, "pointer")

    found = {
        name: {field: kind(of) for field, of, *_ in one._fields_} for one, name in names.items()
    }
    return (
        "// Written by tools/make_wasm.py: the structures of the C library.\n\n"
        f"export const STRUCTURES = {json.dumps(found, indent=2)};\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; say whether they fit")
    made = {STRUCTURES: structures_js().encode()}
    if parser.parse_args().check:
        old = [path.name for path, text in made.items() if path.read_bytes() != text]
        if SOURCES.read_text().strip() != digest():
            old += CPUS
        if old:
            print(f"{', '.join(old)}: not what the source gives; run make wasm")
        return 1 if old else 0
    if (found := compiler_version()) != COMPILER:
        sys.exit(f"ziglang is {found or 'not installed'}: pip install ziglang=={COMPILER}")
    made |= {WEB / name: compiled(name) for name in CPUS}
    made[SOURCES] = f"{digest()}\n".encode()
    for path, data in made.items():
        path.write_bytes(data)
        print(f"{path.relative_to(ROOT)}: {len(data):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
