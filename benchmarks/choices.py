"""What `transduce train FILE` chooses, against a search by hand in the same time.

    python benchmarks/choices.py --prepare DATA CUT     # corpora, cut to 100, 1,000, 10,000, all
    python benchmarks/choices.py CUT --seconds 60 --jobs 12 --device cuda --out FILE

Each cut is a folder of train, valid and test files. For each the recipe is chosen as the command
does, for so many seconds; the search tries every plan of the task, except those for sets at least
ten times as large and those that the time gives hardly an update, and each with other rates,
dropouts and widths, for the same time: on a GPU by the wall clock, on a CPU by the time for which
the processor worked, one thread each, so that what else the machine does decides nothing. The best
of the search is that of the best validation score; both are compared on the test set. A recipe of
the search that is the chosen one is not trained again. Chance makes one of ten recipes look good,
its validation and its test score alike: with --seeds 2 the chosen recipe and the best are trained
once more, and the loss of these is shown too. Trainings run side by side, each in a process.
Results are added to FILE as they come: a run that was stopped goes on, and several machines may
share the work (--share 1/2). HELD_OUT corpora are reported apart: nothing was tuned on them.
--changes "train.steps=x2 model.dropout=0.2" also trains the chosen recipe with such values, for
one question: with --settings 'chosen*' these and the chosen recipe alone.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import lzma
import multiprocessing
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from copy import deepcopy
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from hashlib import blake2b
from pathlib import Path
from statistics import mean
from typing import Any

ROWS = (100, 1000, 10_000, 10**9)
ALL = "all"
MAX_HELD_OUT = 500  # rows of valid and of test
HELD_OUT = (
    "g2p-gre", "g2p-jpn", "g2p-vie", "inflection-got", "inflection-vep", "multi30k-de-fr",
    "languages-clauses", "languages-short", "ratings", "ewt-xpos", "reviews", "letters",
)  # fmt: skip
RATES, DROPOUTS, WIDTHS = (0.5, 2.0), (0.1, 0.3, 0.5), (0.5, 2.0)
COARSE = 10.0  # per cent of whole outputs that are right: with fewer, wrong phones are compared
HARDLY = 0.1  # of its updates that a plan of the search must get in the time
Parts = dict[str, list[str]]
"""Lines of the files train, valid and test."""


# ------------------------------------------------------------------------------------ the corpora


def lines_of(path: Path) -> list[str]:
    opened: Callable[..., Any] = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opened(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def by_hash(lines: Iterable[str]) -> list[str]:
    """In an order that depends on nothing but each line: cuts are part of larger ones."""
    return sorted(lines, key=lambda line: blake2b(line.encode(), digest_size=8).digest())


def parts(names: dict[str, str], folder: Path) -> Parts:
    return {part: lines_of(folder / name) for part, name in names.items()}


def g2p(language: str, folder: Path) -> Parts:
    names = {"train": "train", "valid": "dev", "test": "test"}
    files = {part: f"{language}_{name}.tsv.gz" for part, name in names.items()}
    return parts(files, folder / "sigmorphon2020_g2p")


def cmudict(folder: Path) -> Parts:
    names = {
        "train": "cmudict-0.7b.train-dev-20-21.gz",
        "valid": "cmudict-0.7b.train-dev-1-21.gz",
        "test": "cmudict-0.7b.test.gz",
    }
    found = parts(names, folder / "cmudict_g2p")
    return {
        part: ["\t".join(line.split(None, 1)) for line in lines] for part, lines in found.items()
    }


def inflection(language: str, size: str, folder: Path) -> Parts:
    names = {
        "train": f"{language}_{size}.train",
        "valid": f"{language}.dev",
        "test": f"{language}.gold",
    }
    found: Parts = {}
    with tarfile.open(folder / "sigmorphon2022_inflection" / "part1.tar.xz") as packed:
        for part, name in names.items():
            file = packed.extractfile(name)
            assert file is not None
            found[part] = [line for line in file.read().decode("utf-8").splitlines() if line]
    return found


def multi30k(source: str, target: str, folder: Path) -> Parts:
    place = folder / "multi30k"
    names = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    if not (place / f"val.{source}.gz").exists():
        names["valid"] = "valid"
    sides = {
        part: [
            [" ".join(line.split()) for line in lines_of(place / f"{name}.{side}.gz")]
            for side in (source, target)
        ]
        for part, name in names.items()
    }
    return {part: list(map("\t".join, zip(*both, strict=True))) for part, both in sides.items()}


def imdb(folder: Path, label: int = 0) -> Parts:
    """The review and a label; a part of the training set is the validation set.

    label: the column of the corpus, 0 positive or negative, 2 the rating.
    """
    sets = {}
    for name in ("train", "test"):
        rows = (line.split("\t") for line in lines_of(folder / "imdb" / f"{name}.tsv.xz"))
        sets[name] = by_hash(f"{row[3]}\t{row[label]}" for row in rows)
    return {
        "train": sets["train"][MAX_HELD_OUT:],
        "valid": sets["train"][:MAX_HELD_OUT],
        "test": sets["test"],
    }


def reviews(folder: Path) -> Parts:
    """Running text: the first of the film reviews."""
    most = {"train": 4000, "valid": 100, "test": 100}
    return {
        part: [row.split("\t")[0] for row in of[: most[part]]] for part, of in imdb(folder).items()
    }


def languages(folder: Path, first: int = 0, words: int | None = None) -> Parts:
    """Paragraphs of the Declaration of Human Rights and their language: of twenty languages.

    first: of these twenty, in their order by hash. words: so many of each paragraph.
    """
    rows = [line.split("\t") for line in lines_of(folder / "udhr_text" / "paragraphs.tsv.xz")[1:]]
    ordered = by_hash({row[0] for row in rows})
    chosen = ordered[first : first + 20]
    texts = [(" ".join(row[2].split()[:words]), row[0]) for row in rows if row[0] in chosen]
    kept = by_hash({f"{text}\t{language}" for text, language in texts if text})
    third = min(len(kept) // 4, MAX_HELD_OUT)
    return {
        "train": kept[2 * third :],
        "valid": kept[:third],
        "test": kept[third : 2 * third],
    }


def ewt(folder: Path, column: int = 3) -> Parts:
    """A sentence and its tags in each line. column: of the universal tags, or of others."""
    names = {"train": "train", "valid": "dev", "test": "test"}
    found: Parts = {}
    for part, name in names.items():
        found[part] = list(
            _sentences(lines_of(folder / "ud_english_ewt" / f"en_ewt-ud-{name}.conllu.xz"), column)
        )
    return found


def _sentences(lines: Iterable[str], column: int) -> Iterator[str]:
    words: list[list[str]] = []
    for line in lines:
        cells = line.split("\t")
        if len(cells) == 10 and cells[0].isdecimal():
            words.append([cells[1].replace(" ", "_"), cells[column]])
        elif not line and words:
            yield "\t".join(" ".join(word[side] for word in words) for side in (0, 1))
            words = []


def shakespeare(folder: Path) -> Parts:
    """Running text, in its order."""
    lines = lines_of(folder / "tinyshakespeare" / "input.txt.gz")
    held = len(lines) // 20
    return {
        "train": lines[: -2 * held],
        "valid": lines[-2 * held : -held],
        "test": lines[-held:],
    }


# ---------------------------------------------------------------------------------------- sound

PROMPTS = Path("asterisk_prompts", "en_flac_8k.tar")
VOICES = 60  # of each recording
SAMPLE_RATE = 8000
DIGITS = tuple(f"digits__{n}" for n in range(10))
LETTERS = tuple(f"letters__{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")


def spoken(prompts: Sequence[str], folder: Path) -> Parts:
    """Recordings of one speaker, each in many made-up voices: another pitch and pace, another
    throat and microphone, noise. No voice is in two parts. Real speakers differ more.

    Rows are name of a sound, label; the sounds themselves are made by `voice`, from the name.
    """
    (folder / PROMPTS).stat()  # raises where they are missing
    rows = {part: list[str]() for part in ("train", "valid", "test")}
    for number in range(VOICES):
        part = "test" if number % 6 == 0 else "valid" if number % 6 == 1 else "train"
        rows[part] += [f"{name}.{number}.wav\t{name.rpartition('_')[2]}" for name in prompts]
    return rows


def voice(samples: Any, number: int) -> Any:
    """A recording in a made-up voice."""
    import numpy as np

    draw = np.random.default_rng(number)
    pace = draw.uniform(0.78, 1.28)
    places = np.arange(int(len(samples) / pace)) * pace
    made = np.interp(places, np.arange(len(samples)), samples)
    filtered = draw.normal(0, 0.25, 9)
    filtered[4] = 1
    made = np.convolve(made, filtered, "same")
    times = np.linspace(0, 1, len(made))
    bent = times + draw.uniform(-0.08, 0.08) * np.sin(np.pi * times)
    made = np.interp(bent * (len(made) - 1), np.arange(len(made)), made)
    made *= 0.05 * draw.uniform(0.5, 2) / np.sqrt((made**2).mean())
    quiet = [np.zeros(draw.integers(0, 900)) for _ in range(2)]
    made = np.concatenate([quiet[0], made, quiet[1]])
    return made + draw.normal(0, 0.05 * 10 ** (-draw.uniform(5, 25) / 20), len(made))


def write_sounds(rows: Iterable[str], data: Path, place: Path) -> None:
    """The recordings that rows of `spoken` name."""
    import soundfile

    place.mkdir(exist_ok=True)
    with tarfile.open(data / PROMPTS) as packed:
        kept: dict[str, Any] = {}
        for row in rows:
            name = row.partition("\t")[0]
            prompt, number, _ = name.rsplit(".", 2)
            if prompt not in kept:
                file = packed.extractfile(f"en/{prompt}.flac")
                assert file is not None
                kept[prompt] = soundfile.read(io.BytesIO(file.read()))[0]
            soundfile.write(place / name, voice(kept[prompt], int(number)), SAMPLE_RATE)


CORPORA: dict[str, Callable[[Path], Parts]] = {
    "cmudict": cmudict,
    **{
        f"g2p-{language}": partial(g2p, language)
        for language in ("ady", "kor", "fre", "hun", "gre", "jpn", "vie")
    },
    **{
        f"inflection-{language}": partial(inflection, language, "large")
        for language in ("ang", "hun", "kat", "got", "vep")
    },
    "multi30k-en-de": partial(multi30k, "en", "de"),
    "multi30k-de-fr": partial(multi30k, "de", "fr"),
    "imdb": imdb,
    "ratings": partial(imdb, label=2),
    "languages": languages,
    "languages-short": partial(languages, first=20, words=4),
    "languages-clauses": partial(languages, first=40, words=12),
    "ewt": ewt,
    "ewt-xpos": partial(ewt, column=4),
    "shakespeare": shakespeare,
    "reviews": reviews,
    "digits": partial(spoken, DIGITS),
    "letters": partial(spoken, LETTERS),
}
TEXTS, SOUNDS = ("shakespeare", "reviews"), ("digits", "letters")


def prepare(data: Path, out: Path) -> None:
    """Write each corpus, cut to so many rows of training."""
    for name, read in CORPORA.items():
        try:
            found = read(data)
        except (OSError, KeyError, AssertionError) as error:
            print(f"{name} is left out: {error}")
            continue
        running, sound = name in TEXTS, name in SOUNDS
        order: Callable[[Iterable[str]], list[str]] = list if running else by_hash
        train = order(found["train"])
        written: set[str] = set()
        for rows in ROWS:
            if rows > ROWS[0] and rows != ROWS[-1] and len(train) < rows / 3:
                continue
            if rows == ROWS[-1] and len(train) <= 2 * ROWS[-2]:  # hardly more than that
                continue
            place = out / f"{name}-{rows if rows < ROWS[-1] else ALL}"
            place.mkdir(parents=True, exist_ok=True)
            held = None if running else MAX_HELD_OUT
            cut = {
                "train": train[:rows],
                **{part: order(found[part])[:held] for part in ("valid", "test")},
            }
            for part, lines in cut.items():
                shown = [f"../{name}-sounds/{line}" for line in lines] if sound else lines
                header = ["path\tlabel"] if sound else []
                text = "".join(f"{one}\n" for one in [*header, *shown])
                (place / f"{part}.{'txt' if running else 'tsv'}").write_text(text, "utf-8")
            if sound:
                new = [line for lines in cut.values() for line in lines if line not in written]
                write_sounds(new, data, out / f"{name}-sounds")
                written |= set(new)
            print(f"{place.name}: {', '.join(f'{k} {len(v):,}' for k, v in cut.items())}")


def quick(out: Path) -> None:
    """A small corpus, to see that everything runs."""
    place = out / "reverse-100"
    place.mkdir(parents=True)
    words = by_hash(f"{a}{b}{c}" for a in "abcde" for b in "fghij" for c in "klmnop")
    for part, some in (("train", words[:100]), ("valid", words[100:120]), ("test", words[120:])):
        text = "".join(f"{word}\t{word[::-1]}\n" for word in some)
        (place / f"{part}.tsv").write_text(text, "utf-8")


# ----------------------------------------------------------------------------------- the trainings


def settings_of(folder: Path, machine: Any, seconds: float) -> dict[str, dict[str, Any]]:
    """The recipes of a cut by name: the chosen one, and those of the search."""
    import yaml

    from transduce.automatic import Choice, choose, inspect
    from transduce.automatic.choose import family_of
    from transduce.automatic.plans import PLANS
    from transduce.recipe import parse_recipe

    train = next(folder.glob("train.*"))
    found = replace(inspect([train]), folder=folder.resolve())
    minutes = seconds / 60

    def chosen(**asked: Any) -> Choice:
        choice = choose(found, machine, minutes, **asked)
        choice.set("data.folder", str(found.folder))
        if "limit" in choice.values["validation"]:  # running text is always read whole
            choice.set("validation.limit", None)
        return choice

    recipes = {"chosen": chosen().values}
    size = found.sound.minutes if found.sound is not None else found.rows
    for plan in PLANS[family_of(found)]:
        choice = chosen(plan=plan)
        as_it_is = choice.values
        hardly = choice.expected < HARDLY * as_it_is["train"]["steps"]
        if plan.rows >= 10 * size or (hardly and len(recipes) > 1):  # the smallest is tried
            continue
        recipes[plan.name] = as_it_is
        rate = as_it_is["train"]["lr"]
        for factor in RATES:
            recipes[f"{plan.name}, rate × {factor:g}"] = with_key(
                as_it_is, "train", "lr", rate * factor
            )
        for dropout in DROPOUTS:
            if dropout != as_it_is["model"]["dropout"]:
                recipes[f"{plan.name}, dropout {dropout}"] = with_key(
                    as_it_is, "model", "dropout", dropout
                )
        width = parse_recipe(yaml.safe_dump(as_it_is), folder.name, folder).model.width
        for factor in WIDTHS:
            recipes[f"{plan.name}, width × {factor:g}"] = with_key(
                as_it_is, "model", "width", round(width * factor)
            )
    return recipes


def with_key(values: dict[str, Any], section: str, key: str, value: Any) -> dict[str, Any]:
    return {**values, section: {**values[section], key: value}}


def changed(values: dict[str, Any], changes: str) -> dict[str, Any]:
    """The recipe with other values: `train.steps=x2 model.dropout=0.2`. x: that many times its own.

    The warm-up stays the same share of the updates.
    """
    import yaml

    values = deepcopy(values)
    share = values["train"]["warmup"] / values["train"]["steps"]
    for change in changes.split():
        key, _, given = change.partition("=")
        *above, last = key.split(".")
        place = values
        for one in above:
            place = place[one]
        if given.startswith("x"):
            product = place[last] * float(given[1:])
            place[last] = round(product) if isinstance(place[last], int) else product
        else:
            place[last] = yaml.safe_load(given)
    values["train"]["warmup"] = round(share * values["train"]["steps"])
    return values


def train_one(recipe: dict[str, Any], seed: int, seconds: float, device: str) -> dict[str, Any]:
    """Train and score one recipe, in a process of its own."""
    import torch

    from transduce.evaluation.evaluate import evaluate_folder
    from transduce.training.train import train_recipe

    torch.set_num_threads(1)
    recipe = {**recipe, "seed": seed}
    clock = "processor" if device == "cpu" else "wall"
    recipe["train"] = {
        **recipe["train"],
        **{"device": device, "minutes": seconds / 60, "clock": clock},
    }
    with tempfile.TemporaryDirectory() as place:
        # As of a file of one's own, the seconds are those of training, not of reading.
        trained = train_recipe(recipe, Path(place) / "run", count_reading=False)
        scores: dict[str, dict[str, Any]] = {}
        for part in ("valid", "test"):
            found = evaluate_folder(trained.model, trained.folder, split=part, write=False)
            for metric in list(found.metrics.values())[:2]:
                one = scores.setdefault(metric.name, {"metric": metric.name})
                one |= {part: metric.value, "higher_is_better": metric.higher_is_better}
    first, *second = scores.values()
    finer = {"finer": second[0]} if second else {}
    return {
        **first,
        **finer,
        "updates": trained.state.step,
        "seconds": round(trained.state.elapsed, 1),
    }


def run(arguments: argparse.Namespace, folder: Path) -> None:
    from transduce.automatic import Machine, this_machine

    machine = this_machine(arguments.device)
    if arguments.speed is not None:
        machine = Machine(machine.device, arguments.speed, machine.name)
    kept = json.loads(arguments.out.read_text("utf-8")) if arguments.out.exists() else {}
    rows = kept.get("rows", {})
    whole = kept.get("settings", {})
    recipes, same = {}, {}
    for cut in sorted(place for place in folder.iterdir() if any(place.glob("train.*"))):
        if arguments.only and not any(fnmatch(cut.name, one) for one in arguments.only):
            continue
        settings = settings_of(cut, machine, arguments.seconds)
        whole[cut.name] = len(settings)
        for changes in arguments.changes:
            settings[f"chosen, {changes}"] = changed(settings["chosen"], changes)
        for name, recipe in settings.items():
            if name != "chosen" and recipe == settings["chosen"]:
                same[cut.name] = name
            elif any(fnmatch(name, one) for one in arguments.settings):
                recipes[f"{cut.name} | {name}"] = recipe
    part, of = map(int, arguments.share.split("/"))

    def mine(keys: Iterable[str]) -> list[str]:
        left = [key for key in keys if key.rpartition(" | ")[0] in recipes and key not in rows]
        return left[part - 1 :: of][: arguments.most]

    jobs = mine(f"{name} | 1" for name in recipes)
    print(f"{len(jobs)} trainings, {len(rows)} are there already", flush=True)
    speed = "" if arguments.speed is None else f" --speed {arguments.speed:g}"
    facts = {
        "command": "python benchmarks/choices.py CUT "
        f"--seconds {arguments.seconds:g} --jobs {arguments.jobs} --device {arguments.device}"
        f"{speed}",
        "machine": machine.words,
        "seconds": arguments.seconds,
        "held_out": HELD_OUT,
        "settings": whole,
    }
    context = multiprocessing.get_context("spawn")
    end = time.monotonic() + 60 * arguments.minutes

    def train(pool: ProcessPoolExecutor, jobs: Sequence[str]) -> None:
        waiting = {}
        for key in jobs:
            name, _, seed = key.rpartition(" | ")
            given = recipes[name], int(seed), arguments.seconds, machine.device
            waiting[pool.submit(train_one, *given)] = key
        for done in as_completed(waiting):
            if not done.cancelled():
                try:
                    rows[waiting[done]] = done.result()
                except Exception as error:  # one that fails must not cost the others
                    print(f"{waiting[done]}: {error}", flush=True)
                for cut_name, plan in same.items():
                    for one in range(1, arguments.seeds + 1):
                        if row := rows.get(f"{cut_name} | chosen | {one}"):
                            rows[f"{cut_name} | {plan} | {one}"] = row
                write(arguments.out, {**facts, "rows": rows})
            if time.monotonic() > end:
                for left in waiting:
                    left.cancel()

    with ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool:
        train(pool, jobs)
        if time.monotonic() < end:
            train(pool, mine(again(rows, whole, arguments.seeds)))
    for line in table(rows, whole):
        print(line)


def write(path: Path, values: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


# -------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Searched:
    """A cut whose search is whole: the test scores of the chosen recipe and of the best of the
    search, by seed, in one metric. The search has the first seed only."""

    metric: str
    sign: int
    """1 where more is better, else -1."""
    best: str
    chosen: dict[str, float]
    of_best: dict[str, float]

    def loss(self, first: bool = True) -> float | None:
        """Per cent, of the first seed or in the mean of the others."""
        seeds = [seed for seed in self.chosen if seed in self.of_best and (seed == "1") == first]
        if not seeds:
            return None
        ours, theirs = (mean(of[seed] for seed in seeds) for of in (self.chosen, self.of_best))
        return 100 * (self.sign * theirs - self.sign * ours) / max(abs(theirs), 1e-9)

    @property
    def between_seeds(self) -> float | None:
        """Per cent by which the chosen recipe's scores differ."""
        of = list(self.chosen.values())
        return 100 * (max(of) - min(of)) / max(abs(mean(of)), 1e-9) if len(of) > 1 else None


def searched(rows: dict[str, dict[str, Any]], settings: dict[str, int]) -> dict[str, Searched]:
    """By cut. settings: how many of each there are; one whose search was cut off is left out."""
    cuts: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for key, row in sorted(rows.items()):
        cut, name, seed = key.split(" | ")
        cuts.setdefault(cut, {}).setdefault(name, {})[seed] = row
    found = {}
    for cut, of in cuts.items():
        first = {name: seeds["1"] for name, seeds in of.items() if "1" in seeds}
        if "chosen" not in first or len(first) < max(settings.get(cut, 2), 2):
            continue
        coarse = _is_coarse(first.values())
        if coarse:
            first = {name: row["finer"] for name, row in first.items()}
        sign = 1 if first["chosen"]["higher_is_better"] else -1
        # Of equals the first, which is a plan as it is rather than with another rate.
        best = max(sorted(first.keys() - {"chosen"}), key=lambda name: sign * first[name]["valid"])
        chosen, of_best = (
            {seed: (row["finer"] if coarse else row)["test"] for seed, row in of[name].items()}
            for name in ("chosen", best)
        )
        found[cut] = Searched(first["chosen"]["metric"], sign, best, chosen, of_best)
    return found


def again(rows: dict[str, dict[str, Any]], settings: dict[str, int], seeds: int) -> list[str]:
    """Keys of what is to be trained with further seeds: the chosen recipes, and the best of the
    searches where these are others."""
    keys = []
    for cut, one in searched(rows, settings).items():
        names = ["chosen"]
        if rows[f"{cut} | {one.best} | 1"] != rows[f"{cut} | chosen | 1"]:
            names.append(one.best)
        keys += [f"{cut} | {name} | {seed}" for seed in range(2, seeds + 1) for name in names]
    return keys


def table(rows: dict[str, dict[str, Any]], settings: dict[str, int]) -> list[str]:
    """Corpus and size: the chosen recipe, the best of the search, and what is lost; the same with
    other seeds of these two, and how far apart seeds of the chosen recipe are."""
    lines = [
        "| corpus | metric | chosen | best by hand | which | loss | once more | seeds |",
        "| --- " * 8 + "|",
    ]
    found = searched(rows, settings)
    for cut, one in sorted(found.items()):
        cells = [
            f"{value:.1f} %" if value is not None else ""
            for value in (one.loss(), one.loss(first=False), one.between_seeds)
        ]
        scores = f"{one.chosen['1']:.2f} | {one.of_best['1']:.2f}"
        lines.append(f"| {cut} | {one.metric} | {scores} | {one.best} | {' | '.join(cells)} |")
    for held, name in ((False, "tuned on"), (True, "held out")):
        of = [one for cut, one in found.items() if (cut.rpartition("-")[0] in HELD_OUT) == held]
        if not of:
            continue
        parts = [
            _mean_and_largest("mean loss", [one.loss() for one in of]),
            _mean_and_largest("once more: mean loss", [one.loss(first=False) for one in of]),
            _mean_and_largest("between seeds: mean difference", [one.between_seeds for one in of]),
        ]
        lines.append(f"{name}: {'; '.join(filter(None, parts))}")
    return lines


def _mean_and_largest(what: str, values: Iterable[float | None]) -> str:
    of = [value for value in values if value is not None]
    return f"{what} {mean(of):.1f} %, largest {max(of):.1f} %" if of else ""


def _is_coarse(rows: Iterable[dict[str, Any]]) -> bool:
    """Whether so few whole outputs are right that chance decides how many."""
    rows = list(rows)
    few = max(row["valid"] for row in rows) < COARSE
    return few and all(row["metric"] == "exact" and "finer" in row for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="what --prepare wrote")
    parser.add_argument("--prepare", type=Path, nargs=2, metavar=("DATA", "CUT"))
    parser.add_argument("--quick", action="store_true", help="a small corpus, two updates each")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each training")
    parser.add_argument("--minutes", type=float, default=1e9, help="start nothing after these")
    parser.add_argument(
        "--seeds", type=int, default=1, help="of the chosen recipe and of the best of its search"
    )
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--share", default="1/1", help="the first of two machines: 1/2")
    parser.add_argument("--most", type=int, help="at most so many trainings")
    parser.add_argument("--only", nargs="*", help="cuts with such names: g2p-*-1000")
    parser.add_argument("--settings", nargs="*", default=["*"], help="with such names: chosen")
    parser.add_argument("--changes", nargs="*", default=[], help="the chosen recipe with these")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--speed", type=float, help="of one training; default: measured here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/choices.json"))
    arguments = parser.parse_args()
    if arguments.prepare:
        prepare(*arguments.prepare)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if arguments.quick:
        arguments.seconds, arguments.most = 1.0, 2
        with tempfile.TemporaryDirectory() as place:
            quick(Path(place))
            run(arguments, Path(place))
        return
    if arguments.folder is None:
        parser.error("give the folder that --prepare wrote")
    run(arguments, arguments.folder)


if __name__ == "__main__":
    main()
