"""The nginx file of docs/guides/deploying.md, with two replicas: where nginx is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from client_server import english_german, skip_without
from fixtures.make_models import MODELS
from served import Running, serving, until
from transduce.serving.hosts import Hosts
from transduce.serving.limits import Limits
from transduce.serving.settings import ServiceSettings
from transduce.tasks.transduce import load

skip_without("websockets")
NGINX = shutil.which("nginx")
pytestmark = pytest.mark.skipif(NGINX is None, reason="needs nginx")
NAME = "translate.example.com"
DOCS = Path(__file__).parents[2] / "docs" / "guides"


class Behind:
    """Two replicas, and a client of the nginx before them."""

    def __init__(self, replicas: list[Running], client: httpx.Client) -> None:
        self.replicas, self.client = replicas, client


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    folder = tmp_path_factory.mktemp("nginx")
    settings = ServiceSettings(
        hosts=Hosts.bound("127.0.0.1", [NAME]), public_url=f"https://{NAME}", limits=Limits()
    )
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(
                serving(
                    {"en-de": english_german(), "live": load(MODELS / "live")},
                    replace(settings, folders=set()),
                )
            )
            for _ in range(2)
        ]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        own = folder / "nginx.conf"
        own.write_text(configuration(folder, port, [one.url for one in replicas]))
        process = subprocess.Popen([str(NGINX), "-p", str(folder), "-c", str(own)])
        stack.callback(process.wait, 60)
        stack.callback(process.terminate)
        headers = {"Host": NAME}
        client = stack.enter_context(
            httpx.Client(
                base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=100, trust_env=False
            )
        )
        until(lambda: answers(port), "nginx listens", 60)
        yield Behind(replicas, client)


def configuration(folder: Path, port: int, urls: list[str]) -> str:
    """That of the docs, on another port and without TLS."""
    text = (DOCS / "deploying.md").read_text("utf-8")
    (block,) = re.findall(r"^```nginx\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert "listen 443 ssl;" in block
    block = block.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    for number, url in enumerate(urls, start=5001):
        assert block.count(f"127.0.0.1:{number}") == 2
        block = block.replace(f"127.0.0.1:{number}", url.removeprefix("http://"))
    user = "user root;" if os.getuid() == 0 else ""
    paths = "".join(
        f"{name}_temp_path {folder}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        f"daemon off; {user} pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off; {paths}\n{block}\n}}\n"
    )


def answers(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_requests_streams_and_what_is_denied(behind: Behind) -> None:
    asked = {"q": "tea", "source": "en", "target": "de"}
    (expected,) = behind.replicas[0].engine.catalogue["en-de"].model.run(["tea"])
    for _ in range(4):
        answer = behind.client.post("/translate", json=asked)
        assert answer.json()["translatedText"] == expected.text
    body = {"input": "tea", "model": "en-de", "stream": True}
    with behind.client.stream("POST", "/api/run", json=body) as streamed:
        lines = [line for line in streamed.iter_lines() if line.startswith("event:")]
    assert lines[-1] == "event: output"
    assert len(lines) > 2
    assert behind.client.get("/metrics").status_code == 403
    other = {"Origin": "https://elsewhere.example"}
    assert behind.client.post("/translate", json=asked, headers=other).status_code == 403
    own = {"Origin": f"https://{NAME}"}
    assert behind.client.post("/translate", json=asked, headers=own).status_code == 200
    assert behind.client.get("/health", headers={"Host": "elsewhere"}).status_code == 400


def test_a_translated_file_is_found_again(behind: Behind) -> None:
    for number in range(4):
        file = {"file": (f"{number}.txt", b"tea\n")}
        sent = {"source": "en", "target": "de"}
        url = behind.client.post("/translate_file", files=file, data=sent).json()[
            "translatedFileUrl"
        ]
        assert url.startswith(f"https://{NAME}/download_file/")
        found = behind.client.get(url.removeprefix(f"https://{NAME}"))
        assert found.status_code == 200
        assert found.text.endswith("\n")


@pytest.mark.parametrize("path", ["/", "/vosk", "/api/live", "/v1/realtime"])
def test_live_speech_comes_through(behind: Behind, path: str) -> None:
    from websockets.sync.client import connect

    to_nginx = socket.create_connection(("127.0.0.1", behind.client.base_url.port))
    with connect(f"ws://{NAME}{path}", sock=to_nginx) as live:
        live.send('{"nothing": 1}')
        said = json.loads(live.recv(timeout=60))
        assert said.get("type", "error") in ("ready", "session.created", "error")


def test_a_replica_that_rejects_is_no_loss(behind: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = behind.replicas

    def statuses() -> list[int]:
        body = {"input": "tea", "model": "en-de"}
        return [behind.client.post("/api/run", json=body).status_code for _ in range(6)]

    monkeypatch.setattr(first.engine, "_stopped", True)  # 503 for what would be decoded
    assert statuses() == [200] * 6
    monkeypatch.setattr(second.engine, "_stopped", True)
    assert statuses() == [503] * 6  # theirs, not one of nginx
    monkeypatch.setattr(first.engine, "_stopped", False)
    assert statuses() == [200] * 6
