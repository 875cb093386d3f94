"""Load on `transduce serve`: python benchmarks/serve_load.py MODEL --sources FILE [--json OUT]

Throughput with many clients against model.run on the same sources: all of them in one call, which
can sort them by length, in this process and on a CPU with a process for each core (as the command
line does), and as many at a time as there are clients, which is all that a server can know; latency
of a single client against model.run; CPU time of the event loop for each request (all that is not
the engine) and of the clients, which are one process; twice the capacity; memory over many
requests; SIGTERM under load. With --cores model.run and the server have these cores and the
clients the others; without it they share the machine.

First of all, the throughput with each number of HTTP processes (--http-processes 1,4) and of
clients (--clients 64,512), which are in processes of their own for this; with --rates nothing but
that and model.run. With --make the model and the sources are made first, where they are missing: of
the size of multi30k-en-de, with weights that need no training, and outputs as long as their
sources.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
from clients import Load, closed_loop, open_loop
from decode_model import make_model
from systems import SIZES, metadata

import transduce
from transduce import recipe
from transduce.data.tokens.tokenizer import SPECIALS

MADE = 4000  # sources that are made


class Serving:
    """The command, as a user starts it."""

    def __init__(self, model: Path, *options: str) -> None:
        command = [sys.executable, "-m", "transduce", "serve", f"model={model}", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--no-log", *options], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])

    def close(self) -> None:
        """End it, where something has failed before it was told to end."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def loop_seconds(self, pid: int = 0) -> float:
        """CPU time of the main thread: the event loop, which is all but the engine.

        The kernel counts it in nanoseconds while the thread runs on a core: its Python code and its
        system calls, of which sending on loopback includes most of receiving. Waiting for the
        interpreter lock, the engine or the clients is not in it; that others use the caches and the
        core's clock is.
        """
        pid = pid or self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

    def http_seconds(self) -> float:
        """CPU time of the HTTP processes, where there are some."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sum(self.loop_seconds(int(child)) for child in children)

    def memory(self) -> float:
        """Resident memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmRSS")) / 1024


def median_ms(seconds: list[float]) -> float:
    return round(1000 * statistics.median(seconds), 2) if seconds else 0.0


def percentile_ms(seconds: list[float], share: float) -> float:
    return round(1000 * sorted(seconds)[int(share * (len(seconds) - 1))], 2) if seconds else 0.0


def offline_in_processes(options: argparse.Namespace, cores: int) -> float:
    """Sentences a second of model.run with a process of one thread for each core."""
    here = [sys.executable, __file__, str(options.model), "--sources", str(options.sources)]
    more = ["--count", str(options.count), "--beam", str(options.beam), "--processes", str(cores)]
    one = {**os.environ, "OMP_NUM_THREADS": "1"}  # no thread may be there when it forks
    return float(subprocess.run([*here, *more], env=one, capture_output=True, check=True).stdout)


def run_in_processes(options: argparse.Namespace) -> float:
    sources = options.sources.read_text("utf-8").splitlines()[: options.count]
    model = transduce.load(options.model).freeze()
    model.workers = options.processes
    model.run(sources, beam=options.beam)
    start = time.perf_counter()
    model.run(sources, beam=options.beam)
    return len(sources) / (time.perf_counter() - start)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    sources = options.sources.read_text("utf-8").splitlines()[: options.count]
    bodies = [json.dumps({"input": one, "beam": options.beam}).encode() for one in sources]
    others = os.sched_getaffinity(0) - set(options.cores)
    if options.cores:
        os.sched_setaffinity(0, options.cores)  # the server inherits it, and the number of threads
        os.environ["OMP_NUM_THREADS"] = str(len(options.cores))
        torch.set_num_threads(len(options.cores))
    model = transduce.load(options.model, options.device).freeze()
    model.run(sources, beam=options.beam)  # so that CUDA graphs and buffers are there
    offline = offline_at_a_time(model, sources, len(sources), options)
    found: dict[str, Any] = {"offline sentences/s": round(offline, 1)}
    at_a_time = {
        count: offline_at_a_time(model, sources, count, options) for count in options.clients
    }
    rates = found["rates"] = []
    for processes in options.http_processes:
        rates += throughput(options, bodies, processes, offline, at_a_time, others)
    if options.rates:
        return found
    clients = options.clients[0]
    as_many = at_a_time[clients]
    single = []
    for source in sources[: options.single]:
        start = time.perf_counter()
        model.run([source], beam=options.beam)
        single.append(time.perf_counter() - start)
    found[f"offline sentences/s, {clients} at a time"] = round(as_many, 1)
    in_processes = 0.0
    if options.device == "cpu":
        in_processes = offline_in_processes(options, torch.get_num_threads())
        found["offline sentences/s, a process for each core"] = round(in_processes, 1)

    if options.cores:
        os.sched_setaffinity(0, options.cores)
    served = serving(options, options.http_processes[-1])
    if options.cores:
        os.sched_setaffinity(0, others)
    try:
        await under_load(options, served, bodies, found, single, (offline, as_many, in_processes))
    finally:
        served.close()
    return found


def offline_at_a_time(
    model: Any, sources: list[str], count: int, options: argparse.Namespace
) -> float:
    """Sentences a second of model.run with so many in each call, as a server has with so many
    clients; the median of some rounds. The first is not counted: it makes the CUDA graphs of that
    size."""
    rates = []
    for _ in range(1 + options.rounds):
        start = time.perf_counter()
        for first in range(0, len(sources), count):
            model.run(sources[first : first + count], beam=options.beam)
        rates.append(len(sources) / (time.perf_counter() - start))
    return statistics.median(rates[1:])


def serving(options: argparse.Namespace, processes: int) -> Serving:
    wait = ("--max-wait", str(options.wait))
    counted = ("--http-processes", str(processes))
    return Serving(options.model, *wait, *counted, "--device", options.device)


def throughput(
    options: argparse.Namespace,
    bodies: list[bytes],
    processes: int,
    offline: float,
    at_a_time: dict[int, float],
    others: set[int],
) -> list[dict[str, Any]]:
    """Of a server with so many HTTP processes, for each number of clients."""
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    served, found = serving(options, processes), []
    if options.cores:
        os.sched_setaffinity(0, others)
    try:
        with tempfile.TemporaryDirectory() as folder:
            lines = Path(folder, "bodies")
            lines.write_bytes(b"\n".join(bodies))
            for clients in options.clients:
                load = Load(served.port, lines, clients, options.client_processes)
                window = load.start(options.warm, options.window)
                time.sleep(max(0.0, window.start - time.monotonic()))
                engine, http = served.loop_seconds(), served.http_seconds()
                time.sleep(max(0.0, window.end - time.monotonic()))
                engine, http = served.loop_seconds() - engine, served.http_seconds() - http
                count, wrong, of_clients = window.answers()
                rate = count / options.window
                found.append(
                    {
                        "HTTP processes": processes,
                        "clients": clients,
                        "sentences/s": round(rate, 1),
                        "share of offline": round(rate / offline, 3),
                        "offline, as many at a time": round(at_a_time[clients], 1),
                        "share of that": round(rate / at_a_time[clients], 3),
                        "not 200": wrong,
                        "engine's event loop µs/request": round(1e6 * engine / count),
                        "HTTP processes µs/request": round(1e6 * http / count),
                        "clients µs/request": round(1e6 * of_clients / count),
                    }
                )
                print(found[-1], flush=True)
    finally:
        served.close()
    return found


def make(options: argparse.Namespace) -> None:
    """The model and the sources, where they are missing."""
    size = SIZES["small"]
    if not options.model.exists():
        make_model(size, options.model, recipe.Decode(max_ratio=1.0, max_extra=1))
    if not options.sources.exists():
        random = Random(1)
        names = [f"t{number}" for number in range(len(SPECIALS), size.vocabulary)]
        made = (" ".join(random.choices(names, k=random.randint(4, 24))) for _ in range(MADE))
        options.sources.write_text("\n".join(made) + "\n", "utf-8")


async def under_load(
    options: argparse.Namespace,
    served: Serving,
    bodies: list[bytes],
    found: dict[str, Any],
    single: list[float],
    rates: tuple[float, float, float],
) -> None:
    """What the server does; `rates` are those of model.run: at once, as many, in processes."""
    offline, as_many, in_processes = rates
    clients = options.clients[0]
    await closed_loop(served.port, bodies, clients)
    answers, _ = await closed_loop(served.port, bodies[: options.single], 1)
    found["p50 offline ms"] = median_ms(single)
    found["p50 one client ms"] = median_ms([one.seconds for one in answers])
    before, of_clients = served.loop_seconds(), time.process_time()
    answers, seconds = await closed_loop(served.port, bodies, clients)
    assert all(one.status == 200 for one in answers)
    spent, of_clients = served.loop_seconds() - before, time.process_time() - of_clients
    rate = len(bodies) / seconds
    found[f"sentences/s, {clients} clients"] = round(rate, 1)
    found["share of offline"] = round(rate / offline, 3)
    found[f"share of offline, {clients} at a time"] = round(rate / as_many, 3)
    if in_processes:
        found["share of offline, a process for each core"] = round(rate / in_processes, 3)
    found["event loop µs/request"] = round(1e6 * spent / len(bodies))
    found["clients µs/request"] = round(1e6 * of_clients / len(bodies))

    answers = await open_loop(served.port, bodies, 2 * rate, options.seconds)
    rejected = [one.seconds for one in answers if one.status == 429]
    accepted = [one.seconds for one in answers if one.status == 200]
    found["twice capacity: accepted"] = len(accepted)
    found["twice capacity: rejected"] = len(rejected)
    found["twice capacity: other"] = len(answers) - len(accepted) - len(rejected)
    found["accepted p50 ms"] = median_ms(accepted)
    found["accepted p99 ms"] = percentile_ms(accepted, 0.99)
    found["rejected p50 ms"] = median_ms(rejected)
    found["rejected p99 ms"] = percentile_ms(rejected, 0.99)

    short = [json.dumps({"input": "A dog.", "beam": 1}).encode()] * (options.requests // 10)
    memory = [round(served.memory(), 1)]
    for _ in range(10):
        await closed_loop(served.port, short, clients)
        memory.append(round(served.memory(), 1))
    found[f"memory MB over {options.requests} requests"] = memory

    load = asyncio.ensure_future(closed_loop(served.port, bodies * 100, 16))
    await asyncio.sleep(2)
    served.process.send_signal(signal.SIGTERM)
    answers, _ = await load
    found["SIGTERM: answered"] = sum(one.status == 200 for one in answers)
    found["SIGTERM: lost"] = sum(one.status not in (0, 200) for one in answers)
    found["SIGTERM: exit status"] = await asyncio.to_thread(served.process.wait)


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--sources", type=Path, required=True, help="one source a line")
    parser.add_argument("--count", type=int, default=2000, help="sources for throughput")
    parser.add_argument("--single", type=int, default=200, help="sources for latency")
    parser.add_argument("--rounds", type=int, default=3, help="of model.run, whose median counts")
    parser.add_argument("--clients", type=_numbers, default=[64], help="as 64,512")
    parser.add_argument("--http-processes", type=_numbers, default=[0], help="as 1,4")
    parser.add_argument("--client-processes", type=int, default=max(1, (os.cpu_count() or 1) // 4))
    parser.add_argument("--window", type=float, default=4.0, help="seconds of each throughput")
    parser.add_argument("--warm", type=float, default=2.0, help="seconds before it")
    parser.add_argument("--rates", action="store_true", help="the throughputs alone")
    parser.add_argument("--make", action="store_true", help="make the model and the sources")
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for both")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0, help="at twice the capacity")
    parser.add_argument("--wait", type=float, default=2.0, help="longest wait that is accepted, s")
    parser.add_argument("--requests", type=int, default=10_000, help="for memory")
    parser.add_argument("--cores", type=_numbers, default=[], help="cores of the server, as 0,1")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--processes", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.processes:
        print(run_in_processes(options))
        return
    if options.make:
        make(options)
    found = asyncio.run(measure(options))
    for name, value in found.items():
        print(f"{name:40} {value}")
    if options.json:
        result = {**metadata(torch.device(options.device)), "found": found}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
