"""Writes docs/reference/results.md and the pages of docs/reference/results/ from the raw figures
under benchmarks/results/.

    python tools/make_results.py [--check]

Nothing in the pages is typed in: a figure that no file holds is not there.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import live_results
import recipe_results
import small_results
import sound_results
import web_results
from result_tables import read, table, three_digits

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "results.md"
FOLDER = PAGE.with_suffix("")
MADE = "<!-- made by python tools/make_results.py -->"  # not first: MkDocs takes a title from there


def demo() -> list[str]:
    found = read("demo")
    if found is None:
        return []
    rows = []
    for run in found["rows"]:
        cells = [str(run["seed"])]
        for name in ("per", "exact"):
            metric = run["test"]["metrics"][name]
            cells.append(f"{metric['value']:.2f} % [{metric['low']:.2f}, {metric['high']:.2f}]")
        training = run["training"]
        cells += [
            f"{training['steps']:,}",
            f"{training['seconds']:.0f} s",
            f"{run['wall_seconds']:.0f} s",
        ]
        rows.append(cells)
    pers = [run["test"]["metrics"]["per"]["value"] for run in found["rows"]]
    first = found["rows"][0]
    return [
        "# The demo: spelling to phones on CMUdict",
        "",
        f"`{found['facts']['command']}`, {first['training']['device']}, "
        f"torch {first['training']['torch']}, {first['training']['parameters']:,} parameters, "
        f"{first['test']['items']:,} held-out words, beam 4, 95 % bootstrap intervals. A word with "
        "several pronunciations is correct if any of them is predicted.",
        "",
        "The recipe was chosen in nineteen short trials of architecture, learning rate and batch "
        "size. For seven of them the test words were scored as well as the validation words, and "
        "both were seen in the choice, so these results are slightly optimistic; an unbiased "
        "estimate needs other words. `train.minutes` ties the schedule to the clock, so a seed "
        "does not reproduce exactly.",
        "",
        *table(
            ["seed", "phone error rate", "words right", "updates", "training", "whole demo"], rows
        ),
        "",
        f"Phone error rate over seeds: mean {statistics.mean(pers):.2f} %, from {min(pers):.2f} to "
        f"{max(pers):.2f} %.",
        "",
    ]


def toy_tasks() -> list[str]:
    found = read("toy_tasks")
    if found is None:
        return []
    names = list(dict.fromkeys(row["preset"] for row in found["rows"]))
    machines = sorted({row["machine"] for row in found["rows"]})
    rows = []
    for name in names:
        cells = [name]
        for task in ("copy", "reverse"):
            of_task = [r for r in found["rows"] if r["preset"] == name and r["task"] == task]
            values = [f"{r['exact']:.1f} %" for r in of_task]
            cells.append(", ".join(values))
        own = [r for r in found["rows"] if r["preset"] == name]
        cells += [f"{own[0]['parameters']:,}", f"{max(r['updates'] for r in own):,}"]
        rows.append(cells)
    return [
        "# Toy tasks: copying and reversing unseen strings",
        "",
        "`python benchmarks/toy_tasks.py`: strings of 1 to 12 letters, 20,000 for training, 1,000 "
        "test strings that are in no other split, greedy search; the share of correct strings. "
        "`lstm-seq2seq` has no attention: its decoder gets only the encoder's final state. "
        f"Run on one thread of {', '.join(machines)}.",
        "",
        *table(["model", "copy", "reverse", "parameters", "updates"], rows),
        "",
        *found.get("notes", []),
        "",
    ]


# ---------------------------------------------------------------------------------------- speed


SYSTEMS = {"ours": "transduce", "marian": "Hugging Face Marian", "torch": "torch.nn.Transformer"}
MODES = {"eager": "", "compiled": ", compiled", "graphs": ", compiled, CUDA graphs"}
SHAPES = {
    "base": "6+6 layers, width 512, 8 heads, feed-forward 2,048, vocabulary 32,000",
    "small": "3+3 layers, width 256, 4 heads, feed-forward 1,024, vocabulary 8,000",
    "tiny": "1+1 layers, width 32, 2 heads, feed-forward 64, vocabulary 300",
}


def sections(name: str) -> list[dict[str, Any]]:
    """The tables of a benchmark, of every device that it was run on; a GPU's first."""
    found = [read(f"{name}_{device}") for device in ("cuda", "cpu")]
    return [section for one in found if one is not None for section in one["sections"]]


def versions(metadata: dict[str, Any]) -> str:
    said = f"{metadata['hardware']}, torch {metadata['torch']}"
    return (
        f"{said}, transformers {metadata['transformers']}" if "transformers" in metadata else said
    )


def train_speed() -> list[str]:
    found = sections("train_speed")
    if not found:
        return []
    lines = [
        "# Training speed",
        "",
        "Target tokens per second of whole training steps: forward, backward, clipping, fused "
        "AdamW, label smoothing and dropout 0.1, the same shape and batches for all, embeddings "
        "and output layer tied. All systems of a table took turns in one process; a figure is the "
        "median over rounds, with the slowest and the fastest round beside it. Ours is what "
        "`transduce train` runs. The peers have their inner dropouts (of attention weights and "
        "inside feed-forward layers) off, as ours has, and no masks where there is no padding; "
        "Marian is kept from writing its causal mask out. "
        "The share of the ceiling counts the products a step needs (`flops` in "
        "`benchmarks/systems.py`), against the fastest large square product measured in the same "
        "run; padding is not counted as work. Peak memory on a GPU is what the system alone had "
        "allocated at most; on a CPU what a process with it alone took on top of its libraries. "
        "Making batches from a corpus is not in the times of any.",
        "",
    ]
    for section in found:
        lines += speed_table(section)
    return lines


def speed_table(section: dict[str, Any]) -> list[str]:
    batches, several = section["batches"], section["ceilings"]
    measured = [row for row in section["rows"] if "tokens_per_second" in row]
    rounds = max((len(row["round_seconds"]) for row in measured), default=0)
    ceilings = ", ".join(
        f"{ceiling['flops'] / 1e12:,.{0 if ceiling['flops'] > 1e14 else 2}f} TFLOP/s in {name}"
        for name, ceiling in several.items()
    )
    count = batches["count"]
    if section["kind"] == "real":
        kind = (
            f"Multi30k en-de, {count} batches a round of on average "
            f"{batches['target_tokens'] / count:,.0f} real target tokens; "
            f"{100 * batches['real_share']:.1f} % of all places are real tokens, "
            "and only those count"
        )
    else:
        kind = (
            f"{count} steps a round of {batches['pairs'] // count:,} pairs, "
            f"{batches['target_tokens'] // count:,} target tokens, no padding"
        )
    rows = []
    for row in section["rows"]:
        name = SYSTEMS[row["system"]] + MODES[row["mode"]]
        if "tokens_per_second" not in row:
            rows.append([name, row["precision"], row.get("error", "not measured"), "", "", "", ""])
            continue
        rows.append(
            [
                name,
                row["precision"],
                three_digits(row["tokens_per_second"]),
                f"{three_digits(row['slowest'])} to {three_digits(row['fastest'])}",
                f"{100 * row['share_of_ceiling']:.1f} %",
                f"{row['peak_mib']:,.0f}" if "peak_mib" in row else "",
                f"{row['first_step_seconds']:.1f} s",
            ]
        )
    return [
        f"## Transformer-{section['size']}, {section['kind']} batches, "
        f"{section['facts']['hardware']}",
        "",
        f"{SHAPES[section['size']]}. {kind}. {rounds} rounds. Matmul ceiling: {ceilings}. "
        f"`{section['facts']['command']}`, {versions(section['facts'])}. "
        f"{section.get('remark', '')}".rstrip(),
        "",
        *table(
            ["", "precision", "tokens/s", "rounds", "of ceiling", "peak MiB", "first step"], rows
        ),
        "",
        *ratio(measured),
        *_kinds_of_kernels(section.get("kernels")),
    ]


def _kinds_of_kernels(found: dict[str, Any] | None) -> list[str]:
    """Where a step of ours goes."""
    if found is None:
        return []
    step = found["step"]
    rows = [
        [kind, f"{took / 1000:.2f} ms", f"{100 * took / step:.0f} %"]
        for kind, took in [*found["kinds"].items()]
    ]
    idle = step - sum(found["kinds"].values())
    rows.append(["nothing: between kernels", f"{idle / 1000:.2f} ms", f"{100 * idle / step:.0f} %"])
    return [
        f"Where a step of ours goes, {step / 1000:.1f} ms. {found.get('note', '')}".rstrip(),
        "",
        *table(["kernels", "a step", "share"], rows),
        "",
    ]


def fastest(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Our fastest row and that of the peers; nothing where either has none."""
    measured = [row for row in rows if "tokens_per_second" in row]
    mine = [row for row in measured if row["system"] == "ours"]
    others = [row for row in measured if row["system"] != "ours"]
    if not mine or not others:
        return ()
    return tuple(max(some, key=lambda row: row["tokens_per_second"]) for some in (mine, others))


def times(ours: dict[str, Any], peer: dict[str, Any]) -> tuple[float, float, float]:
    """How many times as fast ours is; the worst and the best that the spread of both allows."""
    low, high = ours["slowest"] / peer["fastest"], ours["fastest"] / peer["slowest"]
    return ours["tokens_per_second"] / peer["tokens_per_second"], low, high


def ratio(measured: list[dict[str, Any]]) -> list[str]:
    if not (both := fastest(measured)):
        return []
    ours, peer = both
    usual, low, high = times(ours, peer)
    name = SYSTEMS[peer["system"]] + MODES[peer["mode"]]
    return [
        f"Ours against the fastest of these peers ({name}, {peer['precision']}): {usual:.2f} times "
        f"({low:.2f} to {high:.2f} over rounds).",
        "",
    ]


# ------------------------------------------------------------------------------------- decoding


DECODERS = {
    "ours": "transduce",
    "hf": "Hugging Face generate",
    "hf-static": "Hugging Face generate, static cache",
    "ct2": "CTranslate2",
}


def decode_speed() -> list[str]:
    found = sections("decode_speed")
    if not found:
        return []
    lines = [
        "# Decoding speed",
        "",
        "Target tokens per second, from token ids to token ids, with the same weights in all "
        "systems. Each system has its own process; they take turns, and only one works at a time. "
        "A figure is the median over rounds, with the slowest and the fastest round beside it. "
        "Before the timing all systems give the log-probabilities of the same targets in float32, "
        "and the greedy outputs of the same eight sources. Latency is that of single sentences, "
        "one after the other. On a CPU all systems have the same two cores: 1 x 2 is one process "
        "with two threads, 2 x 1 two processes with one thread each that share the sentences, "
        "1 x 1 one process with one thread. Memory on a CPU is what the processes took at most on "
        "top of their libraries; on a GPU what the process holds of the device in all, so it grows "
        "from row to row.",
        "",
    ]
    for section in found:
        lines += decode_table(section)
    return lines


def decode_table(section: dict[str, Any]) -> list[str]:
    known = section["facts"]
    on_cpu = any(row["threads"] > 1 for row in section["rows"])
    if section["kind"] == "real":
        title = f"Multi30k's test sentences, {section['size']}"
        kind = "Every sentence to its natural end, each system with its fastest batch size"
    else:
        shape = SHAPES[section["size"]]
        shape = shape.replace("32,000", "8,000") if on_cpu else shape
        title = f"Transformer-{section['size']}"
        title += ", against the static cache" if section["kind"] == "static" else ""
        kind = f"{shape}. Sources of 32 tokens, outputs of exactly 32"
    rows = []
    for row in section["rows"]:
        name = f"{DECODERS[row['system']]}, {row['precision']}"
        name += f", {row['workers']} x {row['threads']}" if on_cpu else ""
        if "tokens_per_second" not in row:
            rows.append([row["cell"], name, row.get("error", "not measured"), "", "", ""])
            continue
        late, memory = row.get("latency_ms"), row.get("held_mib", row.get("peak_mib"))
        speed = three_digits(row["tokens_per_second"])
        if section["kind"] == "real":
            late = None
            sentences = three_digits(row["sentences_per_second"])
            speed += f" ({sentences} sentences/s, BLEU {row['bleu']:.1f})"
        rows.append(
            [
                row["cell"],
                name,
                speed,
                f"{three_digits(row['slowest'])} to {three_digits(row['fastest'])}",
                "{p50:.1f}, {p90:.1f}, {p99:.1f}".format(**late) if late else "",
                "" if memory is None else f"{memory:,.0f}",
            ]
        )
    rounds = [len(row["round_seconds"]) for row in section["rows"] if "round_seconds" in row]
    minimum, maximum = min(rounds, default=0), max(rounds, default=0)
    counted, plural = (
        (f"{minimum} to {maximum}" if minimum < maximum else str(maximum)),
        "s" * (maximum != 1),
    )
    head = ["search, batch", "", "tokens/s", "rounds", "latency p50, p90, p99, ms", "MiB"]
    package = f", ctranslate2 {known['ctranslate2']}" if "ctranslate2" in known else ""
    return [
        f"## {title}, {known['hardware']}",
        "",
        f"{kind}. {counted} round{plural}. "
        f"`{known['command']}`, {versions(known)}{package}. {section.get('remark', '')}".rstrip(),
        "",
        *table(head, rows),
        "",
        *agreement(section),
        *decode_ratios(section),
        "",
    ]


def agreement(section: dict[str, Any]) -> list[str]:
    lines = []
    for row in section["agreement"]:
        if row is not section["agreement"][0]:
            lines.append(
                f"- {DECODERS[row['system']]}, {row['precision']}: log-probabilities in float32 "
                f"within {row['worst_log_prob']:.1e} of ours; of the greedy outputs "
                f"{100 * row['same_in_float32']:.0f} % are the same in float32, "
                f"{100 * row['same_as_timed']:.0f} % as timed."
            )
    lines += [f"- Left out: {name}: {why}" for name, why in section["left_out"].items()]
    return lines


def decode_ratios(section: dict[str, Any]) -> list[str]:
    """Our best in each cell against the best of each peer."""
    return [
        f"- {row['cell']}: ours in {row['precision']} is {row['times']:.2f} times "
        f"{DECODERS[row['peer']]} in {row['peer_precision']} ({row['low']:.2f} to "
        f"{row['high']:.2f} over rounds)."
        for row in section["ratios"]
    ]


def growth() -> list[str]:
    lines: list[str] = []
    for device in ("cuda", "cpu"):
        found = read(f"growth_{device}")
        if found is not None:
            lines += growth_table(found, device)
    return ["# Growth with length and vocabulary", "", *lines] if lines else []


def growth_table(found: dict[str, Any], device: str) -> list[str]:
    systems = list(dict.fromkeys(row["system"] for row in found["rows"]))
    lines = [
        f"One training step (the peers eager) of Transformer-{found['size']} in "
        f"{found['precision']} on {found['tokens']:,} source and as many target tokens: median "
        f"time (fastest to slowest) and peak memory. `{found['facts']['command']}`, "
        f"{versions(found['facts'])}.",
        "",
    ]
    picture = ROOT / "docs" / "figures" / f"growth_{device}.png"
    if picture.exists():
        lines += [
            f"![time and memory against length and vocabulary](../../figures/{picture.name})",
            "",
        ]
    for axis in ("length", "vocabulary"):
        own = [row for row in found["rows"] if row["axis"] == axis]
        rows = []
        for value in dict.fromkeys(row["value"] for row in own):
            cells = [f"{value:,}"]
            for system in systems:
                row = next(r for r in own if (r["value"], r["system"]) == (value, system))
                cells.append(row["error"] if "error" in row else growth_cell(row))
            rows.append(cells)
        lines += [*table([axis, *(SYSTEMS[system] for system in systems)], rows), ""]
    return lines


def growth_cell(row: dict[str, Any]) -> str:
    median, *ends = (
        1000 * s for s in (row["step_seconds"], min(row["seconds"]), max(row["seconds"]))
    )
    return f"{median:,.1f} ms ({ends[0]:,.1f} to {ends[1]:,.1f}), {row['peak_mib']:,.0f} MiB"


# --------------------------------------------------------------------------------------- exports


def exports() -> list[str]:
    found = read("parity")
    if found is None:
        return []
    known = found["facts"]
    first = found["rows"][0]
    metrics = list(first["metrics"])
    packages = [f"{name} {known[name]}" for name in ("ctranslate2", "onnxruntime") if name in known]
    rows = []
    for row in found["rows"]:
        rows.append(
            [
                row["export"],
                f"{row['largest_difference']:.2g} ({row['mean_difference']:.2g})",
                f"{row['identical_greedy']:.1%}, {row['identical_searched']:.1%}",
                *(
                    f"{row['greedy_metrics'][name][1]:.2f}, {row['metrics'][name][1]:.2f}"
                    for name in metrics
                ),
                f"{row['bytes'][1] / 1e6:.1f} MB",
                "; ".join(row["faults"]) or "yes",
            ]
        )
    before = ["the model itself", "", ""]
    for name in metrics:
        before.append(f"{first['greedy_metrics'][name][0]:.2f}, {first['metrics'][name][0]:.2f}")
    before += [f"{first['bytes'][0] / 1e6:.1f} MB", ""]
    half = " This CPU has no bfloat16: it computes with such weights in float32."
    searches = f"greedy and beam {first['beam']}"
    head = ["", "difference of log-probabilities, largest (mean)", f"identical outputs, {searches}"]
    titles = {"bleu": "BLEU", "chrf": "chrF"}
    head += [f"{titles.get(name, name)}, {searches}" for name in metrics]
    return [
        "# Exports",
        "",
        f"What `transduce export` reports of the model {found['model']} "
        f"({found['parameters']:,} parameters) on {first['pairs']:,} pairs of {first['data']}: "
        "each form against the model itself, on a CPU. Speeds depend on the machine: "
        "`transduce export` prints those of yours."
        f"{'' if known['bfloat16'] else half} `{known['command']}`, "
        f"{', '.join([versions(known), *packages])}.",
        "",
        *table([*head, "weights", "within the thresholds"], [before, *rows]),
        "",
        *(f"- Left out: {name}: {why}" for name, why in found["left_out"].items()),
        "",
    ]


def engine_speed() -> list[str]:
    found = read("engine_speed")
    if found is None:
        return []
    known = found["facts"]
    rows = [
        [
            f"{row['quantize']}, beam {row['beam']}{', with scores' if row['scores'] else ''}",
            *(f"{statistics.median(row['seconds'][way]):.2f} s" for way in ("ours", "hand")),
            f"{row['ratio']:.3f} ({row['lowest']:.3f} to {row['highest']:.3f})",
            f"{row['ratio_of_work']:.3f}",
        ]
        for row in found["rows"]
    ]
    head = ["", "`--engine ctranslate2`", "called by hand", "speed of one against the other"]
    first = found["rows"][0]
    return [
        "# CTranslate2 as an engine",
        "",
        f"{first['lines']:,} lines of Multi30k's tests from text to text, by the model "
        f"{found['model']}: through transduce, and as little as that takes by hand, in processes "
        f"of their own that take turns; medians over {len(first['seconds']['ours'])} rounds, "
        "slowest and fastest beside them. Work is the time that all cores were busy. "
        f"`{known['command']}`, {versions(known)}, ctranslate2 {known['ctranslate2']}.",
        "",
        *table([*head, "work"], rows),
        "",
    ]


# ----------------------------------------------------------------------------------- the pages


def benchmark_pages() -> dict[str, list[str]]:
    """Each page of docs/reference/results/, by its name."""
    found = {
        **recipe_results.pages(),
        "demo": demo(),
        "toy-tasks": toy_tasks(),
        "training-speed": train_speed(),
        "decoding-speed": decode_speed(),
        "growth": growth(),
        "cuda-graphs": small_results.cuda_graphs(),
        "fine-tuning": small_results.fine_tuning(),
        "patience": small_results.patience(),
        "lens": small_results.lens(),
        "ablation": small_results.ablation(),
        "serving": small_results.serving(),
        "speech-speed": sound_results.speed(),
        "live-speech": live_results.sections(),
        "alignment": sound_results.alignment(),
        "inflection": small_results.inflection(),
        "language-detection": small_results.language_detection(),
        "exports": exports(),
        "web-pages": web_results.pages(),
        "ctranslate2-engine": engine_speed(),
    }
    return {name: lines for name, lines in found.items() if lines}


def overview(found: dict[str, list[str]]) -> list[str]:
    """The page that most read: ours beside others, and where the rest is."""
    head = ["experiment", "metric, set", "ours", "interval", "ensemble", "published", "trained on"]
    return [
        "# Results",
        "",
        "What there is to compare with other systems, on one page. Each benchmark has a page of "
        "its own with all figures, the commands and the protocol: [list](#all-benchmarks). The raw "
        "figures are in `benchmarks/results/`. Times depend on the machine; scores should not.",
        "",
        "## Quality",
        "",
        "Mean over seeds ± standard deviation, the 95 % bootstrap interval of the first seed, and "
        "an ensemble of all seeds. Choices were made on validation sets. Beam search continued "
        "while a better hypothesis was possible (`decode.patience: null`); "
        "[Decoding](../guides/decoding.md) says what the default changes. Published figures are "
        "the authors' own; the linked pages say where their protocol differs.",
        "",
        *table(head, recipe_results.beside_published()),
        "",
        "## Speed of training",
        "",
        "Target tokens per second of whole training steps, the same shape and batches for all, "
        "dropout and tied embeddings included. Medians; in brackets the slowest and the fastest "
        "round. The peer is the fastest of `torch.nn.Transformer` and Hugging Face Marian, also "
        "compiled on batches of one shape. [All rows](results/training-speed.md).",
        "",
        *table(
            ["Transformer, batches", "hardware", "ours", "fastest peer", "ours / peer"],
            [_compared(section) for section in sections("train_speed")],
        ),
        "",
        "## Speed of decoding",
        "",
        "Target tokens per second with the same weights in all systems; the best precision of each "
        "(CTranslate2 and ours: int8 on a CPU). `file`: a whole test set, which each system may "
        "batch as it likes. In brackets the range over rounds. "
        "[All rows](results/decoding-speed.md).",
        "",
        *table(
            ["Transformer", "hardware", "search, batch", "ours", *_PEERS.values()],
            _decoding_compared(sections("decode_speed")),
        ),
        "",
        "## Whisper",
        "",
        "Error rates and speed beside faster-whisper and transformers are in "
        "[Whisper](../guides/whisper.md#what-was-compared).",
        "",
        "## All benchmarks",
        "",
        *(f"- [{lines[0].removeprefix('# ')}](results/{name}.md)" for name, lines in found.items()),
        "",
        "What `transduce train FILE` reaches without a recipe is on [another page]"
        "(chosen-recipes.md), what did not pay [on a third](tried.md).",
        "",
    ]


def _compared(section: dict[str, Any]) -> list[str]:
    ours, peer = fastest(section["rows"])
    return [
        f"{section['size']}, {section['kind']}",
        _machine(section),
        f"{_three(ours)}, {ours['precision']}",
        f"{_three(peer)}, {SYSTEMS[peer['system']]}{MODES[peer['mode']]}, {peer['precision']}",
        _times(*times(ours, peer)),
    ]


_PEERS = {"hf": "against Hugging Face", "ct2": "against CTranslate2"}


def _decoding_compared(several: list[dict[str, Any]]) -> list[list[str]]:
    """Of each model and machine the first table, of those with several rounds."""
    rows, seen = [], set()
    for section in several:
        measured = [row for row in section["rows"] if "round_seconds" in row]
        key = section["kind"], section["size"], _machine(section)
        if key in seen or max(len(row["round_seconds"]) for row in measured) < 2:
            continue
        seen.add(key)
        for cell in dict.fromkeys(row["cell"] for row in section["ratios"]):
            ratios = {row["peer"]: row for row in section["ratios"] if row["cell"] == cell}
            own = [row for row in measured if (row["system"], row["cell"]) == ("ours", cell)]
            best = max(own, key=lambda row: row["tokens_per_second"])
            against = [
                _times(*(ratios[peer][key] for key in ("times", "low", "high")))
                if peer in ratios
                else ""
                for peer in _PEERS
            ]
            precision = f"{_three(best)}, {best['precision']}"
            rows.append([section["size"], key[2], cell, precision, *against])
    return rows


def _times(usual: float, low: float, high: float) -> str:
    usually, minimum, maximum = (f"{one:.{1 if one >= 10 else 2}f}" for one in (usual, low, high))
    return f"{usually} times ({minimum} to {maximum})"


def _machine(section: dict[str, Any]) -> str:
    return (
        section["facts"]["hardware"]
        .replace("Intel(R) Xeon(R) Processor", "Xeon")
        .removeprefix("NVIDIA ")
    )


def _three(row: dict[str, Any]) -> str:
    """A speed and its range, in three digits."""
    several = [row[name] for name in ("tokens_per_second", "slowest", "fastest")]
    usual, low, high = map(three_digits, several)
    return f"{usual} ({low} to {high})"


def pages() -> dict[Path, str]:
    """Every file that is made, and its text."""
    found = benchmark_pages()
    texts = {FOLDER / f"{name}.md": lines for name, lines in found.items()}
    texts[PAGE] = overview(found)
    return {path: "\n".join([*lines, MADE, ""]) for path, lines in texts.items()}


def main() -> None:
    made = pages()
    there = {PAGE, *FOLDER.glob("*.md")}
    stale = [path for path in made if path not in there or path.read_text("utf-8") != made[path]]
    if "--check" in sys.argv:
        if stale or there - set(made):
            raise SystemExit("results are out of date: run python tools/make_results.py")
        return
    FOLDER.mkdir(exist_ok=True)
    for path in there - set(made):
        path.unlink()
    for path in stale:
        path.write_text(made[path], "utf-8")


if __name__ == "__main__":
    main()
