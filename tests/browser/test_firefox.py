"""A model in one HTML file, in a real Firefox: it says what Python says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marionette import FIREFOX, MISSING, Firefox
from tiny_models import SOURCES, tiny
from transduce.interop.quantize import export as quantized
from transduce.tasks.transduce import load
from transduce.web.export import model_bytes, page


@pytest.mark.slow
@pytest.mark.skipif(not FIREFOX, reason=MISSING)
def test_the_page_says_what_python_says_in_firefox(tmp_path: Path) -> None:
    model = tiny(banned=True)
    quantized(model, tmp_path, "int8")
    with Firefox() as browser:
        for own in (model, load(tmp_path)):
            place = tmp_path / "model.html"
            made = model_bytes(model, int8=own is not model)
            place.write_text(page(model, "tiny", made), "utf-8")
            browser.open(place)
            browser.wait("return document.documentElement.dataset.ready")
            for source in SOURCES:
                browser.run(
                    "document.getElementById('source').value = arguments[0];"
                    "document.querySelector('.ask .controls button').click();",
                    source,
                )
                text = json.dumps(own.run([source])[0].text)
                browser.wait(f"return document.getElementById('output').textContent === {text}", 20)
            assert browser.run("return document.querySelectorAll('main canvas, main svg').length")
