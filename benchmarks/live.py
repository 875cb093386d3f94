"""Live speech: latency against error rate, streams in real time, memory over an hour.

    python benchmarks/live.py latency MODEL... [--chunks 160 320 640 1280] [--limit 100]
        [--processes 8]
    python benchmarks/live.py streams MODEL [--streams 1 20 100] [--chunk 640] [--seconds 30]
    python benchmarks/live.py hour MODEL [--chunk 640] [--minutes 60]

MODELs are folders of models that were trained with model.encoder.chunk; the recordings are those
of their recipe's test set (--split valid: of the validation set).

latency: each recording comes in packets of 20 ms as time passes, with 1.5 s of noise after it that
is like its quietest fifth of a second. A transcript is there when the packets that it needs have
come and the time that was measured for computing it has passed, also that of chunks before it.
`first`: from the beginning of speech (by loudness) to the first partial transcript; `final`: from
its end to the last final one, the silence that endpointing waits for included; `finish`: the same
where the speaker says that it is the end, without the noise, with the error rates in
`finish_scores`. `revisions`: words that were shown and then changed or taken back, for each word of
the final transcripts. `whole`: the recording as a file, all of its context seen. With --threads 1
on a CPU, computing is measured in CPU time, so that other programs do not count: then --processes
may measure as many models and chunk sizes at once.

streams: so many speakers at once, each with recordings one after the other, the packets of each at
a phase of its own; whenever the machine is free, all that is ready is computed in one batch. `lag`:
from when a chunk is complete to when it is recognised. In real time: the 95th percentile of lags is
below a chunk, in the second half of the time too.

hour: one session, fed faster than real time with recordings, pauses, silence and loud noise; the
memory of the process after each minute of audio.

Writes benchmarks/results/live_WHAT_DEVICE.json, or --json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle, repeat, takewhile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from systems import metadata

from transduce.data.audio.corpus import FULL_SCALE, Wave, read_waves
from transduce.data.audio.silence import HOP, sounding
from transduce.data.text.pairs import read_pairs
from transduce.evaluation.metrics import measure
from transduce.tasks.live import LiveRecogniser, Transcript
from transduce.tasks.speech import SpeechModel
from transduce.tasks.transduce import load

RESULTS = Path(__file__).parent / "results"
PACKET = 0.02  # seconds
AFTER = 1.5  # seconds of noise after a recording


def recordings(model: SpeechModel, split: str, limit: int | None) -> list[tuple[Wave, str]]:
    corpus = getattr(model.recipe.data, split)
    pairs = list(read_pairs(corpus, model.recipe.data.folder))[:limit]
    read = read_waves([pair.source for pair in pairs], model.recordings.settings.sample_rate)
    there = zip(read, pairs, strict=True)
    return [(heard.wave, pair.target) for heard, pair in there if heard.wave is not None]


def noise_of(wave: Wave, rate: int, seconds: float) -> Wave:
    """Noise with the spectrum and the loudness of the quietest fifth of a second of a recording."""
    size, samples = min(rate // 5, len(wave)), int(seconds * rate)
    energy = np.convolve(wave.astype(np.float64) ** 2, np.ones(size), "valid")[:: rate // 100]
    first = int(energy.argmin()) * (rate // 100)
    quiet = wave[first : first + size].astype(np.float64)
    weight = np.abs(np.fft.rfft(quiet * np.hanning(size)))
    white = np.random.default_rng(1).standard_normal(samples)
    place = np.linspace(0, len(weight) - 1, samples // 2 + 1)
    shaped = np.fft.irfft(
        np.fft.rfft(white) * np.interp(place, range(len(weight)), weight), samples
    )
    power = max(float((shaped**2).mean()), 1e-12)
    noise: Wave = (shaped * np.sqrt((quiet**2).mean() / power)).round().astype(np.int16)
    return noise


def waited(device: torch.device) -> float:
    """The time when all is computed: of a CPU the CPU time of this process, which other programs
    do not change, where it has one thread."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    one = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time() if one else time.perf_counter()


def percentiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    found = np.percentile(values, [50, 95])
    return {"p50": float(found[0]), "p95": float(found[1]), "count": len(values)}


# ------------------------------------------------------------------------------------ latency


def heard_live(
    recogniser: LiveRecogniser, wave: Wave, device: torch.device, finishes: bool
) -> tuple[list[tuple[float, Transcript]], float]:
    """Each transcript with the second at which it is there, and the time of computing."""
    packet, found, free, busy = round(PACKET * recogniser.rate), [], 0.0, 0.0
    with recogniser.session() as session:
        for start in range(0, len(wave), packet):
            block = wave[start : start + packet]
            session.push(block)
            last = start + packet >= len(wave)
            if last and finishes:
                session.end()
            if not session.ready:
                continue
            began = waited(device)
            transcripts = recogniser.advance([session])[0]
            took = waited(device) - began
            free, busy = max(free, (start + len(block)) / recogniser.rate) + took, busy + took
            found += [(free, transcript) for transcript in transcripts]
        if not finishes:
            found += [(float("nan"), transcript) for transcript in session.finish()]
    return found, busy


def latency(
    model: SpeechModel, settings: Mapping[str, Any], given: list[tuple[Wave, str]]
) -> dict[str, Any]:
    """settings: of live recognition."""
    rate, device = model.recordings.settings.sample_rate, model.device
    recogniser = model.live_recogniser(**settings)
    heard_live(recogniser, given[0][0], device, True)  # the first call is slower
    first, final, finish, busy, seconds = [], [], [], 0.0, 0.0
    texts, alone = [], []  # with noise after the recording, and without
    revised = written = 0
    for wave, _ in given:
        loud = np.flatnonzero(sounding(wave.astype(np.float32) / np.float32(FULL_SCALE), rate))
        begins, ends = (loud[0] * HOP, (loud[-1] + 1) * HOP) if len(loud) else (0.0, 0.0)
        quiet = np.concatenate((wave, noise_of(wave, rate, AFTER)))
        found, took = heard_live(recogniser, quiet, device, False)
        busy, seconds = busy + took, seconds + len(quiet) / rate
        texts.append(" ".join(one.text for _, one in found if one.final))
        revised += revisions([one for _, one in found])
        written += sum(len(one.text.split()) for _, one in found if one.final)
        first += [at - begins for at, one in found[:1] if at == at]
        finals = [at for at, one in found if one.final]
        final += [at - ends for at in finals[-1:] if at == at]
        ended, _ = heard_live(recogniser, wave, device, True)
        alone.append(" ".join(one.text for _, one in ended if one.final))
        finish += [at - ends for at, one in ended if one.final][-1:]
    return {
        "scores": error_rates(model, texts, given),
        "finish_scores": error_rates(model, alone, given),
        "first": percentiles(first),
        "final": percentiles(final),
        "finish": percentiles(finish),
        "real_time_factor": busy / seconds,
        "revisions": revised / max(written, 1),
    }


def revisions(transcripts: Sequence[Transcript]) -> int:
    """Words that were shown and then changed or taken back; a word may grow to a longer one."""
    found, before = 0, dict[int, str]()
    for one in transcripts:
        shown = before.get(one.utterance, "")
        before[one.utterance] = one.text
        if one.text.startswith(shown):
            continue
        old, new = shown.split(), one.text.split()
        pairs = zip(old, new, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        grows = same < len(new) and len(old) == same + 1 and new[same].startswith(old[same])
        found += len(old) - same - grows
    return found


def latency_of_files(
    model: SpeechModel, given: list[tuple[Wave, str]], **settings: Any
) -> dict[str, Any]:
    rate, finish, texts = model.recordings.settings.sample_rate, [], []
    for wave, _ in given:
        loud = np.flatnonzero(sounding(wave.astype(np.float32) / np.float32(FULL_SCALE), rate))
        after = len(wave) / rate - ((loud[-1] + 1) * HOP if len(loud) else 0.0)
        began = waited(model.device)
        texts.append(model(wave, rate=rate, **settings))
        finish.append(after + waited(model.device) - began)
    scores = error_rates(model, texts, given)
    return {"scores": scores, "finish": percentiles(finish)}


def error_rates(
    model: SpeechModel, texts: list[str], given: list[tuple[Wave, str]]
) -> dict[str, Any]:
    scores = measure(model.recipe.metrics, texts, [[text] for _, text in given])
    return {name: one.to_json() for name, one in scores.items()}


# ------------------------------------------------------------------------------------ streams


def endless(waves: Sequence[Wave], rate: int, draw: Random) -> Iterator[Wave]:
    """Recordings in an order of their own, with pauses of about a second between them."""
    order = list(range(len(waves)))
    draw.shuffle(order)
    for place in cycle(order):
        yield waves[place]
        yield noise_of(waves[place], rate, draw.uniform(0.3, 1.5))


def speech(waves: Sequence[Wave], rate: int, seconds: float, draw: Random) -> NDArray[np.int16]:
    parts, size = [], 0
    for part in endless(waves, rate, draw):
        parts.append(part)
        size += len(part)
        if size >= seconds * rate:
            return np.concatenate(parts)[: int(seconds * rate)]
    raise AssertionError


def streams(
    recogniser: LiveRecogniser,
    waves: Sequence[Wave],
    count: int,
    seconds: float,
    device: torch.device,
) -> dict[str, Any]:
    rate, packet = recogniser.rate, round(PACKET * recogniser.rate)
    draw = Random(1)
    sounds = [speech(waves, rate, seconds, draw) for _ in range(count)]
    phases = [draw.uniform(0, 1) for _ in range(count)]
    sessions = [recogniser.session() for _ in range(count)]
    sent, since = [0] * count, [0.0] * count  # samples; when the waiting chunk was complete
    now = busy = 0.0
    lags: list[tuple[float, float]] = []
    steps = transcripts = 0
    while True:
        for n, session in enumerate(sessions):
            there = min(int(max(0.0, now - phases[n]) / PACKET) * packet, len(sounds[n]))
            while sent[n] < there:
                before = session.ready
                session.push(sounds[n][sent[n] : sent[n] + packet])
                sent[n] = min(sent[n] + packet, len(sounds[n]))
                if not before and session.ready:
                    since[n] = phases[n] + sent[n] / rate
        ready = [n for n in range(count) if sessions[n].ready]
        if not ready:
            if all(sent[n] >= len(sounds[n]) for n in range(count)):
                break
            now += PACKET / 4
            continue
        began = waited(device)
        found = recogniser.step([sessions[n] for n in ready])
        took = waited(device) - began
        now, busy, steps = now + took, busy + took, steps + 1
        transcripts += sum(map(len, found))
        for n in ready:
            lags.append((since[n], now - since[n]))
            since[n] = now  # where another chunk waits already
    for session in sessions:
        session.close()
    late = [lag for at, lag in lags if at > seconds / 2]
    return {
        "streams": count,
        "seconds": seconds,
        "busy": busy / now,
        "real_time_factor": busy / (seconds * count),
        "lag": percentiles([lag for _, lag in lags]),
        "lag_of_second_half": percentiles(late),
        "streams_a_batch": len(lags) / steps,
        "transcripts": transcripts,
    }


# --------------------------------------------------------------------------------------- hour


def mixed(waves: Sequence[Wave], rate: int, draw: Random) -> Iterator[Wave]:
    """The same, with digital silence or loud noise of 5 to 30 s after every tenth recording."""
    loud = np.random.default_rng(1)
    for number, part in enumerate(endless(waves, rate, draw)):
        yield part
        if number % 40 == 19:
            yield np.zeros(int(draw.uniform(5, 30) * rate), np.int16)
        if number % 40 == 39:
            noise = 600 * loud.standard_normal(int(draw.uniform(5, 30) * rate))
            yield noise.round().astype(np.int16)


def hour(
    recogniser: LiveRecogniser, waves: Sequence[Wave], minutes: int, device: torch.device
) -> Iterator[dict[str, Any]]:
    rate = recogniser.rate
    sounds = mixed(waves, rate, Random(1))
    rest = np.empty(0, np.int16)
    with recogniser.session() as session:
        for minute in range(1, minutes + 1):
            while len(rest) < 60 * rate:
                rest = np.concatenate((rest, next(sounds)))
            began, finals = waited(device), 0
            for start in range(0, 60 * rate, rate // 2):
                finals += sum(one.final for one in session.feed(rest[start : start + rate // 2]))
            rest = rest[60 * rate :]
            row = {"minute": minute, "seconds": waited(device) - began, "finals": finals}
            row["resident_bytes"] = resident()
            if device.type == "cuda":
                row["cuda_bytes"] = torch.cuda.memory_allocated(device)
            yield row


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["latency", "streams", "hour"])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--split", default="test", choices=["valid", "test"])
    parser.add_argument("--limit", type=int, help="recordings; default: all")
    parser.add_argument("--chunks", type=float, nargs="+", default=[160, 320, 640, 1280])
    parser.add_argument("--chunk", type=float, default=640)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 20, 50, 100])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--threads", type=int, help="of a CPU; default: torch's own number")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    if asked.processes > 1 and (asked.what != "latency" or asked.threads != 1):
        parser.error("--processes is for latency with --threads 1, which counts CPU time")
    device = torch.device(asked.device)
    path = asked.json or RESULTS / f"live_{asked.what}_{device.type}.json"
    if asked.what == "latency":
        jobs = [(folder, one) for folder in asked.models for one in (*asked.chunks, None)]
    else:
        jobs = [(folder, asked.chunk) for folder in asked.models]
    rows: list[dict[str, Any]] = []
    for found in in_processes(asked, jobs):
        for row in found:
            rows.append(row)
            print(json.dumps(row), flush=True)
            all_found = {"facts": metadata(device), "split": asked.split, "rows": rows}
            path.write_text(json.dumps(all_found, indent=1) + "\n", "utf-8")


def in_processes(
    asked: argparse.Namespace, jobs: list[tuple[Path, float | None]]
) -> Iterator[Iterable[dict[str, Any]]]:
    """The rows of each job, in their order."""
    if asked.processes == 1:
        yield from (measured(asked, *job) for job in jobs)
        return
    with ProcessPoolExecutor(asked.processes, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(all_measured, repeat(asked), *zip(*jobs, strict=True))


def all_measured(
    asked: argparse.Namespace, folder: Path, chunk: float | None
) -> list[dict[str, Any]]:
    return list(measured(asked, folder, chunk))


def measured(
    asked: argparse.Namespace, folder: Path, chunk: float | None
) -> Iterator[dict[str, Any]]:
    """The rows of one model; of latency, for one size of chunks (None: whole recordings)."""
    if asked.threads:
        torch.set_num_threads(asked.threads)
    model = load(folder, asked.device)
    assert isinstance(model, SpeechModel)
    model.network.eval()
    given = recordings(model, asked.split, asked.limit)
    waves = [wave for wave, _ in given]
    about = {
        "model": folder.name,
        "recipe": model.recipe.name,
        "seed": model.recipe.seed,
        "recordings": len(given),
        "chunk": chunk,
    }
    if asked.what == "latency":
        if chunk:
            found = latency(model, {"chunk_ms": chunk}, given)
        else:
            found = latency_of_files(model, given)
        yield {**about, **found}
        return
    recogniser = model.live_recogniser(chunk_ms=asked.chunk)
    if asked.what == "hour":
        for row in hour(recogniser, waves, asked.minutes, model.device):
            yield {**about, **row}
        return
    streams(recogniser, waves, 2, 2.0, model.device)
    for count in asked.streams:
        yield {**about, **streams(recogniser, waves, count, asked.seconds, model.device)}


if __name__ == "__main__":
    main()
