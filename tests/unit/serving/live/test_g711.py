"""G.711, beside libsndfile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from transduce.serving.live.g711 import A_LAW, MU_LAW, decode


@pytest.mark.parametrize(("subtype", "table"), [("ULAW", MU_LAW), ("ALAW", A_LAW)])
def test_every_code(subtype: str, table: np.ndarray, tmp_path: Path) -> None:
    file = tmp_path / "codes.raw"
    file.write_bytes(bytes(range(256)))
    expected, _ = soundfile.read(
        file, samplerate=8000, channels=1, subtype=subtype, format="RAW", dtype="int16"
    )
    np.testing.assert_array_equal(decode(bytes(range(256)), table), expected)
