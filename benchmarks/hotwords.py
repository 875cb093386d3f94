"""What hotwords mend and what they cost: python benchmarks/hotwords.py MODEL... --audio TABLE ...

    python benchmarks/hotwords.py runs/asterisk --audio test.tsv --unseen train.tsv --json OUT.json
    python benchmarks/hotwords.py whisper-base --audio prompts.tsv --names names.txt --language en
    python benchmarks/hotwords.py runs/udhr-small --audio udhr-spoken/eng/test-voices.tsv
        --unseen udhr-spoken/eng/train.tsv --phones en

The table has an audio file and its text in each line, and may begin with a header. The hotwords of
all recordings are the same list: the lines of --names, or, with --unseen, the words of the texts
that do not occur in those of another table (that of training), so that nothing depends on what the
model gets wrong. For each model, beam and bonus, and without hotwords, with the same beam:

- listed: occurrences of listed phrases in the texts, how many are wrong (any word of them), and how
  often a listed phrase is heard where none was said;
- elsewhere: the word error rate of all other words of the texts. An insertion counts here.

Differences to no hotwords are resampled over recordings (paired bootstrap).

--phones LANGUAGE is for models of phones: the table has a column of phones too, a hotword is the
phones of a word as espeak reads it alone, and each phone counts as a word above. Words that are
read otherwise in their sentences are left out.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jiwer
import torch
from systems import metadata

import transduce
from transduce.synthesis.espeak import espeak

RESAMPLES = 2000


@dataclass(frozen=True)
class Counts:
    """Of one recording."""

    listed: int = 0
    wrong: int = 0
    """Listed phrases of the text that are not in the output where they should be."""
    false: int = 0
    """Listed phrases of the output that are not in the text there."""
    others: int = 0
    errors: int = 0
    """Of other words, and insertions."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--audio", type=Path, required=True)
    parser.add_argument("--names", type=Path, help="hotwords, one on each line")
    parser.add_argument("--unseen", type=Path, help="hotwords are what does not occur in this file")
    parser.add_argument("--letters", type=int, default=4, help="of a word that is listed, at least")
    parser.add_argument("--phones", metavar="LANGUAGE", help="hotwords are the phones of words")
    parser.add_argument("--bonuses", default="0.5,1,1.5,2,3")
    parser.add_argument("--beams", type=int, nargs="+", default=[5])
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
    names = listed_names(asked, [row.text for row in rows])
    hotwords = names
    if asked.phones:
        rows = [replace(row, text=row.phones) for row in rows]
        spoken = {name: phones_of(name, asked.phones) for name in names}
        said = [words_of(row.text) for row in rows]
        names = [name for name in names if any(occurrences([spoken[name]], one) for one in said)]
        hotwords = [" ".join(spoken[name]) for name in names]
    if not names:
        parser.error("there is nothing to list; give --names or --unseen")
    found: dict[str, Any] = {
        "facts": metadata(torch.device(asked.device)),
        "recordings": len(rows),
        "hotwords": names,
        "runs": [],
    }
    print(f"{len(rows)} recordings, {len(names)} hotwords: {', '.join(names)[:300]}", flush=True)
    for folder in asked.models:
        model = transduce.load(folder, asked.device).freeze()
        for beam in asked.beams:
            print(f"{folder.name}, seed {model.recipe.seed}, beam {beam}", flush=True)
            run = {"model": folder.name, "seed": model.recipe.seed, "beam": beam, "results": {}}
            found["runs"].append(run)
            without: list[Counts] = []
            for bonus in (None, *map(float, asked.bonuses.split(","))):
                start = time.process_time()
                texts = decoded(model, rows, hotwords, beam, bonus, asked)
                seconds = time.process_time() - start
                counts = [
                    count(row.text, output, hotwords)
                    for row, output in zip(rows, texts, strict=True)
                ]
                without = without or counts
                result = summary(counts, without) | {"cpu_seconds": round(seconds, 1)}
                run["results"]["none" if bonus is None else f"{bonus:g}"] = {
                    **result,
                    "outputs": texts,
                }
                print(describe(bonus, result), flush=True)
                if asked.json:
                    text = json.dumps(found, indent=1, ensure_ascii=False)
                    asked.json.write_text(text + "\n", "utf-8")


@dataclass(frozen=True)
class Row:
    audio: str
    text: str
    phones: str = ""


def read_list(path: Path) -> list[Row]:
    """Recordings, relative to the table, and their texts; phones where a header names them."""
    first, *lines = table_of(path)
    if (path.parent / first[0]).is_file():
        return [Row(str(path.parent / line[0]), line[1]) for line in (first, *lines)]
    place = first.index("phones") if "phones" in first else None
    return [
        Row(str(path.parent / line[0]), line[1], "" if place is None else line[place])
        for line in lines
    ]


def table_of(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text("utf-8").splitlines() if line.strip()]


def words_of(text: str) -> list[str]:
    """Words without punctuation, in lower case; a combining mark, as of a phone, is part of one."""
    return re.findall(r"[\w'\u0300-\u036f]+", text.lower())


def phones_of(word: str, language: str) -> list[str]:
    voice = espeak().voice_of(language)
    assert voice is not None, f"espeak does not know {language}"
    return words_of(espeak().read(word, voice).symbols)


def listed_names(asked: argparse.Namespace, texts: list[str]) -> list[str]:
    """The hotwords: as they are in --names, or words in lower case."""
    if asked.names:
        lines = asked.names.read_text("utf-8").splitlines()
        return [line.strip() for line in lines if line.strip()]
    # The last columns of a table may be phones, speakers, seconds; of a text, there is one.
    lines = table_of(asked.unseen) if asked.unseen else []
    seen = {word for line in lines for word in words_of(line[min(1, len(line) - 1)])}
    said = sorted({word for text in texts for word in words_of(text)} - seen)
    return [word for word in said if len(word) >= asked.letters and asked.unseen]


def decoded(
    model: Any,
    rows: list[Row],
    hotwords: list[str],
    beam: int,
    bonus: float | None,
    asked: argparse.Namespace,
) -> list[str]:
    settings: dict[str, Any] = {"beam": beam}
    if bonus is not None:
        settings |= {"hotwords": hotwords, "hotword_bonus": bonus}
    if asked.language:
        settings |= {"language": asked.language, "timestamps": False}
    paths = [row.audio for row in rows]
    return [
        output.text
        for start in range(0, len(paths), asked.batch)
        for output in model.run(paths[start : start + asked.batch], **settings)
    ]


def occurrences(phrases: list[list[str]], words: list[str]) -> list[range]:
    """Where one of the phrases is, from left to right, the longest first; none overlaps another."""
    found, place = [], 0
    longest_first = sorted((phrase for phrase in phrases if phrase), key=len, reverse=True)
    while place < len(words):
        here = (one for one in longest_first if words[place : place + len(one)] == one)
        size = len(next(here, []))
        found += [range(place, place + size)] if size else []
        place += size or 1
    return found


def count(text: str, output: str, names: list[str]) -> Counts:
    """The errors of one recording, at the phrases of names and elsewhere."""
    phrases = [words_of(name) for name in names]
    said, heard = words_of(text), words_of(output)
    listed, known = occurrences(phrases, said), occurrences(phrases, heard)
    if not said:
        return Counts(false=len(known), errors=len(heard))
    heard_at: dict[int, int] = {}  # the place in the output of each word of the text that is right
    aligned = jiwer.process_words(" ".join(said), " ".join(heard) or "\N{EMPTY SET}")
    for piece in aligned.alignments[0]:
        if piece.type == "equal":
            length = piece.ref_end_idx - piece.ref_start_idx
            heard_at |= {piece.ref_start_idx + n: piece.hyp_start_idx + n for n in range(length)}
    right = {tuple(heard_at.get(n, -1) for n in place) for place in listed}
    found = right & {tuple(place) for place in known}
    of_names = {n for place in listed for n in place}
    wrong = [n for n in range(len(said)) if n not in heard_at and n not in of_names]
    return Counts(
        listed=len(listed),
        wrong=len(listed) - len(found),
        false=len(known) - len(found),
        others=len(said) - len(of_names),
        errors=len(wrong) + (aligned.insertions if heard else 0),
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
