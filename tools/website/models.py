"""Models that run in pages of the site: whole pages that `transduce export --to html` writes.

Models are not part of the repository. A page is made of each that was trained (runs/); for the
others the site, and whoever builds it, is told the command that trains one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from website.lessons import embedded

PAGE, FOLDER = "models.md", "models"
TEXT = (
    "# Models to try\n\nThese models run inside the page that you read, on your own machine: type, "
    "and see the output, the n-best list and what each token attends to. "
    "[A model in a web page](guides/web.md) says how to make such a page of your own model."
)


@dataclass(frozen=True)
class LiveModel:
    """A model of the site."""

    name: str
    title: str
    says: str
    runs: tuple[str, ...]
    """The folders of runs/ that it may be in, the best first."""
    command: str
    """What trains one."""


MODELS = (
    LiveModel(
        "pronunciation",
        "Pronunciation",
        "English words to phonemes, the model of `transduce demo`.",
        ("demo",),
        "transduce demo",
    ),
    LiveModel(
        "translation",
        "A tiny translator",
        "English sentences about pictures to German, trained on Multi30k.",
        ("multi30k-en-de-small", "multi30k-en-de"),
        "transduce train multi30k-en-de-small",
    ),
    LiveModel(
        "speech",
        "Announcements",
        "Spoken announcements of a railway station to text, the model of `transduce demo speech`: "
        "give it a recording, or the microphone.",
        ("demo-speech",),
        "transduce demo speech",
    ),
)


def stage_models(folder: Path, runs: Path) -> tuple[str, list[str]]:
    """Write the page of models and those that there are; its name, and what is missing."""
    from transduce.web.export import export_html

    parts, missing = [TEXT], []
    (folder / FOLDER).mkdir(exist_ok=True)
    for one in MODELS:
        parts.append(f"## {one.title}\n\n{one.says}")
        found = next((runs / name for name in one.runs if _is_model(runs / name)), None)
        if found is None:
            parts.append(f"It was not there when this site was built: `{one.command}` trains it.")
            missing.append(f"{one.title}: no model in runs/{one.runs[0]}; {one.command} trains it")
            continue
        export_html(found, folder / FOLDER / f"{one.name}.html", int8=True, overwrite=True)
        parts.append(embedded(f"{FOLDER}/{one.name}.html", one.title))
    (folder / PAGE).write_text("\n\n".join(parts) + "\n", "utf-8")
    return PAGE, missing


def _is_model(folder: Path) -> bool:
    return (folder / "model.safetensors").is_file()
