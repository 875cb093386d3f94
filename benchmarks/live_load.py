"""Live speech over WebSocket: python benchmarks/live_load.py MODEL RECORDING [--clients 20]

Starts `transduce serve`, and plays a recording in real time by several clients at once, each
beginning a little later than the one before. Measured are the delay of the first partial transcript
of each utterance after it began, the delay of finals after the utterance ended (both with the
silence that endpointing waits for), how far behind real time the sending fell, sessions that were
refused before they began, and those that broke off; finals that are missing where another client
has them; the memory and CPU time of the server. Server and clients share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from systems import metadata
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from transduce.data.audio.corpus import to_int16
from transduce.data.audio.read import read_audio

RATE = 16_000
BLOCK = 0.1  # seconds of one message
LAST = 600  # seconds for the last transcripts
TOO_MANY = 429


class Client:
    """One speaker."""

    def __init__(self, url: str, pcm: np.ndarray[Any, Any], repeat: int) -> None:
        self.url, self.pcm, self.repeat = url, pcm, repeat
        self.first: list[float] = []
        self.final: list[float] = []
        self.behind = 0.0
        self.finals = 0
        self.broken = ""
        self.refused = False

    async def talk(self, wait: float) -> None:
        await asyncio.sleep(wait)
        try:
            async with connect(self.url, max_size=None, compression=None) as socket:
                await socket.recv()
                begun = time.monotonic()
                listening = asyncio.create_task(self._listen(socket, begun))
                await self._send(socket, begun)
                await socket.send('{"type": "finish"}')
                await asyncio.wait_for(listening, LAST)
        except InvalidStatus as error:
            self.refused = error.response.status_code == TOO_MANY
            self.broken = "" if self.refused else str(error)
        except (OSError, WebSocketException, TimeoutError) as error:
            self.broken = f"{type(error).__name__}: {error}"

    async def _send(self, socket: Any, begun: float) -> None:
        size, sent = round(BLOCK * RATE), 0
        for _ in range(self.repeat):
            for start in range(0, len(self.pcm), size):
                block = self.pcm[start : start + size]
                sent += len(block)
                due = begun + sent / RATE
                late = time.monotonic() - due
                if late < 0:
                    await asyncio.sleep(-late)
                self.behind = max(self.behind, late)
                await socket.send(block.tobytes())

    async def _listen(self, socket: Any, begun: float) -> None:
        seen: set[int] = set()
        try:
            async for text in socket:
                message, now = json.loads(text), time.monotonic() - begun
                if message["type"] == "error":
                    self.broken = message["error"]["message"]
                if message["type"] not in ("partial", "final"):
                    continue
                if message["utterance"] not in seen:
                    seen.add(message["utterance"])
                    self.first.append(now - message["start"])
                if message["type"] == "final":
                    self.finals += 1
                    self.final.append(now - message["end"])
        except ConnectionClosed as error:
            self.broken = str(error)


def percentiles(values: list[float]) -> dict[str, float]:
    if len(values) < 2:
        return {"p50": round(sum(values), 3), "p95": round(sum(values), 3), "count": len(values)}
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return {"p50": round(cuts[9], 3), "p95": round(cuts[18], 3), "count": len(values)}


def memory_of(process: int) -> float:
    """Resident megabytes."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu_of(process: int) -> float:
    """Seconds of CPU time so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(url: str, pcm: np.ndarray[Any, Any], clients: int, repeat: int) -> list[Client]:
    draw = random.Random(1)
    speakers = [Client(url, pcm, repeat) for _ in range(clients)]
    await asyncio.gather(*(one.talk(draw.uniform(0, 2.0)) for one in speakers))
    return speakers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=1, help="times that each client plays it")
    parser.add_argument("--max-live-load", type=float, help="of the server; 0: no refusals")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    pcm = to_int16(read_audio(asked.recording, RATE).samples)
    command = [sys.executable, "-m", "transduce", "serve", f"model={asked.model}", "--port", "0"]
    command += ["--no-log", "--device", asked.device, "--live-sessions", str(asked.clients)]
    if asked.max_live_load is not None:
        command += ["--max-live-load", str(asked.max_live_load)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1].replace("http", "ws")
        url = f"{address}/api/live?rate={RATE}"
        asyncio.run(load(url, pcm[: 3 * RATE], 1, 1))  # the first use loads what is needed
        memory, cpu = memory_of(server.pid), cpu_of(server.pid)
        speakers = asyncio.run(load(url, pcm, asked.clients, asked.repeat))
        admitted = [one for one in speakers if not one.refused]
        seconds = len(pcm) / RATE * len(admitted) * asked.repeat
        most = max((one.finals for one in admitted), default=0)
        found = {
            "hardware": metadata(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
            "model": asked.model.name,
            "recording": asked.recording.name,
            "clients": asked.clients,
            "audio_seconds": round(seconds, 1),
            "first_partial_after_start": percentiles([x for one in speakers for x in one.first]),
            "final_after_end": percentiles([x for one in speakers for x in one.final]),
            "finals": sum(one.finals for one in speakers),
            "missing_finals": sum(most - one.finals for one in admitted),
            "refused": len(speakers) - len(admitted),
            "most_behind": round(max(one.behind for one in speakers), 3),
            "broken": [one.broken for one in speakers if one.broken],
            "cpu_seconds_a_second_of_audio": round((cpu_of(server.pid) - cpu) / max(seconds, 1), 4),
            "megabytes_before": round(memory),
            "megabytes_after": round(memory_of(server.pid)),
        }
    finally:
        server.terminate()
        server.wait(30)
    if len(found["broken"]) == asked.clients:
        sys.exit(f"Not measured: every session broke off: {found['broken'][0]}")
    print(json.dumps(found, indent=2))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
