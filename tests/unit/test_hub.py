"""Models of the hub: addresses, and a cache on this machine without a network."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from command_line import Transduce, sentence
from forked import run
from hub_cache import COMMIT, offline, put_into_cache
from transduce.errors import ModelError
from transduce.hub import HubAddress, hub_problem, parse_address, resolve_model

TRANSLATE = Path(__file__).parents[1] / "fixtures" / "models" / "translate"

LOAD = """
import json, sys, warnings
import transduce
from transduce.errors import ModelError
from transduce.hub import in_hub_cache, resolve_model
found = {}
local = transduce.load(sys.argv[1])
for address in sys.argv[2:]:
    try:
        model = transduce.load(address)
    except ModelError as error:
        found[address] = str(error)
        continue
    assert in_hub_cache(resolve_model(address))
    found[address] = model("a b c") == local("a b c")
print(json.dumps(found))
"""


def test_an_address_has_a_repository_and_perhaps_a_revision() -> None:
    assert parse_address("hf://iroh/tea") == HubAddress("iroh/tea", None)
    assert parse_address("hf://iroh/tea@refs/pr/1") == HubAddress("iroh/tea", "refs/pr/1")
    assert str(parse_address("hf://iroh/tea@v1.0")) == "hf://iroh/tea@v1.0"


@pytest.mark.parametrize(
    "address",
    ["hf://tea", "hf://iroh/tea@", "hf://iroh/tea/model", "hf://../tea", "hf://iroh/te a", "hf://"],
)
def test_a_wrong_address_is_reported(address: str) -> None:
    with pytest.raises(ModelError, match=r"hf://user/name@revision"):
        resolve_model(address)


def test_a_path_stays_a_path(tmp_path: Path) -> None:
    assert resolve_model(tmp_path) == tmp_path
    assert resolve_model("runs/tea") == Path("runs/tea")


def test_models_are_loaded_from_a_cache_without_a_network(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="needs pip install '.[hub]'")
    put_into_cache(tmp_path, "iroh/tea", TRANSLATE, "main")
    put_into_cache(tmp_path, "zuko/tea", TRANSLATE, "v1")
    addresses = [
        "hf://iroh/tea",
        "hf://zuko/tea@v1",
        f"hf://zuko/tea@{COMMIT}",
        "hf://zuko/tea",  # there is no main in the cache
        "hf://azula/tea",
    ]
    ended = run([sys.executable, "-c", LOAD, str(TRANSLATE), *addresses], env=offline(tmp_path))
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert [found[address] for address in addresses[:3]] == [True, True, True]
    for address in addresses[3:]:
        assert address in found[address]
        assert "not in the cache of this machine" in found[address]


def test_without_the_package_the_extra_is_named(
    transduce: Transduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = sentence(transduce("run", "hf://iroh/tea", "a b"))
    assert "pip install '.[hub]'" in message


def test_the_hub_s_own_errors_become_sentences() -> None:
    class RepositoryNotFoundError(Exception):
        pass

    class LocalEntryNotFoundError(Exception):
        pass

    hidden = LocalEntryNotFoundError("long")
    hidden.__cause__ = RepositoryNotFoundError("longer")
    address = HubAddress("iroh/tea", None)
    assert "there is no such model" in hub_problem(hidden, address)
    assert "cache" in hub_problem(LocalEntryNotFoundError("long"), address)
    assert hub_problem(ValueError("one\n two"), address) == "one two"
