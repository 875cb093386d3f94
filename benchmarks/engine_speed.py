"""CTranslate2 through transduce against CTranslate2 called by hand, over the same exported model.

    python benchmarks/engine_speed.py MODEL [--rounds 7] [--lines 2000]

From lines of text to lines of text: cut by the model's tokenizer, decoded with a worker of one
thread for each core, joined. By hand is as little as that takes: all lines in one call of
`translate_batch`, with the batch size that was fastest, and the longest of our limits. Each way has
a process of its own; they take turns, and what counts is the median of the ratios of neighbouring
turns, as the speed of a machine drifts; beside it the ratio of the seconds that all cores worked,
which says what is done more, whoever else is on the machine. Once without scores, once with them on
both sides. Prints a table and writes benchmarks/results/engine_speed.json.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
TESTS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco")
BATCH_SIZES = (512, 1024, 2048, 4096)  # tokens, that by hand tries

Run = Callable[[list[str], int, bool], list[str]]
"""Lines, a beam, and whether scores are wanted; gives the texts."""


# ------------------------------------------------------------------------------------ two ways


def ours(folder: Path) -> Run:
    from transduce.hardware import keep_loaded
    from transduce.interop.engine import open_model

    model = open_model(folder, device="cpu")
    keep_loaded()  # as `transduce run` does
    return lambda lines, beam, scores: [
        output.text for output in model.run(lines, beam=beam, scores=scores)
    ]


def by_hand(folder: Path) -> Run:
    import ctranslate2
    import yaml
    from tokenizers import Tokenizer

    cut = Tokenizer.from_file(str(folder / "source.tokens.json"))
    join = Tokenizer.from_file(str(folder / "target.tokens.json")).decoder
    names = [cut.id_to_token(number) for number in range(cut.get_vocab_size())]
    decode = yaml.safe_load((folder / "recipe.yaml").read_text("utf-8"))["decode"]
    ratio, extra = decode["max_ratio"], decode["max_extra"]
    cores = len(os.sched_getaffinity(0))
    translator = ctranslate2.Translator(str(folder), inter_threads=cores, intra_threads=1)
    best: dict[tuple[int, bool], int] = {}

    def run(lines: list[str], beam: int, scores: bool, size: int = 0) -> list[str]:
        if not size and (beam, scores) not in best:
            tried = [(_seconds(run, lines, beam, scores, size), size) for size in 2 * BATCH_SIZES]
            best[beam, scores] = min(tried)[1]
        encodings = cut.encode_batch_fast(lines, add_special_tokens=False)
        found = translator.translate_batch(
            [[names[number] for number in encoding.ids] for encoding in encodings],
            beam_size=beam,
            max_batch_size=size or best[beam, scores],
            batch_type="tokens",
            max_decoding_length=int(ratio * (1 + max(map(len, encodings)))) + extra,
            return_scores=scores,
        )
        return [join.decode(result.hypotheses[0]) for result in found]

    return run


WAYS: dict[str, Callable[[Path], Run]] = {"ours": ours, "hand": by_hand}


def _seconds(run: Callable[..., list[str]], *arguments: Any) -> float:
    began = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - began


def work(way: str, folder: str, file: str) -> None:
    """Answers each line of standard input, [beam, scores], with seconds, work and texts."""
    run = WAYS[way](Path(folder))
    lines = Path(file).read_text("utf-8").splitlines()
    for asked in sys.stdin:
        began, worked = time.perf_counter(), time.process_time()
        texts = run(lines, *json.loads(asked))
        ended = [time.perf_counter() - began, time.process_time() - worked]
        print(json.dumps([*ended, texts]), flush=True)


# ------------------------------------------------------------------------------------- compared


class Worker:
    """One of the two ways, in a process of its own."""

    def __init__(self, way: str, folder: Path, file: Path) -> None:
        command = [sys.executable, "-W", "ignore", __file__, "--work", way, folder, file]
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def ask(self, beam: int, scores: bool) -> tuple[float, float, list[str]]:
        """Seconds that passed, seconds that all cores worked, and the texts."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([beam, scores]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a worker ended with {self.process.wait()}")
        passed, worked, texts = json.loads(answer)
        return passed, worked, texts

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compared(workers: dict[str, Worker], beam: int, scores: bool, rounds: int) -> dict[str, Any]:
    texts = {way: worker.ask(beam, scores)[2] for way, worker in workers.items()}  # warm
    passed: dict[str, list[float]] = {way: [] for way in WAYS}
    worked: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in sorted(WAYS, reverse=bool(number % 2)):
            seconds, work_of_all, _ = workers[way].ask(beam, scores)
            passed[way].append(seconds)
            worked[way].append(work_of_all)
    same = [one == other for one, other in zip(texts["ours"], texts["hand"], strict=True)]
    ratios = _ratios(passed)
    return {
        "beam": beam,
        "scores": scores,
        "lines": len(same),
        "identical": sum(same) / len(same),
        "seconds": passed,
        "worked": worked,
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "ratio_of_work": statistics.median(_ratios(worked)),
    }


def _ratios(of: dict[str, list[float]]) -> list[float]:
    return [hand / ours for hand, ours in zip(of["hand"], of["ours"], strict=True)]


def _show(row: dict[str, Any]) -> None:
    ours, hand = (statistics.median(row["seconds"][way]) for way in ("ours", "hand"))
    print(
        f"{row['quantize']:8} beam {row['beam']} {'scores' if row['scores'] else '':6}  ours "
        f"{ours:.3f} s, by hand {hand:.3f} s, ratio {row['ratio']:.3f} ({row['lowest']:.3f} to "
        f"{row['highest']:.3f}), of work {row['ratio_of_work']:.3f}; "
        f"{row['identical']:.2%} of outputs the same",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--quantize", nargs="+", default=["float32", "int8"])
    parser.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data" / "multi30k", metavar="FOLDER"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "engine_speed.json")
    arguments = parser.parse_args()
    import ctranslate2
    import torch
    from systems import metadata

    from transduce.interop.ctranslate2 import export
    from transduce.tasks.transduce import load

    lines: list[str] = []
    for name in TESTS:
        with gzip.open(arguments.data / f"{name}.en.gz", "rt", encoding="utf-8") as stream:
            lines += stream.read().splitlines()
    model, rows = load(arguments.model), []
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "lines.txt"
        file.write_text("\n".join(lines[: arguments.lines]) + "\n", "utf-8")
        for kind in arguments.quantize:
            folder = Path(scratch) / kind
            export(model, folder, None if kind == "float32" else kind)
            workers = {way: Worker(way, folder, file) for way in WAYS}
            for beam, scores in itertools.product(arguments.beams, (False, True)):
                row = compared(workers, beam, scores, arguments.rounds)
                rows.append({"quantize": kind, **row})
                _show(rows[-1])
            for worker in workers.values():
                worker.close()
    found = metadata(torch.device("cpu")) | {"ctranslate2": ctranslate2.__version__}
    found["threads"] = len(os.sched_getaffinity(0))
    whole = {"facts": found, "model": arguments.model.name, "rows": rows}
    arguments.out.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        main()
