"""Results of the benchmarks with few small tables: patience, inflection, language detection, load
of the server, cost of a lens, CUDA graphs, fine-tuning, importance of heads.
"""

from __future__ import annotations

from statistics import mean, median, stdev
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
        *_http_processes(),
    ]


HTTP_PROCESSES = ("serve_processes_cuda", "serve_processes_rounds_cuda")


def _http_processes() -> list[str]:
    found = [one for name in HTTP_PROCESSES if (one := read(name)) is not None]
    if not found:
        return []
    lines = [
        "## Several HTTP processes before one engine",
        "",
        "A model of the size of `multi30k-en-de` with untrained weights whose outputs are as long "
        "as their sources. A server with 64 clients never has more than 64 sentences, which "
        "`model.run` decodes at a lower rate than all of them in one call: where that rate was "
        "measured, the share of it is there too.",
        "",
    ]
    for one in found:
        lines += [*_rates_of_processes(one), ""]
    return lines


def _rates_of_processes(one: dict[str, Any]) -> list[str]:
    engine, http = "engine's event loop µs/request", "HTTP processes µs/request"
    rows = [
        [
            str(rate["HTTP processes"]),
            str(rate["clients"]),
            f"{three_digits(rate['sentences/s'])} / s",
            f"{rate['share of offline']:.0%}",
            f"{rate['share of that']:.0%}" if "share of that" in rate else "",
            f"{rate[engine]} µs, {rate[http]} µs",
        ]
        for rate in one["found"]["rates"]
    ]
    offline = three_digits(one["found"]["offline sentences/s"])
    note = one.get("note", "One run each: the spread is not known.")
    titles = ["HTTP processes", "clients", "the server", "of `model.run`", "as many at a time"]
    return [
        f"`model.run` of all sentences in one call: {offline} / s. {note} `{one['command']}`, "
        f"{one['hardware']}, {one['threads']} cores of a Xeon, torch {one['torch']}.",
        "",
        *table([*titles, "CPU time for a request: engine's event loop, HTTP processes"], rows),
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


def cuda_graphs() -> list[str]:
    found = read("busy_cuda")
    if found is None:
        return []
    rows = []
    for name, measured in found["recipes"].items():
        before, now = measured["before"], measured["now"]
        cells = [f"`{name}`"]
        for one in (before, now):
            cells += [three_digits(one["tokens_per_second"]), f"{one['busy']:.0%}"]
        rows.append([*cells, f"{now['tokens_per_second'] / before['tokens_per_second']:.1f}"])
    losses = [
        abs(measured["before"]["loss"] - measured["now"]["loss"])
        for measured in found["recipes"].values()
        if measured["before"]["loss"] is not None
    ]
    lines = [
        "# Training with CUDA graphs",
        "",
        "Target tokens per second of training, and the fraction of time in which a kernel ran, "
        "before padded batches had [CUDA graphs](../../guides/training.md#on-a-gpu-cuda-graphs) "
        f"and batches were made ahead, and with both. {found['note']} The mean losses of the first "
        f"100 updates differ by at most {max(losses):.3f}. `multi30k-en-de` had graphs before, but "
        "in its window it was still capturing them, so its factor is no gain of a long run. "
        f"`{found['command']}`, {found['device']}, {found['seconds']:g} seconds each; the spread "
        "is not known.",
        "",
        *table(["recipe", "tokens/s before", "busy", "tokens/s", "busy", "times"], rows),
        "",
    ]
    return lines + _later(found["recipes"]) + _kernels()


def _later(first: dict[str, Any]) -> list[str]:
    """More recipes, and some of the first ones again. first: what was measured then."""
    found = read("busy_later_cuda")
    if found is None:
        return []
    rows = []
    for name, measured in found["recipes"].items():
        now, before = measured["now"], first.get(name, {}).get("before")
        rate = now["tokens_per_second"]
        rows.append(
            [
                f"`{name}`",
                "" if before is None else three_digits(before["tokens_per_second"]),
                three_digits(rate),
                f"{now['busy']:.0%}",
                "" if before is None else f"{rate / before['tokens_per_second']:.1f}",
            ]
        )
    return [
        f"Later. {found['note']} `{found['command']}`, {found['device']}, {found['seconds']:g} "
        "seconds each; the spread is not known.",
        "",
        *table(["recipe", "tokens/s before", "tokens/s", "busy", "times"], rows),
        "",
    ]


def _kernels() -> list[str]:
    found = read("busy_kernels_cuda")
    if found is None:
        return []
    rows = [
        [
            f"`{recipe}`" if "," not in recipe else f"`{recipe.replace(',', '`,', 1)}",
            batches,
            three_digits(row["tokens_per_second"]),
            f"{row['kernels']['update'] / 1000:.1f}",
            f"{row['kernels']['busy'] / 1000:.1f}",
        ]
        for recipe, kinds in found["recipes"].items()
        for batches, row in kinds.items()
    ]
    together = found["side_by_side"]
    crowd = [[name, three_digits(speed)] for name, speed in together["tokens_per_second"].items()]
    return [
        "Later, with packed batches for Conformers too. "
        f"{found['note'].replace('; microseconds an update', '')} {found['device']}.",
        "",
        *table(
            ["recipe", "batches", "tokens/s", "ms an update", "ms in which kernels ran"],
            rows,
        ),
        "",
        f"Trainings side by side. {together['note']}",
        "",
        *table(["recipe", "tokens/s of each"], crowd),
        "",
    ]


def fine_tuning() -> list[str]:
    found = read("fine_tuning")
    if found is None:
        return []
    runs = found["runs"]
    names = {
        "start": "the start model",
        "frozen": "fine-tuned, its encoder frozen",
        "adapter": "with an adapter",
        "nothing": "the same network trained on the 100 pairs from scratch",
    }
    rows = [
        [title, *(f"{run[name]:.1f}" for run in runs), f"{mean(run[name] for run in runs):.1f}"]
        for name, title in names.items()
    ]
    return [
        "# Fine-tuning: 100 pairs",
        "",
        "The example of [the guide](../../guides/fine-tuning.md): a model of British dates, then "
        "the same model fine-tuned on 100 American ones. Exact match in per cent on the 200 "
        "American dates of the validation set, of each seed. On British dates the start model has "
        f"{' and '.join(format(run['british'], '.1f') for run in runs)}. The weights of the "
        f"adapter take {runs[0]['adapter_bytes'] / 1000:.0f} KB, those of a whole model "
        f"{runs[0]['model_bytes'] / 1000:.0f} KB. "
        f"`python benchmarks/fine_tuning.py --seeds {found['seeds']} --device {found['device']}`, "
        f"{found['cores']} cores.",
        "",
        *table(["model", *(f"seed {run['seed']}" for run in runs), "mean"], rows),
        "",
    ]


def ablation() -> list[str]:
    found = read("ablation")
    if found is None:
        return []
    of, pruned = found["ablation"], found["pruned"]
    order = sorted(of["heads"], key=lambda head: -head["value"])
    heads = [
        [
            f"{head['part'].replace('blocks.', '').removesuffix('_attention').replace('_', ' ')}, "
            f"head {head['head']}",
            f"{head['value']:+.4f} [{head['low']:+.4f}, {head['high']:+.4f}]",
        ]
        for head in order[:8]
    ]
    kinds = [
        [
            kind,
            f"{sum(head['low'] > 0 for head in of['heads'] if head['kind'] == kind)}",
            f"{sum(head['kind'] == kind for head in of['heads'])}",
        ]
        for kind in dict.fromkeys(head["kind"] for head in of["heads"])
    ]
    bleu, change = pruned["bleu"], pruned["bleu"]["change"]
    rows = [
        ["parameters", *(f"{pruned['parameters'][one]:,}" for one in ("whole", "pruned"))],
        ["bytes of weights", *(f"{pruned['bytes'][one]:,}" for one in ("whole", "pruned"))],
        [
            f"BLEU on {bleu['items']} sentences of the test set of 2016",
            f"{bleu['whole']:.1f}",
            f"{bleu['pruned']:.1f}; {change['value']:+.1f} [{change['low']:+.1f}, "
            f"{change['high']:+.1f}], p {change['p']:.3f}",
        ],
    ]
    for search, both in pruned["seconds"].items():
        cells = [
            f"{one['median']:.3g} ({one['least']:.3g} to {one['most']:.3g})"
            for one in (both["whole"], both["pruned"])
        ]
        rows.append([f"seconds for 100 sentences, {search}", *cells])
    affordable = ", ".join(f"{count} for {nats} nats" for nats, count in of["affordable"].items())
    return [
        "# The importance of heads",
        "",
        "`transduce ablate` ([the guide](../../guides/looking-inside.md)) on `multi30k-en-de` "
        f"after 8,000 updates: nats per token on {of['items']} pairs of {of['corpus']} without "
        f"each head, with 95 % intervals; the whole model has {of['value']:.3f}. "
        f"`{found['command']}`, {found['hardware']}, torch {found['torch']}, shared with other "
        "work; seconds of CPU, the median of 7 rounds with the fastest and the slowest.",
        "",
        *table(["head", "loss without it"], heads),
        "",
        "Heads whose interval is above zero, of all of a kind:",
        "",
        *table(["attention", "needed", "heads"], kinds),
        "",
        f"Greedy pruning: of {len(of['heads'])} heads, {affordable} can be removed. The model "
        f"without {found['removed']}:",
        "",
        *table(["", "whole", f"{found['removed']} heads pruned"], rows),
        "",
    ]


def _middle(values: list[float], digits: int) -> str:
    usual, low, high = (f"{one:.{digits}f}" for one in (median(values), min(values), max(values)))
    return f"{usual} ({low} to {high})"
