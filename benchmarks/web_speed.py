"""A model as WebAssembly beside model.run: python benchmarks/web_speed.py MODEL --sources FILE

In int8 and float32, greedy and with a beam of 4, one source at a time on one thread: tokens a
second of CPU time in Python and in Node, how many outputs have the same tokens, the largest
difference of the scores of those, and the size of the page. Node has the engine of Chrome; --flag
is for it, such as --flag=--experimental-wasm-relaxed-simd, which Chrome does not need.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from systems import metadata

import transduce
from transduce.interop.quantize import export as quantized
from transduce.web.export import RUNTIME, model_bytes, page

SCRIPT = """
import { load } from "RUNTIME/index.js";
import { readFileSync } from "node:fs";
const sources = JSON.parse(readFileSync("sources.json", "utf-8"));
const model = await load(process.argv[2]);
const options = { beam: Number(process.argv[3]) };
for (const source of sources) model.run(source, options);
const before = process.cpuUsage();
const outputs = sources.map((source) => model.run(source, options));
const { user, system } = process.cpuUsage(before);
const found = outputs.map(({ ids, score }) => ({ ids, score }));
process.stdout.write(JSON.stringify({ seconds: (user + system) / 1e6, outputs: found }));
"""


def in_python(folder: Path, sources: list[str], beam: int) -> tuple[float, list[Any]]:
    model = transduce.load(folder).freeze()
    for source in sources:
        model.run([source], beam=beam)
    began = time.process_time()
    outputs = [model.run([source], beam=beam)[0] for source in sources]
    return time.process_time() - began, outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--sources", type=Path, required=True, help="one source a line")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--flag", action="append", default=[], help="for Node")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    node = shutil.which("node")
    if node is None:
        sys.exit("node is not installed: install Node 20 or later")
    torch.set_num_threads(1)
    sources = asked.sources.read_text("utf-8").splitlines()[: asked.count]
    model, found = transduce.load(asked.model), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sources.json").write_text(json.dumps(sources), "utf-8")
        (folder / "run.mjs").write_text(SCRIPT.replace("RUNTIME", RUNTIME.as_uri()), "utf-8")
        (folder / "int8").mkdir()
        quantized(model, folder / "int8", "int8")
        for kind, own in (("int8", folder / "int8"), ("float32", asked.model)):
            made = model_bytes(model, int8=kind == "int8")
            (folder / "model.bin").write_bytes(made)
            size = len(page(model, asked.model.name, made).encode("utf-8"))
            for beam in (1, 4):
                seconds, outputs = in_python(own, sources, beam)
                command = [node, *asked.flag, "run.mjs", "model.bin", str(beam)]
                ended = subprocess.run(command, cwd=folder, capture_output=True, check=True)
                there = json.loads(ended.stdout)
                pairs = list(zip(outputs, there["outputs"], strict=True))
                same = [(a, b) for a, b in pairs if list(a.ids) == b["ids"]]
                tokens = sum(len(output.tokens) for output in outputs)
                found.append(
                    {
                        "weights": kind,
                        "beam": beam,
                        "page bytes": size,
                        "tokens/s in Python": round(tokens / seconds),
                        "tokens/s in Node": round(tokens / there["seconds"]),
                        "same outputs": f"{len(same)} of {len(sources)}",
                        "largest difference of scores": max(
                            (abs(a.score - b["score"]) for a, b in same), default=None
                        ),
                    }
                )
                print(found[-1], flush=True)
    if asked.json:
        result = {**metadata(torch.device("cpu")), "sources": len(sources), "found": found}
        asked.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
