"""The site builds without a warning, loads nothing from elsewhere, and has no dead link."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from webdriver import CHROMEDRIVER, CHROMIUM, Browser

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_site(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="needs the extra docs")
    site = tmp_path / "site"
    command = [sys.executable, str(ROOT / "tools" / "make_site.py"), "--output", str(site)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(ROOT / "tools"))
    website = {
        name: importlib.import_module(f"website.{name}")
        for name in ("api", "built", "lessons", "navigation")
    }
    assert website["built"].complaints(site) == []
    for page in (ROOT / "docs").rglob("*.md"):
        place = website["navigation"].place(page.relative_to(ROOT))
        assert (site / place).with_suffix(".html").is_file()
    for package in website["api"].packages():
        reference = (site / "api" / f"{package}.html").read_text("utf-8")
        for one in website["api"].public_names(package):
            assert f'id="{package}.{one.name}"' in reference, one.name
    index = (site / "search" / "search_index.json").read_text("utf-8")
    assert "MultiHeadAttention" in index
    for lesson in website["lessons"].known_lessons():
        shown = (site / "lessons" / f"{lesson.name}.html").read_text("utf-8")
        assert "<math" in shown
        assert "figures/" in shown
        assert 'class="printed highlight"' in shown
    if CHROMIUM and CHROMEDRIVER:
        search_in_files(site)


def search_in_files(site: Path) -> None:
    """The site opened as files, in a browser without a network: what a reader types is found."""
    with Browser() as browser:
        browser.open(site / "index.html")
        browser.type("input.md-search__input", "shallow fusion")
        titles = "[...document.querySelectorAll('.md-search-result__article h1')]"
        found = browser.wait(f"const all = {titles}; return all.map((one) => one.innerText)", 200)
        assert "Decoding" in found
        assert browser.errors() == []
        elsewhere = [one for one in browser.requests() if one.startswith("http")]
        assert elsewhere == []
