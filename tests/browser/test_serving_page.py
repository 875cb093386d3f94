"""The page of `transduce serve` in a real Chromium, against a server on this machine."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs httpx")

from served import Running, serving
from tiny_models import tiny
from tiny_sounds import noise
from transduce.serving import api
from transduce.serving.auth import Keys
from transduce.serving.limits import Limits
from transduce.serving.settings import ServiceSettings
from transduce.tasks.transduce import load
from webdriver import CHROMEDRIVER, CHROMIUM, MISSING, Browser

pytestmark = pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason=MISSING)

FIXTURES = Path(__file__).parents[1] / "fixtures" / "models"
HOSTILE = "<img src=x onerror=window.hostile=1></textarea><script>window.hostile=1</script>"
# A last flag of a name counts: this machine is reached, and nothing else.
LOOPBACK = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
MICROPHONE = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")
KEEP_SENT = """
  const original = window.fetch;
  window.fetch = (path, options) => {
    const file = options.body.get("file");
    const reader = new FileReader();
    reader.onload = () => { window.sent = reader.result.split(",")[1]; };
    reader.readAsDataURL(file);
    return original(path, options);
  };
"""
SOURCE = "iroh made tea"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    able = api.can_be_live
    # A model that cannot be live: the page records, then sends.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "can_be_live", lambda one: able(one) and one.name != "speech")
        yield from serve()


def serve() -> Iterator[Running]:
    models = {
        "letters": tiny(banned=True),
        "speech": load(FIXTURES / "speech"),
        "live": load(FIXTURES / "speech"),
        "classify": load(FIXTURES / "classify"),
        "tag": load(FIXTURES / "tag"),
        "language": load(FIXTURES / "language_model"),
    }
    # However busy this machine is, the next session may begin before the last one has ended.
    with serving(models, ServiceSettings(limits=Limits(live_load=0.0))) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(LOOPBACK, *MICROPHONE) as one:
        yield one


def opened(browser: Browser, server: Running, model: str) -> None:
    browser.errors(), browser.requests()
    browser.open(server.url + "/")
    browser.run("localStorage.clear()")
    browser.open(server.url + "/")
    browser.wait("return document.documentElement.dataset.ready")
    browser.choose("#model", model)


def idle(browser: Browser) -> None:
    browser.wait("return document.getElementById('output').getAttribute('aria-busy') === 'false'")


def typed(browser: Browser, text: str) -> str:
    """Type, press Enter, and wait for the output."""
    browser.type("#text", text + "\n")
    browser.wait("return document.getElementById('history').children.length")
    idle(browser)
    return output(browser)


def output(browser: Browser) -> str:
    found: str = browser.run("return document.getElementById('output').textContent")
    return found


def at_ease(browser: Browser, server: Running) -> None:
    """Nothing complained, and all requests went to the server."""
    assert browser.errors() == []
    own = ("chrome:", "chrome-untrusted:", "data:", "blob:", server.url + "/")
    assert [url for url in browser.requests() if not url.startswith(own)] == []


def tokens(browser: Browser) -> list[str]:
    found: list[str] = browser.run(
        "return [...document.querySelectorAll('#output button')].map((one) => one.textContent)"
    )
    return found


def model_of(server: Running, name: str) -> Any:
    return server.engine.catalogue[name].model


def test_text_gives_the_output_with_attention_lines(browser: Browser, server: Running) -> None:
    opened(browser, server, "letters")
    (expected,) = model_of(server, "letters").run([SOURCE], beam=1, attention=True)
    assert typed(browser, SOURCE) == expected.text
    assert browser.text("#announce") == f"Output: {expected.text}"
    browser.wait("return Number(document.getElementById('attention').dataset.rows)")
    assert expected.attention is not None
    rows, columns = expected.attention.shape[2:]
    browser.wait(f"return document.getElementById('attention').dataset.rows == {rows}")
    label = browser.run("return document.querySelector('#attention .scroller').ariaLabel")
    assert f"{columns} tokens to the left, {rows} to the right" in label
    # Lines are drawn: between the two columns of names there is something.
    drawn = browser.wait("""
      const canvas = document.querySelector("#attention canvas");
      const {data} = canvas.getContext("2d").getImageData(canvas.width / 4, 0, 60, canvas.height);
      const seen = new Set();
      for (let i = 0; i < data.length; i += 4) seen.add(data.slice(i, i + 3).join());
      return seen.size;
    """)
    assert drawn > 5
    at_ease(browser, server)


def test_a_chosen_alternative_decodes_on_from_there(browser: Browser, server: Running) -> None:
    opened(browser, server, "letters")
    before = typed(browser, SOURCE)
    assert len(before) > 3
    browser.click("#output button:nth-of-type(3)")
    able = "#alternatives li button:not(:disabled)"
    browser.wait(f"return document.querySelector({able!r})")
    letter = browser.text(f"{able} .name")
    prefix = before[:2] + letter
    (expected,) = model_of(server, "letters").run([SOURCE], beam=1, prefix=prefix)
    browser.click(able)
    browser.wait("return document.querySelectorAll('#output button.given').length === 3")
    idle(browser)
    after = output(browser)
    assert after == expected.text
    assert after.startswith(prefix)
    # What was there before can be chosen again.
    browser.click("#output button:nth-of-type(3)")
    assert browser.run("return document.querySelectorAll('#alternatives li').length") == 8
    at_ease(browser, server)


def test_beam_tree_and_confidences(browser: Browser, server: Running) -> None:
    opened(browser, server, "letters")
    typed(browser, SOURCE)
    color = "return document.querySelector('#output button').style.backgroundColor"
    assert browser.run(color) == ""
    browser.click("#confidence")
    assert browser.run(color).startswith("rgb")
    browser.choose("#beam", "2")
    browser.click("#look")
    browser.wait("return document.querySelector('#view-beam canvas')")
    assert "at most 2 hypotheses" in browser.text("#view-beam .note")
    browser.click("#tab-nbest")
    (best,) = model_of(server, "letters").run([SOURCE], beam=2, nbest=2)
    rows = browser.run("return document.querySelectorAll('#view-nbest tbody tr').length")
    assert rows == 2
    assert best.text in browser.text("#view-nbest tbody")
    browser.run("document.getElementById('tab-nbest').focus()")
    browser.press("left")
    assert browser.text('[role=tab][aria-selected="true"]') == "Beam"
    at_ease(browser, server)


def test_hostile_text_stays_text(browser: Browser, server: Running, tmp_path: Path) -> None:
    opened(browser, server, "language")
    assert typed(browser, HOSTILE).startswith(HOSTILE), "a language model repeats its prompt"
    assert HOSTILE in browser.text("#history")
    browser.open(server.url + "/")
    browser.wait("return document.documentElement.dataset.ready")
    assert HOSTILE in browser.text("#history"), "the history is shown again"
    assert browser.run("return document.querySelectorAll('img, main script').length") == 0
    assert browser.run("return window.hostile === undefined")
    # Were it markup, the policy would not let it run.
    browser.run("document.body.insertAdjacentHTML('beforeend', arguments[0])", HOSTILE)
    browser.wait_for(lambda: any("Content Security" in one for one in browser.errors()), "refused")
    assert browser.run("return window.hostile === undefined")


def test_history_is_in_the_browser_and_can_be_cleared(browser: Browser, server: Running) -> None:
    opened(browser, server, "letters")
    first = typed(browser, SOURCE)
    browser.open(server.url + "/")
    browser.wait("return document.documentElement.dataset.ready")
    assert output(browser) == ""
    browser.click("#history button")
    browser.wait(f"return document.getElementById('output').textContent === {first!r}")
    browser.click("#clear")
    assert browser.run("return localStorage.getItem('transduce-history')") is None
    assert browser.run("return document.getElementById('history').children.length") == 0


def test_microphone(browser: Browser, server: Running) -> None:
    opened(browser, server, "speech")
    assert browser.run("return document.getElementById('text-form').hidden")
    browser.run(KEEP_SENT)
    browser.click("#record")
    browser.wait("return parseInt(document.getElementById('recorded').textContent) >= 2")
    browser.click("#record")
    browser.wait("return document.querySelector('#view-audio canvas')")
    idle(browser)
    assert output(browser)
    assert "recording.wav" in browser.text("#history")
    at_ease(browser, server)
    # What was sent: the beeps of Chromium's microphone, with silence between them.
    sent = browser.wait("return window.sent")
    with wave.open(io.BytesIO(base64.b64decode(sent))) as file:
        metadata = (file.getnchannels(), file.getsampwidth(), file.getframerate())
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(float)
    assert metadata == (1, 2, 16000)
    assert len(samples) > 16_000
    assert np.abs(samples).max() > 1000
    assert np.median(np.abs(samples)) < 100


@pytest.mark.slow
def test_live_microphone(server: Running, tmp_path: Path) -> None:
    file = tmp_path / "microphone.wav"
    pause = np.zeros(40_000, np.int16)
    with wave.open(str(file), "wb") as written:
        written.setnchannels(1), written.setsampwidth(2), written.setframerate(48_000)
        written.writeframes(np.concatenate([pause, noise(0.6, rate=48_000), pause]).tobytes())
    with Browser(LOOPBACK, *MICROPHONE, f"--use-file-for-fake-audio-capture={file}") as browser:
        opened(browser, server, "live")
        speak(browser, server)
        at_ease(browser, server)
        # Another model is chosen while someone speaks: the session ends.
        browser.click("#record")
        browser.wait("return document.querySelector('canvas.spectrum')")
        browser.choose("#model", "letters")
        browser.wait_for(lambda: not server.engine.live.streams, "the session is closed")
        assert browser.errors() == []


def speak(browser: Browser, server: Running) -> None:
    assert browser.text("#record") == "● Speak"
    browser.click("#record")
    browser.wait("return document.querySelector('#output .utterance.final .stable')")
    assert browser.text("#output .utterance.final .stable")
    assert browser.text("#output .utterance .when").endswith(" s")
    assert drawn(browser, "canvas.spectrum")[0] > 5
    assert len(server.engine.live.streams) == 1
    browser.click("#record")
    browser.wait("return document.querySelector('.windows canvas')")
    idle(browser)
    colours, letters = drawn(browser, ".windows canvas")
    assert colours > 5
    assert letters > 20  # the words stand over it
    assert browser.text("#output .utterance .when").endswith(" s")
    assert browser.text("#output .utterance button")
    browser.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.click("#copy")
    copied = browser.wait("return window.copied").split()
    assert copied == tokens(browser)  # without the times
    assert "confidence" in browser.run("return document.querySelector('#output button').title")
    assert "recording.wav" in browser.text("#history")
    assert browser.text("#record") == "● Speak"
    assert not server.engine.live.streams


def drawn(browser: Browser, selector: str) -> tuple[int, int]:
    """How many colours a spectrogram has, of those that were looked at, and how many dark pixels
    are above it."""
    found: tuple[int, int] = browser.run(f"""
      const canvas = document.querySelector("{selector}");
      const {{data}} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const seen = new Set();
      for (let i = 0; i < data.length; i += 400) seen.add(data.slice(i, i + 3).join());
      const above = data.subarray(0, 4 * canvas.width * 18);
      return [seen.size, above.filter((value, i) => i % 4 === 0 && value < 90).length];
    """)
    return found


def write_noise(path: Path, seconds: float) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(4000)
        file.writeframes(noise(seconds).tobytes())


def test_a_long_recording_is_shown_in_windows(
    browser: Browser, server: Running, tmp_path: Path
) -> None:
    opened(browser, server, "live")
    longest = model_of(server, "live").recordings.longest
    path = tmp_path / "long.wav"
    write_noise(path, 2.5 * longest)
    browser.type("#audio-file", str(path))
    browser.wait("return document.querySelector('.windows canvas')")
    idle(browser)
    before, after = ".windows button:first-of-type", ".windows button:last-of-type"
    window = min(10.0, longest)
    total = f"s of {2.5 * longest:.1f} s"
    assert browser.text(".windows .note") == f"0.0–{window:.1f} {total}"
    assert browser.run(f"return document.querySelector('{before}').disabled")
    browser.click(after)
    assert browser.text(".windows .note").startswith(f"{window:.1f}–")
    assert drawn(browser, ".windows canvas")[0] > 5
    browser.click("#look")  # of the window: the whole would be refused
    browser.wait("return document.querySelector('#view-audio canvas')")
    idle(browser)
    assert browser.text("#problem") == ""
    assert browser.run("return document.querySelector('#heard audio').duration") > 2 * longest
    at_ease(browser, server)


def test_a_recording_from_a_file(browser: Browser, server: Running, tmp_path: Path) -> None:
    opened(browser, server, "speech")
    path = tmp_path / "noise.wav"
    write_noise(path, 1.5)
    (expected,) = model_of(server, "speech").run([path], times=True)
    browser.type("#audio-file", str(path))
    browser.wait("return document.querySelector('#view-audio canvas')")
    idle(browser)
    words = [word.text for word in expected.words]
    assert words
    assert tokens(browser) == words
    last = expected.words[-1]
    browser.click("#output button:last-of-type")
    played = "return document.querySelector('#view-audio audio').currentTime"
    browser.wait(f"{played} >= {last.start - 0.01:.2f}")
    at_ease(browser, server)
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"this is no recording")
    browser.type("#audio-file", str(broken))
    browser.wait("return /broken.wav/.test(document.getElementById('problem').textContent)")
    assert str(tmp_path) not in browser.text("main")


@pytest.mark.parametrize(("model", "text"), [("classify", "a good film"), ("tag", "the dog runs")])
def test_labels(browser: Browser, server: Running, model: str, text: str) -> None:
    opened(browser, server, model)
    (expected,) = model_of(server, model).run([text])
    assert typed(browser, text) == expected.text
    browser.wait("return document.getElementById('view-labels')")
    shown = browser.text("#view-labels")
    assert all(label in shown for label in expected.text.split())
    at_ease(browser, server)


def test_an_error_is_one_sentence(browser: Browser, server: Running) -> None:
    opened(browser, server, "letters")
    browser.run("document.getElementById('text').value = 'a'.repeat(20001)")
    browser.click("#run")
    browser.wait("return !document.getElementById('problem').hidden")
    expected = "An input has 20,001 characters; the maximum is 20,000."
    assert browser.text("#problem") == expected


def test_narrow_screens(browser: Browser, server: Running) -> None:
    opened(browser, server, "letters")
    try:
        browser.emulate(
            "Emulation.setDeviceMetricsOverride",
            width=340,
            height=700,
            deviceScaleFactor=2,
            mobile=True,
        )
        typed(browser, SOURCE)
        browser.click("#output button")
        browser.click("#look")
        browser.wait("return document.querySelector('#view-beam canvas')")
        wide = browser.run("return document.documentElement.scrollWidth")
        assert wide <= 340
    finally:
        browser.emulate("Emulation.clearDeviceMetricsOverride")


def test_everything_has_a_name_and_the_keyboard_reaches_it(
    browser: Browser, server: Running
) -> None:
    opened(browser, server, "letters")
    typed(browser, SOURCE)
    nodes = browser.emulate("Accessibility.getFullAXTree")["nodes"]
    named = {"button", "textbox", "combobox", "checkbox", "region", "tab"}
    for node in nodes:
        if node.get("role", {}).get("value") in named and not node.get("ignored"):
            name = node.get("name", {}).get("value", "")
            assert name.strip() or name == " ", node  # a token may be a space
    browser.run("document.querySelector('#output button').focus()")
    browser.press("right")
    place = "return [...document.querySelectorAll('#output button')]"
    assert browser.run(f"{place}.indexOf(document.activeElement)") == 1
    browser.press("\ue007")  # Enter
    assert browser.run("return document.querySelectorAll('#alternatives li').length") == 8
    browser.run("document.querySelector('#alternatives li button:not(:disabled)').focus()")
    browser.press("\ue00c")  # Escape
    assert browser.run("return document.getElementById('alternatives').children.length") == 0
    assert browser.run(f"{place}.indexOf(document.activeElement)") == 1


def test_api_key(browser: Browser) -> None:
    with serving({"letters": tiny(banned=True)}, ServiceSettings(keys=Keys(["secret"]))) as server:
        browser.open(server.url + "/")
        browser.wait("return !document.getElementById('key').hidden")
        assert "API key" in browser.text("#problem")
        browser.type("#key-field", "secret\n")
        browser.wait("return document.documentElement.dataset.ready")
        assert (
            typed(browser, SOURCE)
            == server.engine.catalogue["letters"].model.run([SOURCE], beam=1)[0].text
        )
