"""Language detection: our profiles of character n-grams beside lingua, on held-out articles.

    python benchmarks/language_detection.py FOLDER [--folds 5] [--without lingua] [--json OUT]

FOLDER has paragraphs.tsv.xz of the Universal Declaration of Human Rights (code, segment, text).
Profiles are counted in all articles but every fifth, on which both are then measured, five times;
both choose among the same languages, those that both know. A text is a paragraph, its first three
words, or its longest word. lingua has its own models; whether they
saw these articles is not known.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import lzma
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from systems import end, metadata

from transduce.data.languages import detect

ROOT = Path(__file__).parent.parent
WAYS: dict[str, Callable[[str], str]] = {
    "paragraphs": lambda text: text,
    "three words": lambda text: " ".join(text.split()[:3]),
    "one word": lambda text: max(text.split(), key=len),
}


def read_texts(folder: Path) -> dict[str, list[tuple[int, str]]]:
    """By language, the number of the article and the text; the preamble is article 0."""
    sys.path.insert(0, str(ROOT / "tools"))
    from make_language_profiles import VERSIONS

    codes = {
        version: code
        for code, versions in (entry.split("=") for entry in VERSIONS.split())
        for version in versions.split(",")
    }
    found: dict[str, list[tuple[int, str]]] = {}
    with lzma.open(folder / "paragraphs.tsv.xz", "rt", encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            version, segment, text = line.rstrip("\n").split("\t")
            if version in codes:
                number = int(segment[1:3]) if segment[1:3].isdecimal() else 0
                found.setdefault(codes[version], []).append((number, text))
    return found


def with_lingua(languages: list[str]) -> Callable[[str], str]:
    from lingua import IsoCode639_1, LanguageDetectorBuilder

    chosen = [getattr(IsoCode639_1, code.upper()) for code in languages]
    made = LanguageDetectorBuilder.from_iso_codes_639_1(*chosen).build()

    def detected(text: str) -> str:
        found = made.detect_language_of(text)
        return "" if found is None else str(found.iso_code_639_1.name).lower()

    return detected


def with_profiles(languages: list[str]) -> Callable[[str], str]:
    made = detect.Detector(languages)

    def detected(text: str) -> str:
        found = made.detect(text)
        return found[0].language if found else ""

    return detected


def known_to_lingua(languages: list[str]) -> list[str]:
    from lingua import IsoCode639_1, Language

    known = {language.iso_code_639_1.name.lower() for language in Language.all()}
    return [code for code in languages if code in known and hasattr(IsoCode639_1, code.upper())]


def measure(
    detector: Callable[[str], str], held_out: dict[str, list[str]], row: dict[str, list[int]]
) -> float:
    """Count what is right into `row`; the seconds that it took."""
    began = time.perf_counter()
    for way, part in WAYS.items():
        right, total = row.setdefault(way, [0, 0])
        for language, texts in held_out.items():
            right += sum(detector(part(text)) == language for text in texts)
            total += len(texts)
        row[way] = [right, total]
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--only", type=int, help="measure so many of the folds")
    parser.add_argument("--without", default="", help="lingua: our own alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    texts = read_texts(options.folder)
    languages = sorted(texts)
    systems = {"n-grams": with_profiles}
    if "lingua" not in options.without.split(","):
        if importlib.util.find_spec("lingua") is None:
            end({"lingua": "it is not installed"})
        languages = known_to_lingua(languages)
        systems["lingua"] = with_lingua
    rows: dict[str, dict[str, Any]] = {}
    for name, make in systems.items():
        counts: dict[str, list[int]] = {}
        seconds = 0.0
        for fold in range(options.only or options.folds):
            kept = {
                code: [text for article, text in texts[code] if article % options.folds != fold]
                for code in languages
            }
            held_out = {
                code: [text for article, text in texts[code] if article % options.folds == fold]
                for code in languages
            }
            with tempfile.TemporaryDirectory() as work:
                detect.PROFILES = Path(work) / "profiles.txt"
                detect.write_profiles(kept, detect.PROFILES, "all articles but some")
                seconds += measure(make(languages), held_out, counts)
        total = sum(count for _, count in counts.values())
        rows[name] = {
            "right": {way: right / count for way, (right, count) in counts.items()},
            "texts": counts["paragraphs"][1],
            "milliseconds_a_text": 1000 * seconds / total,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        shares = ", ".join(f"{100 * s:.1f} % of {way}" for way, s in rows[name]["right"].items())
        print(
            f"{name}: {shares}, among {len(languages)} languages; "
            f"{rows[name]['milliseconds_a_text']:.2f} ms a text",
            flush=True,
        )
    if options.json:
        found = {"facts": metadata(torch.device("cpu")), "languages": languages, "rows": rows}
        options.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
