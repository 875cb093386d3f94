"""Load on `transduce serve`: python benchmarks/serve_load.py MODEL --sources FILE [--json OUT]

Throughput with many clients against model.run on the same sources: all of them in one call, which
can sort them by length, in this process and on a CPU with a process for each core (as the command
line does), and as many at a time as there are clients, which is all that a server can know; latency
of a single client against model.run; CPU time of the event loop for each request (all that is not
the engine) and of the clients, which are one process; twice the capacity; memory over many
requests; SIGTERM under load. With --cores model.run and the server have these cores and the
clients the others; without it they share the machine.
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
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from systems import metadata

import transduce


@dataclass
class Answer:
    status: int
    """0: the connection was refused; -1: it was lost after the request had been sent."""
    seconds: float


class Client:
    """A client with one connection, which costs little CPU time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, body: bytes) -> Answer:
        start = time.perf_counter()
        try:
            if self.writer is None:
                self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return Answer(0, time.perf_counter() - start)
        assert self.reader is not None
        try:
            head = b"POST /api/run HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
            head %= len(body)
            self.writer.write(head + body)
            top = await self.reader.readuntil(b"\r\n\r\n")
            lines = top.lower().split(b"\r\n")
            length = next(int(one[16:]) for one in lines if one.startswith(b"content-length: "))
            await self.reader.readexactly(length)
            if b"connection: close" in lines:
                self.close()
            return Answer(int(top[9:12]), time.perf_counter() - start)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return Answer(-1, time.perf_counter() - start)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


async def closed_loop(port: int, bodies: list[bytes], clients: int) -> tuple[list[Answer], float]:
    """Each client sends its next request when it has its answer."""
    left, answers = iter(bodies), []

    async def work() -> None:
        client = Client(port)
        for body in left:
            answers.append(await client.ask(body))
            if answers[-1].status == 0:
                return
        client.close()

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(clients)))
    return answers, time.perf_counter() - start


async def open_loop(port: int, bodies: list[bytes], rate: float, seconds: float) -> list[Answer]:
    """Requests at a given rate, whether or not earlier ones have been answered."""

    async def one(number: int, delay: float) -> Answer:
        await asyncio.sleep(delay)
        client = Client(port)
        answer = await client.ask(bodies[number % len(bodies)])
        client.close()
        return answer

    count = int(rate * seconds)
    return await asyncio.gather(*(one(number, number / rate) for number in range(count)))


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

    def loop_seconds(self) -> float:
        """CPU time of the main thread: the event loop, which is all but the engine.

        The kernel counts it in nanoseconds while the thread runs on a core: its Python code and its
        system calls, of which sending on loopback includes most of receiving. Waiting for the
        interpreter lock, the engine or the clients is not in it; that others use the caches and the
        core's clock is.
        """
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

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
    start = time.perf_counter()
    model.run(sources, beam=options.beam)
    offline = len(sources) / (time.perf_counter() - start)
    start = time.perf_counter()
    for first in range(0, len(sources), options.clients):
        model.run(sources[first : first + options.clients], beam=options.beam)
    as_many = len(sources) / (time.perf_counter() - start)
    single = []
    for source in sources[: options.single]:
        start = time.perf_counter()
        model.run([source], beam=options.beam)
        single.append(time.perf_counter() - start)
    found: dict[str, Any] = {"offline sentences/s": round(offline, 1)}
    found[f"offline sentences/s, {options.clients} at a time"] = round(as_many, 1)
    in_processes = 0.0
    if options.device == "cpu":
        in_processes = offline_in_processes(options, torch.get_num_threads())
        found["offline sentences/s, a process for each core"] = round(in_processes, 1)

    served = Serving(options.model, "--max-wait", str(options.wait), "--device", options.device)
    if options.cores:
        os.sched_setaffinity(0, others)
    try:
        await under_load(options, served, bodies, found, single, (offline, as_many, in_processes))
    finally:
        served.close()
    return found


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
    await closed_loop(served.port, bodies, options.clients)
    answers, _ = await closed_loop(served.port, bodies[: options.single], 1)
    found["p50 offline ms"] = median_ms(single)
    found["p50 one client ms"] = median_ms([one.seconds for one in answers])
    before, of_clients = served.loop_seconds(), time.process_time()
    answers, seconds = await closed_loop(served.port, bodies, options.clients)
    assert all(one.status == 200 for one in answers)
    spent, of_clients = served.loop_seconds() - before, time.process_time() - of_clients
    rate = len(bodies) / seconds
    found[f"sentences/s, {options.clients} clients"] = round(rate, 1)
    found["share of offline"] = round(rate / offline, 3)
    found[f"share of offline, {options.clients} at a time"] = round(rate / as_many, 3)
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
        await closed_loop(served.port, short, options.clients)
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
    parser.add_argument("--clients", type=int, default=64)
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
    found = asyncio.run(measure(options))
    for name, value in found.items():
        print(f"{name:40} {value}")
    if options.json:
        result = {**metadata(torch.device(options.device)), "found": found}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
