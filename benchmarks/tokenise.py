"""Multi30k in the form of the published figures: lower-cased, normalised, tokenised as by Moses.

    pip install sacremoses
    python benchmarks/tokenise.py [FOLDER]

From FOLDER/multi30k (`transduce corpus get multi30k --output FOLDER`; default: runs/data) to
FOLDER/multi30k-tokenised, file by file, as in data/task1/tok of https://github.com/multi30k/dataset.
"""

from __future__ import annotations

import sys
from pathlib import Path

LANGUAGES = ("en", "de", "fr")


def tokenised(lines: list[str], language: str) -> list[str]:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    lowered = (normalizer.normalize(line.lower()) for line in lines)
    return [tokenizer.tokenize(line, return_str=True) for line in lowered]


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/data")
    made = folder / "multi30k-tokenised"
    made.mkdir(exist_ok=True)
    for language in LANGUAGES:
        for path in sorted((folder / "multi30k").glob(f"*.{language}")):
            lines = path.read_text("utf-8").split("\n")
            text = "\n".join(tokenised(lines[:-1], language)) + "\n"
            (made / path.name).write_text(text, "utf-8")
            print(made / path.name)


if __name__ == "__main__":
    main()
