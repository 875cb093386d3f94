"""DeepL's protocol, with its client."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
api_data = optional.package("deepl.api_data")
KEY, OTHER_KEY = "leaf", "root"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(keys=[KEY, OTHER_KEY]) as address:
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


def test_documents(client: Any) -> None:
    with pytest.raises(deepl.DeepLException, match="/translate_file"):
        client.translate_document_upload(io.BytesIO(b"tea"), filename="a.txt", **ASKED)


def test_a_glossary_of_one_pair(client: Any, model: Model) -> None:
    pairs = {(one.source_lang, one.target_lang) for one in client.get_glossary_languages()}
    assert pairs == {("en", "de"), ("de", "en")}
    terms = {"cup": "zuko", "iroh": "of", "tea cup": "uncle"}
    made = client.create_glossary("My tea", "EN", "DE", terms)
    assert (made.name, made.ready, made.entry_count) == ("My tea", True, 3)
    assert (made.source_lang, made.target_lang) == ("EN", "DE")
    assert [one.glossary_id for one in client.list_glossaries()] == [made.glossary_id]
    assert client.get_glossary(made.glossary_id).creation_time == made.creation_time
    assert client.get_glossary_entries(made) == terms

    texts = ["a cup of tea", "made tea", "a <b>cup</b> of tea\niroh"]
    found = client.translate_text_with_glossary(texts, made)
    assert "zuko" in found[0].text.lower()
    assert found[1].text == model("made tea")  # no term, so nothing is required
    cup, iroh = found[2].text.split("\n")
    assert "zuko" in cup.lower()
    assert "of" in iroh.lower()
    marked = client.translate_text(
        "a <b>cup</b> of tea", glossary=made.glossary_id, tag_handling="xml", **ASKED
    )
    assert "zuko" in re.sub("</?b>", "", marked.text).lower()
    assert marked.text.count("<b>") == 1

    other = deepl.DeepLClient(OTHER_KEY, server_url=client._server_url)
    assert other.list_glossaries() == []
    with pytest.raises(deepl.GlossaryNotFoundException):
        other.get_glossary(made.glossary_id)
    with pytest.raises(deepl.DeepLException, match="there is no glossary"):
        other.translate_text("tea", glossary=made.glossary_id, **ASKED)
    other.close()
    with pytest.raises(deepl.DeepLException, match="is not for DE to EN; it has EN-DE"):
        client.translate_text(
            "tea", glossary=made.glossary_id, source_lang="DE", target_lang="EN-GB"
        )
    client.delete_glossary(made)
    for call in (client.get_glossary, client.get_glossary_entries, client.delete_glossary):
        with pytest.raises(deepl.GlossaryNotFoundException):
            call(made.glossary_id)


def test_a_glossary_of_several_pairs(client: Any) -> None:
    def of(source: str, target: str, entries: dict[str, str]) -> Any:
        return api_data.MultilingualGlossaryDictionaryEntries(source, target, entries)

    made = client.create_multilingual_glossary(
        "both", [of("EN", "DE", {"cup": "zuko"}), of("DE", "EN", {"tee": "uncle"})]
    )
    assert [one.entry_count for one in made.dictionaries] == [1, 1]
    assert client.list_glossaries() == []  # version 2 has those of one pair
    english = {"source_lang": "DE", "target_lang": "EN-GB"}
    assert "uncle" in client.translate_text("tee", glossary=made, **english).text.lower()
    client.update_multilingual_glossary_dictionary(made, of("EN", "DE", {"tea": "iroh"}))
    found = client.translate_text("cup tea", glossary=made.glossary_id, **ASKED).text.lower()
    assert "zuko" in found
    assert "iroh" in found
    client.update_multilingual_glossary_name(made, "two")
    client.replace_multilingual_glossary_dictionary(made, of("EN", "DE", {"cup": "made"}))
    entries = client.get_multilingual_glossary_entries(made, "EN", "DE")
    assert entries.dictionaries[0].entries == "cup\tmade"
    more = client.create_glossary("more", "EN", "DE", {"cup": "of", "tea": "uncle"})
    several = {"glossary_ids": [made, more.glossary_id], **ASKED}
    found = client.translate_text("cup tea", **several).text.lower()
    assert "made" in found  # the first that has a term decides
    assert "uncle" in found
    client.delete_multilingual_glossary_dictionary(made, source_lang="DE", target_lang="EN")
    (listed,) = [one for one in client.list_multilingual_glossaries() if one.name == "two"]
    assert [(one.source_lang, one.entry_count) for one in listed.dictionaries] == [("EN", 1)]
    with pytest.raises(deepl.GlossaryNotFoundException, match="nothing for DE to EN"):
        client.get_multilingual_glossary_entries(made, "DE", "EN")
    client.delete_multilingual_glossary(made)
    client.delete_glossary(more)
    assert client.list_multilingual_glossaries() == []


def test_glossaries_that_cannot_be_kept() -> None:
    few = {"glossaries": 2, "glossary_entries": 3, "glossary_characters": 60}
    with served(**few) as url:
        client = deepl.DeepLClient("any", server_url=url)
        for entries, words in (
            ("tea\tcup\ntea\tof", "is there twice"),
            ("tea", ":1: 1 column instead of two"),
            ("tea\tcup\tof", ":1: 3 columns instead of two"),
            ("\n\n", "entries is empty"),
            ("tea\tStra\u00dfe", "not in this model's vocabulary"),
            ("te\x00a\tcup", "control character"),
            ("t" * 1001 + "\tcup", "1,001 characters"),
            ("".join(f"a{n}\ttea\n" for n in range(4)), "at most 3 entries"),
        ):
            with pytest.raises(deepl.DeepLException, match="Bad request") as caught:
                client._create_glossary("bad", "EN", "DE", "tsv", entries)
            assert words in str(caught.value)
        with pytest.raises(deepl.DeepLException, match="no model here translates"):
            client.create_glossary("bad", "EN", "FR", {"tea": "cup"})
        with pytest.raises(deepl.DeepLException, match="name must have 1 to 1024"):
            client.create_glossary("n" * 1025, "EN", "DE", {"tea": "cup"})
        first = client.create_glossary_from_csv("a", "EN", "DE", '"tea, iroh",cup,en,de\n')
        assert client.get_glossary_entries(first) == {"tea, iroh": "cup"}
        with pytest.raises(deepl.QuotaExceededException, match="no room"):
            client.create_glossary("long", "EN", "DE", {"t" * 50: "cup"})
        client.create_glossary("b", "EN", "DE", {"tea": "cup"})
        with pytest.raises(deepl.QuotaExceededException, match="2 glossaries already"):
            client.create_glossary("c", "EN", "DE", {"tea": "cup"})
        with pytest.raises(deepl.DeepLException, match="needs source_lang"):
            client.translate_text(
                "tea", target_lang="DE", extra_body_parameters={"glossary_id": first.glossary_id}
            )
        client.close()


def test_many_clients_make_glossaries_at_the_same_time(client: Any) -> None:
    def make(number: int) -> bool:
        own = deepl.DeepLClient(KEY, server_url=client._server_url)
        made = own.create_glossary(f"number {number}", "EN", "DE", {"cup": "zuko"})
        found = own.translate_text("a cup", glossary=made, **ASKED).text
        own.delete_glossary(made)
        own.close()
        return "zuko" in found.lower()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(make, range(24)))
    assert client.list_glossaries() == []


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
