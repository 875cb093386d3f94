"""Export a model for the browser: one HTML file, or a folder with an ES module."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from safetensors.torch import save

from transduce.data.audio.read import SILENT
from transduce.data.text.pairs import read_pairs
from transduce.data.text.tags import UNKNOWN_TAG
from transduce.data.tokens.tokenizer import Tokens
from transduce.decoding.source_limit import MIN_LABEL, max_source_tokens
from transduce.errors import DataError, ModelError
from transduce.evaluation.metrics import TITLES
from transduce.inspection.look.show import STYLES, VIEWS
from transduce.inspection.page import Markup, assembled, joined, safe, stylesheet
from transduce.models.encoders import ConformerEncoder
from transduce.recipe.model import ConformerEncoder as ConformerSettings
from transduce.recipe.model import max_length_of, max_source_length
from transduce.storage import replaced_folder, write_text
from transduce.tasks import AudioClassifier, Classifier, LanguageModel, SpeechModel, Tagger
from transduce.tasks.generate import GenerativeModel
from transduce.tasks.live.settings import chunk_states
from transduce.tasks.speech_transducer import SpeechTransducerModel
from transduce.tasks.transduce import Model, Transducer, load
from transduce.web.description import Description

FORMAT = "transduce web 5"
METADATA = "transduce_web"
HERE = Path(__file__).parent
RUNTIME, PAGE = HERE / "runtime", HERE / "page"
WASM, RELAXED = "transduce.wasm", "transduce-relaxed.wasm"
MODEL, PAGE_NAME = "model.bin", "model.html"
#: The modules of the runtime, each after those that it uses.
MODULES = (
    *("structures", "wasm", "weights", "arrays", "embedding", "transformer", "recurrent"),
    *("conformer", "convolutional", "encoders", "tokens", "head", "speech", "words", "fronts"),
    *("labels", "networks", "search", "transducer", "live", "model", "look"),
)
PAGE_SCRIPTS = ("resampler.js", "quiet.js", "input.js", "main.js")
DECODING = ("beam", "length_penalty", "patience", "max_ratio", "max_extra", "ctc_weight")
UNSUPPORTED = ("coverage_penalty", "no_repeat_ngram")
NEEDS = (
    "This page has a model inside, which needs JavaScript and a newer browser: Chrome 91, Firefox "
    "89, Safari 16.4 or later."
)  # what a browser shows that cannot run the script
EXAMPLES, LONG = 6, 60  # texts to try, and the letters of one that is shown only if none is shorter
LARGEST = 500_000_000  # bytes of a model: a page has 4 GB at most, and a telephone far less


def model_bytes(model: Model, *, int8: bool = False) -> bytes:
    """The file of a model. Raises ModelError for one that a browser cannot run."""
    recipe = model.recipe
    if isinstance(model, Transducer):
        for key in UNSUPPORTED:
            if getattr(recipe.decode, key):
                raise ModelError(f"decode.{key} is not supported in a browser: set it to 0")
        if model.is_bidirectional:
            raise ModelError(
                "this model decodes in both directions (data.bidirectional), and a browser in one: "
                "set decode.bidirectional: false in its recipe.yaml"
            )
        if model.recipe.model.copies and model.source_tokens.level == "subword":
            raise ModelError("copying of subwords does not run in a browser yet")
    elif not isinstance(model, Classifier | Tagger | LanguageModel):
        raise ModelError(f"a model of the task {recipe.task} does not run in a browser yet")
    made = Description(int8)
    network = made.network(model.network)
    shared = model.target_tokens is model.source_tokens
    description = {
        "format": FORMAT,
        "network": network,
        "tokens": {
            "source": _tokens(model.source_tokens),
            "target": None if shared else _tokens(model.target_tokens),
        },
        "decode": {key: getattr(recipe.decode, key) for key in DECODING},
        "limits": _limits(model),
        "card": {"name": recipe.name, "task": recipe.task},
    }
    found = save(made.tensors, {METADATA: json.dumps(description, ensure_ascii=False)})
    if len(found) > LARGEST:
        raise ModelError(
            f"the model takes {len(found):,} bytes, and a page can hold {LARGEST:,}: train a "
            f"smaller one (train.teacher), or serve it (transduce serve)"
        )
    return found


def _limits(model: Model) -> dict[str, Any]:
    """The most tokens of a source, without END, and of a target, and whether all sources of
    training have tags; of a language model its context window, and whether its texts have no END;
    of recordings the longest in seconds, and the peak below which one is silent."""
    recipe = model.recipe
    if isinstance(model, SpeechModel):
        return {
            "seconds": model.recordings.longest,
            "silent": SILENT,
            "target": max_length_of(recipe.model.decoder),
            "ctc": model.has_same_ctc and not isinstance(model, SpeechTransducerModel),
            "chunk": _chunk(model),
        }
    if isinstance(model, AudioClassifier):
        return {"seconds": model.recordings.longest, "silent": SILENT, "target": 1}
    if isinstance(model, Transducer):
        source = min(max_source_tokens(recipe), max_source_length(recipe.model) - 1)
        most = {"source": source, "target": max_length_of(recipe.model.decoder)}
        return {**most, "tagged": model.expects_tags}
    if isinstance(model, LanguageModel):
        return {"window": model.window, "endless": model.endless}
    positions = max_length_of(recipe.model.encoder)
    data = recipe.data
    if isinstance(model, Classifier) and data.overlong == "truncate":
        return {"source": min(data.max_length, positions), "target": 1}
    return {"source": min(max_source_tokens(recipe, MIN_LABEL), positions), "target": 1}


def _chunk(model: SpeechModel) -> dict[str, int] | None:
    """The encoder states of a chunk of live speech, and how many chunks before it attention sees;
    None: the page reads what was said again and again."""
    settings, network = model.recipe.model.encoder, model.network
    encoder, front = network.encoder, network.front
    writes = model.has_same_ctc or isinstance(model, SpeechTransducerModel)
    if not isinstance(settings, ConformerSettings) or settings.chunk is None or not writes:
        return None
    assert isinstance(encoder, ConformerEncoder)
    if encoder.chunk_sizes is None or front.positions is not None:
        return None
    states = chunk_states(settings.chunk.ms, model.recordings.settings.state_ms)
    return {"states": states, "left": encoder.chunk_sizes.left_chunks}


def _tokens(tokens: Tokens) -> dict[str, Any]:
    if tokens.registered is not None:
        raise ModelError(f"the tokenizer {tokens.registered} of a plugin does not run in a browser")
    return {"file": json.loads(tokens.to_json()), "form": tokens.form}


# --------------------------------------------------------------------------------- one HTML file


def export_html(model_folder: Path, place: Path, *, int8: bool, overwrite: bool = False) -> Path:
    """Write a page with the model inside; its size is that of the weights and a third."""
    if place.suffix.lower() not in (".html", ".htm"):
        raise DataError(f"{place} is not the name of a page: it must end in .html")
    if place.exists() and not overwrite:
        raise DataError(f"{place} exists: give another --output, or --overwrite")
    model = load(model_folder)
    write_text(place, page(model, model_folder.name, model_bytes(model, int8=int8)))
    return place


def page(model: Model, name: str, model_file: bytes, to_try: Sequence[str] | None = None) -> str:
    """The page of a model, given its file. to_try: sources; None: some of the validation set."""
    title = f"{model.recipe.name}: a model in a page"
    data = {
        "title": model.recipe.name,
        "asks": "Prompt" if isinstance(model, LanguageModel) else "Input",
        "beam": model.recipe.decode.beam,
        "searches": isinstance(model, GenerativeModel),
        "samples": not isinstance(model, SpeechTransducerModel),
        "audio": audio_input(model),
        "tags": tags_of(model),
        "examples": examples(model) if to_try is None else list(to_try),
        "card": card(model, name, len(model_file)),
    }
    blocks = {
        "model": base64.b64encode(model_file).decode("ascii"),
        "relaxed": base64.b64encode((RUNTIME / RELAXED).read_bytes()).decode("ascii"),
        "wasm": base64.b64encode((RUNTIME / WASM).read_bytes()).decode("ascii"),
        "worker": worker_script(),
    }
    style = f"{stylesheet(STYLES)}\n{(PAGE / 'web.css').read_text('utf-8')}"
    own = [(PAGE / name).read_text("utf-8") for name in PAGE_SCRIPTS]
    script = "\n".join([joined(VIEWS), *own])
    return assembled(
        title,
        Markup(f'<div id="look"><p>{NEEDS}</p></div>'),
        style,
        script,
        data,
        blocks=blocks,
        policy={"script-src": "'wasm-unsafe-eval'", "worker-src": "blob:"},
    )


def tags_of(model: Model) -> list[str]:
    """The tags that a source may be given, by name."""
    tagged = isinstance(model, Transducer)
    return [one for one in model.source_tokens.tags if tagged and one != UNKNOWN_TAG]


def audio_input(model: Model) -> dict[str, Any] | None:
    """What the page has to know about recordings; None where sources are texts."""
    if not isinstance(model, SpeechModel | AudioClassifier):
        return None
    return {
        "rate": model.recordings.settings.sample_rate,
        "seconds": model.recordings.longest,
        "live": _live(model),
    }


def _live(model: Model) -> str:
    """How a transcript comes about while somebody speaks: each chunk is computed once, or what was
    said last is read again, by CTC or by greedy search."""
    if not isinstance(model, SpeechModel):
        return "search"
    if _chunk(model) is not None:
        return "stream"
    return "ctc" if model.has_same_ctc and model.scorer != "transducer" else "search"


def worker_script() -> str:
    """The runtime and the worker as one script: modules one after the other, nothing imported."""
    texts = [(RUNTIME / f"{name}.js").read_text("utf-8") for name in MODULES]
    texts.append((PAGE / "worker.js").read_text("utf-8"))
    plain = [re.sub(r"^import [^;]*;\n", "", text, flags=re.MULTILINE) for text in texts]
    plain = [re.sub(r"^export (?=const|class|function)", "", text, flags=re.M) for text in plain]
    return '"use strict";\n' + "\n".join(plain)


def examples(model: Model) -> list[str]:
    """Some short sources of the validation set, where it is there."""
    data = model.recipe.data
    if model.recipe.audio is not None:
        return []
    try:
        found = [pair.source for pair in islice(read_pairs(data.valid, data.folder), 200)]
    except (DataError, OSError):
        return []
    filled = dict.fromkeys(one for one in found if one.strip())
    return sorted(filled, key=lambda one: len(one) > LONG)[:EXAMPLES]


def card(model: Model, name: str, size: int) -> list[tuple[str, str]]:
    """What is said about the model, as name and text."""
    recipe = model.recipe
    parameters = sum(one.numel() for one in model.network.parameters())
    decoder = recipe.model.decoder
    return [
        ("Model", recipe.name if name == recipe.name else f"{recipe.name} ({name})"),
        ("Task", recipe.task),
        ("Network", " and ".join(_kinds(recipe.model.encoder, decoder))),
        ("Parameters", f"{parameters:,}"),
        ("Size", f"{size:,} bytes"),
        ("Vocabulary", f"{len(model.source_tokens):,} source tokens"),
        ("Metrics of training", ", ".join(TITLES.get(one, one) for one in recipe.metrics)),
        ("Made with", "transduce"),
    ]


def _kinds(*parts: Any) -> list[str]:
    """A pooled encoder has no layers."""
    layers = [(part.kind, getattr(part, "layers", 0)) for part in parts if part is not None]
    return [f"{kind} of {count} layers" if count else kind for kind, count in layers]


# -------------------------------------------------------------------------------------- a folder

INDEX = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"></head>
<body><h1>{title}</h1><p>{tags}<label>Input <input id="source" {attributes}></label>
<button id="run">Run</button></p>
<p><output id="output" for="source"></output></p>
<script type="module">
import {{ load }} from "./index.js";
const model = await load("{model}");
const source = document.getElementById("source");
document.getElementById("run").onclick = async () => {{
  const output = document.getElementById("output");
  try {{
    output.textContent = model.run({given}).text;
  }} catch (error) {{
    output.textContent = error.message;
  }}
}};
</script></body></html>
"""
#: The attributes of the input, and what the model is given of it: of a text, and of a recording.
TEXT_INPUT = ('size="40"', "source.value")
#: What stands before the input of a model that knows tags, and what the model is given of it.
TAGS_INPUT = (
    '<label>Tags <input id="tags" size="20"></label> ',
    ', { tags: [document.getElementById("tags").value].filter(Boolean) }',
)
SOUND_INPUT = (
    'type="file" accept="audio/*"',
    "(await new OfflineAudioContext(1, 1, model.rate).decodeAudioData("
    "await source.files[0].arrayBuffer())).getChannelData(0)",
)


def index_page(model: Model) -> str:
    """A small page that runs the model: where a page of one's own may begin."""
    attributes, given = TEXT_INPUT if audio_input(model) is None else SOUND_INPUT
    tags, option = TAGS_INPUT if tags_of(model) else ("", "")
    title, given = safe(model.recipe.name), given + option
    return INDEX.format(title=title, model=MODEL, tags=tags, attributes=attributes, given=given)


def export_folder(model_folder: Path, place: Path, *, int8: bool, overwrite: bool = False) -> Path:
    """Write a folder with the model, the runtime as an ES module, its types and a small page."""
    if place.exists() and any(place.iterdir()) and not overwrite:
        raise DataError(f"{place} is not empty: give another --output, or --overwrite")
    model = load(model_folder)
    found = model_bytes(model, int8=int8)
    with replaced_folder(place) as part:
        (part / MODEL).write_bytes(found)
        for file in sorted(RUNTIME.iterdir()):
            if file.suffix in (".js", ".ts", ".wasm"):
                shutil.copyfile(file, part / file.name)
        title = model.recipe.name
        write_text(part / "index.html", index_page(model))
        write_text(part / "package.json", json.dumps(package(title), indent=2) + "\n")
    return place


def package(name: str) -> dict[str, Any]:
    """package.json, as npm and bundlers read it."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "model"
    files: Sequence[str] = ("*.js", "*.d.ts", "*.wasm", MODEL)
    return {
        "name": f"transduce-{plain}",
        "version": "1.0.0",
        "private": True,
        "type": "module",
        "main": "index.js",
        "types": "index.d.ts",
        "exports": {
            ".": {"types": "./index.d.ts", "default": "./index.js"},
            f"./{MODEL}": f"./{MODEL}",
        },
        "files": list(files),
    }
