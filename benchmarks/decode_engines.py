"""What decode_speed.py compares: our search and two peers', over the very same weights.

An engine lives in a process of its own (decode_worker.py). It loads our model folder, turning it
into its own form where need be, and plans work: whatever is not decoding (collating, looking up the
names of tokens) is done in the plan, so that no clock sees it. torch, transformers and CTranslate2
are imported only by the engines that need them: CTranslate2 and torch in one process slow each
other down.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decode_twin import twin_of

PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3  # as in transduce.data.tokens, which would import torch's kin

Rows = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Wish:
    """What to decode: sources without END; `exact` tokens each, END counted, or natural ends.

    `batch` sentences go together; where outputs end by themselves it is what the engine calls its
    batch size, None leaving the choice to the engine.
    """

    sources: list[list[int]]
    beam: int
    batch: int | None
    exact: int | None

    def batches(self) -> list[list[list[int]]]:
        size = self.batch or len(self.sources)
        return [self.sources[i : i + size] for i in range(0, len(self.sources), size)]


@dataclass(frozen=True)
class Plan:
    """`run` decodes, waiting for the device; `read` makes ids without END of what it gave."""

    run: Callable[[], Any]
    read: Callable[[Any], list[list[int]]]


class Engine:
    """One system on one device; `batch_sizes` are worth trying where outputs end by themselves."""

    batch_sizes: Sequence[int | None] = (None,)

    def __init__(self, device: str, threads: int) -> None:
        self.device, self.threads = device, threads

    def metadata(self) -> dict[str, str]:
        """Versions."""
        raise NotImplementedError

    def load(self, folder: Path, precision: str) -> None:
        raise NotImplementedError

    def unload(self) -> None:
        """Forget the model, so that the next one does not come on top of it."""
        self.model: Any = None

    def score(self, sources: Rows, targets: Rows) -> list[list[float]]:
        """The log-probability of each token of each target, END included."""
        raise NotImplementedError

    def plan(self, wish: Wish) -> Plan:
        raise NotImplementedError


# ----------------------------------------------------------------------------------------- ours


class Ours(Engine):
    def __init__(self, device: str, threads: int) -> None:
        super().__init__(device, threads)
        import torch

        import transduce.tasks.transduce

        if device == "cpu":
            torch.set_num_threads(threads)
        self.torch, self.package = torch, transduce.tasks.transduce
        self.slots: Any = None

    def unload(self) -> None:
        self.model = self.slots = None

    def metadata(self) -> dict[str, str]:
        return {"torch": self.torch.__version__}

    def load(self, folder: Path, precision: str) -> None:
        self.model = self.package.load(
            folder, self.device, precision
        ).freeze()  # as the commands do
        if self.device == "cuda":
            from transduce.decoding.cuda.pool import CudaSearch

            self.slots = CudaSearch(self.model.network, getattr(self.torch, precision))

    def score(self, sources: Rows, targets: Rows) -> list[list[float]]:
        from transduce.decoding.score.forced import log_probabilities

        with self.torch.inference_mode():
            return log_probabilities(self.model.network, sources, targets)

    def plan(self, wish: Wish) -> Plan:
        run = (self._on_gpu if self.device == "cuda" else self._on_cpu)(wish)

        def decode() -> Any:
            with self.torch.inference_mode():
                return run()

        return Plan(decode, lambda found: [of_one[0].tokens for of_one in found])

    def _bounds(self, exact: int | None) -> Any:
        from transduce.decoding.batch.decode import Bounds

        if exact:  # the weights of such a benchmark never end by themselves
            return Bounds(0.0, exact, exact)
        usual = self.model.recipe.decode
        return Bounds(usual.max_ratio, usual.max_extra, sys.maxsize)

    def _on_gpu(self, wish: Wish) -> Callable[[], Any]:
        """The pool of slots takes all sentences at once, and sees to batches itself."""
        from transduce.decoding.batch.decode import Request
        from transduce.decoding.search.continuous_batching import Job, Search

        bounds, minimum = self._bounds(wish.exact), wish.exact or 0
        jobs = [Job(source, bounds.limit(Request(source), 0)) for source in wish.sources]
        settings = Search(wish.beam, 1, 1.0, minimum)
        return lambda: self.slots.run(jobs, settings)

    def _on_cpu(self, wish: Wish) -> Callable[[], Any]:
        """What `Transducer.run` does once text is tokens."""
        from dataclasses import replace

        from transduce.decoding.batch.decode import Request

        settings = {
            "beam": wish.beam,
            "length_penalty": 1.0,
            "coverage_penalty": 0.0,
            "no_repeat_ngram": 0,
        }
        task = self.model.decoder.task(self.model.settings(**settings), ())
        task = replace(task, bounds=self._bounds(wish.exact))
        requests = [[Request(source) for source in batch] for batch in wish.batches()]
        return lambda: [found for batch in requests for found in task.run(batch)]


# --------------------------------------------------------------------------------- Hugging Face


class HuggingFace(Engine):
    """Our network as one of its own (decode_twin.py), sdpa and `generate`, in inference mode."""

    static = False

    def __init__(self, device: str, threads: int) -> None:
        super().__init__(device, threads)
        import torch
        import transformers

        if device == "cpu":
            torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        self.torch, self.package = torch, transformers
        self.batch_sizes = (128, 512, 1024) if device == "cuda" else (16, 32, 64)

    def metadata(self) -> dict[str, str]:
        return {"transformers": self.package.__version__}

    def load(self, folder: Path, precision: str) -> None:
        import transduce.tasks.transduce

        ours = transduce.tasks.transduce.load(folder)
        self.decode = ours.recipe.decode
        made = twin_of(ours, self.package)
        self.model = made.to(self.device, dtype=getattr(self.torch, precision)).eval()

    def score(self, sources: Rows, targets: Rows) -> list[list[float]]:
        torch, found = self.torch, []
        with torch.inference_mode():
            for source, target in zip(sources, targets, strict=True):
                read_1S = torch.tensor([[*source, END]], device=self.device)
                given_1T = torch.tensor([[BEGIN, *target]], device=self.device)
                wanted_T1 = torch.tensor([*target, END], device=self.device)[:, None]
                logits_TV = self.model(input_ids=read_1S, decoder_input_ids=given_1T).logits[0]
                log_probs_TV = logits_TV.float().log_softmax(dim=-1)
                found.append(log_probs_TV.gather(1, wanted_T1)[:, 0].tolist())
        return found

    def plan(self, wish: Wish) -> Plan:
        """Sorted by length, so that little is padded; each batch as a tokenizer would give it."""
        torch = self.torch
        order = sorted(range(len(wish.sources)), key=lambda i: -len(wish.sources[i]))
        in_order = Wish([wish.sources[i] for i in order], wish.beam, wish.batch, wish.exact)
        settings: dict[str, Any] = {"num_beams": wish.beam, "do_sample": False}
        if self.static:
            settings["cache_implementation"] = "static"
        made = []
        for batch in in_order.batches():
            longest = max(map(len, batch)) + 1
            rows = [[*source, END] + [PAD] * (longest - 1 - len(source)) for source in batch]
            read_BS = torch.tensor(rows)
            usual = int(longest * self.decode.max_ratio) + self.decode.max_extra
            made.append((read_BS, (read_BS != PAD).long(), wish.exact or usual))

        def decode() -> list[list[int]]:
            found: list[list[int]] = []
            with torch.inference_mode():
                for read_BS, mask_BS, maximum in made:
                    written_BT = self.model.generate(
                        read_BS.to(self.device),
                        attention_mask=mask_BS.to(self.device),
                        max_new_tokens=maximum,
                        **settings,
                    )
                    found += written_BT.tolist()
            return found

        def read(found: list[list[int]]) -> list[list[int]]:
            back: list[list[int]] = [[] for _ in found]
            for place, row in zip(order, found, strict=True):
                written = row[1:]  # without BEGIN
                back[place] = written[: written.index(END)] if END in written else written
            return back

        return Plan(decode, read)


class StaticHuggingFace(HuggingFace):
    """Its cache of a fixed size, with which `generate` compiles its step and records graphs."""

    static = True


# ---------------------------------------------------------------------------------- CTranslate2

EXPORT = """
import sys
from pathlib import Path
from transduce.interop.ctranslate2 import export
from transduce.tasks.transduce import load
export(load(sys.argv[1]), Path(sys.argv[2]))
"""


def export(folder: Path, target: Path) -> None:
    """Our model folder as CTranslate2's, by a process that ends with it.

    Raises RuntimeError with the reason where that does not work.
    """
    command = [sys.executable, "-W", "ignore", "-c", EXPORT, str(folder), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["the export failed"])[-1])


class CTranslate2(Engine):
    """Its Translator over an exported model, quantized as it is loaded."""

    def __init__(self, device: str, threads: int) -> None:
        super().__init__(device, threads)
        # It would load them if it found them, and use neither.
        sys.modules["torch"] = sys.modules["transformers"] = None  # type: ignore[assignment]
        if device == "cuda":
            _show_cuda_libraries()
        import ctranslate2

        self.package = ctranslate2
        self.batch_sizes = (4096, 16384, 65536) if device == "cuda" else (512, 1024, 4096)
        if device == "cuda" and not ctranslate2.get_cuda_device_count():
            raise RuntimeError("this build of CTranslate2 finds no GPU")

    def metadata(self) -> dict[str, str]:
        return {"ctranslate2": self.package.__version__}

    def load(self, folder: Path, precision: str) -> None:
        exported = folder / "ctranslate2"
        known = self.package.get_supported_compute_types(self.device)
        if precision not in known:
            raise RuntimeError(f"it has no {precision} here, only {', '.join(sorted(known))}")
        self.model = self.package.Translator(
            str(exported),
            device=self.device,
            compute_type=precision,
            inter_threads=1,
            intra_threads=self.threads if self.device == "cpu" else 0,
        )
        config = json.loads((exported / "config.json").read_text("utf-8"))
        self.ending = [] if config.get("add_source_eos") else [END]
        self.names = _vocabulary(exported, "source"), _vocabulary(exported, "target")
        self.numbers = {name: number for number, name in enumerate(self.names[1])}

    def _sources(self, sources: Rows) -> list[list[str]]:
        return [[self.names[0][i] for i in [*source, *self.ending]] for source in sources]

    def score(self, sources: Rows, targets: Rows) -> list[list[float]]:
        written = [[self.names[1][i] for i in target] for target in targets]
        found = self.model.score_batch(self._sources(sources), written)
        return [list(of_one.log_probs) for of_one in found]

    def plan(self, wish: Wish) -> Plan:
        sources = self._sources(wish.sources)
        settings: dict[str, Any] = {"beam_size": wish.beam, "length_penalty": 1.0}
        if wish.exact:
            settings |= {
                "max_decoding_length": wish.exact,
                "min_decoding_length": wish.exact,
                "max_batch_size": wish.batch or 0,
            }
        else:
            settings |= {"max_batch_size": wish.batch or 0, "batch_type": "tokens"}

        def read(found: Any) -> list[list[int]]:
            end = self.names[1][END]
            return [
                [self.numbers[name] for name in of_one.hypotheses[0] if name != end]
                for of_one in found
            ]

        return Plan(lambda: self.model.translate_batch(sources, **settings), read)


def _vocabulary(folder: Path, side: str) -> list[str]:
    """The names of tokens, in the order of their ids."""
    for name in (f"{side}_vocabulary", "shared_vocabulary"):
        if (folder / f"{name}.json").exists():
            found: list[str] = json.loads((folder / f"{name}.json").read_text("utf-8"))
            return found
        if (folder / f"{name}.txt").exists():
            return (folder / f"{name}.txt").read_text("utf-8").split("\n")[:-1]
    raise RuntimeError(f"there is no vocabulary in {folder}")


def _show_cuda_libraries() -> None:
    """cuBLAS as torch's wheels bring it: CTranslate2 looks for one that is loaded already."""
    spec = importlib.util.find_spec("nvidia")
    for root in [] if spec is None else spec.submodule_search_locations or []:
        for pattern in ("libcublasLt.so.12", "libcublas.so.12"):
            for path in sorted(Path(root).glob(f"*/lib/{pattern}")):
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


ENGINES: dict[str, type[Engine]] = {
    "ours": Ours,
    "hf": HuggingFace,
    "hf-static": StaticHuggingFace,
    "ct2": CTranslate2,
}
