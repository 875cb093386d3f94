"""Words, inflected or pronounced: which settings pay where there is little to learn from.

    python benchmarks/words.py inflection FOLDER --languages ang tur --size small --part dev \\
        --settings recurrent recurrent+substrings --updates 800 --processes 8 --json FILE
    python benchmarks/words.py pronunciation FOLDER --languages ice --rows 800 --updates 800

The folder of inflection holds LANG_large.train, LANG_small.train, LANG.dev and LANG.gold of the
SIGMORPHON-UniMorph 2022 shared task, part 1: lemma, form and features, separated by tabs. That of
pronunciation holds LANG_train.tsv.gz, LANG_dev.tsv.gz and LANG_test.tsv.gz of SIGMORPHON 2020. A
setting is a name of PARTS, or several joined by +, of which the later ones change the earlier.

All settings get the same number of updates, except `chosen`, the recipe of `transduce train FILE`
for --seconds, and parts that say otherwise. Exact match is measured on the test set, or on the
validation set to choose by. With --json each training adds a line as it ends, so that nothing is
lost if the script is stopped; trainings whose line is there already are left out. --table prints
the lines that are there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any
from unicodedata import normalize

import torch
from choices import by_hash, lines_of
from systems import hardware

import transduce
from transduce.automatic import Machine, choose, inspect
from transduce.automatic.plans import CONFORMER, RECURRENT, Plan
from transduce.data.text.tags import split_tags
from transduce.evaluation.evaluate import evaluate_folder
from transduce.evaluation.results import Evaluation


def _of(plan: Plan) -> dict[str, Any]:
    """A plan of the choice for a file, with its largest batch."""
    model = {**plan.model, "dropout": 0.3}
    return {"model": model, "train": {**plan.train, "batch_tokens": plan.batch[1]}}


def _model(**keys: Any) -> dict[str, Any]:
    return {"model": keys}


def _train(**keys: Any) -> dict[str, Any]:
    return {"train": keys}


def _hallucination(**keys: Any) -> dict[str, Any]:
    return {"data": {"hallucination": keys}}


def _updates(steps: int, **keys: Any) -> dict[str, Any]:
    """Another number of updates than of --updates, with ten validations."""
    return {
        "train": {"steps": steps, "warmup": steps // 10, **keys},
        "validation": {"every": steps // 10},
    }


def _transformer(width: int, layers: int, heads: int, feed_forward: int) -> dict[str, Any]:
    side = {"kind": "transformer", "layers": layers, "heads": heads, "feed_forward": feed_forward}
    return _model(width=width, encoder=side, decoder=side)


CHOSEN = "chosen"
"""The setting that is the recipe of `transduce train FILE`; others may follow it."""
PARTS: dict[str, dict[str, Any]] = {
    CHOSEN: {},
    "recurrent": _of(RECURRENT),
    "conformer": _of(CONFORMER),
    # The network of Wu et al. 2021, the neural baseline of SIGMORPHON 2020 to 2022, which has
    # batches of 400 words: with +batch8192+published it is trained as theirs.
    "transformer": {
        "model": {
            **_transformer(256, 4, 4, 1024)["model"],
            "tie_embeddings": "all",
            "dropout": 0.3,
        },
        "train": {"lr": 1e-3, "label_smoothing": 0.1, "batch_tokens": 4096},
    },
    # One that a CPU trains in minutes.
    "transformer64": {
        "model": {
            **_transformer(64, 2, 4, 256)["model"],
            "tie_embeddings": "all",
            "dropout": 0.1,
        },
        "train": {"lr": 3e-3, "label_smoothing": 0.1, "batch_tokens": 1024},
    },
    # Letters and tags as symbols of one text, the tags before or after the letters: after them, the
    # position of a letter does not depend on the number of tags.
    "tagsfirst": {},
    "tagslast": {},
    # Hallucinated pairs, and copies.
    "substrings": _hallucination(letters="substrings"),
    "any": _hallucination(letters="any"),
    "kept0": _hallucination(kept=0),
    "kept2": _hallucination(kept=2),
    "kept3": _hallucination(kept=3),
    "few": _hallucination(share=0.25),
    "many": _hallucination(share=0.75),
    "most": _hallucination(share=0.9),
    "copies": _hallucination(copies=0.1),
    "unknowntags": {"data": {"unknown_tags": 0.05}},
    "unknowntags20": {"data": {"unknown_tags": 0.2}},
    "fewcopies": _hallucination(copies=0.05),
    "onlycopies": _hallucination(share=0.0, copies=0.05),
    "shuffled": {"data": {"shuffle_tags": True}},
    "splittags": {"data": {"split_tags": True}},
    "jointtags": {"data": {"split_tags": False}},
    "composed": {"data": {"tokens": {"both": {"normalize": "none"}}}},
    "bidirectional": {"data": {"bidirectional": True}},
    # The network.
    "width64": _model(width=64),
    "width128": _model(width=128),
    "width192": _model(width=192),
    "width256": _model(width=256),
    "width384": _model(width=384),
    "dropout0": _model(dropout=0.0),
    "dropout0.1": _model(dropout=0.1),
    "dropout0.2": _model(dropout=0.2),
    "dropout0.4": _model(dropout=0.4),
    "dropout0.5": _model(dropout=0.5),
    "2layers": _model(encoder={"layers": 2}, decoder={"layers": 2}),
    "3layers": _model(encoder={"layers": 3}, decoder={"layers": 3}),
    "lstm": _model(encoder={"cell": "lstm"}, decoder={"cell": "lstm"}),
    "input": _model(decoder={"context": "both"}),
    "general": _model(decoder={"attention": "general"}),
    "copying": _model(decoder={"copying": True}),
    "tagzero": _model(encoder={"tag_positions": "zero"}),
    "tagattention": _model(decoder={"tag_attention": True}),
    "tagsread": _model(decoder={"tag_attention": False}),
    # Training.
    "long": _train(steps=3000),
    "updates1500": _updates(1500),
    "updates2000": _updates(2000),
    "updates2500": _updates(2500),
    "updates3000": _updates(3000),
    "updates5000": _updates(5000),
    "updates10000": _updates(10_000),
    "updates20000": _updates(20_000),
    # The schedule of Wu et al. 2021: 20,000 updates of 400 words, warm-up of 4,000; or a quarter.
    "published": _updates(20_000, schedule="inverse-sqrt", warmup=4000, weight_decay=0.0),
    "quarter": _updates(5000, schedule="inverse-sqrt", warmup=1000, weight_decay=0.0),
    "wholedev": {"validation": {"limit": None}},
    # The last checkpoint, and greedy search: cheap, to compare trainings.
    "last": {"validation": {"every": 1_000_000, "limit": 40, "decoding": "fixed"}},
    "greedy": {"decode": {"beam": 1}},
    "limit200": {"validation": {"limit": 200}},
    "average": _train(average={"of": "best", "count": 5}),
    "rdrop1": _train(r_drop=1.0),
    "rdrop3": _train(r_drop=3.0),
    "ordrop": _train(r_drop=0.0),
    "smooth0": _train(label_smoothing=0.0),
    "smooth0.2": _train(label_smoothing=0.2),
    "ema": _train(ema=0.99),
    "ema0.995": _train(ema=0.995),
    "decay": _train(weight_decay=0.1),
    "batch128": _train(batch_tokens=128),
    "batch256": _train(batch_tokens=256),
    "batch1024": _train(batch_tokens=1024),
    "batch2048": _train(batch_tokens=2048),
    "batch4096": _train(batch_tokens=4096),
    "batch8192": _train(batch_tokens=8192),
    "oncuda": _train(device="cuda"),
    "lr1e-3": _train(lr=1e-3),
    "lr2e-3": _train(lr=2e-3),
    "lr3e-3": _train(lr=3e-3),
    "lr8e-3": _train(lr=8e-3),
}


def _merged(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {**below, **{key: _merged(below.get(key), value) for key, value in above.items()}}


def training_file(options: argparse.Namespace, language: str) -> str:
    if options.task == "pronunciation":
        return f"{language}_train.tsv.gz"
    return f"{language}_{options.size}.train"


def chosen(options: argparse.Namespace, language: str) -> dict[str, Any]:
    """The recipe that `transduce train` chooses for the training file, for so many seconds; on a
    GPU as if it had it alone, on a CPU for one core of a Neoverse-N1."""
    folder, name = options.folder, training_file(options, language)
    machine = Machine("cuda" if options.device.startswith("cuda") else "cpu")
    choice = choose(inspect([folder / name]), machine, options.seconds / 60)
    choice.set("data.folder", str(folder.resolve()))
    choice.set("train.device", options.device)
    if options.part == "dev":
        choice.set("data.test", choice.get("data.valid"))
    return choice.values


def cut(folder: Path, name: str, rows: int, place: Path) -> Path:
    """A folder in which the training file has so many of its rows, and the other parts are as they
    are. Files are sorted, so a hash decides which rows: the first ones would begin alike."""
    place = place / "cut"
    place.mkdir()
    for file in folder.glob(f"{name.split('_')[0]}[_.]*"):
        (place / file.name).symlink_to(file.resolve())
    some = set(by_hash(lines_of(folder / name))[:rows])
    kept = [f"{line}\n" for line in lines_of(folder / name) if line in some]
    (place / name).unlink()
    opened = gzip.open if name.endswith(".gz") else Path.open
    with opened(place / name, "wt", encoding="utf-8") as file:
        file.writelines(kept)
    return place


def corpora(options: argparse.Namespace, language: str) -> dict[str, Any]:
    """The parts of the data section that the task decides."""
    if options.task == "pronunciation":
        part = "dev" if options.part == "dev" else "test"
        names = {"train": "train", "valid": "dev", "test": part}
        found: dict[str, Any] = {
            split: {"file": f"{language}_{name}.tsv.gz"} for split, name in names.items()
        }
        sides = {
            "source": {"level": "character", "normalize": "nfd"},
            "target": {"level": "symbol"},
        }
        found |= {"tokens": sides, "multiple_references": True}
    else:
        part = "dev" if options.part == "dev" else "gold"
        files = {"train": f"{language}_{options.size}.train", "valid": f"{language}.dev"}
        files["test"] = f"{language}.{part}"
        found = {split: {"file": name, "format": "tsv", "tags": 2} for split, name in files.items()}
        found["tokens"] = {"both": {"level": "character", "normalize": "nfd"}}
    return {"folder": str(options.folder.resolve()), **found}


def as_symbols(data: dict[str, Any], place: Path, last: bool) -> dict[str, Any]:
    """The corpora of inflection with tags as symbols among the letters; writes them to a folder."""
    made = {key: data[key] for key in ("train", "valid", "test")}
    for split, corpus in made.items():
        rows = []
        for line in (Path(data["folder"]) / corpus["file"]).read_text("utf-8").splitlines():
            lemma, form, features = line.split("\t")
            letters, written = (
                list(normalize("NFD", word).replace(" ", "▁")) for word in (lemma, form)
            )
            tags = [f"<{tag}>" for tag in split_tags(features)]
            read = [*letters, *tags] if last else [*tags, *letters]
            rows.append(f"{' '.join(read)}\t{' '.join(written)}\n")
        (place / f"{split}.tsv").write_text("".join(rows), "utf-8")
        made[split] = {"file": f"{split}.tsv"}
    return {"folder": str(place), **made, "tokens": {"both": {"level": "symbol"}}}


def recipe(
    options: argparse.Namespace, language: str, setting: str, seed: int, place: Path
) -> dict[str, Any]:
    """The recipe of a training; place: a folder for its files."""
    updates, inflects = options.updates, options.task == "inflection"
    whole: dict[str, Any] = {
        "name": "words",
        "seed": seed,
        "data": corpora(options, language),
        "model": {"tie_embeddings": "all" if inflects else "none"},
        "train": {
            "steps": updates,
            "minutes": options.seconds / 60,
            "warmup": max(1, updates // 10),
            "schedule": "cosine",
            "device": options.device,
            "log_every": max(1, updates // 4),
        },
        "validation": {"every": max(1, updates // 4), "metric": "exact", "limit": 200},
        "decode": {"beam": 4, "patience": None},
        "metrics": ["exact", "cer" if inflects else "per"],
    }
    if setting.split("+")[0] == CHOSEN:
        whole = {**chosen(options, language), "seed": seed}
    for name in setting.split("+"):
        whole = _merged(whole, PARTS[name])
        if name in ("tagsfirst", "tagslast"):
            whole["data"] = as_symbols(whole["data"], place, name == "tagslast")
    return whole


def measure(options: argparse.Namespace, language: str, setting: str, seed: int) -> dict[str, Any]:
    """One training and its score."""
    torch.set_num_threads(1)
    size = options.rows or options.size
    row: dict[str, Any] = {"task": options.task, "language": language, "size": size}
    row |= {"part": options.part, "setting": setting, "seed": seed}
    began, cpu = time.perf_counter(), time.process_time()
    try:
        with (
            tempfile.TemporaryDirectory() as place,
            Path(os.devnull).open("w", encoding="utf-8") as nothing,
            redirect_stdout(nothing),
            redirect_stderr(nothing),
        ):
            if options.rows:
                name = training_file(options, language)
                folder = cut(options.folder, name, options.rows, Path(place))
                options = argparse.Namespace(**{**vars(options), "folder": folder})
            asked = recipe(options, language, setting, seed, Path(place))
            folder = kept_folder(options, language, setting, seed) or Path(place) / "run"
            trained = transduce.train(asked, folder)
            row["seconds"] = round(time.perf_counter() - began, 1)
            row["cpu_seconds"] = round(time.process_time() - cpu, 1)
            scored = partial(evaluate_folder, trained.model, trained.folder, write=False)
            found = scored()
            row["exact"] = round(found.metrics["exact"].value, 2)
            if options.task == "inflection":
                row["exact_by_features"] = by_features(options, language, found)
            if options.searches:  # what else search could do
                for name, how in (("greedy", {"beam": 1}), ("patience_1", {"patience": 1.0})):
                    row[f"exact_{name}"] = round(scored(**how).metrics["exact"].value, 2)
            if asked["data"].get("bidirectional"):  # what the same network does in one direction
                one = scored(bidirectional=False).metrics["exact"].value
                row["exact_left_to_right"] = round(one, 2)
            if options.keep is not None:
                write_outputs(folder / "outputs.tsv", found)
                (folder / ENDED).touch()
                before = [kept_folder(options, language, setting, n) for n in range(1, seed)]
                if others := [one for one in before if one is not None and (one / ENDED).exists()]:
                    ensemble = [transduce.load(one, device=options.device) for one in others]
                    together = scored(ensemble=ensemble, with_folders=others)
                    row["exact_ensemble"] = round(together.metrics["exact"].value, 2)
                    row["members"] = 1 + len(others)
        row["updates"] = asked["train"]["steps"]
    except Exception as error:  # a setting that cannot be trained must not end the others
        row["error"] = f"{type(error).__name__}: {error}"
    return row


ENDED = "scored"
"""A file in a run directory that is kept, when its model is whole."""


def kept_folder(options: argparse.Namespace, language: str, setting: str, seed: int) -> Path | None:
    """Where a training is kept; None where it is not."""
    if options.keep is None:
        return None
    size = options.rows or options.size
    return Path(options.keep, f"{options.task}-{size}-{options.part}-{language}-{setting}-{seed}")


def write_outputs(path: Path, found: Evaluation) -> None:
    rows = zip(found.items, found.outputs, strict=True)
    path.write_text(
        "".join(f"{one.source}\t{' | '.join(one.references)}\t{out.text}\n" for one, out in rows),
        encoding="utf-8",
    )


TAGS = re.compile(r"(?:<[^<>\s]+> )*")


def by_features(
    options: argparse.Namespace, language: str, found: Evaluation
) -> dict[str, dict[str, float]]:
    """Exact match by what training has of a form's features: all of them together in some form,
    only each of them, or not each of them."""
    lines = (options.folder / f"{language}_{options.size}.train").read_text("utf-8").splitlines()
    there = [frozenset(split_tags(line.split("\t")[2])) for line in lines]
    single = frozenset().union(*there)
    right: dict[str, list[bool]] = {}
    for item, output in zip(found.items, found.outputs, strict=True):
        tags = frozenset(TAGS.match(item.source)[0].replace("<", "").replace(">", "").split())
        kind = "together" if tags in there else "apart" if tags <= single else "unknown"
        references = [normalize("NFC", one) for one in item.references]
        right.setdefault(kind, []).append(normalize("NFC", output.text) in references)
    return {
        kind: {"forms": len(each), "exact": round(100 * mean(each), 2)}
        for kind, each in sorted(right.items())
    }


def jobs(options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Language by language, so that a script that is stopped has compared all settings."""
    done = {_key(row) for row in kept(options.json) if "error" not in row}
    for seed, language, setting in product(
        range(1, options.seeds + 1), options.languages, options.settings
    ):
        if (language, setting, seed) not in done:
            yield language, setting, seed


def _key(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["language"], row["setting"], row["seed"]


def kept(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows, as they come; several trainings at once where asked for."""
    if options.processes == 1:
        for job in jobs(options):
            yield measure(options, *job)
        return
    # One thread each: without this every process would start as many as there are cores.
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        waiting = [pool.submit(measure, options, *job) for job in jobs(options)]
        for one in as_completed(waiting):
            yield one.result()


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Settings by language, the mean of the seeds, and of the languages that all settings have."""
    scores: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if "exact" in row:
            scores.setdefault((row["setting"], row["language"]), []).append(row["exact"])
    settings = sorted({setting for setting, _ in scores})
    languages = sorted({language for _, language in scores})
    common = [one for one in languages if all((setting, one) in scores for setting in settings)]
    lines = ["| setting | mean of " + " ".join(common) + " | " + " | ".join(languages) + " |"]
    lines.append("| --- " * (len(languages) + 2) + "|")
    for setting in settings:
        means = {one: mean(scores[setting, one]) for one in languages if (setting, one) in scores}
        cells = [f"{means[one]:.1f}" if one in means else "" for one in languages]
        of_all = f"{mean(means[one] for one in common):.1f}" if common else ""
        lines.append(f"| {setting} | {of_all} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("task", choices=["inflection", "pronunciation"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--languages", nargs="+", required=True)
    parser.add_argument("--settings", nargs="+", default=["recurrent"])
    parser.add_argument("--size", choices=["small", "large"], default="small")
    parser.add_argument("--rows", type=int, help="of the training set, so many, by a hash")
    parser.add_argument("--part", choices=["dev", "test"], default="test")
    parser.add_argument("--updates", type=int, default=800)
    parser.add_argument("--seconds", type=float, default=600, help="of a training, at most")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--keep",
        type=Path,
        help="folder for the models, with what they wrote; each is also scored as an ensemble with "
        "those of the seeds before it",
    )
    parser.add_argument(
        "--searches", action="store_true", help="score greedy search and patience 1 as well"
    )
    parser.add_argument("--table", action="store_true", help="of the lines that are there")
    options = parser.parse_args()
    for setting in options.settings:
        if missing := set(setting.split("+")) - set(PARTS):
            parser.error(f"{', '.join(missing)}: unknown; known are {', '.join(PARTS)}")
    torch.set_num_threads(1)
    if options.table:
        print(table(kept(options.json)))
        return
    about = {"machine": hardware(torch.device(options.device)), "torch": torch.__version__}
    for row in run(options):
        print(json.dumps(row), flush=True)
        if options.json is not None:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**row, **about}) + "\n")


if __name__ == "__main__":
    main()
