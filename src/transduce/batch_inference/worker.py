"""A worker: takes shards that nobody has claimed, until all are finished."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from transduce.batch_inference.claims import claimed
from transduce.batch_inference.decoder import Decoder
from transduce.batch_inference.job import Job
from transduce.batch_inference.shard_output import decode_shard
from transduce.batch_inference.shards import Shard

PAUSE = 0.5  # seconds before looking again for shards whose worker has died


def work(
    job: Job,
    shards: Sequence[Shard],
    decoder: Decoder,
    beat: Callable[[], object] = lambda: None,
) -> None:
    """Decode the shards that are neither finished nor claimed by another process.

    Returns when all of them are finished, by whomever. `beat` is called now and then.
    """
    pending = list(shards)
    while pending := [shard for shard in pending if not job.is_finished(shard)]:
        progress = False
        for shard in pending:
            progress |= take(job, shard, decoder, beat)
        if not progress:
            beat()
            time.sleep(PAUSE)


def take(job: Job, shard: Shard, decoder: Decoder, beat: Callable[[], object]) -> bool:
    """Decode a shard, unless it is finished or claimed; returns whether it was decoded here."""
    if job.is_finished(shard):
        return False
    with claimed(job.claim(shard)) as note:
        # Another worker may have finished it between the two lines.
        if note is None or job.is_finished(shard):
            return False

        def tell(lines: int) -> None:
            note(lines)
            beat()

        tell(0)
        decode_shard(job, shard, decoder, tell)
        return True


def ends_with(parent: int) -> Callable[[], None]:
    """A function that ends this process at once where its parent has died."""

    def check() -> None:
        if os.getppid() != parent:
            os._exit(1)

    return check


def rotated(shards: Sequence[Shard], worker: int, workers: int) -> list[Shard]:
    """The shards in an order of its own for each worker: neighbours are read one after another."""
    start = worker * len(shards) // workers
    return [*shards[start:], *shards[:start]]
