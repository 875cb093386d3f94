"""All state that outlives a call in a process, in one place, and how to reset it.

Everything else belongs to an object: a model, an optimizer, a search. What is listed here is
module-level for one of two reasons. It belongs to the whole process anyway (a loaded shared
library, compiled Triton kernels), or PyTorch leaves no way to pass it along (see
`nn/gradient_sums.py` and `nn/mixed_precision.py`). None of it changes a result.

Functions whose results are cached for the life of the process are listed in `CACHED`. They depend
on files of this package, on the machine and on their arguments only.
"""

from __future__ import annotations

from transduce.nn.gradient_sums import GRADIENT_SUMS
from transduce.nn.mixed_precision import clear_casts
from transduce.nn.triton import reset_kernels
from transduce.runtime.c_library import LIBRARY

#: The cached functions of the package, as module:function.
CACHED = frozenset(
    {
        "transduce.alignment.by_transcript:similarity",
        "transduce.automatic.found:script_of",
        "transduce.batch_inference.inputs:_digest",
        "transduce.corpora.entry:_checksums",
        "transduce.corpora.generated:_all_letters",
        "transduce.corpora.generated:_pronouncing_dictionary",
        "transduce.data.audio.silero:_network",
        "transduce.data.batches.bucketing:_library",
        "transduce.data.text.columns:_names_above",
        "transduce.data.text.split:_library",
        "transduce.data.tokens.words:_library",
        "transduce.inspection.figures:_installed",
        "transduce.inspection.figures:_letters_of",
        "transduce.inspection.figures:fonts",
        "transduce.nn.speech.speed_perturbation:_filters",
        "transduce.nn.triton.start:early",
        "transduce.nn.triton.start:wait_kernel",
        "transduce.nn.triton:kernels",
        "transduce.serving.hosts:_read_short",
        "transduce.data.languages.detect:lingua_codes",
        "transduce.storage.members:_version_in_store",
        "transduce.storage:_remove_stale_once",
        "transduce.storage:_temporary_cache",
        "transduce.synthesis.espeak:espeak",
    }
)


def reset_process_state() -> None:
    """Back to a new process: nothing loaded, no sums, no casts.

    The next call that needs one of these makes it again. Not during a forward or backward pass.
    """
    LIBRARY.reset()
    GRADIENT_SUMS.clear()
    clear_casts()
    reset_kernels()
