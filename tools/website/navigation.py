"""The order of the site. A page named here that does not exist is left out; others come last."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

Tree = list[dict[str, "str | Tree"]]

HOME = "index.md"
# Pages that have another place in the site than in the repository.
PLACES = {
    "README.md": HOME,
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "docs/README.md": "contents.md",
}
LESSONS, API = "lessons", "api"
# A section and its pages: a page without its ending (`*` for all others of a folder), or a section
# within.
ORDER: list[tuple[str, list[str | tuple[str, list[str]]]]] = [
    ("Contents", ["contents"]),
    ("First hour", ["guides/first-hour"]),
    ("Models to try", ["models"]),
    (
        "Guides",
        [
            (
                "Tasks",
                [
                    "guides/translation",
                    "guides/words",
                    "guides/classification",
                    "guides/tagging",
                    "guides/language-models",
                    "guides/tasks",
                ],
            ),
            ("Speech", ["guides/speech", "guides/live-speech", "guides/whisper", "guides/udhr"]),
            ("Data", ["guides/your-own-file", "guides/corpora", "guides/cleaning"]),
            (
                "Training",
                [
                    "guides/how-to-train",
                    "guides/training",
                    "guides/tuning",
                    "guides/fine-tuning",
                    "guides/distillation",
                    "guides/scaling",
                ],
            ),
            (
                "Using a model",
                ["guides/decoding", "guides/evaluation", "guides/looking-inside", "guides/batch"],
            ),
            ("Serving", ["guides/serving", "guides/deploying"]),
            ("Other toolkits", ["guides/import", "guides/export", "guides/web"]),
            ("Python", ["guides/python", "guides/extending"]),
        ],
    ),
    (
        "Reference",
        [
            "reference/recipes",
            "reference/model-folder",
            "reference/serving-protocols",
            "reference/import-other-formats",
            (
                "Results",
                [
                    "reference/results",
                    "reference/results/*",
                    "reference/chosen-recipes",
                    "reference/tried",
                    "reference/speedrun",
                ],
            ),
            "reference/architecture",
            "reference/troubleshooting",
            "reference/glossary",
        ],
    ),
    ("Lessons", ["lessons/index", f"{LESSONS}/*"]),
    ("API", [f"{API}/*"]),
    (
        "Coming from",
        [
            "coming-from/joey-nmt",
            "coming-from/opennmt-py",
            "coming-from/fairseq",
            "coming-from/espnet",
            "coming-from/hugging-face",
        ],
    ),
    ("Project", ["contributing", "changelog"]),
]
REST = "More"


def place(page: Path) -> str:
    """The place in the site of a page of the repository."""
    if str(page) in PLACES:
        return PLACES[str(page)]
    page = page.relative_to("docs")
    return str(page.with_name("index.md") if page.name == "README.md" else page)


def navigation(pages: Iterable[str]) -> Tree:
    """MkDocs' `nav` of pages (`guides/speech.md`)."""
    left = [page for page in pages if page != HOME]
    tree: Tree = [{"Home": HOME}]
    for title, names in ORDER:
        _add(tree, title, _section(names, left))
    _add(tree, REST, [{"": page} for page in sorted(left)])
    return tree


def _section(names: list[str | tuple[str, list[str]]], left: list[str]) -> Tree:
    """Takes what it lists from `left`."""
    found: Tree = []
    for name in names:
        if isinstance(name, tuple):
            _add(found, name[0], _section(list(name[1]), left))
            continue
        taken = [page for page in left if fnmatch(page, f"{name}.md")]
        left[:] = [page for page in left if page not in taken]
        found += [{"": page} for page in taken]
    return found


def _add(tree: Tree, title: str, section: Tree) -> None:
    """A section of one page is that page."""
    if len(section) == 1 and "" in section[0]:
        tree.append({title: section[0][""]})
    elif section:
        tree.append({title: section})


def listed(tree: Tree) -> list[str]:
    """Every page of a navigation."""
    found = []
    for entry in tree:
        for value in entry.values():
            found += [value] if isinstance(value, str) else listed(value)
    return found


def for_mkdocs(tree: Tree) -> list[object]:
    """As MkDocs wants it: a page without a title of its own is a bare name."""
    found: list[object] = []
    for entry in tree:
        for title, value in entry.items():
            if isinstance(value, list):
                found.append({title: for_mkdocs(value)})
            else:
                found.append({title: value} if title else value)
    return found
