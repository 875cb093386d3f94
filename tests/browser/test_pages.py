"""Pages written to disk (compare, ablate, prompts, the report) in a real Chromium, offline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from language import language_model
from tiny_models import tiny
from transduce.evaluation.compare import compare_models
from transduce.evaluation.evaluate import evaluate
from transduce.evaluation.items import Item
from transduce.evaluation.results import write_evaluation
from transduce.inspection.ablation.measure import (
    Trial,
    measure_heads,
    prune_greedily,
)
from transduce.inspection.ablation.show import Ablation, ablation_page
from transduce.inspection.compare_page import comparison_page
from transduce.inspection.prompts import compare, write_prompts
from transduce.inspection.report import report_page
from webdriver import CHROMEDRIVER, CHROMIUM, MISSING, Browser

pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason=MISSING),
    pytest.mark.filterwarnings("ignore:gates are set"),
]

HOSTILE = "<script>window.ran = 1</script><img src=x onerror='window.ran = 2'> tea"
NAME = "<b onclick=alert(1)>model</b>"
PAIRS = [("iroh made tea", "tea"), ("a cup of tea", HOSTILE), (HOSTILE, "iroh made tea " * 12)]
PAGES = ("compare", "ablate", "report")
ALL = (*PAGES, "prompts")
WIDTHS = {"narrow": 360, "wide": 1280}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages, of tiny models and hostile texts."""
    folder = tmp_path_factory.mktemp("pages")
    files = folder / "source.txt", folder / "target.txt"
    for side, path in enumerate(files):
        path.write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    first = tiny(banned=True, metrics=["cer", "exact"])
    other = tiny(banned=True, seed=5, metrics=["cer", "exact"])
    found = compare_models([("first", first), (NAME, other)], folder, files=files, resamples=20)
    (folder / "compare.html").write_text(comparison_page(found, [first, other]))

    items = [Item(source, [target]) for source, target in PAIRS]
    trial = Trial(first, items[:2], "loss")
    value, importances = measure_heads(trial, resamples=10)
    removals = prune_greedily(trial, importances, keep=10, candidates=1, resamples=10)
    ablation = Ablation(NAME, "loss", value, HOSTILE, 2, importances, removals)
    (folder / "ablate.html").write_text(ablation_page(ablation))

    records = [{"kind": "train", "step": 10 * n, "loss": 4.0 / n} for n in range(1, 9)]
    records += [{"kind": "valid", "step": 10 * n, "loss": 4.5 / n, "cer": 90 / n} for n in (2, 8)]
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, records)))
    measured = evaluate(first, items, ["cer", "exact"], bootstrap=20)
    write_evaluation(folder, "test", measured)
    (folder / "report.html").write_text(report_page(first, folder, measured))
    made = compare(language_model(), ["tea", "", HOSTILE], max_length=30)
    write_prompts(made, folder / "prompts.html")
    return folder


def opened(browser: Browser, path: Path) -> None:
    browser.errors(), browser.requests()
    browser.open(path)
    browser.wait("return document.readyState === 'complete'")


@pytest.mark.parametrize("name", ALL)
def test_it_is_read_from_disk_and_asks_for_nothing(
    browser: Browser, folder: Path, name: str
) -> None:
    opened(browser, folder / f"{name}.html")
    assert browser.text("h1")
    drawn = "return [...document.querySelectorAll('figure svg, .strip')].map(s => s.clientWidth)"
    assert min(browser.run(drawn)) > 100
    assert browser.errors() == []
    # A browser that has just started may still tell of its own first, empty page.
    asked = [
        url
        for url in browser.requests()
        if not url.startswith(("about:", "chrome:", "chrome-untrusted:", "data:"))
    ]
    assert all(url.startswith("file:") and url.endswith(f"{name}.html") for url in asked), asked


@pytest.mark.parametrize("name", ALL)
def test_hostile_texts_are_shown_and_never_run(browser: Browser, folder: Path, name: str) -> None:
    opened(browser, folder / f"{name}.html")
    browser.run("for (const one of document.querySelectorAll('details')) one.open = true")
    shown = browser.run("return document.body.innerText")
    wanted = NAME if name == "ablate" else "<script>window.ran = 1</script>"
    assert wanted in shown
    inside = "return document.querySelectorAll('body script, body img, [onclick]').length"
    assert browser.run(inside) == (2 if name == "prompts" else 0)  # its own data and script
    assert browser.run("return window.ran === undefined")
    # Nor would markup run that had got into the page.
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        "document.body.append(s)"
    )
    assert browser.run("return window.ran === undefined")
    assert any("Content Security Policy" in error for error in browser.errors())


@pytest.mark.parametrize("name", ALL)
def test_light_dark_narrow_and_printed(
    browser: Browser, folder: Path, name: str, tmp_path: Path
) -> None:
    opened(browser, folder / f"{name}.html")
    colours = "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
    seen = {}
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.emulate("Emulation.setEmulatedMedia", media="", features=features)
        seen[scheme] = browser.run(colours)
        for size, width in WIDTHS.items():
            browser.emulate(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=900,
                deviceScaleFactor=1,
                mobile=False,
            )
            wide = browser.run("return document.documentElement.scrollWidth")
            assert wide <= width, "only tables and drawings scroll sideways"
            browser.screenshot(tmp_path / f"{name}-{scheme}-{size}.png")
    assert seen["light"] != seen["dark"]
    assert seen["light"][0] != seen["light"][1]
    folded = """
      return [...document.querySelectorAll("details > :last-child")].filter(
        (one) => !one.checkVisibility()).length
    """
    before = browser.run(folded)
    assert before == browser.run("return document.querySelectorAll('details').length")
    browser.emulate("Emulation.setEmulatedMedia", media="print", features=features)
    assert browser.run(folded) == 0, "what is folded is printed"
    assert browser.run(colours) == seen["light"], "on white paper"
    browser.emulate("Emulation.setEmulatedMedia", media="", features=[])
    browser.emulate("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize("name", ["compare", "report"])
def test_nothing_is_cut_on_a_telephone(browser: Browser, folder: Path, name: str) -> None:
    opened(browser, folder / f"{name}.html")
    size = {"height": 900, "deviceScaleFactor": 1, "mobile": True}
    browser.emulate("Emulation.setDeviceMetricsOverride", width=390, **size)
    cut = "return [...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)"
    assert max(browser.run(cut)) <= 1
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    browser.emulate("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize("name", ["ablate", "report"])
def test_folded_parts_open_by_mouse_and_key(browser: Browser, folder: Path, name: str) -> None:
    opened(browser, folder / f"{name}.html")
    is_open = "return document.querySelector('details').open"
    assert not browser.run(is_open)
    browser.click("summary")
    assert browser.run(is_open)
    height = "return document.querySelector('details').lastElementChild.offsetHeight"
    assert browser.run(height) > 50
    browser.run("document.querySelector('summary').focus()")
    browser.press(" ")
    assert not browser.run(is_open)


def test_steps_of_a_continuation_after_every_prompt(browser: Browser, folder: Path) -> None:
    opened(browser, folder / "prompts.html")
    browser.emulate("Emulation.clearDeviceMetricsOverride")
    data = json.loads(browser.run("return document.getElementById('data').textContent"))
    second = data["continuations"][1]
    assert browser.text("h2:nth-of-type(3)").startswith("Step 1 of 30")

    browser.click(".controls button:nth-child(2)")
    assert browser.run("return document.querySelector('.card.chosen .number').innerText") == "2"
    browser.click(".strip thead th:nth-child(4)")  # the first names the rows
    assert browser.text("h2:nth-of-type(3)").startswith("Step 3 of 30")
    browser.run("document.querySelector('.scroll').focus()")
    browser.press("right")
    assert browser.text(".strip thead .here") == second["tokens"][3]
    taken = browser.run(
        "return [...document.querySelectorAll('.step [aria-current] .name')].map(e => e.innerText)"
    )
    assert taken
    assert set(taken) == {second["tokens"][3]}
    shares = browser.run(
        "return [...document.querySelectorAll('.strip td.here')].map(e => e.innerText)"
    )
    expected = [str(round(100 * row[3])) for row in second["probabilities"]]
    assert shares[: len(expected)] == expected

    browser.press("end")
    assert browser.text("h2:nth-of-type(3)").startswith("Step 30 of 30")
    seen = """
      const box = document.querySelector('.scroll').getBoundingClientRect();
      return document.querySelector('.strip thead .here').getBoundingClientRect().right <= box.right
    """
    assert browser.run(seen), "the last step is scrolled into sight"
    browser.press("right")
    assert browser.text("h2:nth-of-type(3)").startswith("Step 30 of 30")
    assert browser.errors() == []
