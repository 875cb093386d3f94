"""The page: whatever is in inputs and vocabularies stays text, and nothing is loaded from afar."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tiny_models import tiny
from tiny_sounds import audio_model, noise
from transduce.errors import DataError, ModelError
from transduce.inspection.look import Look, look
from transduce.inspection.look import show as figure
from transduce.inspection.look.show import page
from transduce.tasks.audio_input import AudioSegment

HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> & \u2028 \u2029 ]]>"


class Elements(HTMLParser):
    """What a browser would make of a page: its elements, and the text in its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag in ("script", "style")
        if self.inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def found() -> Look:
    return look(tiny(banned=True), ["iroh made tea", HOSTILE], beam=2)


def test_what_is_hostile_is_data(found: Look) -> None:
    text = found.html()
    elements = Elements(text)
    assert [tag for tag, _ in elements.tags if tag in ("script", "img")] == ["script"] * 2
    _, data, _ = elements.scripts
    assert json.loads(data)["inputs"][1]["looks"][0]["source"] == HOSTILE
    assert not set("<>&\u2028\u2029") & set(data)


def test_a_hostile_token_and_title() -> None:
    text = page({"inputs": [], "token": HOSTILE}, HOSTILE)
    assert [tag for tag, _ in Elements(text).tags].count("script") == 2
    assert "<title>&lt;/script&gt;" in text


def test_half_a_surrogate_pair_does_not_stop_it() -> None:
    text = page({"inputs": [], "a": "x\ud800y"}, "x\ud800y")
    assert text.count("x?y") == 2


def test_the_policy_allows_the_one_script_and_style_alone(found: Look) -> None:
    elements = Elements(found.html())
    (policy,) = [
        str(attributes["content"])
        for tag, attributes in elements.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    style, _, script = elements.scripts
    for kind, content in (("style", style), ("script", script)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_nothing_is_loaded_or_written_as_markup(found: Look) -> None:
    text = found.html()
    elements = Elements(text)
    for _, attributes in elements.tags:
        assert not {"src", "href", "style"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    code = elements.scripts[2]
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("):
        assert forbidden not in code
    assert not re.search(r"https?://|fetch\(|XMLHttpRequest|import\(|WebSocket", code)


def test_a_notebook_shows_the_page_in_a_frame(found: Look) -> None:
    shown = found._repr_html_()
    ((tag, attributes),) = Elements(shown).tags
    assert tag == "iframe"
    assert attributes["sandbox"] == "allow-scripts"
    assert attributes["srcdoc"] == found.html()
    assert html.escape(HOSTILE) not in repr(found)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_figures(found: Look, tmp_path: Path, suffix: str) -> None:
    path = Look(found.looks[:1]).save(tmp_path / f"look{suffix}")
    start = {".png": b"\x89PNG", ".svg": b"<?xml"}[suffix]
    assert path.read_bytes().startswith(start)
    assert path.stat().st_size > 4000


def test_figures_of_audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    paths: list[Any] = []

    def keep(*given: Any, ctc: Any, **_: Any) -> None:
        drawn.append(given)
        paths.append(ctc)

    monkeypatch.setattr(figure, "speech_attention_map", keep)
    sounds = [AudioSegment.of("noise", noise(0.8, seed=seed)) for seed in (1, 2)]
    found = look(audio_model(), sounds, target="abc")
    Look(found.looks[:1]).save(tmp_path / "one.png")
    ((weights_TS, edges, tokens, mel_FM, seconds, *_),) = drawn
    assert weights_TS.shape == (len(tokens), len(edges) - 1)
    assert mel_FM.shape[1] == 16
    assert 0 <= edges[0] < edges[-1] <= seconds
    collected = found.looks[0][0]["ctc"]
    assert (paths[0].first, paths[0].last) == (collected["first"], collected["last"])
    assert paths[0].probabilities_TS.shape == (len(paths[0].first), len(edges) - 1)
    found.save(tmp_path / "two.svg")
    assert len(drawn) == 1, "several are heat maps side by side"
    assert (tmp_path / "two.svg").stat().st_size > 4000


def test_what_cannot_be_saved(found: Look, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"look.gif cannot be written; its name must end in .html"):
        found.save(tmp_path / "look.gif")
    without: list[list[dict[str, Any]]] = [[{**found.looks[0][0], "attention": []}]]
    with pytest.raises(ModelError, match=r"has no attention to draw; write a .html page instead"):
        Look(without).save(tmp_path / "look.png")
    with pytest.raises(DataError, match="there is no input; give at least one"):
        look(tiny(), [])


def test_two_models_on_the_same_inputs() -> None:
    found = look(tiny(banned=True), "tea", against=tiny(seed=5, banned=True), beam=1)
    (pages,) = found.looks
    assert len(pages) == 2
    assert pages[0]["source"] == pages[1]["source"] == "tea"
    assert pages[0]["steps"] != pages[1]["steps"]
