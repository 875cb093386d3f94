"""A model as WebAssembly beside model.run: python benchmarks/web_speed.py MODEL --sources FILE

In int8 and float32, greedy and with a beam of 4, one source at a time on one thread: tokens a
second of CPU time in Python and in the browser's engine, how many outputs have the same tokens, the
largest difference of the scores of those, and the size of the page. By default in Node, which has
the engine of Chrome; --flag is for it, such as --flag=--experimental-wasm-relaxed-simd, which
Chrome does not need. With --chromium in Chromium itself, by the CPU time of its renderer process;
with --onnxruntime FOLDER (where npm install onnxruntime-web was run) beside onnxruntime-web: greedy
search over the files of `transduce export --to onnx`, in float32.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from systems import metadata

import transduce
from transduce.interop import onnx
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


#: In Chromium: run everything once to warm up, and once between two readings of CPU time.
PAGE = """<!DOCTYPE html><title>speed</title><script type="module">
import { load } from "./runtime/index.js";
const sources = await (await fetch("sources.json")).json();
const settings = await (await fetch("settings.json")).json();
let run;
if (settings.engine === "onnxruntime") {
  const ort = await import("./onnxruntime/ort.min.mjs");
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = new URL("./onnxruntime/", location.href).href;
  const own = { executionProviders: ["wasm"] };
  const open = (name) => ort.InferenceSession.create(`${settings.model}/${name}.onnx`, own);
  const [encoder, decoder] = [await open("encoder"), await open("decoder")];
  const longs = (values, shape) =>
    new ort.Tensor("int64", BigInt64Array.from(values, BigInt), shape);
  run = async ({ ids, limit }) => {
    const mask = new ort.Tensor("bool", new Uint8Array(ids.length).fill(1), [1, ids.length]);
    const { memory } = await encoder.run({ source: longs(ids, [1, ids.length]), mask });
    const [layers, , , width] = memory.dims;
    let past = new ort.Tensor("float32", new Float32Array(0), [layers, 1, 0, width]);
    const written = [];
    let [token, total] = [2, 0];
    while (written.length + 1 <= limit) {
      const position = longs([written.length], [1]);
      const tokens = longs([token], [1]);
      const found = await decoder.run({ tokens, position, past, memory, mask });
      past = found.new_past;
      const logProbs = found.log_probabilities.data;
      logProbs[0] = logProbs[2] = -Infinity;
      token = logProbs.reduce((best, value, id) => (value > logProbs[best] ? id : best), 0);
      if (written.length + 1 === limit) token = 3;
      total += logProbs[token];
      if (token === 3) break;
      written.push(token);
    }
    return { ids: written, score: total / (5 / 6 + (written.length + 1) / 6) ** settings.penalty };
  };
} else {
  const model = await load(settings.model);
  run = async ({ text }) => model.run(text, { beam: settings.beam });
}
window.go = async () => {
  window.outputs = null;
  const found = [];
  for (const source of sources) {
    found.push(await run(source));
    await new Promise((done) => setTimeout(done)); // or nobody could ask the page meanwhile
  }
  window.outputs = found.map(({ ids, score }) => ({ ids, score }));
};
window.ready = true;
</script>"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def in_chromium(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Seconds of CPU time, and outputs, of what the settings ask for."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from webdriver import Browser

    (folder / "settings.json").write_text(json.dumps(settings), "utf-8")
    # The browser of tests reaches no address; this server is of this machine.
    own = ("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--no-proxy-server")
    with served(folder) as address, Browser(*own) as browser:
        browser.open(f"{address}/speed.html")
        try:
            browser.wait("return window.ready", 60)
        except AssertionError:
            sys.exit(f"{settings} did not load: {browser.errors()}")
        spent = 0.0
        for _ in range(4):  # the first three to warm up: code is compiled again meanwhile
            before = renderer_seconds(browser)
            browser.run("window.outputs = null; window.go()")
            browser.wait("return window.outputs !== null", 500)
            spent = renderer_seconds(browser) - before
        return {"seconds": spent, "outputs": browser.run("return window.outputs")}


def renderer_seconds(browser: Any) -> float:
    """CPU time of the processes that run pages, of all their threads; on Linux."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode("utf-8", "replace")
            if "--type=renderer" in command and browser.profile.name in command:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found += int(fields[11]) + int(fields[12])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found / os.sysconf("SC_CLK_TCK")


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
    parser.add_argument("--chromium", action="store_true", help="in Chromium rather than in Node")
    parser.add_argument("--onnxruntime", type=Path, help="folder of npm install onnxruntime-web")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    node = shutil.which("node")
    if node is None and not asked.chromium:
        sys.exit("node is not installed: install Node 20 or later, or give --chromium")
    where = "Chromium" if asked.chromium else "Node"
    torch.set_num_threads(1)
    sources = asked.sources.read_text("utf-8").splitlines()[: asked.count]
    model, found = transduce.load(asked.model), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoded = [[*ids, 3] for ids in model._encode(sources)[0]]
        most = [int(len(ids) * model.recipe.decode.max_ratio) for ids in encoded]
        limits = [one + model.recipe.decode.max_extra for one in most]
        given = [
            {"text": text, "ids": ids, "limit": limit}
            for text, ids, limit in zip(sources, encoded, limits, strict=True)
        ]
        (folder / "sources.json").write_text(
            json.dumps(given if asked.chromium else sources), "utf-8"
        )
        (folder / "speed.html").write_text(PAGE, "utf-8")
        shutil.copytree(RUNTIME, folder / "runtime")
        if asked.onnxruntime:
            package = asked.onnxruntime / "node_modules/onnxruntime-web/dist"
            shutil.copytree(package, folder / "onnxruntime")
            (folder / "onnx").mkdir()
            onnx.export(model, folder / "onnx")
        (folder / "run.mjs").write_text(SCRIPT.replace("RUNTIME", RUNTIME.as_uri()), "utf-8")
        (folder / "int8").mkdir()
        quantized(model, folder / "int8", "int8")
        for kind, own in (("int8", folder / "int8"), ("float32", asked.model)):
            made = model_bytes(model, int8=kind == "int8")
            (folder / "model.bin").write_bytes(made)
            size = len(page(model, asked.model.name, made).encode("utf-8"))
            for beam in (1, 4):
                seconds, outputs = in_python(own, sources, beam)
                if asked.chromium:
                    there = in_chromium(folder, {"model": "model.bin", "beam": beam})
                else:
                    command = [node, *asked.flag, "run.mjs", "model.bin", str(beam)]
                    ended = subprocess.run(command, cwd=folder, capture_output=True, check=True)
                    there = json.loads(ended.stdout)
                other = None
                if asked.onnxruntime and (kind, beam) == ("float32", 1):
                    penalty = model.recipe.decode.length_penalty
                    asks = {"engine": "onnxruntime", "model": "onnx", "penalty": penalty}
                    theirs = in_chromium(folder, asks)
                    other = round(
                        sum(len(one["ids"]) + 1 for one in theirs["outputs"]) / theirs["seconds"]
                    )
                pairs = list(zip(outputs, there["outputs"], strict=True))
                same = [(a, b) for a, b in pairs if list(a.ids) == b["ids"]]
                tokens = sum(len(output.tokens) for output in outputs)
                found.append(
                    {
                        "weights": kind,
                        "beam": beam,
                        "page bytes": size,
                        "tokens/s in Python": round(tokens / seconds),
                        f"tokens/s in {where}": round(tokens / there["seconds"]),
                        "tokens/s of onnxruntime-web": other,
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
