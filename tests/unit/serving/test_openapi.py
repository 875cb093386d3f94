"""/openapi.json: all routes and fields, with the bounds of this server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")

from starlette.routing import Route

from served import serving
from tiny_models import tiny
from transduce.decoding_settings import SETTINGS
from transduce.serving.api import routes
from transduce.serving.auth import Keys
from transduce.serving.errors import BadRequest
from transduce.serving.limits import Limits
from transduce.serving.openapi import openapi
from transduce.serving.request import RUN_BODY, parse_run
from transduce.serving.settings import ServiceSettings

DOCS = Path(__file__).parents[3] / "docs" / "guides" / "serving.md"
OF_REQUESTS = {name: setting for name, setting in SETTINGS.items() if setting.request}
OWN = {"model", "input", "inputs", "stream", "alternatives"}
WRONG = {bool: "1", int: "1.5", float: '"a"', str: "1"}
RIGHT = {bool: "true", int: "1", float: "0.5", str: '"a"'}


def fields(settings: ServiceSettings) -> dict[str, Any]:
    found: dict[str, Any] = openapi(settings)["components"]["schemas"]["RunRequest"]["properties"]
    return found


def test_requests_have_the_settings_that_are_declared_for_them() -> None:
    assert set(RUN_BODY.__struct_fields__) == OWN | set(OF_REQUESTS)
    text = DOCS.read_text("utf-8")
    (listed,) = re.findall(r"have the same names:\n(.*?)\.\n", text, re.DOTALL)
    assert re.findall(r"`(\w+)`", listed) == list(OF_REQUESTS)


@pytest.mark.parametrize("name", OF_REQUESTS)
def test_a_field_has_the_type_of_its_setting(name: str) -> None:
    setting = SETTINGS[name]
    if setting.model:
        right, wrong = ('["a"]', '"a"') if setting.repeatable else ('"a"', "1")
    elif setting.json_type is not None:
        right, wrong = '{"a": "b", "c": ["d"]}', '"terms.tsv"'
    elif setting.plain_type is None:
        right, wrong = '["a"]', "1"
    else:
        right, wrong = RIGHT[setting.plain_type], WRONG[setting.plain_type]
    asked = parse_run(f'{{"{name}": {right}}}'.encode(), Limits())
    assert list(asked.settings) == [name]
    with pytest.raises(BadRequest, match=f"^{name}.* must be "):
        parse_run(f'{{"{name}": {wrong}}}'.encode(), Limits())
    if setting.optional:
        assert parse_run(f'{{"{name}": null}}'.encode(), Limits()).settings == {}


def test_phrases_may_be_lists_for_each_input() -> None:
    body = b'{"include": [["a", "b"], "c"], "prefix": ["a", "b"], "exclude": "d", "only": ["e"]}'
    given = {"include": [["a", "b"], "c"], "prefix": ["a", "b"], "exclude": "d", "only": ["e"]}
    assert parse_run(body, Limits()).settings == given


def test_every_field_is_described_with_its_bounds() -> None:
    limits = Limits(beam=7, length=30, texts=3, characters=50, alternatives=2)
    found = fields(ServiceSettings(limits=limits))
    assert set(found) == OWN | set(OF_REQUESTS)
    for name, setting in OF_REQUESTS.items():
        assert found[name]["description"].startswith(setting.about()), name
        assert found[name].get("minimum") == setting.minimum
        assert found[name].get("exclusiveMinimum") == setting.above
    assert all(found[name]["description"] for name in OWN)
    assert found["beam"]["maximum"] == found["groups"]["maximum"] == 7
    assert found["min_length"]["maximum"] == found["max_length"]["maximum"] == 30
    assert found["temperature"]["maximum"] == 10_000
    assert found["inputs"]["maxItems"] == 3
    assert found["input"]["maxLength"] == 50
    assert found["alternatives"]["maximum"] == 2
    assert found["nbest"]["default"] == 1
    assert "default" not in found["beam"]
    assert found["mbr"]["enum"] == ["chrf", "bleu", None]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, dict | list):
            yield from references(one)


def test_every_route_is_described() -> None:
    keys = ServiceSettings(keys=Keys(["k"]), public_url="https://example.com/x")
    found = openapi(keys)
    known = [one for one in routes(None, keys) if isinstance(one, Route)]  # type: ignore[arg-type]
    served = {one.path: one.methods for one in known if one.path.startswith("/api/")}
    assert set(found["paths"]) == set(served)
    for path, operations in found["paths"].items():
        assert {method.upper() for method in operations} <= (served[path] or set())
    names = {one.removeprefix("#/components/schemas/") for one in references(found)}
    assert names == set(found["components"]["schemas"])
    assert found["servers"] == [{"url": "https://example.com/x"}]
    assert found["security"] == [{"key": []}]
    assert "security" not in openapi(ServiceSettings())


def test_the_server_sends_it_without_a_key() -> None:
    settings = ServiceSettings(keys=Keys(["k"]), limits=Limits(beam=3))
    with serving({"tiny": tiny()}, settings) as running:
        answer = running.client.get("/openapi.json")
        assert answer.status_code == 200
        assert answer.json() == openapi(settings)
