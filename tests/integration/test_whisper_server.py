"""A Whisper model in the server: OpenAI's transcriptions and translations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny_whisper
from client_server import skip_without

skip_without("httpx", "soundfile", "starlette")

import soundfile  # noqa: E402

from served import Running, serving  # noqa: E402
from transduce.whisper import WhisperModel  # noqa: E402

MODEL: WhisperModel = tiny_whisper.our_model()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving({"whisper": MODEL}) as made:
        yield made


@pytest.fixture(scope="module")
def wave(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("waves") / "tea.wav"
    soundfile.write(path, tiny_whisper.noises(1, seed=8)[0], tiny_whisper.RATE)
    return path


def ask(running: Running, wave: Path, path: str = "transcriptions", **fields: str) -> dict:  # type: ignore[type-arg]
    answer = running.client.post(
        f"/v1/audio/{path}",
        data={"model": "whisper", **fields},
        files={"file": ("tea.wav", wave.read_bytes())},
    )
    found: dict = answer.json()  # type: ignore[type-arg]
    return found | {"status": answer.status_code}


def test_language_task_and_prompt_reach_the_model(running: Running, wave: Path) -> None:
    detected = ask(running, wave, response_format="verbose_json")
    (wanted,) = MODEL.run([wave])
    assert (detected["status"], detected["text"]) == (200, wanted.text)
    names = {"en": "english", "de": "german", "fr": "french"}
    assert detected["language"] == names[wanted.language]
    texts = {code: ask(running, wave, language=code)["text"] for code in names}
    assert texts == {code: MODEL.run([wave], language=code)[0].text for code in names}
    assert len(set(texts.values())) > 1
    translated = ask(running, wave, "translations", prompt="the tea")
    (wanted,) = MODEL.run([wave], task="translate", prompt="the tea")
    assert translated["text"] == wanted.text
    timed = ask(
        running, wave, response_format="verbose_json", **{"timestamp_granularities[]": "word"}
    )
    assert [one["word"] for one in timed["words"]] == [
        word.text for word in MODEL.run([wave], times=True)[0].words
    ]


def test_an_unknown_language_is_refused(running: Running, wave: Path) -> None:
    answer = ask(running, wave, language="xx")
    assert answer["status"] == 400
    assert answer["error"]["param"] == "language"
    assert "does not know the language xx" in answer["error"]["message"]
