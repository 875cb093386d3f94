"""The engine local: worker processes on this machine; one that dies is replaced."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from transduce import errors
from transduce.batch_inference.decoder import Decoder, open_decoder
from transduce.batch_inference.inputs import Shard
from transduce.batch_inference.job import Job, read_job
from transduce.batch_inference.progress import Progress
from transduce.batch_inference.worker import ends_with, rotated, work
from transduce.decoding.batch.workers import forking
from transduce.errors import ModelError, TransduceError
from transduce.hardware import keep_loaded
from transduce.storage.positions import place_at

POLL = 0.1  # seconds
DEATHS = 5  # workers in a row that may die before one finishes a shard


@dataclass(frozen=True)
class Worker:
    number: int
    process: Any
    connection: Connection


def run_locally(
    job: Job, shards: Sequence[Shard], workers: int, device: str, decoder: Decoder | None
) -> None:
    """Decode shards with so many processes; returns when all are finished.

    decoder: the model, which forked workers share; None: each worker loads its own. Raises the
    error of a worker.
    """
    job.clean()
    progress = Progress(job, shards)
    pending = job.unfinished(shards)
    count = min(workers, len(pending))
    running: list[Worker] = []
    dead, finished = 0, progress.done
    try:
        running = [_start(job, pending, n, count, device, decoder) for n in range(count)]
        while running:
            time.sleep(POLL)
            progress.show()
            for worker in [one for one in running if one.process.exitcode is not None]:
                running.remove(worker)
                code = worker.process.exitcode
                _raise_error(worker)
                if code == 0:
                    continue
                progress.lines()
                dead = 1 if progress.done > finished else dead + 1
                finished = progress.done
                if dead > DEATHS:
                    raise ModelError(_died(code))
                running.append(_start(job, pending, worker.number, count, device, decoder))
        progress.show(force=bool(pending))
    finally:
        for worker in running:
            worker.process.terminate()
        for worker in running:
            worker.process.join()
        job.clean()


def _died(code: int) -> str:
    how = f"signal {-code}, {signal.Signals(-code).name}" if code < 0 else f"status {code}"
    return (
        f"{DEATHS + 1} workers in a row ended ({how}) before one finished a shard; if memory was "
        f"short, lower --workers or --beam. The same command goes on from the finished shards"
    )


def _start(
    job: Job,
    pending: Sequence[Shard],
    number: int,
    count: int,
    device: str,
    decoder: Decoder | None,
) -> Worker:
    reading, writing = multiprocessing.Pipe(duplex=False)
    # A forked process has the model already; but one with CUDA cannot be forked.
    way: Any = multiprocessing.get_context("spawn" if decoder is None else "fork")
    numbers = [shard.number for shard in rotated(pending, number, count)]
    if device.startswith("cuda") and ":" not in device:
        device = f"cuda:{number % max(1, torch.cuda.device_count())}"
    given = (str(job.folder), numbers, device, decoder, os.getpid(), writing)
    process = way.Process(target=_work, args=given, daemon=True)
    with forking():
        process.start()
    writing.close()
    return Worker(number, process, reading)


def _work(
    folder: str,
    numbers: list[int],
    device: str,
    decoder: Decoder | None,
    parent: int,
    connection: Connection,
) -> None:
    """The main function of a worker process; an error that a user can cause goes to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        job = read_job(place_at(folder))
        if decoder is None:
            job.check_model()
            decoder = open_decoder(Path(job.model), job.settings, device)
            keep_loaded()
        work(job, [job.shards[number] for number in numbers], decoder, ends_with(parent))
    except TransduceError as error:
        connection.send((type(error).__name__, str(error)))
    finally:
        connection.close()


def _raise_error(worker: Worker) -> None:
    """Raise the error that a worker has sent, if any."""
    with contextlib.suppress(EOFError, OSError):
        if worker.connection.poll():
            name, sentence = worker.connection.recv()
            raise getattr(errors, name, ModelError)(sentence)
    worker.connection.close()
