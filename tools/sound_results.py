"""Results on audio: how fast it is learnt and transcribed, how well aligned."""

from __future__ import annotations

import statistics
from typing import Any

from result_tables import read, table


def alignment() -> list[str]:
    found = read("alignment")
    return [] if found is None else _alignment(found)


def speed() -> list[str]:
    fast = [found for device in ("cuda", "cpu") if (found := read(f"sound_speed_{device}"))]
    lines = ["# Speed of speech", "", _ABOUT_SPEED, ""] if fast else []
    for found in fast:
        lines += _speed(found)
    return lines


_ABOUT_SPEED = (
    "Seconds of audio processed per second (inverse real-time factor): whole training updates, as "
    "in `transduce train`; transcribing the test set with greedy search, and with the recipe's "
    "beam and CTC weight; and reading the files. `features`: the share of a training update that "
    "log-mel features take. The median over rounds, with the slowest and the fastest."
)


def _alignment(found: dict[str, Any]) -> list[str]:
    rows = []
    for row in found["rows"]:
        rows.append(
            [
                row["text"],
                f"{row['voice']}, {row['noise']:.0f} dB",
                f"{row['minutes']:.1f}",
                _share(row["near"], row["boundaries"]),
                _share(row["near_unseen"], row["boundaries_unseen"]),
                f"{row['median_ms']:.0f} ms",
                _share(row["near_words"], row["words"]),
                f"{row['left_out_found']} of {row['left_out']}",
                str(row["read_missed"]),
            ]
        )
    total = {
        name: sum(row[name] for row in found["rows"])
        for name in ("near", "boundaries", "near_words", "words", "left_out", "left_out_found")
    }
    missed = sum(row["read_missed"] for row in found["rows"])
    head = ["text", "voice, speech above noise", "minutes", "lines within 100 ms"]
    head += ["of new articles", "median", "words within 100 ms", "omissions found", "false alarms"]
    training = found["training"]
    return [
        "# Aligning long recordings",
        "",
        f"`{found['facts']['command']}`: a model of {training['parameters']:,} parameters, which a "
        f"CPU trained in {training['seconds'] / 60:.0f} minutes on readings of the Declaration in "
        "two languages by eight voices, aligns readings by other voices, which were not used to "
        "set any threshold, with pauses of 0.2 to 1.2 s, reverberation, noise, about one line in "
        "twelve left out, and now and then speech that is not in the text. Starts and ends of "
        "lines, and starts of words (all wrong in a line of which not every word was found), are "
        "compared with espeak's own times. `false alarms`: lines that were spoken and counted as "
        "left out; both their ends count as wrong."
        + (f" {found['notes']}" if found.get("notes") else ""),
        "",
        f"In all, {_share(total['near'], total['boundaries'])} of {total['boundaries']:,} "
        f"line boundaries are within 100 ms, and {_share(total['near_words'], total['words'])} of "
        f"{total['words']:,} word starts; {total['left_out_found']} of {total['left_out']} "
        f"lines that were left out were detected, with {missed} false alarms.",
        "",
        *table(head, rows),
        "",
    ]


def _speed(found: dict[str, Any]) -> list[str]:
    known = found["facts"]
    rows = []
    for row in found["rows"]:
        rows.append(
            [
                f"`{row['recipe']}`",
                f"{row['parameters']:,}",
                f"{_middle(row['training'])}, {row['precision']}",
                f"{100 * row['features']:.1f} %",
                _middle(row["greedy"]),
                f"{_middle(row['searched'])} (beam {row['beam']}, CTC {row['ctc']:g})",
                f"{row['reading']:,.0f}",
            ]
        )
    head = ["recipe", "parameters", "training", "features", "greedy", "beam", "reading files"]
    return [
        f"`{known['command']}`, {known['hardware']}, torch {known['torch']}.",
        "",
        *table(head, rows),
        "",
    ]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def _middle(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"
