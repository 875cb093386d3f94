"""The code blocks of the README and of docs/, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Indented code has an empty line before it, and is no item of a list.
BLOCK = re.compile(
    r"^```(?P<kind>\w*)\n(?P<fenced>.*?)^```$|(?<=\n\n)(?P<indented>(?:    [^\n]+\n|\n(?=    ))+)",
    re.DOTALL | re.MULTILINE,
)
LIST = re.compile(r"^ *([-*]|\d+\.) ")
# What a line of a shell begins with, perhaps after `$ ` and settings of the environment.
COMMAND = re.compile(
    r"^(?:\$ )?((?:[A-Z_]+=\S+ )*(?:transduce|python|pip|torchrun|srun|serve|curl|make|cut|head|sed"
    r"|tail) .*)$"
)
SHELL = ("", "sh", "bash")


@dataclass(frozen=True)
class Block:
    page: str
    """The name of its file, without its ending; of `docs/lessons/README.md`, that of its folder."""
    kind: str
    """The language after the fence; none for indented blocks."""
    text: str

    @property
    def commands(self) -> list[str]:
        """The command lines of a block of a shell, without comments and prompts."""
        if self.kind not in SHELL:
            return []
        joined = re.sub(r"\\\n\s*", "", self.text)
        found = [match[1] for line in joined.splitlines() if (match := COMMAND.match(line))]
        return [re.sub(r"\s+# .*$", "", line).rstrip() for line in found]


def name_of(page: Path) -> str:
    return page.parent.name if page.stem == "README" and page.parent != ROOT else page.stem


def blocks_of(page: Path) -> Iterator[Block]:
    text, name = page.read_text("utf-8"), name_of(page)
    for found in BLOCK.finditer(text):
        if found["fenced"] is not None:
            yield Block(name, found["kind"], found["fenced"])
        elif not LIST.match(text[: found.start()].rstrip().rpartition("\n\n")[2]):
            yield Block(name, "", re.sub(r"^    ", "", found["indented"], flags=re.MULTILINE))


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page)]


def words_of(command: str) -> tuple[list[str], str | None]:
    """What is typed after `transduce`, and the file that the shell writes."""
    words = shlex.split(command)[1:]
    return (words[:-2], words[-1]) if ">" in words else (words, None)


# Commands that tests/integration/test_docs_commands.py does not type, by a pattern, and why not.
CANNOT_RUN = {
    r"^pip install ": "changes the environment; tests/unit/test_docs_blocks.py checks the extras",
    r"^make demo$": "installs the package; then it is `transduce demo`",
    r"^transduce demo( speech)?$": "trains for minutes; tests/unit/cli/test_demo.py has it small",
    r"^transduce corpus get ": "downloads, or needs files that nobody may pass on; "
    "tests/integration/test_corpora.py gets a corpus from a server on this machine",
    r"^transduce corpus udhr ": "needs the texts of `corpus get udhr`; "
    "tests/unit/corpora has texts of its own",
    r"^transduce train udhr-small$": "needs what the command before it has made",
    r"^transduce .*\b(SOURCE|MODEL)\b": "what is in capitals, the reader puts there",
    r"^transduce run \S+ --live( --chunk-ms \d+)?$": "needs a microphone; "
    "tests/unit/cli/test_live.py has one",
    r"^transduce lessons run .* --full$": "takes minutes; the reduced size is run",
    r"^transduce (publish|run hf://)": "needs the hub; tests/integration/test_publish.py has one",
    r"^transduce (import|run) \S*(gpt2|g2p)": "needs weights that are not here; "
    "tests/unit/interop/imports has small ones",
    r"^(torchrun --nnodes 4|srun) ": "needs four machines",
    r"^serve run ": "needs a cluster of Ray",
    r" --engine ray\b": "needs the extra ray; tests/integration/test_ray.py runs it",
    r"^transduce .*s3://": "needs a store; tests/integration/test_object_store.py has one",
    r"^python benchmarks/": "measures for minutes, on a machine that does nothing else",
    r"^python tools/make_tables\.py$": "writes pages; tests/unit/test_docs_pages.py checks them",
    r"^curl ": "typed by the tests of these pages, to servers of their own",
    r"^python make\.py$|^(head|sed|tail|cut) ": "typed by the tests of these pages",
}
