"""The page on other services' clients: its code, from top to bottom; and a server that is busy."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import optional
from client_server import english_german, served, skip_without, write_wave

skip_without("openai", "deepl", "libretranslatepy", "deep_translator", "soundfile")
openai = optional.package("openai")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "serving-protocols.md"
ADDRESS = "http://127.0.0.1:5000"


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_wave(tmp_path / "talk.wav")
    page = PAGE.read_text("utf-8")
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert [kind for kind, _ in blocks] == ["python", "python", "sh", *["python"] * 6]
    names: dict[str, Any] = {"__name__": "page"}
    with served() as url:
        for kind, block in blocks:
            code = block.replace(ADDRESS, url).replace("shakespeare", "tea")
            code = code.replace("ws://127.0.0.1:5000", url.replace("http", "ws"))
            if kind == "python":
                exec(compile(code, str(PAGE), "exec"), names)
            elif shutil.which("curl"):
                done = subprocess.run(["sh", "-c", f"{code}"], capture_output=True, check=True)
                assert len(json.loads(done.stdout)["translatedText"]) == 2
        names["client"].close()
    shown = capsys.readouterr().out
    model = english_german()
    assert shown.startswith(model("A dog runs.") + "\n")
    assert str([model("A dog runs."), model("A cat sleeps.")]) in shown
    assert "['en-de', 'de-en', 'speech', 'speech-de', 'tea']" in shown
    assert "00:00:00,000 --> 00:00:01,500" in shown
    assert "transcript.text.delta\n" in shown
    assert f"{model('A dog runs.')} 11" in shown
    assert len(names["completion"].choices) == 2
    assert "conversation.item.input_audio_transcription.completed\n" in shown
    assert "{'text': ''}" in shown or "'result'" in shown


def state(url: str) -> tuple[int, int]:
    """How many requests are being decoded, and how many wait."""
    with urlopen(f"{url}/ready") as answer:
        found = json.load(answer)
    return found["running"], found["waiting"]


def test_a_busy_server_refuses_in_the_words_of_each_protocol(tmp_path: Path) -> None:
    """One request is being decoded, one waits; there is no room for a third."""
    wave = write_wave(tmp_path / "talk.wav")

    async def use(url: str) -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            endless = {"model": "tea", "prompt": "tea", "temperature": 0, "max_tokens": 100_000}
            first = await client.completions.create(**endless, stream=True)
            await anext(aiter(first))
            second = asyncio.create_task(client.completions.create(**endless))
            while state(url) != (1, 1):
                await asyncio.sleep(0.02)
            with pytest.raises(openai.RateLimitError) as caught:
                await client.completions.create(**endless)
            assert int(caught.value.response.headers["retry-after"]) >= 1
            assert caught.value.type == "rate_limit_error"
            with pytest.raises(openai.RateLimitError):  # and no stream that begins with an error
                await client.audio.transcriptions.create(model="speech", file=wave, stream=True)
            for path, body, field in (
                ("/translate", b"q=tea&source=en&target=de", "error"),
                ("/v2/translate", b"text=tea&target_lang=DE", "message"),
            ):
                refusal = await asyncio.to_thread(refused, f"{url}{path}", body)
                assert refusal.code == 429
                assert int(refusal.headers["retry-after"]) >= 1
                assert "later" in json.load(refusal)[field]
            # Clients that go away free their places.
            second.cancel()
            await first.close()
            ended = time.monotonic() + 20
            while (found := state(url)) != (0, 0):
                assert time.monotonic() < ended, found
                await asyncio.sleep(0.02)

    with served(length=100_000, queue_tokens=1) as url:
        asyncio.run(use(url))


def refused(url: str, body: bytes) -> HTTPError:
    with pytest.raises(HTTPError) as caught:
        urlopen(url, body)
    return caught.value
