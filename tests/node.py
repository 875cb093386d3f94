"""Node, where it is installed: JavaScript that tests run outside a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NODE = shutil.which("node")
MISSING = "node is not installed: the JavaScript modules are not tried outside a browser"
RUNTIME = Path(__file__).parents[1] / "src/transduce/web/runtime"


def relaxed_flags() -> list[str] | None:
    """The flags with which Node has relaxed SIMD, as browsers have; None: it has none."""
    file = json.dumps(str(RUNTIME / "transduce-relaxed.wasm"))
    script = f"process.exit(+!WebAssembly.validate(require('fs').readFileSync({file})))"
    for flags in ([], ["--experimental-wasm-relaxed-simd"]):
        if subprocess.run([str(NODE), *flags, "-e", script], capture_output=True).returncode == 0:
            return flags
    return None


def run_module(folder: Path, script: str, given: Any, flags: Sequence[str] = ()) -> Any:
    """What `script`, a module that ends in `answer(...)`, answers; it finds `given` in `given`."""
    assert NODE is not None
    (folder / "given.json").write_text(json.dumps(given), "utf-8")
    text = (
        'import { readFileSync } from "node:fs";\n'
        'const given = JSON.parse(readFileSync("given.json", "utf-8"));\n'
        "const answer = (found) => process.stdout.write(JSON.stringify(found));\n"
        f"{script.replace('RUNTIME', RUNTIME.as_uri())}"
    )
    (folder / "script.mjs").write_text(text, "utf-8")
    # Without threads of its own: at its end Node may wait for them for ever (nodejs/node#54918).
    ended = subprocess.run(
        [NODE, "--single-threaded", *flags, "script.mjs"],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)
