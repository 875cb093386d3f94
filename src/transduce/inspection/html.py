"""HTML pages: one self-contained file each, nothing loaded from the network."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from transduce.inspection.page import palette
from transduce.inspection.prompts import Comparison
from transduce.storage import make_folder, write_text

# Inside <script> only these characters could end it or be parsed as markup.
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def write_prompts(comparison: Comparison, path: Path) -> None:
    """Write the prompt comparison as an HTML page."""
    continuations = [
        {
            "prompt": one.prompt,
            "tokens": one.tokens,
            "texts": one.texts,
            "probabilities": _rounded(followed.probabilities_PK[number].tolist()),
            "log_probability": one.log_probability,
            "perplexity": one.perplexity,
        }
        for number, (one, followed) in enumerate(
            zip(comparison.continuations, comparison.followed, strict=True)
        )
    ]
    followed = [
        {
            "tokens": one.tokens,
            "probabilities": _rounded(one.probabilities_PK.tolist()),
            "divergence": _rounded(one.divergence_KPP.tolist()),
            "mean": _rounded(one.mean_PP.tolist()),
            "top": _rounded(one.top),
        }
        for one in comparison.followed
    ]
    data = {
        "model": comparison.model,
        "how": comparison.how,
        "said": continuations,
        "followed": followed,
    }
    make_folder(path.parent)
    write_text(path, _filled("prompts.html", data))


def _filled(template: str, data: dict[str, Any]) -> str:
    page = resources.files("transduce.inspection").joinpath(template).read_text("utf-8")
    written = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    page = page.replace("__PALETTE__", palette())
    return page.replace("__DATA__", "".join(_UNSAFE.get(sign, sign) for sign in written))


def _rounded(values: Any) -> Any:
    """Numbers to four digits, in nested lists, to keep the page small."""
    if isinstance(values, float):
        return float(f"{values:.4g}")
    return [_rounded(value) for value in values] if isinstance(values, list | tuple) else values
