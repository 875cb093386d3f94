"""LibreTranslate's protocol, with its clients."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from client_server import english_german, german_english, served, skip_without
from transduce.tasks.model import Model

skip_without()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as address:
        yield address


@pytest.fixture(scope="module")
def model() -> Model:
    return english_german()


def post(url: str, body: Any, **headers: str) -> Any:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    for name, value in headers.items():
        request.add_header(name, value)
    with urlopen(request) as answer:
        return json.load(answer)


def get(url: str) -> Any:
    with urlopen(url) as answer:
        return json.load(answer)


def refused(url: str, body: Any) -> tuple[int, Any, Any]:
    with pytest.raises(HTTPError) as caught:
        post(url, body)
    return caught.value.code, json.load(caught.value), caught.value.headers


def test_a_glossary_in_a_field_of_our_own(url: str, model: Model) -> None:
    pair = {"source": "en", "target": "de"}
    asked = {"q": ["a cup", "tea"], "glossary": {"cup": ["zuko", "uncle"]}, **pair}
    cup, tea = post(f"{url}/translate", asked)["translatedText"]
    assert "zuko" in cup.lower() or "uncle" in cup.lower()
    assert tea == model("tea")
    form = urlencode({"q": "cup", "glossary": '{"cup": "zuko"}', **pair}).encode()
    with urlopen(f"{url}/translate", form) as answer:
        assert "zuko" in json.load(answer)["translatedText"].lower()
    for terms, words in (
        ("cup", "must be an object"),
        ({"cup": 5}, "is not text"),
        ({"cup": "Stra\u00dfe"}, "not in this model's vocabulary"),
    ):
        status, error, _ = refused(f"{url}/translate", {"q": "tea", "glossary": terms, **pair})
        assert status == 400
        assert words in error["error"]


def test_terms_of_a_long_text_are_required_by_its_sentences(url: str) -> None:
    sentences = ["zuko made a cup.", "a cup of tea!"] * 30
    terms = {"zuko": "iroh made", "cup": "uncle"}
    asked = {"q": " ".join(sentences), "source": "en", "target": "de", "glossary": terms}
    found = post(f"{url}/translate", asked)["translatedText"].lower()
    assert "iroh made" in found
    assert "uncle" in found


def test_libretranslatepy(url: str, model: Model) -> None:
    client = pytest.importorskip("libretranslatepy").LibreTranslateAPI(url)
    assert client.translate("a cup of tea", "en", "de") == model("a cup of tea") != ""
    assert client.translate("tea\nuncle", "en", "de") == f"{model('tea')}\n{model('uncle')}"
    (found, *_) = client.detect("the cup of tea that the uncle has made for the others")
    assert found["language"] == "en"
    assert found["confidence"] > 50
    languages = {one["code"]: one for one in client.languages()}
    assert languages["en"] == {"code": "en", "name": "English", "targets": ["de"]}
    assert languages["de"]["targets"] == ["en"]


def test_deep_translator(url: str, model: Model) -> None:
    translator = pytest.importorskip("deep_translator").LibreTranslator
    client = translator(source="en", target="de", custom_url=f"{url}/", api_key="any")
    assert client.translate("a cup of tea") == model("a cup of tea")
    assert client.translate_batch(["tea", "uncle"]) == [model("tea"), model("uncle")]


def test_a_list_with_alternatives(url: str, model: Model) -> None:
    sources = ["a cup of tea", "", "uncle"]
    asked = {"q": sources, "source": "en", "target": "de", "alternatives": 2}
    found = post(f"{url}/translate", asked)
    outputs = model.run(sources, nbest=9)
    assert found["translatedText"] == [one.text for one in outputs]
    different = list(dict.fromkeys(one.text for one in outputs[0].alternatives))
    assert found["alternatives"][0] == different[1:3]
    assert len(found["alternatives"][0]) == 2
    assert found["alternatives"][1] == []
    assert "detectedLanguage" not in found


def test_the_source_is_detected(url: str) -> None:
    texts = ["the tea of the uncle is in the cup", "der Tee des Onkels ist in der Tasse und warm"]
    found = post(f"{url}/translate", {"q": texts[1], "source": "auto", "target": "en"})
    assert found["translatedText"] == german_english()(texts[1])
    assert found["detectedLanguage"]["language"] == "de"
    assert found["detectedLanguage"]["confidence"] > 50
    # Only German is translated into English here, so it is that, though it does not look like it.
    found = post(f"{url}/translate", {"q": [texts[0]], "source": "auto", "target": "en"})
    assert found["detectedLanguage"][0]["language"] == "de"
    assert found["detectedLanguage"][0]["confidence"] < 10


def test_html_is_kept(url: str, model: Model) -> None:
    source = '<p class="x">a cup of <b>tea</b> &amp;</p><code>tea</code><h1>uncle</h1>'
    asked = {"q": source, "source": "en", "target": "de", "format": "html"}
    found = post(f"{url}/translate", asked)["translatedText"]
    written = re.fullmatch('<p class="x">(.*)</p><code>tea</code><h1>(.*)</h1>', found)
    assert written is not None
    # The sentence is translated as a whole, and some of its words are bold.
    assert re.sub("</?b>", "", written[1]) == model("a cup of tea &")
    assert len(re.findall("<b>.+</b>", written[1])) == 1
    assert written[2] == model("uncle")


def test_a_long_text_is_cut_between_sentences_and_none_is_lost(url: str, model: Model) -> None:
    sentence = "a cup of tea made uncle iroh."
    longest = model.recipe.data.max_length
    count = longest // len(sentence) + 1
    found = post(
        f"{url}/translate", {"q": " ".join([sentence] * count), "source": "en", "target": "de"}
    )
    parts = [" ".join([sentence] * (count - 1)), sentence]
    assert found["translatedText"] == " ".join(model(part) for part in parts)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"source": "en", "target": "de"}, "q is missing"),
        ({"q": "tea", "source": "en"}, "target is missing"),
        ({"q": "tea", "source": "en", "target": "fr"}, "there are de-en, en-de"),
        ({"q": "tea", "source": "auto", "target": "fr"}, "into 'fr'"),
        ({"q": 3, "source": "en", "target": "de"}, "must be a text"),
        ({"q": "tea", "source": "en", "target": "de", "format": "pdf"}, "text, html"),
        ({"q": "tea", "source": "en", "target": "de", "alternatives": 99}, "from 0 to 10"),
        ([1], "JSON object"),
    ],
)
def test_mistakes_have_a_sentence(url: str, asked: Any, words: str) -> None:
    status, found, headers = refused(f"{url}/translate", asked)
    assert status == 400
    assert words in found["error"]
    assert found["request_id"] == headers["x-request-id"]


def test_too_long_and_too_many(url: str) -> None:
    asked = {"source": "en", "target": "de"}
    assert refused(f"{url}/translate", {**asked, "q": "a " * 20_000})[0] == 413
    assert refused(f"{url}/translate", {**asked, "q": ["a"] * 2_000})[0] == 413


def upload(url: str, name: str, contents: bytes, **fields: str) -> Any:
    line = "----line"
    parts = [
        f'--{line}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
        for key, value in fields.items()
    ]
    head = f'--{line}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    body = "".join([*parts, head]).encode() + contents + f"\r\n--{line}--\r\n".encode()
    request = Request(url, body, {"Content-Type": f"multipart/form-data; boundary={line}"})
    with urlopen(request) as answer:
        return json.load(answer)


def test_a_file_is_translated_and_downloaded(url: str, model: Model) -> None:
    source = "1\n00:00:01,000 --> 00:00:02,000\na cup of tea\n"
    link = upload(
        f"{url}/translate_file", "../of tea.srt", source.encode(), source="en", target="de"
    )["translatedFileUrl"]
    with urlopen(link) as answer:
        assert answer.read().decode() == source.replace("a cup of tea", model("a cup of tea"))
        assert "attachment" in answer.headers["content-disposition"]
        assert "of_tea_de.srt" in answer.headers["content-disposition"]
    for wrong in ("nothing.srt", "..%2f..%2fetc%2fpasswd", "%2e%2e/passwd"):
        with pytest.raises(HTTPError) as caught:
            urlopen(f"{link.rpartition('/')[0]}/{wrong}")
        assert caught.value.code == 404
    for name, contents, words in (
        ("a.doc", b"tea", ".txt, .srt"),
        ("a.docx", b"tea", "no .docx document"),
        ("a.odt", zipped({"mimetype": "tea"}), "no text inside"),
        ("a.pdf", b"%PDF-1.7", "convert it to .docx"),
        ("a.txt", b"\xff\xff", "UTF-8"),
    ):
        with pytest.raises(HTTPError) as caught:
            upload(f"{url}/translate_file", name, contents, source="en", target="de")
        assert caught.value.code == 400
        assert words in json.load(caught.value)["error"]


def zipped(entries: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in entries.items():
            archive.writestr(name, text)
    return made.getvalue()


def test_documents_of_word_processors(url: str, model: Model) -> None:
    word = "<w:p><w:r><w:t>a cup</w:t></w:r></w:p>"
    written = f'<w:p><w:r><w:t xml:space="preserve">{model("a cup")}</w:t></w:r></w:p>'
    open_text = "<text:p>a <text:span>cup</text:span></text:p>"
    for name, part, source in (
        ("a.docx", "word/document.xml", word),
        ("a.odt", "content.xml", open_text),
    ):
        contents = zipped({"mimetype": "a", part: source, "picture.png": "tea"})
        asked = {"source": "en", "target": "de"}
        link = upload(f"{url}/translate_file", name, contents, **asked)["translatedFileUrl"]
        with urlopen(link) as answer, zipfile.ZipFile(io.BytesIO(answer.read())) as archive:
            assert archive.namelist() == ["mimetype", part, "picture.png"]
            assert archive.read("picture.png") == b"tea"
            found = archive.read(part).decode()
        assert found == written if name == "a.docx" else found.startswith("<text:p>")
        assert re.sub("<[^>]*>", "", found) == model("a cup")


def test_the_same_language_stays_as_it_is(url: str) -> None:
    text = "a  <b>cup\n\tof</b> tea"
    for form in ("text", "html"):
        asked = {"q": [text], "source": "en", "target": "en", "format": form}
        assert post(f"{url}/translate", asked)["translatedText"] == [text]
    assert refused(f"{url}/translate", {"q": "tea", "source": "fr", "target": "fr"})[0] == 400
    link = upload(f"{url}/translate_file", "a.txt", b" tea\n", source="en", target="en")
    with urlopen(link["translatedFileUrl"]) as answer:
        assert answer.read() == b" tea\n"


def test_json_without_a_content_type(url: str, model: Model) -> None:
    """As curl -d sends it, which calls it a form."""
    body = json.dumps({"q": "a cup of tea", "source": "en", "target": "de"}).encode()
    for kind in ("application/x-www-form-urlencoded", ""):
        with urlopen(Request(f"{url}/translate", body, {"Content-Type": kind})) as answer:
            assert json.load(answer)["translatedText"] == model("a cup of tea")
    with pytest.raises(HTTPError) as caught:
        urlopen(Request(f"{url}/translate", b'{"q": '))
    assert "JSON" in json.load(caught.value)["error"]


def test_hostile_html_does_not_hold_up_others(url: str) -> None:
    asked = {"source": "en", "target": "de", "format": "html"}
    for piece in ("<", "<!--", "&", "<svg>", "<script>", "<![CDATA[", "<b>"):
        texts = [piece * (19_000 // len(piece))] * 30
        assert len(post(f"{url}/translate", {**asked, "q": texts})["translatedText"]) == 30


def test_other_endpoints(url: str) -> None:
    settings = get(f"{url}/frontend/settings")
    assert settings["language"]["source"] == {"code": "de", "name": "German"}
    assert settings["keyRequired"] is False
    assert ".srt" in settings["supportedFilesFormat"]
    assert get(f"{url}/health")["status"] == "ok"
    assert {"/translate", "/detect"} <= set(get(f"{url}/spec")["paths"])
    assert refused(f"{url}/suggest", {"q": "tea", "s": "tee"})[0] == 403


def test_api_keys_in_body_query_and_header() -> None:
    asked = {"q": "tea", "source": "en", "target": "de"}
    with served(keys=["leaf"]) as url:
        status, found, _ = refused(f"{url}/translate", asked)
        assert status == 403
        assert "API key" in found["error"]
        assert refused(f"{url}/translate", {**asked, "api_key": "bag"})[0] == 403
        text = post(f"{url}/translate", {**asked, "api_key": "leaf"})["translatedText"]
        query = urlencode({**asked, "api_key": "leaf"})
        with urlopen(Request(f"{url}/translate?{query}", method="POST")) as answer:
            assert json.load(answer)["translatedText"] == text
        with_key = {"Authorization": "Bearer leaf"}
        assert post(f"{url}/translate", asked, **with_key)["translatedText"] == text
        assert get(f"{url}/languages")
        assert get(f"{url}/frontend/settings")["keyRequired"] is True
        # The address of a result is a secret of its own.
        asked.pop("q")
        link = upload(f"{url}/translate_file", "a.txt", b"tea", api_key="leaf", **asked)
        with urlopen(link["translatedFileUrl"]) as answer:
            assert answer.read().decode() == text
        client = pytest.importorskip("libretranslatepy").LibreTranslateAPI(url, "leaf")
        assert client.translate("tea", "en", "de") == text
