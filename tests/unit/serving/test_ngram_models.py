"""Requests that decode with an n-gram language model of the server."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

pytest.importorskip("starlette", reason="needs the extra serve")

from websockets.exceptions import ConnectionClosed
from websockets.sync import client as websockets

from fixtures.make_models import MODELS, in_noise
from served import Running, serving
from transduce.data.audio.corpus import to_int16
from transduce.errors import DataError, ModelError
from transduce.serving.models import open_models
from transduce.tasks import NgramModel
from transduce.tasks.transduce import load

ARPA = """\\data\\
ngram 1=4
ngram 2=2
\\1-grams:
-2 <s> 0
-1 </s>
-3 abcd -0.1
-0.2 abb
\\2-grams:
-0.1 <s> abcd
-0.1 abcd abb
\\end\\
"""
RATE = 4000
SAID, WANTED = "abcd ab", "abcd abb"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ngrams") / "words.arpa"
    path.write_text(ARPA)
    return path


@pytest.fixture(scope="module")
def server(file: Path) -> Iterator[Running]:
    words = {"words": NgramModel.load(file)}
    with serving({"live": load(MODELS / "live")}, ngrams=words) as running:
        yield running


def samples() -> np.ndarray:
    return to_int16(np.asarray(in_noise(SAID, random.Random(4))))


def wave() -> bytes:
    held = io.BytesIO()
    soundfile.write(held, samples(), RATE, format="WAV")
    return held.getvalue()


def test_files_are_heard_with_it(server: Running) -> None:
    def run(**asked: object) -> str:
        files = {"file": ("a.wav", wave()), "request": (None, json.dumps(asked))}
        answer = server.client.post("/api/run", files=files)
        return str(answer.json()["outputs"][0]["text"])

    assert run() == SAID
    assert run(language_model="words", lm_weight=2.0, ctc_weight=0.5) == WANTED
    assert run(language_model="words", lm_weight=0.0) == SAID


def test_so_does_openai_s_route(server: Running) -> None:
    def create(**asked: str) -> dict[str, object]:
        given = {"model": "live", **asked}
        answer = server.client.post(
            "/v1/audio/transcriptions", files={"file": ("a.wav", wave())}, data=given
        )
        found: dict[str, object] = answer.json()
        return found

    assert create(language_model="words", lm_weight="4")["text"] == WANTED
    assert create()["text"] == SAID
    assert "lm_weight is 'much'" in json.dumps(create(lm_weight="much"))


def test_live_sessions_choose_it_by_name(server: Running) -> None:
    url = server.url.replace("http", "ws") + f"/api/live?rate={RATE}"

    def final(more: str) -> str:
        with websockets.connect(url + more) as socket:
            socket.send(samples().tobytes())
            socket.send('{"type": "finish"}')
            messages = [json.loads(message) for message in socket]
        return " ".join(one["text"] for one in messages if one["type"] == "final")

    assert final("&language_model=words&lm_weight=8&beam=20") == WANTED
    assert final("&beam=20") == SAID
    for more, sentence in (
        ("&language_model=letters", "there is no model letters; there are live, words"),
        ("&beam=wide", "beam is 'wide'; it must be a whole number"),
        ("&beam=9999", "beam is 9,999"),
        ("&lm_weight=much", "lm_weight is 'much'"),
    ):
        with contextlib.suppress(ConnectionClosed), websockets.connect(url + more) as socket:
            assert sentence in socket.recv(timeout=60)


def test_what_there_is_not(server: Running) -> None:
    answer = server.post("/api/run", {"input": "x", "language_model": "letters"})
    assert answer.status_code == 400
    listed = server.client.get("/api/models").json()
    assert listed["ngram_models"] == ["words"]


def test_names_of_files(file: Path) -> None:
    model = str(MODELS / "live")
    assert list(open_models([model], "cpu", ngrams=[str(file)]).ngrams) == ["words"]
    assert list(open_models([model], "cpu", ngrams=[f"en={file}"]).ngrams) == ["en"]
    for spec, error, sentence in (
        (f"live={file}", ModelError, "two models are called live"),
        (f"={file}", ModelError, "is not NAME=FILE"),
        ("words=nowhere.arpa", DataError, "nowhere.arpa"),
    ):
        with pytest.raises(error, match=sentence):
            open_models([model], "cpu", ngrams=[spec])
