"""A small server that speaks what huggingface_hub asks of the hub: make, upload, list, download."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_test"


class Repository:
    def __init__(self, private: bool) -> None:
        self.private = private
        self.branches: dict[str, dict[str, bytes]] = {"main": {}}

    def commit(self, revision: str) -> str:
        """A commit's name: the digest of its files."""
        files = self.branches[revision]
        reported = "".join(f"{name} {sha1(files[name]).hexdigest()}\n" for name in sorted(files))
        return sha1(reported.encode()).hexdigest()

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        for branch, files in self.branches.items():
            if revision in (branch, self.commit(branch)):
                return self.commit(branch), files
        return None


class HubServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        """What was uploaded apart from commits (LFS), by SHA-256."""
        self.downloaded: list[str] = []
        self.strangers: dict[str, bytes] = {}
        """Files that every repository has from its beginning."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    @property
    def path_only(self) -> str:
        return unquote(urlsplit(self.path).path)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, value: Any, status: int = 200, **headers: str) -> None:
        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(raw)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def refuse(self, status: int, code: str = "") -> None:
        self.answer({"error": code or "no"}, status, X_Error_Code=code, X_Error_Message=code)

    def do_POST(self) -> None:
        raw, path = self.body(), self.path_only
        if path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
            return
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.refuse(401)
        elif path == "/api/repos/create":
            asked = json.loads(raw)
            name = "/".join(filter(None, [asked.get("organization"), asked["name"]]))
            private = asked.get("private") or asked.get("visibility") == "private"
            made = Repository(bool(private))
            made.branches["main"] |= self.server.strangers
            self.server.repositories.setdefault(name, made)
            self.answer({"url": f"{self.server.url}/{name}", "name": name})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/branch/(.+)", path):
            repository = self.server.repositories[found[1]]
            repository.branches.setdefault(found[2], dict(repository.branches["main"]))
            self.answer({})
        elif re.fullmatch(r"/api/models/[^/]+/[^/]+/preupload/.+", path):
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for file in json.loads(raw)["files"]
            ]
            self.answer({"files": files})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**one, "actions": {"upload": {"href": f"{self.server.url}/lfs/{one['oid']}"}}}
                for one in json.loads(raw)["objects"]
            ]
            self.answer({"transfer": "basic", "objects": objects})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", path):
            self.commit(found[1], found[2], raw)
        else:
            self.refuse(404)

    def commit(self, name: str, revision: str, raw: bytes) -> None:
        repository = self.server.repositories[name]
        files = repository.branches[revision]
        for line in raw.splitlines():
            one = json.loads(line)
            value = one["value"]
            if one["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif one["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
        commit = repository.commit(revision)
        self.answer({"commitUrl": f"{self.server.url}/{name}/commit/{commit}", "commitOid": commit})

    def do_PUT(self) -> None:
        raw = self.body()
        assert sha256(raw).hexdigest() == self.path_only.rpartition("/")[2]
        self.server.objects[sha256(raw).hexdigest()] = raw
        self.answer({})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path_only
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/(.+?))?/?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = api or file
        repository = self.server.repositories.get(found[1]) if found else None
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if found is None or repository is None or (repository.private and not known):
            self.refuse(404, "RepoNotFound")
            return
        at = repository.at((found[3] if api else found[2]) or "main")
        if at is None:
            self.refuse(404, "RevisionNotFound")
            return
        commit, files = at
        if file:
            self.file(file[3], files.get(file[3]), commit)
        elif found[2] == "tree":
            self.answer(
                [self.entry(name, raw) for name, raw in files.items()], X_Repo_Commit=commit
            )
        else:
            siblings = [{"rfilename": name} for name in files]
            self.answer({"id": found[1], "sha": commit, "siblings": siblings})

    def entry(self, name: str, raw: bytes) -> dict[str, Any]:
        return {"type": "file", "path": name, "size": len(raw), "oid": sha1(raw).hexdigest()}

    def file(self, name: str, raw: bytes | None, commit: str) -> None:
        if raw is None:
            self.refuse(404, "EntryNotFound")
            return
        if self.command == "GET":
            self.server.downloaded.append(name)
        self.answer(raw, ETag=f'"{sha1(raw).hexdigest()}"', X_Repo_Commit=commit)


@contextmanager
def hub_server() -> Iterator[HubServer]:
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
