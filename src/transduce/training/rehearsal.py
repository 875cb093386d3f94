"""A rehearsal: the kernels of a run are compiled while its corpus is read.

Compiled one after the other, when they are first called, Triton's kernels take up to a dozen
seconds on a machine that has not compiled them before. Which ones a network calls, only the network
knows: one of the recipe's sizes is built and passes a few small batches forward and backward. There
kernels are not run but compiled, in several threads (`nn/triton`). What a rehearsal does not
foresee is compiled when it is first called.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Self

import numpy as np
import torch

from transduce.data.batches.batch import Batch, collate
from transduce.data.tokens.tokenizer import SPECIALS
from transduce.hardware import pick_precision
from transduce.nn.triton import compile_only
from transduce.recipe import Recipe
from transduce.recipe.tasks import TASK_RULES
from transduce.tasks.transduce import build
from transduce.training.optimizer import build_optimizer
from transduce.training.update import build_update

LENGTHS = (16, 32, 64, 128)  # of sequences: kernels of attention differ in these classes
ROWS = 4
FIRST = len(SPECIALS)  # the first token, or label, that is none of them


class Rehearsal:
    """Compiles the kernels of a recipe in threads: `with` surrounds what can be done meanwhile.

    Its end waits for the passes, which draw random numbers and take memory of the GPU, but not for
    the compiler: that is what `wait` does.
    """

    def __init__(self, recipe: Recipe, device: torch.device, ranks: int = 1) -> None:
        """ranks: how many processes of this machine rehearse at once."""
        self.recipe, self.device = recipe, device
        self._threads = max(1, (os.cpu_count() or 1) // ranks)
        self._passed, self._stopped = threading.Event(), False
        self._thread = threading.Thread(target=self._rehearse, name="rehearsal")

    def __enter__(self) -> Self:
        if self.device.type == "cuda" and find_spec("triton") is not None:
            self._thread.start()
        else:
            self._passed.set()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopped = kind is not None
        self._passed.wait()

    def wait(self) -> None:
        """Until all is compiled."""
        if self._thread.ident is not None:
            self._thread.join()

    def _rehearse(self) -> None:
        try:
            with (
                ThreadPoolExecutor(self._threads, thread_name_prefix="compile") as pool,
                torch.cuda.device(self.device),
                compile_only(pool),
            ):
                self._pass()
                self._passed.set()
                if self._stopped:
                    pool.shutdown(wait=False, cancel_futures=True)
        except Exception:  # a run that cannot be trained says so itself, where it fails
            pass
        finally:
            self._passed.set()

    def _pass(self) -> None:
        """Batches of all kinds, forward and backward; leaves no memory behind."""
        settings = self.recipe.train
        with torch.device(self.device):
            network = build(self.recipe, *vocabulary_sizes(self.recipe)).to(self.device)
        precision = pick_precision(settings.precision, self.device, self.recipe.model.width)
        update = build_update(network, build_optimizer(network, settings), settings, precision)
        for batch in small_batches(self.recipe):
            if self._stopped:
                break
            update.gradients(batch)
            update.zero_gradients()
        del network, update
        gc.collect()  # an update is a circle of references
        torch.cuda.empty_cache()


def vocabulary_sizes(recipe: Recipe) -> tuple[int, int]:
    """Of source and target, as far as a recipe says: the largest that they may have."""
    tokens = recipe.data.tokens
    source, target = tokens.source or tokens.both, tokens.target or tokens.both
    assert source is not None  # the recipe holds this
    assert target is not None
    return source.size, target.size


def small_batches(recipe: Recipe) -> Iterator[Batch]:
    """One batch for each class of lengths that the recipe's sequences can have."""
    rules = TASK_RULES[recipe.task]
    for shorter, length in zip((0, *LENGTHS), LENGTHS, strict=False):
        if shorter > recipe.data.max_length:
            break
        row = [FIRST] * min(length - 1, recipe.data.max_length)  # and END
        source = np.zeros(recipe.audio.sample_rate, np.int16) if recipe.audio is not None else row
        source = [] if recipe.task == "language_modeling" else source
        target = [FIRST] if rules.labels == "whole" else row
        yield collate([source] * ROWS, [target] * ROWS, ends=rules.ends)
