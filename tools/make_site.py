"""Builds the site: the pages of docs/, the lessons run, the API reference, and the models of runs/
that run in its pages. Needs no network.

    python tools/make_site.py [--output DIR] [--full] [--no-lessons]

The pages are put together in build/site-source, with links that fit, and MkDocs makes HTML of them.
--full runs the lessons in their full size (half an hour); the reduced size takes about a minute.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from website import api, lessons, links, models, navigation

import transduce

ROOT = Path(__file__).resolve().parents[1]
TOOLS, DOCS = ROOT / "tools", ROOT / "docs"
PACKAGE = Path(transduce.__file__).resolve().parent
SOURCE, CACHE = ROOT / "build" / "site-source", ROOT / "build" / "lessons"
LESSON = re.compile(r"\d\d_(\w+)\.py")
FILES = "files"  # the folder of the site for files that pages link to and that are no pages


def pages() -> dict[Path, str]:
    """Each Markdown file that is a page, and the page's name in the site."""
    found = {*DOCS.rglob("*.md"), *(ROOT / name for name in navigation.PLACES)}
    return {path: navigation.place(path.relative_to(ROOT)) for path in sorted(found)}


def stage(folder: Path, lesson_names: set[str]) -> list[str]:
    """Copy the pages and what they show into a folder; the names of the pages."""
    known = pages()
    made = {
        path: f"{navigation.LESSONS}/{found[1]}.md"
        for path in (ROOT / "lessons").glob("*.py")
        if (found := LESSON.fullmatch(path.name)) and found[1] in lesson_names
    }
    for path, page in known.items():
        text = links.rewritten(
            path.read_text("utf-8"),
            lambda target, path=path: _moved(path, target, known | made, folder),
        )
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(text, "utf-8")
    return list(known.values())


def _moved(page: Path, target: str, known: dict[Path, str], folder: Path) -> str:
    """A link of a file of the repository, as a link of the site."""
    name, mark, anchor = target.partition("#")
    if not name:
        return target
    path = (page.parent / name).resolve()
    here = Path(known[page]).parent
    if path in known:
        return os.path.relpath(known[path], here) + mark + anchor
    if not path.is_file():
        return target  # MkDocs says so
    if path.is_relative_to(DOCS):
        place = str(path.relative_to(DOCS))
    else:
        # Another .md would become a page of the site.
        place = f"{FILES}/{path.relative_to(ROOT)}" + (".txt" if path.suffix == ".md" else "")
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, folder / place)
    return os.path.relpath(place, here) + mark + anchor


def stage_api(folder: Path) -> list[str]:
    (folder / navigation.API).mkdir()
    found = []
    for package in api.packages():
        page = f"{navigation.API}/{package}.md"
        (folder / page).write_text(api.page(package), "utf-8")
        found.append(page)
    return found


def stage_lessons(folder: Path, *, full: bool) -> list[str]:
    """Run every lesson, except where neither it nor the package has changed since it was run.

    Raises SystemExit with what those that failed said, after the others have run.
    """
    known = lessons.known_lessons()
    place = folder / navigation.LESSONS
    found, failed = [], []
    for lesson in known:
        cached = CACHE / f"{lesson.name}-{_key(lesson.path, full=full)}"
        if not cached.exists():
            print(f"lesson {lesson.number}: {lesson.title}", flush=True)
            part = cached.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            (part / "figures").mkdir(parents=True)
            try:
                lessons.in_own_process(lesson.name, part, full=full)
            except RuntimeError as error:
                failed.append(str(error))
                continue
            part.rename(cached)
        shutil.copytree(cached, place, dirs_exist_ok=True)
        found.append(f"{navigation.LESSONS}/{lesson.name}.md")
    if failed:
        raise SystemExit("\n".join(failed))
    return found


def _key(lesson: Path, *, full: bool) -> str:
    """Of all that a lesson's output depends on: its text, its size, the package."""
    digest = hashlib.sha256(f"{full}".encode())
    package = sorted(PACKAGE.rglob("*.py"))
    for path in [lesson, Path(lessons.__file__), *package]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def settings(tree: navigation.Tree, output: Path) -> dict[str, Any]:
    """The content of mkdocs.yml."""
    shade = {"primary": "blue grey", "accent": "indigo"}
    light = {"media": "(prefers-color-scheme: light)", "scheme": "default", **shade}
    dark = {"media": "(prefers-color-scheme: dark)", "scheme": "slate", **shade}
    light["toggle"] = {"icon": "material/weather-night", "name": "Dark"}  # type: ignore[assignment]
    dark["toggle"] = {"icon": "material/weather-sunny", "name": "Light"}  # type: ignore[assignment]
    python = {
        "docstring_style": "google",
        "heading_level": 3,
        "show_root_heading": True,
        "show_root_full_path": False,
        "show_source": False,
        "show_bases": False,
        "show_signature_annotations": True,
        "separate_signature": True,
        "signature_crossrefs": True,
        "line_length": 88,
        "members_order": "source",
        "merge_init_into_class": True,
        "show_symbol_type_heading": True,
        "show_if_no_docstring": False,
        "filters": ["!^_"],
    }
    theme = {
        "name": "material",
        "font": False,
        "palette": [light, dark],
        "features": [
            "navigation.tabs",
            "navigation.indexes",
            "navigation.prune",
            "navigation.top",
            "content.code.copy",
            "search.highlight",
            "toc.follow",
        ],
    }
    return {
        "site_name": "transduce",
        "docs_dir": str(SOURCE / "docs"),
        "site_dir": str(output),
        "use_directory_urls": False,
        "nav": navigation.for_mkdocs(tree),
        "theme": theme,
        # The plugin offline would load a script of this name from elsewhere; this one is ours.
        "extra": {"generator": False, "polyfills": ["iframe-worker.js"]},
        "extra_css": ["website.css"],
        "hooks": [str(TOOLS / "website" / "hooks.py")],
        "plugins": [
            # A * within an indexed word would be taken for a wildcard, and break the search.
            {"search": {"separator": r'[\s\-*(){}\[\],:;=!"/]+'}},
            "offline",
            {
                "mkdocstrings": {
                    "handlers": {"python": {"paths": [str(PACKAGE.parent)], "options": python}}
                }
            },
        ],
        "markdown_extensions": [
            "tables",
            "attr_list",
            "md_in_html",
            "sane_lists",
            {"toc": {"permalink": True, "slugify": _SLUG}},
            {"pymdownx.highlight": {"use_pygments": True}},
            "pymdownx.superfences",
            "pymdownx.magiclink",  # addresses become links
            {"pymdownx.arithmatex": {"generic": True}},
        ],
        "validation": {
            "omitted_files": "warn",
            "absolute_links": "warn",
            "unrecognized_links": "warn",
            "anchors": "warn",
        },
    }


class Slug:
    """A mark in the YAML: the function that makes anchors like GitHub's."""


_SLUG = Slug()


def _write_slug(dumper: yaml.Dumper, _: Slug) -> yaml.Node:
    name = "tag:yaml.org,2002:python/object/apply:pymdownx.slugs.slugify"
    return dumper.represent_mapping(name, {"kwds": {"case": "lower"}})


yaml.SafeDumper.add_representer(Slug, _write_slug)


def build(output: Path, *, full: bool = False, with_lessons: bool = True) -> None:
    """Raises SystemExit if MkDocs warns of anything: a dead link, a page in no navigation."""
    docs = SOURCE / "docs"
    shutil.rmtree(SOURCE, ignore_errors=True)
    docs.mkdir(parents=True)
    found = stage(docs, {one.name for one in lessons.known_lessons()} if with_lessons else set())
    found += stage_api(docs)
    if with_lessons:
        found += stage_lessons(docs, full=full)
    page, missing = models.stage_models(docs, ROOT / "runs")
    found.append(page)
    for sentence in missing:
        print(f"Left out of the site: {sentence}.")
    shutil.copyfile(TOOLS / "website" / "style.css", docs / "website.css")
    shutil.copyfile(TOOLS / "website" / "iframe-worker.js", docs / "iframe-worker.js")
    config = SOURCE / "mkdocs.yml"
    tree = navigation.navigation(found)
    config.write_text(yaml.safe_dump(settings(tree, output), sort_keys=False), "utf-8")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--clean"]
    done = subprocess.run([*command, "-f", str(config)], check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    print(f"The site is in {output}: open {output / 'index.html'}, or serve the folder.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--full", action="store_true", help="lessons in their full size")
    parser.add_argument("--no-lessons", action="store_true", help="only pages and reference")
    typed = parser.parse_args()
    build(typed.output.resolve(), full=typed.full, with_lessons=not typed.no_lessons)
