"""DeepL's protocol, with its client."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

import optional
from client_server import english_german, german_english, served, skip_without
from transduce.tasks.model import Model

skip_without("deepl")
deepl = optional.package("deepl")
KEY = "leaf"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(keys=[KEY]) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Any]:
    made = deepl.DeepLClient(KEY, server_url=url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def model() -> Model:
    return english_german()


def test_texts_are_translated(client: Any, model: Model) -> None:
    before = client.get_usage().character.count
    found = client.translate_text("a cup of tea", source_lang="EN", target_lang="DE")
    assert found.text == model("a cup of tea")
    assert found.detected_source_lang == "EN"
    assert found.billed_characters == len("a cup of tea")
    several = client.translate_text(["tea", "uncle\ntea"], source_lang="EN", target_lang="DE")
    texts = [model("tea"), f"{model('uncle')}\n{model('tea')}"]
    assert [one.text for one in several] == texts
    usage = client.get_usage()
    assert usage.character.count - before == len("a cup of teateauncle\ntea")
    assert not usage.any_limit_reached


def test_the_source_is_detected(client: Any) -> None:
    text = "der Tee des Onkels ist in der Tasse und nicht warm"
    found = client.translate_text(text, target_lang="EN-GB")
    assert found.text == german_english()(text)
    assert found.detected_source_lang == "DE"


def test_markup_is_kept(client: Any, model: Model) -> None:
    text = '<p id="x">tea <code>a cup</code></p>'
    asked = {"source_lang": "EN", "target_lang": "DE"}
    found = client.translate_text(text, tag_handling="html", **asked)
    assert found.text == f'<p id="x">{model("tea")} <code>a cup</code></p>'
    found = client.translate_text(text, tag_handling="xml", ignore_tags=["p"], **asked)
    assert found.text == text
    found = client.translate_text("a cup\nof tea", split_sentences="nonewlines", **asked)
    assert found.text == model("a cup of tea")


ASKED = {"source_lang": "EN", "target_lang": "DE"}


def test_tags_of_xml_do_not_cut_a_sentence(client: Any, model: Model) -> None:
    text = '<p>a cup <x id="1"/>of tea</p>'
    found = client.translate_text(text, tag_handling="xml", **ASKED).text
    assert re.sub(' ?<x id="1"/>', "", found) == f"<p>{model('a cup of tea')}</p>"
    assert found.count('<x id="1"/>') == 1
    text = "<d><p>tea</p><p>uncle</p></d>"
    found = client.translate_text(text, tag_handling="xml", **ASKED).text
    assert found == f"<d><p>{model('tea')}</p><p>{model('uncle')}</p></d>"
    text = "tea<br/>uncle"
    for more, parts in (
        ({"splitting_tags": ["br"]}, [model("tea"), model("uncle")]),
        ({"splitting_tags": "br", "outline_detection": False}, [model("tea"), model("uncle")]),
        ({"non_splitting_tags": ["br"]}, None),
    ):
        found = client.translate_text(text, tag_handling="xml", **more, **ASKED).text
        if parts is not None:
            assert found.split("<br/>") == parts
        else:
            assert found.replace("<br/>", "") == model("teauncle")


def test_hints_are_no_mistake(client: Any, url: str, model: Model) -> None:
    hints = {"context": "of tea", "preserve_formatting": True, "formality": "prefer_more"}
    assert client.translate_text("a cup", **hints, **ASKED).text == model("a cup")
    same = client.translate_text("a <b>cup", source_lang="EN", target_lang="EN-GB")
    assert same.text == "a <b>cup"


def test_a_key_in_the_form_of_older_clients(url: str, model: Model) -> None:
    for key, status in ((KEY, 200), ("bag", 403)):
        body = urlencode({"text": "tea", "auth_key": key, **ASKED}).encode()
        try:
            with urlopen(Request(f"{url}/v2/translate", body)) as answer:
                assert json.load(answer)["translations"][0]["text"] == model("tea")
                found = answer.status
        except HTTPError as error:
            found = error.code
        assert found == status


def test_documents_and_glossaries(client: Any) -> None:
    assert client.list_glossaries() == []
    assert client.get_glossary_languages() == []
    with pytest.raises(deepl.DeepLException, match="keeps no glossaries"):
        client.create_glossary("tea", "EN", "DE", {"tea": "Tee"})
    with pytest.raises(deepl.DeepLException, match="/translate_file"):
        client.translate_document_upload(io.BytesIO(b"tea"), filename="a.txt", **ASKED)


def test_languages(client: Any) -> None:
    sources = {one.code: one.name for one in client.get_source_languages()}
    assert sources == {"DE": "German", "EN": "English"}
    targets = {one.code.upper(): one for one in client.get_target_languages()}
    assert set(targets) == {"DE", "EN"}
    assert targets["DE"].supports_formality is False


def test_the_form_of_older_clients(url: str, model: Model) -> None:
    body = b"text=tea&text=uncle&source_lang=EN&target_lang=DE"
    headers = {"Authorization": f"DeepL-Auth-Key {KEY}"}
    with urlopen(Request(f"{url}/v2/translate", body, headers)) as answer:
        found = json.load(answer)["translations"]
    assert [one["text"] for one in found] == [model("tea"), model("uncle")]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"target_lang": "FR"}, "there are de-en, en-de"),
        ({"formality": "more"}, "formality"),
        ({"glossary": "8a2b3c"}, "glossary_id"),
        ({"custom_instructions": ["be brief"]}, "custom_instructions"),
        ({"splitting_tags": ["p"], "tag_handling": "html"}, "tag_handling=xml"),
        ({"ignore_tags": ["p"]}, "tag_handling=html or xml"),
    ],
)
def test_what_cannot_be_done_is_refused(client: Any, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(deepl.DeepLException, match="Bad request") as caught:
        client.translate_text("tea", **{"source_lang": "EN", "target_lang": "DE", **asked})
    assert words in str(caught.value)
    assert "request " in str(caught.value)  # and its id


def test_a_wrong_key(url: str) -> None:
    client = deepl.DeepLClient("bag", server_url=url)
    with pytest.raises(deepl.AuthorizationException, match="API key"):
        client.get_usage()
    client.close()


def test_errors_have_its_shape() -> None:
    from transduce.serving.errors import Overloaded, ServiceError
    from transduce.serving.protocols.deepl import error

    for failure in (Overloaded("too much work", 3.0), ServiceError(456, "no quota left", "quota")):
        response = error(failure, "abc")
        assert response.status_code == failure.status
        found = json.loads(bytes(response.body))
        assert found == {"message": failure.message, "detail": "request abc"}
