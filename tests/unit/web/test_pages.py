"""Pages with models inside: those of the site, and of lessons."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tiny_label_networks import classifier
from tiny_models import SOURCES, tiny
from tiny_sounds import audio_model
from transduce.errors import ModelError
from transduce.lessons import live
from transduce.lessons.present import OUTPUT
from transduce.web import export

ROOT = Path(__file__).parents[3]


def site_models() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("website.models")
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_the_site_has_the_models_that_were_trained_and_says_what_is_missing(tmp_path: Path) -> None:
    folder, runs = tmp_path / "docs", tmp_path / "runs"
    folder.mkdir()
    tiny().save(runs / "demo")
    name, missing = site_models().stage_models(folder, runs)
    text = (folder / name).read_text("utf-8")
    assert 'src="models/pronunciation.html"' in text
    assert (folder / "models/pronunciation.html").stat().st_size > 100_000
    assert "translation.html" not in text
    assert "`transduce train multi30k-en-de-small` trains it" in text
    assert missing == [
        "A tiny translator: no model in runs/multi30k-en-de-small; "
        "transduce train multi30k-en-de-small trains it",
        "Announcements: no model in runs/demo-speech; transduce demo speech trains it",
    ]


def test_a_lesson_writes_a_page_with_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUT, str(tmp_path))
    path = live(tiny(), "tea", SOURCES[:1])
    assert path == tmp_path / "tea.html"
    assert SOURCES[0] in path.read_text("utf-8")


def test_the_page_of_a_folder_asks_for_what_the_model_reads() -> None:
    odd = tiny(name="<b>odd")
    text = export.index_page(odd)
    assert "<h1>&lt;b&gt;odd</h1>" in text
    assert "model.run(source.value)" in text
    text = export.index_page(audio_model())
    assert '<input id="source" type="file" accept="audio/*">' in text
    assert "decodeAudioData" in text


def test_the_card_of_an_encoder_without_layers() -> None:
    card = dict(export.card(classifier(), "films", 1))
    assert card["Network"] == "pooled"
    assert dict(export.card(tiny(), "letters", 1))["Network"].count("transformer of 2 layers") == 2


def test_too_large_a_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "LARGEST", 1000)
    with pytest.raises(ModelError, match=r"a page can hold 1,000: train a smaller one"):
        export.model_bytes(tiny())
