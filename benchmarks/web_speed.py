"""Models as WebAssembly beside model.run: python benchmarks/web_speed.py MODEL ... --chromium

In int8 and float32, greedy and with a beam of 4, one source at a time on one thread: tokens a
second of CPU time in Python and in the browser's engine, round by round one after the other; how
many outputs have the same tokens, the largest difference of the scores of those, the size of the
page, and how long Chromium takes to open it. By default in Node, which has the engine of Chrome;
--flag is for it, such as --flag=--experimental-wasm-relaxed-simd, which Chrome does not need. With
--chromium in Chromium itself, by the CPU time of its renderer process; with --onnxruntime FOLDER,
where `npm install onnxruntime-web` was run, beside onnxruntime-web: greedy search over the files of
`transduce export --to onnx`, in float32. With --outputs nothing is measured: outputs are compared.
Sources are those of the model's test set, or lines of --sources.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from systems import metadata

import transduce
from transduce.data.text.pairs import read_pairs
from transduce.errors import ModelError
from transduce.interop import onnx
from transduce.interop.quantize import export as quantized
from transduce.web.export import RUNTIME, model_bytes, page

#: In Node: a line of standard input is a round, answered with a line.
SCRIPT = """
import { load } from "RUNTIME/index.js";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
const sources = JSON.parse(readFileSync("sources.json", "utf-8"));
const { model: name, beam } = JSON.parse(readFileSync("settings.json", "utf-8"));
const model = await load(name);
for await (const line of createInterface({ input: process.stdin })) {
  const before = process.cpuUsage();
  const outputs = sources.map(({ text }) => model.run(text, { beam }));
  const { user, system } = process.cpuUsage(before);
  const found = outputs.map(({ ids, score }) => ({ ids, score }));
  console.log(JSON.stringify({ seconds: (user + system) / 1e6, outputs: found }));
}
"""
LONGEST = 3600  # seconds of a round, on a busy machine
WARM_UPS = 3  # rounds that do not count: the browser compiles code again meanwhile


#: In Chromium: window.go() is a round, between two readings of CPU time.
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


Outputs = list[dict[str, Any]]
Round = Callable[[], tuple[float, Outputs]]  # seconds of CPU time, and what was written


def browser_class() -> Any:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from webdriver import Browser

    return Browser


@contextmanager
def in_chromium(folder: Path, settings: dict[str, Any]) -> Iterator[Round]:
    (folder / "settings.json").write_text(json.dumps(settings), "utf-8")
    # The browser of tests reaches no address; this server is of this machine.
    own = ("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--no-proxy-server")
    with served(folder) as address, browser_class()(*own) as browser:
        browser.open(f"{address}/speed.html")
        try:
            browser.wait("return window.ready", 60)
        except AssertionError:
            sys.exit(f"{settings} did not load: {browser.errors()}")

        def one() -> tuple[float, Outputs]:
            before = renderer_seconds(browser)
            browser.run("window.go()")
            browser.wait("return window.outputs !== null", LONGEST)
            return renderer_seconds(browser) - before, browser.run("return window.outputs")

        yield one


@contextmanager
def in_node(folder: Path, settings: dict[str, Any], command: list[str]) -> Iterator[Round]:
    (folder / "settings.json").write_text(json.dumps(settings), "utf-8")
    process = subprocess.Popen(
        [*command, "run.mjs"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    asks, answers = process.stdin, process.stdout

    def one() -> tuple[float, Outputs]:
        asks.write("round\n")
        asks.flush()
        if not (line := answers.readline()):
            sys.exit("Node has ended before its work was done; what it said is above")
        found = json.loads(line)
        return found["seconds"], found["outputs"]

    with process:
        yield one
        asks.close()


def opening_seconds(page_file: Path, times: int) -> list[float]:
    """From the beginning of loading a page to the model being ready, by the clock."""
    watch = """
new MutationObserver((_, self) => {
  if (!document.documentElement?.dataset.loaded) return;
  window.opened = performance.now();
  self.disconnect();
}).observe(document, { attributes: true, childList: true, subtree: true });
"""
    found = []
    with browser_class()() as browser:
        browser.emulate("Page.addScriptToEvaluateOnNewDocument", source=watch)
        for _ in range(times):
            browser.open(page_file)
            found.append(round(browser.wait("return window.opened", 60) / 1000, 3))
    return found


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


def in_python(folder: Path, sources: list[str], beam: int, at_once: int = 1) -> Round:
    model = transduce.load(folder).freeze()
    batches = [sources[at : at + at_once] for at in range(0, len(sources), at_once)]

    def one() -> tuple[float, Outputs]:
        began = time.process_time()
        outputs = [output for batch in batches for output in model.run(batch, beam=beam)]
        seconds = time.process_time() - began
        return seconds, [{"ids": list(output.ids), "score": output.score} for output in outputs]

    return one


def measured(engines: dict[str, Round], rounds: int) -> list[dict[str, Any]]:
    """The rounds of each engine in turn, and how its outputs compare with those of the first."""
    for name, one in engines.items():
        for _ in range(WARM_UPS if rounds and name != "Python" else min(rounds, 1)):
            one()
    spent: dict[str, list[float]] = {name: [] for name in engines}
    outputs: dict[str, Outputs] = {}
    for _ in range(max(1, rounds)):
        for name, one in engines.items():
            seconds, outputs[name] = one()
            spent[name].append(round(seconds, 3))
    expected = next(iter(outputs.values()))
    found = []
    for name, written in outputs.items():
        pairs = list(zip(expected, written, strict=True))
        same = [abs(a["score"] - b["score"]) for a, b in pairs if a["ids"] == b["ids"]]
        found.append(
            {
                "engine": name,
                "tokens": sum(len(one["ids"]) + 1 for one in written),
                "same": len(same),
                "largest_difference": max(same, default=None),
            }
            | ({"cpu_seconds": spent[name]} if rounds else {})
        )
    return found


def given_to(model: Any, sources: list[str]) -> list[dict[str, Any]]:
    """Sources as texts, and as the ids and the maximum length for an engine without tokenizers."""
    decode = model.recipe.decode
    encoded = [[*ids, 3] for ids in model._encode(sources)[0]]
    limits = [int(len(ids) * decode.max_ratio) + decode.max_extra for ids in encoded]
    return [
        {"text": text, "ids": ids, "limit": limit}
        for text, ids, limit in zip(sources, encoded, limits, strict=True)
    ]


def of_model(place: Path, asked: argparse.Namespace, node: list[str]) -> dict[str, Any]:
    model = transduce.load(place)
    test = model.recipe.data.test
    if asked.sources is None and test is None:
        sys.exit(f"{place} has no test set (data.test): give --sources FILE")
    texts = (
        (pair.source for pair in read_pairs(test, model.recipe.data.folder))
        if asked.sources is None
        else asked.sources.read_text("utf-8").splitlines()
    )
    sources = list(islice((text for text in texts if text.strip()), asked.count))
    rounds = 0 if asked.outputs else asked.rounds
    found: dict[str, Any] = {
        "model": model.recipe.name,
        "parameters": sum(one.numel() for one in model.network.parameters()),
        "sources": len(sources),
        "pages": [],
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sources.json").write_text(json.dumps(given_to(model, sources)), "utf-8")
        (folder / "speed.html").write_text(PAGE, "utf-8")
        (folder / "run.mjs").write_text(SCRIPT.replace("RUNTIME", RUNTIME.as_uri()), "utf-8")
        shutil.copytree(RUNTIME, folder / "runtime")
        if asked.onnxruntime:
            package = asked.onnxruntime / "node_modules/onnxruntime-web"
            shutil.copytree(package / "dist", folder / "onnxruntime")
            (folder / "onnx").mkdir()
            try:
                onnx.export(model, folder / "onnx")
            except ModelError as error:
                found["no_onnx"] = str(error)
        (folder / "int8").mkdir()
        quantized(model, folder / "int8", "int8")
        for kind, own in (("int8", folder / "int8"), ("float32", place)):
            made = model_bytes(model, int8=kind == "int8")
            (folder / "model.bin").write_bytes(made)
            (folder / "page.html").write_text(page(model, place.name, made), "utf-8")
            opened = (
                opening_seconds(folder / "page.html", rounds) if asked.chromium and rounds else []
            )
            size = (folder / "page.html").stat().st_size
            found["pages"].append({"weights": kind, "bytes": size, "opened_seconds": opened})
            print(found["pages"][-1], flush=True)
            for beam in (1, 4):
                settings = {"model": "model.bin", "beam": beam}
                at_once = 1 if rounds else len(sources)
                engines = {"Python": in_python(own, sources, beam, at_once)}
                with ExitStack() as stack:
                    if asked.chromium:
                        engines["Chromium"] = stack.enter_context(in_chromium(folder, settings))
                    else:
                        engines["Node"] = stack.enter_context(in_node(folder, settings, node))
                    rows = measured(engines, rounds)
                    exported = asked.onnxruntime and "no_onnx" not in found
                    if exported and (kind, beam) == ("float32", 1):
                        penalty = model.recipe.decode.length_penalty
                        asks = {"engine": "onnxruntime", "model": "onnx", "penalty": penalty}
                        other = stack.enter_context(in_chromium(folder, asks))
                        both = {"Python": engines["Python"], "onnxruntime-web": other}
                        rows.append(measured(both, rounds)[-1])
                for row in rows:
                    found["rows"].append({"weights": kind, "beam": beam, **row})
                    print(found["rows"][-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--sources", type=Path, help="one a line; default: the model's test set")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--outputs", action="store_true", help="compare outputs, measure nothing")
    parser.add_argument("--flag", action="append", default=[], help="for Node")
    parser.add_argument("--chromium", action="store_true", help="in Chromium rather than in Node")
    parser.add_argument("--onnxruntime", type=Path, help="folder of npm install onnxruntime-web")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    node = shutil.which("node")
    if node is None and not asked.chromium:
        sys.exit("node is not installed: install Node 20 or later, or give --chromium")
    if asked.onnxruntime and not asked.chromium:
        sys.exit("onnxruntime-web is measured in Chromium: give --chromium as well")
    torch.set_num_threads(1)
    facts = {**metadata(torch.device("cpu")), **versions(asked, node)}
    found = []
    for place in asked.models:
        found.append(of_model(place, asked, [node or "", *asked.flag]))
        if asked.json:
            result = {"facts": facts, "models": found}
            asked.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def versions(asked: argparse.Namespace, node: str | None) -> dict[str, str]:
    """Of the browser or Node, and of onnxruntime-web where it is measured."""
    engine = "chromium" if asked.chromium else node or ""
    said = subprocess.run([engine, "--version"], capture_output=True, text=True, check=True).stdout
    found = {"browser": said.strip() if asked.chromium else f"Node {said.strip()}"}
    if asked.onnxruntime:
        package = asked.onnxruntime / "node_modules/onnxruntime-web/package.json"
        if not package.is_file():
            place = asked.onnxruntime
            sys.exit(f"{place} has no onnxruntime-web: run npm install onnxruntime-web there")
        found["onnxruntime-web"] = json.loads(package.read_text("utf-8"))["version"]
    return found


if __name__ == "__main__":
    main()
