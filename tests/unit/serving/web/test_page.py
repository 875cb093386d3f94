"""The page's files and what it asks the server for; the page itself is in tests/browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from served import Running, serving
from tiny_models import tiny
from transduce.data.tokens.tokenizer import END
from transduce.inspection.look import look
from transduce.inspection.look.collect import unpacked
from transduce.serving.auth import Keys
from transduce.serving.settings import ServiceSettings
from transduce.tasks.transduce import load

FIXTURES = Path(__file__).parents[3] / "fixtures" / "models"
SOURCE = "iroh made tea"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    models = {"letters": tiny(banned=True), "speech": load(FIXTURES / "speech")}
    with serving(models) as running:
        yield running


def test_files_are_served_with_a_strict_policy(server: Running) -> None:
    page = server.client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'"} <= set(policy)
    assert not any("unsafe" in one or "*" in one for one in policy)
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page.text)
    seen, waiting = set(), re.findall(r'(?:src|href)="([^"]+)"', page.text)
    while waiting:
        path = waiting.pop()
        assert not path.startswith(("http:", "https:", "//")), "nothing is loaded from elsewhere"
        if path in seen:
            continue
        seen.add(path)
        answer = server.client.get(f"/{path}")
        assert answer.status_code == 200, path
        assert answer.headers["x-content-type-options"] == "nosniff"
        kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
        assert answer.headers["content-type"].startswith(kinds[path.rsplit(".", 1)[1]])
        for name in re.findall(r'from "([^"]+)"', answer.text):
            waiting.append(name.replace("../", "") if "../" in name else f"page/{name[2:]}")
    assert {"look/look.js", "look/look.css", "page/server.js"} <= seen


def test_files_that_a_browser_has_are_not_sent_again(server: Running) -> None:
    first = server.client.get("/look/look.js")
    assert first.headers["cache-control"] == "no-cache"
    again = server.client.get("/look/look.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = server.client.get("/look/look.js", headers={"if-none-match": '"other"'})
    assert other.content == first.content


@pytest.mark.parametrize("path", ["/page/page.py", "/page/..%2Fapp.py", "/page/none.js", "/look/x"])
def test_other_files_are_not_served(server: Running, path: str) -> None:
    assert server.client.get(path).status_code == 404


def test_the_page_needs_no_key_but_the_models_do() -> None:
    with serving({"letters": tiny()}, ServiceSettings(keys=Keys(["secret"]))) as server:
        for path in ("/", "/page/main.js", "/look/look.js"):
            assert server.client.get(path).status_code == 200
        assert server.client.get("/api/models").status_code == 403
        assert server.post("/api/look", {"input": SOURCE}).status_code == 403


def test_look_is_what_transduce_look_shows(server: Running) -> None:
    answer = server.post("/api/look", {"model": "letters", "input": SOURCE, "beam": 2}).json()
    expected = look(tiny(banned=True), SOURCE, beam=2).looks[0][0]
    for name in ("text", "nbest", "beam", "axes", "how"):
        assert answer[name] == expected[name], name
    ours, theirs = answer["attention"], expected["attention"]
    assert [one["name"] for one in ours] == [one["name"] for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        # A served model has packed weights, which round otherwise.
        difference = unpacked(one["weights"]) - unpacked(other["weights"])
        assert np.abs(difference).max() < 1e-3


def test_look_while_others_are_served(server: Running) -> None:
    before = server.run(model="letters", input=SOURCE)
    assert server.post("/api/look", {"model": "letters", "input": SOURCE}).status_code == 200
    assert server.run(model="letters", input=SOURCE) == before


def test_look_has_limits_and_plain_errors(server: Running) -> None:
    long = server.post("/api/look", {"model": "letters", "input": "a" * 2001})
    assert long.status_code == 413
    assert "2,001 characters" in long.json()["error"]["message"]
    empty = server.post("/api/look", {"model": "letters", "input": " "})
    assert empty.status_code == 400
    files = {"file": ("talk.wav", b"no recording", "audio/wav")}
    form = {"request": '{"model": "speech"}'}
    broken = server.client.post("/api/look", files=files, data=form)
    assert broken.status_code == 400
    message = broken.json()["error"]["message"]
    assert "talk.wav" in message
    assert "/tmp" not in message
    assert "upload-" not in message
    text = server.client.post("/api/look", files=files, data={"request": '{"model": "letters"}'})
    assert "takes text" in text.json()["error"]["message"]


def test_a_stream_says_what_alternatives_would_add(server: Running) -> None:
    request = {"model": "letters", "input": SOURCE, "stream": True, "alternatives": 5}
    answer = server.post("/api/run", {**request, "attention": True})
    found = re.findall(r"event: token\ndata: (.*)\n", answer.text)
    events = [json.loads(one) for one in found]
    model = server.engine.catalogue["letters"].model
    (output,) = model.run([SOURCE], beam=1, attention=True)
    assert events[0]["source_tokens"] == output.source_tokens
    assert "source_tokens" not in events[1]
    end = model.target_tokens.pieces([END])[0]  # type: ignore[attr-defined]
    text = ""
    for event in events:
        assert len(event["attention"]) == len(output.source_tokens)
        assert len(event["alternatives"]) == 5 or event is events[-1]  # END at the limit
        for one in event["alternatives"]:
            if one["token"] == event["token"]:
                assert one["text"] == event["text"]
            if one["token"] == end:
                assert one["text"] == ""
        text += event["text"]
    assert text == output.text
