"""Glossaries of clients over a restart of the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")

from served import Running, serving
from tiny_models import tiny
from transduce.errors import DataError
from transduce.serving.auth import Keys
from transduce.serving.settings import ServiceSettings

KEY, OTHER_KEY = "leaf-of-a-tree", "root-of-a-tree"
MADE = {"name": "My tea", "source_lang": "EN", "target_lang": "DE", "entries": "tea\tuncle"}


def started(folder: Path) -> Any:
    settings = ServiceSettings(keys=Keys([KEY, OTHER_KEY]), glossary_folder=folder)
    return serving({"en-de": tiny(banned=True)}, settings)


def asked(server: Running, method: str, path: str, key: str = KEY, **body: Any) -> Any:
    headers = {"Authorization": f"DeepL-Auth-Key {key}"}
    return server.client.request(method, path, headers=headers, json=body or None)


def test_they_are_there_after_a_restart_and_keys_are_not_written(tmp_path: Path) -> None:
    folder = tmp_path / "kept" / "glossaries"
    with started(folder) as server:
        made, gone = (asked(server, "POST", "/v2/glossaries", **MADE).json() for _ in range(2))
        assert asked(server, "DELETE", f"/v2/glossaries/{gone['glossary_id']}").status_code == 204
        one = f"/v3/glossaries/{made['glossary_id']}"
        more = {**MADE, "entries": "cup\ttea"}
        assert asked(server, "PATCH", one, name="Tea", dictionaries=[more]).status_code == 200
    (file,) = folder.glob("*.json")
    assert "uncle" in file.read_text()
    assert KEY not in file.read_text()
    with started(folder) as server:
        (found,) = asked(server, "GET", "/v2/glossaries").json()["glossaries"]
        assert found == {**made, "name": "Tea", "entry_count": 2}
        entries = asked(server, "GET", f"/v2/glossaries/{made['glossary_id']}/entries")
        assert entries.text == "tea\tuncle\ncup\ttea"
        texts = {"text": ["tea"], "source_lang": "EN", "target_lang": "DE"}
        given = asked(
            server, "POST", "/v2/translate", **texts, glossary_id=made["glossary_id"]
        ).json()
        assert "uncle" in given["translations"][0]["text"]
        assert asked(server, "GET", "/v2/glossaries", OTHER_KEY).json()["glossaries"] == []
        assert asked(server, "DELETE", one).status_code == 204
    assert list(folder.iterdir()) == []


def test_a_change_that_cannot_be_kept_is_refused_and_nothing_has_changed(tmp_path: Path) -> None:
    folder = tmp_path / "glossaries"
    with started(folder) as server:
        made = asked(server, "POST", "/v2/glossaries", **MADE).json()
        folder.rename(tmp_path / "elsewhere")
        refused = asked(server, "PATCH", f"/v3/glossaries/{made['glossary_id']}", name="Other")
        assert refused.status_code == 500
        assert refused.json()["message"] == "the server could not keep the change; try again"
        assert asked(server, "POST", "/v2/glossaries", **MADE).status_code == 500
        (found,) = asked(server, "GET", "/v2/glossaries").json()["glossaries"]
        assert found["name"] == "My tea"


@pytest.mark.parametrize("text", ["[]", "{", json.dumps({"owner": 1, "dictionaries": []})])
def test_a_file_that_is_no_glossary_is_named_at_the_start(text: str, tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text(text)
    with pytest.raises(DataError, match=r"notes\.json is no glossary"), started(tmp_path):
        pass


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="give another folder"), started(tmp_path / "file"):
        pass
