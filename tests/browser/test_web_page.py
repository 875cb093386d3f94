"""A model in one HTML file, in a real browser: it says what Python says, and asks nobody."""

from __future__ import annotations

import json
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tiny_models import SOURCES, tiny
from tiny_sounds import audio_model, noise
from transduce.data.tokens.tokenizer import END
from transduce.interop.quantize import export as quantized
from transduce.tasks.transduce import load
from transduce.web.export import model_bytes, page
from webdriver import CHROMEDRIVER, CHROMIUM, MISSING, Browser

pytestmark = pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason=MISSING)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


def ask(browser: Browser, text: str) -> None:
    browser.run(
        "document.getElementById('source').value = arguments[0];"
        "document.querySelector('.ask .controls button').click();",
        text,
    )


def wait_for(browser: Browser, text: str) -> None:
    browser.wait(f"return document.getElementById('output').textContent === {json.dumps(text)}", 20)


def test_the_page_says_what_python_says(browser: Browser, tmp_path: Path) -> None:
    model = tiny(banned=True)
    place = tmp_path / "model.html"
    place.write_text(page(model, "</script><b>odd", model_bytes(model)), "utf-8")
    browser.errors(), browser.requests()
    browser.open(place)
    browser.wait("return document.documentElement.dataset.ready")
    for source in SOURCES:
        [output] = model.run([source])
        ask(browser, source)
        wait_for(browser, output.text)
    ask(browser, "iroh made tea")
    [output] = model.run(["iroh made tea"], nbest=3)
    wait_for(browser, output.text)
    browser.click("#tab-nbest")
    cells = "document.querySelectorAll('#view-nbest tbody td.wide')"
    shown = browser.run(f"return [...{cells}].map((one) => one.textContent)")
    assert shown == [one.text for one in output.alternatives]
    browser.click("#tab-beam")
    browser.click("#tab-glance")
    maps = browser.run("return document.querySelectorAll('#view-glance .thumb').length")
    assert maps == 2 * 2 + 2 * 2  # layers x heads: to the source, and within it
    browser.choose("select[name=beam]", "1")
    browser.wait_for(lambda: "greedy" in browser.text("[role=status]"), "greedy search")
    assert browser.run("return document.querySelectorAll('b').length") == 0
    assert browser.errors() == []
    # The first page of the browser has some, and the worker is one of ours.
    own = ("chrome:", "chrome-untrusted:", "about:", "data:", "blob:")
    asked = [url for url in browser.requests() if not url.startswith(own)]
    assert asked == [place.as_uri()]


def test_int8_in_a_browser_is_int8_in_python(browser: Browser, tmp_path: Path) -> None:
    """A browser with relaxed SIMD has kernels of its own."""
    model = tiny(banned=True)
    quantized(model, tmp_path, "int8")
    place = tmp_path / "model.html"
    place.write_text(page(model, "int8", model_bytes(model, int8=True)), "utf-8")
    browser.open(place)
    browser.wait("return document.documentElement.dataset.ready")
    for source in SOURCES:
        [output] = load(tmp_path).run([source])
        ask(browser, source)
        wait_for(browser, output.text)
    assert browser.errors() == []


def test_a_run_can_be_stopped(browser: Browser, tmp_path: Path) -> None:
    model = tiny(decode={"beam": 8, "max_ratio": 100, "max_extra": 1000}, banned=True)
    model.network.head.bias.data[3] = -1e4  # END: it never ends by itself
    place = tmp_path / "model.html"
    place.write_text(page(model, "endless", model_bytes(model)), "utf-8")
    browser.open(place)
    browser.wait("return document.documentElement.dataset.loaded")
    ask(browser, "a cup of tea made uncle iroh " * 8)
    browser.wait("return !document.querySelectorAll('.ask .controls button')[1].disabled")
    browser.run("document.querySelectorAll('.ask .controls button')[1].click()")
    browser.wait_for(lambda: "Stopped" in browser.text("[role=status]"), "stopped")
    assert browser.errors() == []


def test_what_the_vocabulary_has_not_and_sampling(browser: Browser, tmp_path: Path) -> None:
    copied = {"name": "copy", "split": "train"}
    tokens = {"both": {"level": "character"}}
    data = {"train": copied, "valid": copied, "tokens": tokens, "max_length": 18}
    model = tiny({"positions": "learned", "max_positions": 20}, banned=True, data=data)
    place = tmp_path / "model.html"
    place.write_text(page(model, "letters", model_bytes(model)), "utf-8")
    browser.open(place)
    browser.wait("return document.documentElement.dataset.ready")
    ask(browser, "été tea")
    warning = "return document.querySelector('.warning').textContent"
    browser.wait(f"{warning} === 'Not in the vocabulary: é.'")
    ask(browser, "tea cup " * 5)
    browser.wait(f"{warning} === 'The input has 40 tokens; the first 19 were read.'")
    ask(browser, "tea")
    browser.wait("return document.querySelector('.warning').hidden")
    browser.choose("select[name=beam]", "sample")
    browser.wait_for(lambda: "sampled" in browser.text("[role=status]"), "sampled")
    seen = set()
    for _ in range(20):
        browser.run("document.getElementById('output').textContent = ''")
        browser.run("document.querySelector('.ask .controls button').click()")
        seen.add(browser.wait("return document.getElementById('output').textContent", 20))
    assert len(seen) > 1
    assert browser.errors() == []


def test_a_recording_is_heard_from_a_file_and_the_microphone(tmp_path: Path) -> None:
    model = audio_model("audio.sample_rate=8000")
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.normal_(std=0.4)
        model.network.head.bias[END] -= 5.0
    place, sound = tmp_path / "model.html", tmp_path / "noise.wav"
    place.write_text(page(model, "speech", model_bytes(model)), "utf-8")
    with wave.open(str(sound), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", "NONE"))
        file.writeframes(noise(1.5, rate=8000).tobytes())
    fake = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    with Browser(*fake) as browser:
        browser.open(place)
        browser.wait("return document.documentElement.dataset.ready")
        browser.type("#source", str(sound))
        [output] = model.run([sound])
        assert output.text
        wait_for(browser, output.text)
        browser.click("[aria-pressed]")
        browser.wait("return document.getElementById('output').textContent.endsWith(' …')", 20)
        browser.click("[aria-pressed]")
        browser.wait("return !document.getElementById('output').textContent.endsWith(' …')", 20)
        assert [one for one in browser.errors() if "ScriptProcessorNode" not in one] == []


def test_a_browser_that_cannot_run_it_says_so(tmp_path: Path) -> None:
    model = tiny()
    place = tmp_path / "model.html"
    place.write_text(page(model, "old", model_bytes(model)), "utf-8")
    with Browser() as browser:
        gone = "delete globalThis.WebAssembly"
        browser.emulate("Page.addScriptToEvaluateOnNewDocument", source=gone)
        browser.open(place)
        said = browser.text("#look")
        assert said.startswith("This browser cannot run the model: it needs WebAssembly with SIMD")
        browser.emulate("Emulation.setScriptExecutionDisabled", value=True)
        browser.open(place)
        browser.emulate("Emulation.setScriptExecutionDisabled", value=False)
        assert browser.text("#look").startswith("This page has a model inside, which needs")
