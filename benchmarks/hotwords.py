"""What hotwords mend and what they cost: python benchmarks/hotwords.py MODEL --audio LIST.tsv ...

    python benchmarks/hotwords.py runs/asterisk --audio test.tsv --unseen train.tsv --json OUT.json
    python benchmarks/hotwords.py whisper-base --audio prompts.tsv --names names.txt --language en

LIST.tsv has an audio file and its text in each line, and may begin with a header. The hotwords of
all recordings are the same list: the lines of --names, or, with --unseen, the words of the texts
that do not occur in another table or text (that of training), so that nothing depends on what the
model gets wrong. For each bonus, and without hotwords, with the same beam:

- listed: occurrences of listed words in the texts, how many are wrong, and how often a listed word
  is heard where none was said;
- elsewhere: the word error rate of all other words of the texts. An insertion counts here.

Differences to no hotwords are resampled over recordings (paired bootstrap).
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jiwer
import torch
from systems import metadata

import transduce

RESAMPLES = 2000


@dataclass(frozen=True)
class Counts:
    """Of one recording."""

    listed: int = 0
    wrong: int = 0
    """Listed words of the text that are not in the output where they should be."""
    false: int = 0
    """Listed words of the output that are not in the text there."""
    others: int = 0
    errors: int = 0
    """Of other words, and insertions."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--audio", type=Path, required=True)
    parser.add_argument("--names", type=Path, help="hotwords, one on each line")
    parser.add_argument("--unseen", type=Path, help="hotwords are what does not occur in this file")
    parser.add_argument("--letters", type=int, default=4, help="of a word that is listed, at least")
    parser.add_argument("--bonuses", default="0.5,1,1.5,2,3")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--limit", type=int, help="so many recordings, drawn at random")
    parser.add_argument("--batch", type=int, default=16, help="recordings given together")
    parser.add_argument("--language", help="of Whisper")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    rows = read_list(asked.audio)
    if asked.limit:
        rows = random.Random(1).sample(rows, min(asked.limit, len(rows)))
    names = listed_names(asked, [text for _, text in rows])
    if not names:
        parser.error("there is nothing to list; give --names or --unseen")
    model = transduce.load(asked.model, asked.device).freeze()
    found: dict[str, Any] = {
        "facts": metadata(torch.device(asked.device)),
        "model": asked.model.name,
        "beam": asked.beam,
        "recordings": len(rows),
        "hotwords": names,
        "results": {},
    }
    print(f"{len(rows)} recordings, {len(names)} hotwords: {', '.join(names)[:300]}", flush=True)
    without: list[Counts] = []
    for bonus in (None, *map(float, asked.bonuses.split(","))):
        start = time.process_time()
        texts = decoded(model, rows, names, bonus, asked)
        seconds = time.process_time() - start
        counts = [count(text, output, names) for (_, text), output in zip(rows, texts, strict=True)]
        without = without or counts
        result = {**summary(counts, without), "cpu_seconds": round(seconds, 1), "outputs": texts}
        found["results"]["none" if bonus is None else f"{bonus:g}"] = result
        print(describe(bonus, result), flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")


def read_list(path: Path) -> list[tuple[str, str]]:
    """Recordings, relative to the table, and their texts."""
    lines = [line.split("\t") for line in path.read_text("utf-8").splitlines() if line.strip()]
    rows = [(path.parent / line[0], line[1]) for line in lines]
    rows = rows if rows[0][0].is_file() else rows[1:]
    return [(str(audio), text) for audio, text in rows]


def words_of(text: str) -> list[str]:
    return re.findall(r"[\w']+", text.lower())


def listed_names(asked: argparse.Namespace, texts: list[str]) -> list[str]:
    """The hotwords: as they are in --names, or words in lower case."""
    if asked.names:
        lines = asked.names.read_text("utf-8").splitlines()
        return [line.strip() for line in lines if line.strip()]
    seen = set(words_of(asked.unseen.read_text("utf-8"))) if asked.unseen else set()
    said = sorted({word for text in texts for word in words_of(text)} - seen)
    return [word for word in said if len(word) >= asked.letters and asked.unseen]


def decoded(
    model: Any,
    rows: list[tuple[str, str]],
    names: list[str],
    bonus: float | None,
    asked: argparse.Namespace,
) -> list[str]:
    settings: dict[str, Any] = {"beam": asked.beam}
    if bonus is not None:
        settings |= {"hotwords": names, "hotword_bonus": bonus}
    if asked.language:
        settings |= {"language": asked.language, "timestamps": False}
    paths = [audio for audio, _ in rows]
    return [
        output.text
        for start in range(0, len(paths), asked.batch)
        for output in model.run(paths[start : start + asked.batch], **settings)
    ]


def count(text: str, output: str, names: list[str]) -> Counts:
    """The errors of one recording, at the words of names and elsewhere."""
    listed = {word for name in names for word in words_of(name)}
    said, heard = words_of(text), words_of(output)
    known = sum(word in listed for word in said)
    if not said:
        return Counts(errors=len(heard))
    right, inserted = [False] * len(said), []
    aligned = jiwer.process_words(" ".join(said), " ".join(heard) or "\N{EMPTY SET}")
    for piece in aligned.alignments[0]:
        if piece.type == "equal":
            right[piece.ref_start_idx : piece.ref_end_idx] = [True] * (
                piece.ref_end_idx - piece.ref_start_idx
            )
        elif piece.type != "delete":
            inserted += heard[piece.hyp_start_idx : piece.hyp_end_idx]
    wrong = [word for word, fits in zip(said, right, strict=True) if not fits]
    at_names = sum(word in listed for word in wrong)
    insertions = aligned.insertions if heard else 0
    return Counts(
        listed=known,
        wrong=at_names,
        false=sum(word in listed for word in inserted),
        others=len(said) - known,
        errors=len(wrong) - at_names + insertions,
    )


def summary(counts: list[Counts], without: list[Counts]) -> dict[str, Any]:
    """Totals, and the change of the rate elsewhere to that without hotwords, with its interval."""
    totals = {name: sum(getattr(one, name) for one in counts) for name in vars(counts[0])}
    draw, changes = random.Random(1), []
    for _ in range(RESAMPLES):
        places = draw.choices(range(len(counts)), k=len(counts))
        changes.append(rate([counts[n] for n in places]) - rate([without[n] for n in places]))
    changes.sort()
    return {
        **totals,
        "elsewhere": rate(counts),
        "change": rate(counts) - rate(without),
        "low": changes[int(0.025 * RESAMPLES)],
        "high": changes[int(0.975 * RESAMPLES)],
    }


def rate(counts: list[Counts]) -> float:
    """Word error rate elsewhere, in percent."""
    return 100 * sum(one.errors for one in counts) / max(1, sum(one.others for one in counts))


def describe(bonus: float | None, result: dict[str, Any]) -> str:
    name = "no hotwords" if bonus is None else f"bonus {bonus:g}"
    return (
        f"{name}: {result['wrong']} of {result['listed']} listed words wrong, {result['false']} "
        f"heard falsely; WER elsewhere {result['elsewhere']:.2f} ({result['change']:+.2f}; "
        f"{result['low']:+.2f} to {result['high']:+.2f}); {result['cpu_seconds']:.0f} s of CPU"
    )


if __name__ == "__main__":
    main()
