"""The order of the site. A page named here that does not exist is left out; others come last."""

from __future__ import annotations

from collections.abc import Iterable

Tree = list[dict[str, "str | Tree"]]

HOME = "index.md"
LESSONS, API = "lessons", "api"
# A section and its pages: a file of docs/ without its ending, or a section within.
ORDER: list[tuple[str, list[str | tuple[str, list[str]]]]] = [
    ("First hour", ["first-hour"]),
    (
        "Guides",
        [
            ("Translation", ["translation", "corpora", "cleaning"]),
            ("Pronunciation", ["words"]),
            ("Speech", ["speech", "live-speech", "whisper", "udhr"]),
            ("Classification", ["classification"]),
            ("Tagging", ["tagging"]),
            ("Language models", ["language-models"]),
            (
                "Training",
                ["how-to-train", "training", "recipes", "tasks", "evaluation", "distillation"],
            ),
            ("Fine-tuning", ["fine-tuning", "import", "import-other-formats"]),
            ("Decoding", ["decoding", "batch"]),
            ("Looking inside", ["looking-inside"]),
            ("Scaling", ["scaling"]),
            ("Deploying", ["deploying", "serving", "serving-protocols", "export", "model-folder"]),
            ("Python", ["python", "extending"]),
        ],
    ),
    ("Lessons", [LESSONS]),
    ("Results", ["results", "tried"]),
    ("API", [API]),
    (
        "Coming from",
        [
            "coming-from-joey-nmt",
            "coming-from-opennmt-py",
            "coming-from-fairseq",
            "coming-from-espnet",
            "coming-from-hugging-face",
        ],
    ),
    ("Architecture", ["architecture"]),
    ("Troubleshooting", ["troubleshooting"]),
    ("Glossary", ["glossary"]),
    ("Project", ["contributing", "changelog"]),
]
REST = "More"


def navigation(pages: Iterable[str], made: dict[str, list[str]] | None = None) -> Tree:
    """MkDocs' `nav` of pages (`speech.md`); `made` has the pages of lessons and of the API."""
    left = set(pages) - {HOME}
    made = made or {}
    tree: Tree = [{"Home": HOME}]
    for title, names in ORDER:
        _add(tree, title, _section(names, left, made))
    _add(tree, REST, [{"": page} for page in sorted(left)])
    return tree


def _section(
    names: list[str | tuple[str, list[str]]], left: set[str], made: dict[str, list[str]]
) -> Tree:
    found: Tree = []
    for name in names:
        if isinstance(name, tuple):
            _add(found, name[0], _section(list(name[1]), left, made))
            continue
        if f"{name}.md" in left:
            left.remove(f"{name}.md")
            found.append({"": f"{name}.md"})
        found += [{"": page} for page in made.get(name, [])]
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
