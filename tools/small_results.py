"""Results of the benchmarks with one small table: patience, inflection, language detection, load of
the server, cost of a lens.
"""

from __future__ import annotations

from statistics import median, stdev
from typing import Any

from result_tables import read, table, three_digits


def patience() -> list[str]:
    found = read("patience")
    if found is None:
        return []
    known, bleu = found["facts"], found["bleu"]
    rows = [
        [name, _middle(seconds, 2), f"{bleu[name]:.2f}" if name in bleu else ""]
        for name, seconds in found["cpu_seconds"].items()
    ]
    rounds = len(next(iter(found["cpu_seconds"].values())))
    return [
        "# Beam search: when to stop",
        "",
        f"{found['sentences']:,} sentences of Multi30k's test set of 2016, a small Transformer in "
        f"float32, beam {found['beam']}: until as many hypotheses have ended as the beam is wide "
        "(patience 1, the default), or until no better one is possible (`decode.patience: null`). "
        f"{found['differ']} outputs differ between the two. CPU seconds, median of {rounds} rounds "
        f"with the fastest and the slowest. `{known['command']}`, {known['hardware']}, torch "
        f"{known['torch']}.",
        "",
        *table(["stops at", "CPU seconds", "BLEU"], rows),
        "",
    ]


def inflection() -> list[str]:
    found = read("inflection_cpu")
    if found is None:
        return []
    rows = [
        [
            row["setting"],
            f"{row['exact']:.1f} ± {stdev(row['of_seeds']):.1f}",
            ", ".join(f"{score:.1f}" for score in row["of_seeds"]),
            f"{row['updates']:,}",
            _middle(row["cpu_seconds"], 0),
        ]
        for row in found["rows"]
    ]
    lines = [
        "# Inflection: width and dropout",
        "",
        f"SIGMORPHON 2022, part 1, language `{found['language']}`: {found['pairs']:,} "
        "forms for training, exact match on the test set, mean and standard deviation over seeds. "
        "A GRU with attention as in "
        "[the guide](../../guides/words.md#inflection-features-as-tags), batches of "
        f"{found['batch_tokens']:,} tokens. All settings get about the same CPU time: a few "
        "updates are timed, and their number, to which the schedule is fitted, follows from that; "
        "so a wider network makes fewer. "
        f"`{found['command']}`, {found['machine']}, torch {found['torch']}.",
        "",
        *table(["", "exact, %", "seeds", "updates", "CPU seconds of training"], rows),
        "",
    ]
    longer = read("inflection_updates_cpu")
    if longer is not None:
        rows = [
            [row["setting"], f"{row['exact']:.1f}", f"{row['seconds'][0]:.0f} s"]
            for row in longer["rows"]
        ]
        lines += [
            f"An earlier comparison gave both the same {longer['steps']} updates, with one seed "
            f"and by the wall clock ({longer['machine']}, torch {longer['torch']}):",
            "",
            *table(["", "exact, %", "training"], rows),
            "",
        ]
    return lines


def language_detection() -> list[str]:
    found = read("language_detection")
    if found is None:
        return []
    known = found["facts"]
    titles = list(next(iter(found["rows"].values()))["right"])
    rows = [
        [
            name,
            *(f"{100 * row['right'][title]:.1f} %" for title in titles),
            f"{row['milliseconds_a_text']:.1f} ms",
            f"{row['peak_mib']:,.0f} MiB",
        ]
        for name, row in found["rows"].items()
    ]
    texts = next(iter(found["rows"].values()))["texts"]
    return [
        "# Language detection",
        "",
        f"Texts whose language was detected correctly, of {texts:,} paragraphs of the Declaration "
        f"of Human Rights in {len(found['languages'])} languages that both know. The profiles of "
        "the n-grams that come with transduce were counted in the other articles, five times; this "
        "kind of text favours them. One core that other programs used too, so the times are rough. "
        f"`{known['command']}`, {known['hardware']}.",
        "",
        *table(["", *titles, "time of a text", "memory"], rows),
        "",
    ]


def lens() -> list[str]:
    found = read("lens_overhead")
    if found is None:
        return []
    titles = {
        "before": "before there was a lens",
        "without": "no lens",
        "cross": "cross-attention",
        "next_token": "next-token distributions",
        "everything": "everything",
        "gate": "a gate",
    }
    base = found["seconds"]["without"]["median"]
    rows = [
        [
            titles[name],
            f"{one['median']:.2f} ({one['least']:.2f} to {one['most']:.2f})",
            f"{one['median'] / base:.2f}",
        ]
        for name, one in found["seconds"].items()
    ]
    return [
        "# What a lens costs",
        "",
        f"Beam search with beam {found['beam']} for {found['sentences']} sources, outputs of "
        f"{found['tokens']} tokens, Transformer-{found['size']}. CPU seconds, median with the "
        f"fastest and the slowest round. `{found['command']}`, {found['hardware']}, torch "
        f"{found['torch']}.",
        "",
        *table(["recorded", "CPU seconds", "times"], rows),
        "",
    ]


SETUPS = {
    "cpu": "greedy, two cores shared with the clients",
    "cpu_beam": "beam 4, the same",
    "cores": "greedy, two cores of its own",
    "cores_beam": "beam 4, the same",
    "small_cpu": "1.2 million parameters, greedy, two cores shared with the clients",
    "cuda": "greedy, a GPU",
}
# What is shown of a run: its title, its keys and how their values are written.
LOAD: dict[str, tuple[tuple[str, ...], str]] = {
    "`model.run` of all sentences in one call": (("offline sentences/s",), "{} / s"),
    "the same with a process for each core, as `transduce run` does it": (
        ("offline sentences/s, a process for each core",),
        "{} / s",
    ),
    "`model.run` of 64 sentences at a time": (
        ("offline sentences/s, 64 at a time",),
        "{} / s",
    ),
    "the server with 64 clients": (("sentences/s, 64 clients",), "{} / s"),
    "`model.run` of one sentence, median": (("p50 offline ms",), "{:.1f} ms"),
    "one client, median": (("p50 one client ms",), "{:.1f} ms"),
    "CPU time for a request: event loop, client": (
        ("event loop µs/request", "clients µs/request"),
        "{:.2f} ms, {:.2f} ms",
    ),
    "overloaded, accepted: median, 99 %": (
        ("accepted p50 ms", "accepted p99 ms"),
        "{:,.0f} ms, {:,.0f} ms",
    ),
    "overloaded, rejected: median, 99 %": (
        ("rejected p50 ms", "rejected p99 ms"),
        "{:,.1f} ms, {:,.0f} ms",
    ),
}


def serving() -> list[str]:
    several = {name: one for name in SETUPS if (one := read(f"serve_load_{name}")) is not None}
    if not several:
        return []
    rows = [
        [title, *(_load(one["found"], *shown) for one in several.values())]
        for title, shown in LOAD.items()
    ]
    return [
        "# Load of the server",
        "",
        "The recipe `multi30k-en-de` (a Transformer of 7.8 million parameters) where nothing else "
        "is said; `/api/run`, one sentence a request, one run each, float32 on CPUs. Overloaded: "
        "twice as many requests as it can decode, with `--max-wait 2`.",
        "",
        *table(["", *(SETUPS[name] for name in several)], rows),
        "",
        *(
            f"- {SETUPS[name]}: `{one['command']}`, {one['hardware']}, torch {one['torch']}. "
            f"{_memory(one['found'])}"
            for name, one in several.items()
        ),
        "",
    ]


def _load(found: dict[str, Any], keys: tuple[str, ...], shown: str) -> str:
    if any(key not in found for key in keys):
        return ""
    values = [found[key] / (1000 if "µs" in key else 1) for key in keys]
    return shown.format(*(map(three_digits, values) if "/ s" in shown else values))


def _memory(found: dict[str, Any]) -> str:
    title = next(key for key in found if key.startswith("memory MB over "))
    requests = int(title.split()[3])
    first, *_, last = found[title]
    return f"Memory before {requests:,} requests {first:,.0f} MB, after them {last:,.0f} MB."


def _middle(values: list[float], digits: int) -> str:
    usual, low, high = (f"{one:.{digits}f}" for one in (median(values), min(values), max(values)))
    return f"{usual} ({low} to {high})"
