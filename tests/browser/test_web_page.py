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
from transduce.tasks import SpeechModel
from transduce.tasks.transduce import Transducer, load
from transduce.web.export import model_bytes, page
from webdriver import CHROMEDRIVER, CHROMIUM, MISSING, Browser

pytestmark = pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason=MISSING)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream") as one:
        yield one


def asked_for(browser: Browser) -> list[str]:
    """The addresses that were asked for, but for the browser's own and the page's worker."""
    own = ("chrome:", "chrome-untrusted:", "about:", "data:", "blob:")
    return [url for url in browser.requests() if not url.startswith(own)]


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
    ask(browser, "")
    assert browser.text("[role=status]") == "Type an input: the model runs when you pause."
    assert browser.text("main") == ""
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
    assert asked_for(browser) == [place.as_uri()]


def with_tags(folder: Path) -> Transducer:
    """A model that is asked with tags, and has two examples."""
    corpus = {"file": str(folder / "a.tsv"), "tags": 2}
    (folder / "a.tsv").write_text("tea\tteas\tPL;ACC\nzuko\tzuko\tSG\n", "utf-8")
    data = {"train": corpus, "valid": corpus, "tokens": {"both": {"level": "character"}}}
    decoder = {"kind": "recurrent", "tag_attention": True, "copying": True}
    shape = {"width": 16, "encoder": {"kind": "recurrent"}, "decoder": decoder}
    return tiny(model=shape, tags=["ACC", "PL", "SG"], data=data, banned=True)


def test_tags_are_typed_or_chosen(browser: Browser, tmp_path: Path) -> None:
    model = with_tags(tmp_path)
    place = tmp_path / "model.html"
    place.write_text(page(model, "tags", model_bytes(model)), "utf-8")

    def said(source: str) -> str:
        return model.run([source])[0].text

    assert len({said(f"{tags} tea") for tags in ("<PL> <ACC>", "<ACC>", "<ACC> <SG>")}) == 3
    browser.open(place)
    browser.wait("return document.documentElement.dataset.ready")
    wait_for(browser, said("<PL> <ACC> tea"))  # the first of the validation set
    tags, source = (f"return document.getElementById('{one}').value" for one in ("tags", "source"))
    assert (browser.run(tags), browser.run(source)) == ("PL;ACC", "tea")
    pressed = "return [...document.querySelectorAll('.tags .token')].map((one) => one.ariaPressed)"
    assert browser.run(pressed) == ["true", "true", "false"]
    for name, given, outcome in [("PL", "ACC", "<ACC> tea"), ("SG", "ACC;SG", "<ACC> <SG> tea")]:
        browser.run(
            f"[...document.querySelectorAll('.tags .token')].find("
            f"(one) => one.textContent === '{name}').click()"
        )
        assert browser.run(tags) == given
        wait_for(browser, said(outcome))
    browser.click("#tab-glance")
    shown = browser.run(
        "return [...document.querySelectorAll('#view-glance h2, #view-glance h3')]"
        ".map((one) => one.textContent)"
    )
    assert shown == ["Decoder to source (cross-attention)", "Decoder to tags"]
    browser.run(
        "const box = document.getElementById('tags'); box.value = 'ACC;XX';"
        "box.dispatchEvent(new Event('input'));"
    )
    browser.wait_for(lambda: "no tag ACC;XX" in browser.text("[role=status]"), "what is wrong")
    assert browser.errors() == []


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
    browser.run("Worker.prototype.postMessage = () => {}")  # the model will not be loaded again
    browser.run("document.querySelectorAll('.ask .controls button')[1].click()")
    browser.wait_for(lambda: "Stopped" in browser.text("[role=status]"), "stopped")
    browser.run("document.querySelector('.ask .controls button').click()")
    browser.wait_for(lambda: browser.text("[role=status]") == "Running …", "it waits for the model")
    assert browser.errors() == []


FOCUSED = """
const one = document.activeElement;
const seen = getComputedStyle(one).outlineStyle !== "none" && one.getClientRects().length > 0;
return [one.id || one.name || one.textContent, seen];
"""


def test_the_page_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    """Tab reaches every control in the order of the page, and one sees which it is."""
    model = with_tags(tmp_path)
    place = tmp_path / "model.html"
    place.write_text(page(model, "tags", model_bytes(model)), "utf-8")
    browser.open(place)
    browser.wait("return document.documentElement.dataset.ready")
    reached = []
    while not reached or not reached[-1].startswith("tab-"):
        browser.press("tab")
        name, seen = browser.run(FOCUSED)
        assert seen, name
        reached.append(name)
    controls = [
        "◐",
        "About this model",
        "tags",
        "The 3 tags of this model",
        "source",
        "beam",
        "Run",
    ]
    assert reached == [*controls, "tea (PL;ACC)", "zuko (SG)", "tab-head"]
    browser.press("right")
    assert browser.run(FOCUSED) == ["tab-playback", True]
    browser.run("document.getElementById('tags').focus()")
    browser.run("document.querySelector('[role=status]').textContent = ''")
    browser.press("enter")
    browser.wait("return document.querySelector('[role=status]').textContent", 20)
    # A run that takes long: the model does not answer, and Stop, now to be reached, ends it.
    browser.run("Worker.prototype.postMessage = () => {}")
    for ends in (["tab", "enter"], ["escape"]):
        browser.run("document.querySelector('.ask .controls button').focus()")
        browser.press("enter")
        browser.wait("return !document.querySelectorAll('.ask .controls button')[1].disabled")
        browser.run("document.querySelector('[role=status]').textContent = ''")
        browser.press(*ends)
        browser.wait_for(lambda: browser.text("[role=status]") == "Stopped.", "it is stopped", 20)
        assert browser.run(FOCUSED)[0] == "Run"
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
    ask(browser, "te\u200ba")
    browser.wait(f"{warning} === 'Not in the vocabulary: U+200B.'")
    ask(browser, "tea cup " * 5)
    browser.wait(f"{warning} === 'The input has 40 tokens; the first 19 were read.'")
    ask(browser, "tea")
    browser.wait("return document.querySelector('.warning').hidden")
    browser.choose("select[name=beam]", "sample")
    browser.wait_for(lambda: "sampled" in browser.text("[role=status]"), "sampled")
    seen = set()
    for _ in range(20):
        browser.run("document.getElementById('output').textContent = '?'")
        browser.run("document.querySelector('.ask .controls button').click()")
        browser.wait("return document.getElementById('output').textContent !== '?'", 20)
        seen.add(browser.text("#output"))  # perhaps nothing
    assert len(seen) > 1
    assert browser.errors() == []


@pytest.fixture(scope="module")
def speech_page(tmp_path_factory: pytest.TempPathFactory) -> tuple[SpeechModel, Path]:
    """A model that hears 3 s at once, and its page."""
    model = audio_model("audio.sample_rate=8000")
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.normal_(std=0.4)
        model.network.head.bias[END] -= 5.0
    place = tmp_path_factory.mktemp("speech") / "model.html"
    place.write_text(page(model, "speech", model_bytes(model)), "utf-8")
    return model, place


def complaints(browser: Browser) -> list[str]:
    return [one for one in browser.errors() if "ScriptProcessorNode" not in one]


def test_a_recording_is_heard_from_a_file_and_the_microphone(
    browser: Browser, speech_page: tuple[SpeechModel, Path], tmp_path: Path
) -> None:
    (model, place), sound = speech_page, tmp_path / "noise.wav"
    with wave.open(str(sound), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", "NONE"))
        file.writeframes(noise(1.5, rate=8000).tobytes())
    browser.errors(), browser.requests()
    browser.open(place)
    browser.wait("return document.documentElement.dataset.ready")
    browser.type("#source", str(sound))
    [output] = model.run([sound])
    assert output.text
    wait_for(browser, output.text)
    (tmp_path / "text.wav").write_text("no sound")
    browser.type("#source", str(tmp_path / "text.wav"))
    browser.wait_for(lambda: "text.wav cannot be read as sound" in browser.text(".ask"), "refused")
    browser.click("#record")
    browser.wait("return document.getElementById('output').textContent.endsWith(' …')", 20)
    assert browser.text("#record") == "Stop recording"
    browser.click("#record")
    browser.wait_for(lambda: "tokens a second" in browser.text("[role=status]"), "transcript")
    assert not browser.text("#output").endswith(" …")
    assert complaints(browser) == []
    assert asked_for(browser) == [place.as_uri()]


# A microphone whose blocks come when the test says so.
MICROPHONE = """
window.asked = 0;
window.context = null;
const give = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
navigator.mediaDevices.getUserMedia = async (wanted) => {
  window.asked += 1;
  window.stream = await give(wanted);
  return window.stream;
};
window.AudioContext = class extends AudioContext {
  constructor() { super({ sampleRate: 8000 }); }
  createScriptProcessor() {
    window.node = this.createGain();
    return window.node;
  }
};
window.speak = (blocks) => {
  const block = Float32Array.from({ length: 4096 }, (_, i) => Math.sin(i * i) / 4);
  const event = { inputBuffer: { getChannelData: () => block } };
  for (let n = 0; n < blocks; n++) window.node.onaudioprocess?.(event);
};
"""


def test_microphones_that_are_refused_lost_silent_or_never_stopped(
    browser: Browser, speech_page: tuple[SpeechModel, Path]
) -> None:
    browser.errors()
    browser.open(speech_page[1])
    browser.wait("return document.documentElement.dataset.ready")
    browser.run(MICROPHONE)
    recording = "return document.getElementById('record').textContent === 'Stop recording'"
    says = "[role=status]"
    # Two clicks at once ask once, and nothing stays on when it is stopped twice.
    browser.run("const b = document.getElementById('record'); b.click(); b.click();")
    browser.wait(recording)
    assert browser.run("return window.asked") == 1
    browser.run("const b = document.getElementById('record'); b.click();")
    browser.wait_for(lambda: browser.text(says) == "Nothing was recorded.", "nothing")
    assert browser.run("return window.stream.getTracks()[0].readyState") == "ended"
    # It is unplugged: what was said until then is not lost.
    browser.click("#record")
    browser.wait(recording)
    browser.run("window.speak(6); window.stream.getTracks()[0].dispatchEvent(new Event('ended'))")
    warning = "return document.querySelector('.warning').textContent"
    browser.wait(f"{warning} === 'The microphone is gone: the recording has ended.'")
    assert "tokens a second" in browser.text(says)
    assert browser.text("#record") == "Record"
    # It is forgotten: memory is bounded, and the transcript of it can be stopped.
    browser.click("#record")
    browser.wait(recording)
    browser.run("window.speak(5000)")
    browser.wait_for(lambda: browser.text(says) == "Running …", "running")
    assert browser.text("#record") == "Record"
    halt = "[...document.querySelectorAll('.ask .controls button')].at(-1)"
    browser.run(f"{halt}.click()")
    browser.wait_for(lambda: browser.text(says) == "Stopped.", "stopped")
    browser.wait(f"{warning}.startsWith('A recording has at most 10 minutes')")
    # The browser, or its user, says no.
    refuse = (
        "navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('', '%s') }"
    )
    for name, why in {"NotAllowedError": "does not allow it", "NotFoundError": "is none"}.items():
        browser.run(refuse % name)
        browser.click("#record")
        browser.wait(f"{warning}.includes({json.dumps(why)})")
    browser.run("Object.defineProperty(navigator, 'mediaDevices', { value: undefined })")
    browser.click("#record")
    browser.wait(f"{warning}.includes('only to pages from a file or over https')")
    assert complaints(browser) == []


def test_live_speech_grows_as_it_is_heard(browser: Browser, tmp_path: Path) -> None:
    chunk = "chunk: {ms: 160, trained: [40, 320], left_chunks: 2}"
    shape = "kind: conformer, layers: 1, heads: 2, feed_forward: 32, kernel: 5"
    decoder = "model.decoder={kind: convolutional, layers: 1, kernel: 2, positions: none}"
    model = audio_model(
        f"model.encoder={{{shape}, {chunk}}}",
        *("audio.normalize=global", "model.transducer={joint_width: 24}", decoder),
    )
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.normal_(std=0.4)
        model.network.head.bias[:4] -= 5.0  # letters, and not too many
        model.network.head.bias[0] += 4.0
    place = tmp_path / "model.html"
    place.write_text(page(model, "live", model_bytes(model)), "utf-8")
    browser.errors(), browser.requests()
    browser.open(place)
    browser.wait("return document.documentElement.dataset.ready")
    assert "sampling" not in browser.text("select[name=beam]")
    browser.run(MICROPHONE)
    browser.click("#record")
    browser.wait("return document.getElementById('record').textContent === 'Stop recording'")
    said = "return document.getElementById('output').textContent"
    texts = [""]
    for _ in range(2):
        browser.run("window.speak(2)")
        browser.wait_for(lambda: len(browser.run(said)) > len(texts[-1]) + 2, "it grows", 20)
        texts.append(browser.run(said).removesuffix(" …"))
    assert texts[2].startswith(texts[1])
    browser.click("#record")
    browser.wait_for(lambda: "tokens a second" in browser.text("[role=status]"), "transcript")
    browser.wait(
        "return document.querySelector('main').innerText.includes('each token is written')"
    )
    assert complaints(browser) == []
    assert asked_for(browser) == [place.as_uri()]


def test_runs_while_it_loads_or_runs(browser: Browser, tmp_path: Path) -> None:
    model = tiny(banned=True)
    place = tmp_path / "model.html"
    place.write_text(page(model, "quick", model_bytes(model)), "utf-8")
    held = """
const post = Worker.prototype.postMessage;
window.looks = [];
Worker.prototype.postMessage = function (message) {
  const send = () => post.call(this, message);
  if (message.task === "load" && !window.load) window.load = send;
  else if (message.task === "look" && window.hold) window.looks.push(send);
  else send();
};
"""
    added = browser.emulate("Page.addScriptToEvaluateOnNewDocument", source=held)
    browser.errors()
    browser.open(place)
    browser.emulate("Page.removeScriptToEvaluateOnNewDocument", **added)
    browser.wait("return Boolean(window.load)")
    buttons = "const [run, stop] = document.querySelectorAll('.ask .controls button');"
    browser.run(f"{buttons} run.click(); stop.click(); window.load();")
    browser.wait("return document.documentElement.dataset.ready")
    browser.run("window.hold = true")
    for source in ("x", "y", "z", "a cup of tea"):
        ask(browser, source)
    [output] = model.run(["a cup of tea"])
    assert browser.run("return window.looks.length") == 1  # the others wait
    browser.run("window.looks[0]()")
    browser.wait("return window.looks.length === 2")  # x, and then the last
    browser.run("window.looks[1]()")
    wait_for(browser, output.text)
    assert browser.errors() == []


def test_a_browser_that_cannot_run_it_says_so(browser: Browser, tmp_path: Path) -> None:
    model = tiny()
    place = tmp_path / "model.html"
    place.write_text(page(model, "old", model_bytes(model)), "utf-8")
    gone = "delete globalThis.WebAssembly"
    added = browser.emulate("Page.addScriptToEvaluateOnNewDocument", source=gone)
    browser.open(place)
    said = browser.text("#look")
    browser.emulate("Page.removeScriptToEvaluateOnNewDocument", **added)
    assert said.startswith("This browser cannot run the model: it needs WebAssembly with SIMD")
    browser.emulate("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(place)
    browser.emulate("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.text("#look").startswith("This page has a model inside, which needs")
