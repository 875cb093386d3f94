"""Writes the measured tables of pages of docs/ from benchmarks/results/, and the table of settings
of docs/guides/decoding.md from their declaration.

    python tools/make_tables.py [--check]

A table stands between `<!-- NAME: made by make_tables.py -->` and `<!-- end of NAME -->`.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import recipe_results
from result_tables import RESULTS, read, read_lines, table

from transduce.decoding_settings import SETTINGS

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(RESULTS.parent))
OURS, THEIRS = "transduce", "faster-whisper"


def whisper_wer() -> list[str]:
    rows = [["corpus", "files", f"{OURS} WER", f"{THEIRS} WER", "difference", "same text"]]
    for name, corpus in (
        ("whisper_asterisk", "Asterisk prompts (telephone, 8 kHz)"),
        ("whisper_an4", "mini AN4"),
    ):
        found = read(name)
        if found is None:
            continue
        some = found["done"] < found["files"]
        rates = [
            f"{one['wer']:.2f} ({one['low']:.2f} to {one['high']:.2f}; {one['errors']:,} of "
            f"{one['words']:,} words)"
            for one in (found[OURS], found[THEIRS])
        ]
        between = found["difference"]
        rows.append(
            [
                corpus + (", drawn at random" if some else ""),
                f"{found['done']} of {found['files']}" if some else str(found["files"]),
                *rates,
                f"{between['value']:+.2f} ({between['low']:+.2f} to {between['high']:+.2f})",
                str(found["equal_outputs"]),
            ]
        )
    return table(rows[0], rows[1:])


def whisper_times() -> list[str]:
    """Where words begin and end beside pauses, noise and music."""
    found = read("whisper_times_cpu")
    if found is None:
        return []
    kinds = ("silence", "hiss", "music")
    head = [
        "",
        "words recognised",
        f"starts within {found['near']:g} s",
        "ends",
        "farthest off",
        "words cover of no speech",
        "segments cover",
        "words made up",
        "CPU s",
    ]
    rows = [
        [
            row["system"],
            f"{100 * row['recognised']:.1f} %",
            f"{100 * row['starts_near']:.1f} %",
            f"{100 * row['ends_near']:.1f} %",
            f"{row['largest']:.2f} s",
            f"{row['words_beside_speech']:.1f} s",
            f"{row['segments_beside_speech']:.1f} s",
            str(sum(len(row[f"made_up_in_{kind}"]) for kind in kinds)),
            f"{row['cpu_seconds']:.0f}",
        ]
        for row in found["rows"]
    ]
    silent = found["rows"][0]["no_speech"]
    return [
        f"{found['prompts']} telephone prompts in {found['seconds']:.0f} s, of which {silent:.0f} "
        f"s are silence, hiss, hum and music; then {found['alone_seconds']:.0f} s each of silence, "
        f"hiss and music alone, where every word is made up. Whisper base, beam {found['beam']}, "
        f"{found['machine']}, one thread, one run:",
        "",
        *table(head, rows),
    ]


def whisper_speed() -> list[str]:
    found = read("whisper_speed_cpu")
    if found is None:
        return []
    rows = [["precision", f"{OURS}, CPU s", f"{THEIRS}, CPU s", f"{THEIRS} / {OURS}"]]
    length = found["audio_seconds"] / found["files"]
    for precision in ("float32", "int8"):
        if precision not in found:
            continue
        taken = [found[precision][name]["cpu_seconds"] for name in (OURS, THEIRS)]
        ratios = [b / a for a, b in zip(*taken, strict=True)]
        rows.append(
            [
                precision,
                *(f"{length * statistics.median(one):.2f}" for one in taken),
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            ]
        )
    rounds = len(found["float32"][OURS]["cpu_seconds"])
    several = f"{found['threads']} thread" + "s" * (found["threads"] > 1)
    return [
        f"CPU seconds for one prompt of {length:.1f} s (padded to 30 s), beam {found['beam']}, "
        f"language {found['language']}, {several}, {found['files']} files, {rounds} rounds in "
        f"turns, {found['machine']}:",
        "",
        *table(rows[0], rows[1:]),
    ]


def whisper_speed_on_gpu() -> list[str]:
    """One row a file: beam sizes, and how transformers was run."""
    names = sorted(path.stem for path in RESULTS.glob("whisper_speed_cuda*.json"))
    found = [one for name in names if (one := read(name)) is not None and "bfloat16" in one]
    if not found:
        return []
    rows = []
    for one in sorted(found, key=lambda one: (one["beam"], one["files"], one["batch"])):
        taken = [one["bfloat16"][name]["seconds"] for name in (OURS, "transformers")]
        ratios = [b / a for a, b in zip(*taken, strict=True)]
        how = f"batches of {one['batch']}" + (", static cache" if one.get("cache") else "")
        rows.append(
            [
                "greedy" if one["beam"] == 1 else f"beam {one['beam']}",
                f"{one['files']}, {one['audio_seconds']:,.0f} s",
                *(f"{1000 * statistics.median(times):.2f}" for times in taken[:1]),
                f"{1000 * statistics.median(taken[1]):.2f} ({how})",
                f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})",
                f"{one['bfloat16']['equal_outputs']} of {one['files']}",
            ]
        )
    head = ["search", "files", f"{OURS}, ms", "transformers, ms", "ratio", "same text"]
    several = sorted({len(one["bfloat16"][OURS]["seconds"]) for one in found})
    rounds = " or ".join(map(str, several))
    return [
        f"Milliseconds for each second of audio, {found[0]['machine']}, bfloat16, Whisper base, "
        f"language {found[0]['language']}, medians of {rounds} rounds in turns after two calls "
        f"that do not count; the least and the greatest ratio of a round:",
        "",
        *table(head, rows),
        *_parts(read("whisper_profile_cuda")),
    ]


def _parts(found: dict[str, Any] | None) -> list[str]:
    """Where the time of greedy search goes."""
    if found is None:
        return []
    maximum = [f"{name} {one['milliseconds']:.0f} ms" for name, one in found["parts"].items()][:6]
    return [
        "",
        f"Greedy search of these {found['files']} files takes {found['milliseconds']:.0f} ms. "
        f"Timed one by one, with the device waited for: {', '.join(maximum)}; others take less. "
        f"`samples` is the check and conversion of samples on the host, `steps` the decoder's.",
    ]


def optimizers() -> list[str]:
    from optimizer import longer_runs, summary

    lines: list[str] = []
    for name, model, unit in (
        ("reviews_cuda", "A language model of film reviews, 8 layers of width 512", "token"),
        ("multi30k_cuda", "Multi30k English to German, 3 + 3 layers of width 256", "token"),
        ("shakespeare_cpu", "A small language model of letters, on a CPU", "letter"),
    ):
        found = read(f"optimizer_{name}")
        if found is None:
            continue
        seeds = len({run["seed"] for run in found["runs"]})
        longer = longer_runs(found)
        lines += [
            *([""] if lines else []),
            f"{model}, {found['seconds']:g} {found['clock']} for each run:",
            "",
            *summary(found),
            "",
            f"`{found['command']}`, {seeds} seeds, {found['device']}, batches of "
            f"{found['batch_tokens']:,} {unit}s; validation loss in nats a {unit}, mean and "
            f"standard deviation." + "".join(f" {one}." for one in longer),
        ]
    return lines


def checkpointing() -> list[str]:
    found = read("checkpointing_cpu")
    if found is None:
        return []
    head = ["Transformer", "batch", "CPU time", "peak memory without", "with", "of it, fixed"]
    rows = [head]
    for row in found["rows"]:
        without, with_it = row["without"], row["with"]
        pairs = zip(without["cpu_seconds"], with_it["cpu_seconds"], strict=True)
        ratios = [b / a for a, b in pairs]
        memory = [statistics.median(one["peak_mib"]) for one in (without, with_it)]
        _, layers, width, *_ = row["size"]
        rows.append(
            [
                f"{layers}+{layers} layers, width {width}",
                f"{row['pairs']} x {row['length']} tokens",
                f"x {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                *(f"{one:,.0f} MiB" for one in memory),
                f"{statistics.median(with_it['fixed_mib']):,.0f} MiB",
            ]
        )
    reported = f"`{found['command']}`, {found['hardware']}, torch {found['torch']}:"
    return [reported, "", *table(rows[0], rows[1:])]


def decoding_settings() -> list[str]:
    rows = []
    for name, one in SETTINGS.items():
        places = {
            "recipe": one.in_recipe,
            "command line": one.option is not None,
            "requests": one.request,
        }
        default = f"recipe (`{one.recipe}`)" if one.in_recipe else f"`{one.default!r}`"
        rows.append(
            [
                f"`{name}`",
                one.about(),
                "" if one.default in (None, (), "") and not one.in_recipe else default,
                one.limits(),
                ", ".join(place for place, there in places.items() if there) or "Python only",
            ]
        )
    return table(["setting", "", "default", "limits", "also in"], rows)


def races() -> list[str]:
    """What is to be reached, and the record of each race: the fastest of three seeds, or while
    there is none, the fastest."""
    from to_quality import read_races

    found = [one for one in _records() if one["reached"]]
    rows = []
    for race in read_races().values():
        own = [one for one in found if one["race"] == race.name]
        record = max(own, key=lambda one: (len(one["runs"]) >= 3, -one["seconds"]), default=None)
        better = "at least" if race.higher else "at most"
        reached = ["not reached yet", "", ""]
        if record is not None:
            reached = [f"{record['seconds']:.0f} s", *_score_and_seeds(record)]
        rows.append(
            [race.title, f"{better} {race.target:g} {race.unit}", f"{race.goal:g} s", *reached]
        )
    return table(["race", "target", "goal", "record", "score", "seeds"], rows)


def records() -> list[str]:
    """All records in their order, and where their seconds went."""
    rows = []
    for one in _records():
        times = one["runs"][min(one["runs"])]["times"]
        stages = [times[name] for name in ("imported", "read", "first update", "trained", "scored")]
        parts = [later - sooner for sooner, later in zip([0.0, *stages], stages, strict=False)]
        rows.append(
            [
                f"{one['date']}, {one['commit']}",
                one["race"],
                f"{one['seconds']:.1f}" + ("" if one["reached"] else " (missed)"),
                *_score_and_seeds(one),
                *(f"{part:.1f}" for part in parts),
                one["gain"],
            ]
        )
    stages = ["imports", "reading", "first update", "training", "scoring"]
    head = ["date, commit", "race", "seconds", "score", "seeds", *stages, "what brought the gain"]
    return table(head, rows)


def _records() -> list[dict[str, Any]]:
    return (read("to_quality_cuda") or {"records": []})["records"]


def _score_and_seeds(record: dict[str, Any]) -> list[str]:
    found = [run["score"] for run in record["runs"].values()]
    digits = 4 if record["race"] == "shakespeare" else 2
    spread = f" ± {statistics.stdev(found):.{digits}f}" if len(found) > 1 else ""
    return [f"{statistics.mean(found):.{digits}f}{spread}", str(len(found))]


TAG_SETTINGS = {
    "": "Transformer of 4 + 4 layers",
    "+tagzero": "tags at position 0",
    "+tagzero+copying+substrings": "the same, copying, hallucination",
    "+tagzero+copying+substrings+unknowntags": "the same, unknown tags",
    "+tagzero+copying+substrings+unknowntags+fewcopies": "the same, copies",
    "+tagzero+copying+substrings+unknowntags+fewcopies+updates5000": "the same, 5,000 updates",
}


def unknown_tags() -> list[str]:
    """Exact match from 700 forms, by language: tags that training does not have, and others."""
    found: dict[str, dict[str, float]] = {}
    for row in read_lines("words_tags_cuda"):
        if row["task"] == "inflection" and row["size"] == "small" and "exact" in row:
            found.setdefault(row["setting"], {})[row["language"]] = row["exact"]
    languages = ("ang", "hun", "lud", "tur")
    whole = {f"transformer+batch1024{key}": name for key, name in TAG_SETTINGS.items()}
    everything = list(TAG_SETTINGS)[-2]
    whole[f"conformer+batch1024{everything}"] = "Conformer, all of these"
    whole[f"conformer+batch1024{everything}+updates5000"] = "the same, 5,000 updates"
    rows = [
        [name, *(f"{found[key][one]:.1f}" if one in found[key] else "" for one in languages)]
        for key, name in whole.items()
        if key in found
    ]
    return table(["", *languages], rows) if rows else []


def search_of_letters() -> list[str]:
    """Exact match by how beam search stops, of the same networks."""
    rows = [
        [
            "Conformer",
            row["language"],
            "yes" if "substrings" in row["setting"] else "no",
            *(f"{row[key]:.1f}" for key in ("exact_greedy", "exact_patience_1", "exact")),
        ]
        for row in read_lines("words_chosen_cuda")
        if "exact_patience_1" in row
    ]
    head = ["network", "language", "hallucinated stems", "greedy", "patience 1", "patience null"]
    return table(head, rows)


STEM_SETTINGS = {
    "chosen+onlycopies": "none",
    "chosen": "all letters of a stem",
    "chosen+kept3": "all but three beside an ending or a prefix",
}


def stems() -> list[str]:
    """Exact match by which letters of stems are replaced."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in read_lines("words_kept_cpu"):
        found.setdefault((row["setting"], row["language"]), []).append(row["exact"])
    languages = sorted({language for _, language in found})
    rows = [
        [
            name,
            *(
                ", ".join(f"{one:.1f}" for one in found.get((setting, language), []))
                for language in languages
            ),
        ]
        for setting, name in STEM_SETTINGS.items()
        if any(setting == one for one, _ in found)
    ]
    return table(["replaced", *languages], rows) if rows else []


# Settings of the validation sets in words_tag_attention_cpu: who reads the tags, and which.
READS_TAGS = {
    "chosen": "encoder reads tags",
    "chosen+jointtags+tagsread": "encoder reads tags",
    "chosen+tagattention": "decoder reads tags",
    "chosen+jointtags+tagattention": "decoder reads tags",
    "chosen+splittags+tagattention": "decoder reads tags and their parts",
}
FEATURES = {
    "together": "in some form together",
    "apart": "each in some form, but not together",
    "unknown": "one in no form",
}


def tag_attention() -> list[str]:
    """Exact match by how tags are read, and by whether training has a form's features together."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in read_lines("words_tag_attention_cpu"):
        if row["setting"] in READS_TAGS and row["size"] == "small" and "exact" in row:
            by_reader = found.setdefault(row["language"], {})
            by_reader.setdefault(READS_TAGS[row["setting"]], []).append(row)
    columns = list(dict.fromkeys(READS_TAGS.values()))
    lines = []
    for language, readers in sorted(found.items()):
        kinds = next(iter(readers.values()))[0]["exact_by_features"]
        forms = sum(kind["forms"] for kind in kinds.values())
        sides = [readers.get(one, []) for one in columns]
        cells = [", ".join(f"{row['exact']:.1f}" for row in rows) for rows in sides]
        lines.append([f"**{language}**", "all", f"{forms:,}", *cells])
        for kind, words in FEATURES.items():
            if kind in kinds:
                each = [[row["exact_by_features"][kind]["exact"] for row in rows] for rows in sides]
                means = [_percent(statistics.mean(one) if one else None) for one in each]
                lines.append(["", words, f"{kinds[kind]['forms']:,}", *means])
    return table(["language", "features in training", "forms", *columns], lines) if lines else []


PUBLISHED = {"exact": "neural baseline", "cluzh": "CLUZH", "ubc": "UBC"}


# By what the choice was: invented stems with all letters replaced, with three kept beside endings,
# then with tags that the decoder reads.
ON_A_CORE = {
    "one CPU core": "words_chosen_cpu",
    "the same, kept letters": "words_chosen_kept_cpu",
    "the same, tag attention": "words_chosen_tags_cpu",
}
SEEDS_TOGETHER = 5
# Languages on whose validation sets choices were made.
CHOSEN_BY = ("ang", "ara", "evn", "hun", "kat", "lud", "tur")


def inflected(size: str) -> list[str]:
    """Exact match on the test sets of SIGMORPHON 2022: what `transduce train FILE` chooses, beside
    the published baseline and the two best submissions."""
    published = read("words_published")
    rows = [
        row
        for row in read_lines("words_inflected_cuda")
        if "exact" in row and (row["part"], row["size"]) == ("test", size)
    ]
    if published is None or not rows:
        return []
    there = published[size]
    columns = {"H200": {row["language"]: row["exact"] for row in rows if row["seed"] == 1}}
    for count in sorted({row["members"] for row in rows if "members" in row}):
        columns[f"{count} seeds together"] = {
            row["language"]: row["exact_ensemble"] for row in rows if row.get("members") == count
        }
    if size == "small":
        for name, results in ON_A_CORE.items():
            of_language = {
                row["language"]: row["exact"]
                for row in read_lines(results)
                if "exact" in row and (row["part"], row["size"], row["seed"]) == ("test", size, 1)
            }
            if of_language:
                columns[name] = of_language
        columns["its five seeds together"] = {
            row["language"]: row["exact_ensemble"]
            for row in read_lines(ON_A_CORE["the same, tag attention"])
            if row.get("members") == SEEDS_TOGETHER
        }
    ours = list(columns)
    columns |= {
        name: {one: of[key] for one, of in there.items()} for key, name in PUBLISHED.items()
    }
    measured = [one for one in there if any(one in columns[name] for name in ours)]
    lines = [
        [
            f"{one} *" if one in CHOSEN_BY else one,
            f"{there[one]['forms']:,}",
            *(_percent(of.get(one)) for of in columns.values()),
        ]
        for one in measured
    ]
    # Of several languages: on a core, the newest figure of each, up to that column.
    newest: dict[str, float] = {}
    sources = dict(columns)
    on_a_core = [name for name in ON_A_CORE if name in columns]
    for name in on_a_core:
        newest = sources[name] = newest | columns[name]
    groups = {
        "those on the H200": [one for one in measured if one in columns["H200"]],
        "those without *": [one for one in measured if one not in CHOSEN_BY],
        "those with *": [one for one in measured if one in CHOSEN_BY],
        "all": measured,
    }
    if groups["those on the H200"] == measured:
        del groups["those on the H200"]
    last = columns[on_a_core[-1]] if on_a_core else {}
    if on_a_core[1:] and not set(measured) <= set(last):
        groups["those of the newest column"] = [one for one in measured if one in last]
    for name, group in groups.items():
        forms = sum(there[one]["forms"] for one in group)
        means = [
            sum(of[one] * there[one]["forms"] for one in group) / forms
            if group and all(one in of for one in group)
            else None
            for of in (columns if name == "those on the H200" else sources).values()
        ]
        if any(mean is not None for mean in means):
            lines.append([f"{name} ({len(group)})", f"{forms:,}", *map(_percent, means)])
    return table(["language", "test forms", *columns], lines)


def together(results: str, size: str) -> list[str]:
    """Seeds, each alone and as an ensemble, of all forms of the languages."""
    published = read("words_published")
    found: dict[int, dict[str, dict[str, Any]]] = {}
    for row in read_lines(results):
        if "exact" in row and (row["part"], row["size"]) == ("test", size):
            found.setdefault(row["seed"], {})[row["language"]] = row
    if published is None or not found:
        return []
    forms = {language: of["forms"] for language, of in published[size].items()}

    def of_all(rows: dict[str, dict[str, Any]], key: str) -> float:
        right = sum(row[key] * forms[language] for language, row in rows.items())
        return float(right / sum(forms[language] for language in rows))

    lines: list[list[str]] = []
    alone: list[float] = []
    for count, rows in sorted(found.items()):
        alone.append(of_all(rows, "exact"))
        mean = statistics.mean(alone)
        if count == 1:
            lines.append(["1", f"{mean:.2f}", ""])
            continue
        ensemble = of_all(rows, "exact_ensemble")
        spread = f"{min(alone):.2f} to {max(alone):.2f}"
        lines.append(
            [str(count), f"{mean:.2f} ({spread})", f"{ensemble:.2f} ({ensemble - mean:+.2f})"]
        )
    return table(["seeds", "each alone, mean (range)", "together"], lines)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def pronounced() -> list[str]:
    """Words wrong in the test sets of SIGMORPHON 2020, each language trained alone: each seed, and
    seeds as an ensemble. Of seeds that not all languages have, nothing is shown."""
    found: dict[str, dict[str, float]] = {}
    for row in sorted(read_lines("words_pronounced_cuda"), key=lambda row: row["seed"]):
        if "exact" in row and row["part"] == "test":
            found.setdefault(f"seed {row['seed']}", {})[row["language"]] = 100 - row["exact"]
            if "members" in row:
                ensemble = found.setdefault(f"{row['members']} seeds together", {})
                ensemble[row["language"]] = 100 - row["exact_ensemble"]
    languages = sorted({language for of in found.values() for language in of})
    lines = [
        [name, *(f"{of[one]:.1f}" for one in languages), f"{statistics.mean(of.values()):.2f}"]
        for name, of in sorted(found.items(), key=lambda entry: ("together" in entry[0], entry[0]))
        if len(of) == len(languages)
    ]
    return table(["words wrong, %", *languages, f"mean of {len(languages)}"], lines)


def few_words(results: str) -> list[str]:
    """Words right of SIGMORPHON 2020, each language alone, by rows and settings: the mean of the
    seeds, and that of the languages where all are there."""
    found: dict[tuple[int, bool, str], dict[str, list[float]]] = {}
    whole = 3600  # of a language, where no rows are asked for
    for row in read_lines(results):
        size = row["size"] if isinstance(row["size"], int) else whole
        key = size, row["part"] == "test", row["setting"]
        found.setdefault(key, {}).setdefault(row["language"], []).append(row["exact"])
    languages = list(dict.fromkeys(one for of in found.values() for one in of))
    rows = []
    for (size, test, setting), of in sorted(found.items()):
        parts = [one for one in setting.split("+") if one != "chosen"] or ["chosen"]
        means = {one: statistics.mean(values) for one, values in of.items()}
        rows.append(
            [
                f"{size:,}",
                "test" if test else "validation",
                ", ".join(re.sub(r"([a-z]+)(\d+)", r"\1 \2", one) for one in parts),
                str(max(map(len, of.values()))),
                *(_percent(means.get(one)) for one in languages),
                _percent(statistics.mean(means.values()) if len(means) == len(languages) else None),
            ]
        )
    return table(["words", "measured on", "setting", "seeds", *languages, "mean"], rows)


def reached() -> list[str]:
    """What files without a recipe reach: the last rows of the tables that have it by language."""
    rows = []
    for size, which, seeds in (
        ("small", "33 languages, 700 forms each or fewer", ON_A_CORE["the same, tag attention"]),
        ("large", "20 languages, 7,000 forms each", "words_inflected_cuda"),
    ):
        alone, *_, last = (_cells(line) for line in together(seeds, size)[2:])
        baseline, *best = _cells(inflected(size)[-1])[-len(PUBLISHED) :]
        rows.append(
            [
                f"inflection, {which} (SIGMORPHON 2022)",
                "forms right, %",
                alone[1],
                f"{last[2].split()[0]} ({last[0]})",
                f"baseline {baseline}, best {max(best, key=float)}",
            ]
        )
    of = {cells[0]: cells for cells in map(_cells, pronounced())}
    several = max(name for name in of if "together" in name)
    there = [one["values"]["test"] for one in recipe_results.groups()["sigmorphon"][0]["published"]]
    rows.append(
        [
            "pronunciation, 15 languages, 3,600 words each (SIGMORPHON 2020)",
            "words wrong, %",
            of["seed 1"][-1],
            f"{of[several][-1]} ({several.split()[0]})",
            f"baseline {there[0]}, best {min(there)}",
        ]
    )
    head = ["file", "", "one model", "an ensemble (seeds)", "published"]
    return table(head, rows)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def choices(results: str) -> list[str]:
    """What the command chooses, against a search by hand."""
    found = read(results)
    if found is None:
        return []
    import choices as benchmark

    lines = benchmark.table(found["rows"], found.get("settings", {}))
    means = [line for line in lines if not line.startswith("|")]
    return [*(line for line in lines if line.startswith("|")), "", "; ".join(means)]


def sentences(results: str) -> list[str]:
    """English to German: the chosen recipe of then and changes of it, by pairs and seconds."""
    found = read(results)
    if found is None:
        return []
    rows = []
    for row in sorted(found["rows"], key=lambda row: (_pairs_of(row), row["updates"])):
        changes = row["changed"].replace("none", "").split()
        others = [one for one in changes if "steps" not in one and "model.dropout" not in one]
        rows.append(
            [
                f"{_pairs_of(row):,}",
                f"{row['updates']:,} of {row['steps']:,}",
                f"{row['seconds']:.0f}",
                f"{row['dropout']:g}",
                ", ".join(
                    re.sub(r"^.*?(\w+)=", r"\1 ", one).replace("size", "subwords") for one in others
                ),
                str(row["seed"]),
                f"{row['valid']:.1f}",
                f"{row['test']:.1f}",
                f"{row['finer']['valid']:.1f}",
            ]
        )
    columns = ["pairs", "updates", "seconds", "dropout", "changed", "seed"]
    return table([*columns, "BLEU, validation", "BLEU, test", "chrF, validation"], rows)


def _pairs_of(row: dict[str, Any]) -> int:
    rows = row["cut"].rpartition("-")[2]
    return 29_000 if rows == "all" else int(rows)


def one_command(results: str) -> list[str]:
    """The command beside shipped recipes, or with more minutes."""
    found = read(results)
    if found is None:
        return []
    import one_command as benchmark

    return benchmark.table(found["rows"])


def hotwords(corpus: str, metric: str) -> list[str]:
    """Errors at listed words and elsewhere, of each seed, by bonus and beam."""
    found = read(f"hotwords_{corpus}")
    if found is None:
        return []
    runs, rows = found["runs"], []
    for bonus in runs[0]["results"]:
        for beam in sorted({run["beam"] for run in runs}):
            of = [run["results"][bonus] for run in runs if run["beam"] == beam]
            wrong = ", ".join(str(one["wrong"]) for one in of)
            rows.append(
                [
                    bonus,
                    str(beam),
                    f"{wrong} of {of[0]['listed']}",
                    ", ".join(str(one["false"]) for one in of),
                    f"{statistics.mean(one['elsewhere'] for one in of):.1f}",
                    "" if bonus == "none" else ", ".join(f"{one['change']:+.2f}" for one in of),
                ]
            )
    elsewhere = f"{metric} elsewhere"
    head = ["bonus", "beam", "listed words wrong", "heard falsely", elsewhere, "change"]
    return table(head, rows)


def live_kinds(name: str) -> list[str]:
    """Kinds of recognisers in live use, each the mean over its seeds ± their standard deviation;
    with further error rates where they were kept."""
    found = read(name)
    if found is None:
        return []
    errors = {
        f"{metric.upper()} {words}, %": (how, metric)
        for metric in sorted(
            found["rows"][0].get("scores", {"file": ["wer"]})["file"], reverse=True
        )
        for how, words in (("file", "of files"), ("live", "live"))
    }
    columns = {
        "first": "first word, s",
        "final": "final, s",
        "revisions": "revisions a word",
        "real_time_factor": "real-time factor",
    }
    kinds: dict[str, list[list[float]]] = {}
    for row in found["rows"]:
        scores = row.get("scores", {how: {"wer": row[how]} for how in ("file", "live")})
        values = [scores[how][metric] for how, metric in errors.values()]
        kinds.setdefault(row["kind"], []).append([*values, *(row[column] for column in columns)])
    seeds = [len(of_kind) for of_kind in kinds.values()]
    several = ["seeds"] if max(seeds) > 1 else []
    rows = [
        [
            kind,
            *map(str, [len(of_kind)] * len(several)),
            *map(mean_and_spread, zip(*of_kind, strict=True)),
        ]
        for kind, of_kind in kinds.items()
    ]
    return table(["", *several, *errors, *columns.values()], rows)


def mean_and_spread(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


TABLES: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "settings": ("guides/decoding.md", decoding_settings),
    "error rates": ("guides/whisper.md", whisper_wer),
    "word times": ("guides/whisper.md", whisper_times),
    "CPU speed": ("guides/whisper.md", whisper_speed),
    "GPU speed": ("guides/whisper.md", whisper_speed_on_gpu),
    "optimizers": ("guides/training.md", optimizers),
    "checkpointing": ("guides/training.md", checkpointing),
    "unknown tags": ("guides/words.md", unknown_tags),
    "stems": ("guides/words.md", stems),
    "tag attention": ("guides/words.md", tag_attention),
    "search of letters": ("guides/words.md", search_of_letters),
    "few words": ("reference/chosen-recipes.md", partial(few_words, "words_few_cpu")),
    "few words, widths": (
        "reference/chosen-recipes.md",
        partial(few_words, "words_widths_cpu"),
    ),
    "few words on a GPU": ("reference/chosen-recipes.md", partial(few_words, "words_few_cuda")),
    "few words, held out": (
        "reference/chosen-recipes.md",
        partial(few_words, "words_held_out_cpu"),
    ),
    "few words on a GPU, held out": (
        "reference/chosen-recipes.md",
        partial(few_words, "words_held_out_cuda"),
    ),
    "reached": ("guides/your-own-file.md", reached),
    "inflected": ("reference/chosen-recipes.md", partial(inflected, "small")),
    "inflected, 7,000 forms": ("reference/chosen-recipes.md", partial(inflected, "large")),
    "pronounced": ("reference/chosen-recipes.md", pronounced),
    "seeds together": (
        "reference/chosen-recipes.md",
        partial(together, ON_A_CORE["the same, tag attention"], "small"),
    ),
    "seeds together, 7,000 forms": (
        "reference/chosen-recipes.md",
        partial(together, "words_inflected_cuda", "large"),
    ),
    "choices": ("reference/chosen-recipes.md", partial(choices, "choices_cuda")),
    "choices on cores": ("reference/chosen-recipes.md", partial(choices, "choices_cpu")),
    "choices on cores, 40 seconds": (
        "reference/chosen-recipes.md",
        partial(choices, "choices_longer_cpu"),
    ),
    "choices on cores, a minute": (
        "reference/chosen-recipes.md",
        partial(choices, "choices_minute_cpu"),
    ),
    "choices, a minute": ("reference/chosen-recipes.md", partial(choices, "choices_minute_cuda")),
    "sentences": ("reference/chosen-recipes.md", partial(sentences, "choices_sentences_cuda")),
    "sentences on a core": (
        "reference/chosen-recipes.md",
        partial(sentences, "choices_sentences_cpu"),
    ),
    "one command": ("reference/chosen-recipes.md", partial(one_command, "one_command_cuda")),
    "one command on a core": (
        "reference/chosen-recipes.md",
        partial(one_command, "one_command_cpu"),
    ),
    "more minutes": ("guides/your-own-file.md", partial(one_command, "one_command_minutes")),
    "races": ("reference/speedrun.md", races),
    "records": ("reference/speedrun.md", records),
    "hotwords": ("guides/decoding.md", lambda: hotwords("asterisk", "WER")),
    "hotwords as phones": ("guides/decoding.md", lambda: hotwords("udhr", "PER")),
    "live_kinds": ("guides/live-speech.md", partial(live_kinds, "live_kinds_cpu")),
    "live_kinds, digits": ("guides/live-speech.md", partial(live_kinds, "live_kinds_digits_cpu")),
}


def main() -> None:
    stale = []
    for name, (page, make) in TABLES.items():
        path = DOCS / page
        text = path.read_text("utf-8")
        first, last = f"<!-- {name}: made by make_tables.py -->", f"<!-- end of {name} -->"
        before, place, rest = text.partition(first)
        _, _, after = rest.partition(last)
        lines = make()
        if not place and not lines:
            continue  # not measured yet
        if not place:
            raise SystemExit(f"{page} has no place for {name}: write {first} and {last} into it")
        made = "\n".join([before + first, *(["", *lines, ""] if lines else []), last + after])
        if made != text and "--check" in sys.argv:
            stale.append(page)
        elif made != text:
            path.write_text(made, "utf-8")
    if stale:
        raise SystemExit(f"{', '.join(stale)}: run python tools/make_tables.py")


if __name__ == "__main__":
    main()
