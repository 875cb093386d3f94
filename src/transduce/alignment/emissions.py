"""CTC emissions of a recording of any length: log-probabilities, window by window.

Windows overlap, and only the middle of each is kept, so that none is affected by its borders. An
hour has 90,000 frames in memory, some megabytes for a dozen tokens; of the audio, some minutes are
in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from transduce.data.audio.corpus import Wave, to_int16
from transduce.data.audio.read import audio_blocks
from transduce.data.audio.recording import Samples
from transduce.models.call_context import Call
from transduce.nn.speech.subsampling import FACTOR
from transduce.tasks.model import inference
from transduce.tasks.speech import SpeechModel

CORE = 8.0  # seconds that are kept of a window, or less if the model was trained on shorter audio
CONTEXT = 1.0  # seconds before and after
AT_ONCE = 16  # windows in one batch


def ctc_emissions(model: SpeechModel, path: Path, tags: Sequence[str] = ()) -> Tensor:
    """log p [S, V] of every encoder frame of a recording, on the CPU. Raises ModelError for tags
    that the model has not."""
    model.recordings.check_tags(tags)
    context = model.context_of(Call(tuple(tags)))
    front = model.network.front
    step = FACTOR * front.mel.hop
    core = max(1.0, min(CORE, model.recordings.longest - 2 * CONTEXT)) * front.rate
    core_states, context_states = int(core) // step, int(CONTEXT * front.rate) // step
    cut = _windows(audio_blocks(path, front.rate), core_states * step, context_states * step)
    found = []
    with inference(model):
        while some := list(islice(cut, AT_ONCE)):
            lengths_B = torch.tensor([len(wave) for wave, _, _ in some])
            source_BW = np.zeros((len(some), int(lengths_B.max())), np.int16)
            for row, (wave, _, _) in zip(source_BW, some, strict=True):
                row[: len(wave)] = wave
            samples_BW = torch.from_numpy(source_BW).to(model.device)
            memory = model.network.encode(samples_BW, lengths_B, **context.keywords)
            log_probs_BSV = model.network.ctc_log_probs(memory).cpu()
            there = memory.lengths_B.tolist()
            for (_, start, end), log_probs_SV, count in zip(
                some, log_probs_BSV, there, strict=True
            ):
                stop = count if end is None else end // step
                found.append(log_probs_SV[start // step : stop].clone())
    return torch.cat(found)


def _windows(
    blocks: Iterable[Samples], core: int, context: int
) -> Iterator[tuple[Wave, int, int | None]]:
    """Samples of each window, and the part that is kept; for the last, up to its end."""
    kept = np.empty(0, np.int16)
    before = 0
    for block in blocks:
        kept = np.concatenate((kept, to_int16(block)))
        while len(kept) > before + core + context:
            yield kept[: before + core + context], before, before + core
            kept, before = kept[before + core - context :], context
    yield kept, before, None
