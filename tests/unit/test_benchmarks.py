"""Every script of benchmarks/ still runs: in a small size, beside what it is compared with."""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import forked
import optional
import tiny_whisper
from tiny_declaration import write_declaration
from tiny_models import SOURCES, tiny
from tones import write_tones
from transduce.corpora.location import METADATA, metadata_of
from transduce.interop.imports.registry import import_model
from transduce.recipe import load_recipe
from transduce.storage import write_json
from transduce.training import train

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / "benchmarks").glob("*.py"))


@dataclass(frozen=True)
class Quick:
    """A script in a size that takes seconds, in a folder that `World` makes."""

    options: str
    """A tilde stands for a space within a word."""
    writes: str = "out.json"
    """What it must leave; empty: nothing."""
    holds: Sequence[str] = ()
    """Words that must be in it: what is compared, above all."""
    world: Sequence[str] = ()
    """Parts of the world that it needs."""
    packages: Sequence[str] = ()
    slow: bool = True
    """Starts Python several times, or works for more than about two seconds."""
    variables: str = ""
    """Of the environment, as NAME=FOLDER."""


DATA = "TRANSDUCE_DATA=data"
QUICK: dict[str, Quick] = {
    "ablation.py": Quick(
        "model --data multi30k --pairs 4 --candidates 1 --test-pairs 6",
        "benchmarks/results/ablation.json",
        ("whole", "pruned", "affordable"),
        ("model", "multi30k"),
        ("matplotlib",),
    ),
    "alignment.py": Quick(
        "tones --voices m2 --lines 2 --output out.json",
        holds=("the Apache licence", "English", "French", "near_words"),
        world=("tones", "declaration"),
        packages=("espeakng_loader", "soundfile"),
        variables=DATA,
    ),
    "announcements.py": Quick(
        "whisper sounds.tsv --lines 3 --unread 2 --untold 3 --json out.json",
        holds=("falsely_absent", "unread_line_named", "near"),
        world=("whisper", "sounds"),
        packages=("soundfile",),
    ),
    "busy.py": Quick(
        "copy --device cpu --seconds 0.2 --warm 0 --override train.batch_tokens=64 --together "
        "--out out.json",
        holds=("tokens_per_second",),
    ),
    "checkpointing.py": Quick("--quick --rounds 1 --steps 1 --json out.json", holds=("with",)),
    "choices.py": Quick("--quick --device cpu --out out.json", holds=("chosen", "recurrent")),
    "decode_speed.py": Quick(
        "--quick --device cpu --out out.json --systems ours~float32,hf --only greedy,~1",
        holds=("ours", "hf"),
        packages=("transformers",),
    ),
    "demo.py": Quick(
        "--seeds 1 --override train.steps=2 --override model.width=16 --override decode.beam=1 "
        "--override data.test={file:~WORLD/pairs.tsv}",
        "benchmarks/results/demo.json",
        ("per", "training"),
        ("pairs",),
    ),
    "engine_speed.py": Quick(
        "model --rounds 1 --lines 4 --beams 1 --quantize float32 --data multi30k --out out.json",
        holds=("ours", "hand"),
        world=("model", "multi30k"),
        packages=("ctranslate2",),
    ),
    "fine_tuning.py": Quick(
        "--seeds 1 --steps-share 0.001 --device cpu",
        "benchmarks/results/fine_tuning.json",
        ("frozen", "adapter", "nothing"),
    ),
    "filters.py": Quick(
        "data/multi30k --pairs 3 --json out.json",
        holds=("right", "duplicates"),
        world=("untokenised",),
    ),
    "first_update.py": Quick(
        "--pairs 200 --rounds 1 --device cpu --out out.json --override model.width=16 "
        "--override train.steps=2 --override data.tokens.both.size=100",
        holds=("cold", "warm", "first update"),
    ),
    "growth.py": Quick(
        "--device cpu --size tiny --tokens 64 --longest 64 --largest 1000 --steps 1 --out out.json",
        holds=("ours", "marian", "torch"),
        packages=("transformers",),
    ),
    "hotwords.py": Quick(
        "tones --audio tones-sounds/test.tsv --unseen source --letters 1 --bonuses 2 "
        "--beams 2 --json out.json",
        holds=("none", "elsewhere", "wrong", "hotwords"),
        world=("tones", "text"),
        packages=("soundfile",),
    ),
    "inflection.py": Quick(
        "inflection --language kat --seconds 0.2 --json out.json --settings "
        "width~64,~dropout~0.0 width~64,~dropout~0.3",
        holds=("dropout 0.0", "dropout 0.3", "of_seeds"),
        world=("inflection",),
    ),
    "language_detection.py": Quick(
        "languages --folds 2 --only 1 --json out.json",
        holds=("n-grams", "lingua"),
        world=("languages",),
        packages=("lingua",),
    ),
    "lens_overhead.py": Quick(
        "--size tiny --rounds 1", "benchmarks/results/lens_overhead.json", ("gate", "everything")
    ),
    "live.py": Quick(
        "latency live --chunks 160 --limit 2 --threads 1 --device cpu --json out.json",
        holds=("finish_scores", "first"),
        world=("live",),
        packages=("soundfile",),
    ),
    "live_kinds.py": Quick(
        "--recipe live-sounds/tones.yaml --seeds 1 --limit 2 --chunk 160 --threads 1 --device cpu "
        "--runs kinds --json out.json train.steps=1 train.batch_tokens=300 model.width=16 "
        "audio.normalize=global model.encoder.chunk.ms=160 model.encoder.chunk.trained=[40,320]",
        holds=("ctc+attention", "transducer", "revisions"),
        world=("live",),
        packages=("soundfile",),
    ),
    "live_load.py": Quick(
        "live live/sound.wav --clients 2 --device cpu --json out.json",
        holds=("first_partial_after_start", '"broken": []'),
        world=("live",),
        packages=("soundfile", "websockets"),
    ),
    "one_command.py": Quick(
        "hungarian --minutes 0.05 --out out.json --override train.steps=2 --override decode.beam=1",
        holds=("exact", "minutes", "models"),
        world=("hungarian",),
        variables=DATA,
    ),
    "optimizer.py": Quick(
        "--files source target --seconds 1 --seeds 1 --rates 1e-3 --batch-tokens 64 --each 0.1 0.1",
        "benchmarks/results/optimizer_shakespeare_cpu.json",
        ("adamw", "muon", "valid"),
        ("text",),
    ),
    "parity.py": Quick(
        "model --source source --target target --limit 2 --out out.json",
        holds=("ctranslate2 float32", "ctranslate2 int8", "onnx", "native int8"),
        world=("model", "text"),
        packages=("ctranslate2", "onnxruntime"),
    ),
    "patience.py": Quick(
        "model --source source --target target --rounds 1 --json out.json",
        holds=("patience 1", "no better one possible"),
        world=("model", "text"),
        slow=False,
    ),
    "products.py": Quick("--quick --rounds 1 --out out.json", holds=("ours", "torch", "variant")),
    "rank_losses.py": Quick(
        "copy --steps 2 --log-every 1 --override model.width=16 --override train.batch_tokens=64 "
        "--out out.json",
        holds=("group", "fsdp", "resumed", '"two": 0.0'),
    ),
    "ranks.py": Quick(
        "--size tiny --tokens 64 --updates 1 --rounds 1",
        "benchmarks/results/ranks_cpu.json",
        ("alone", "exchange", "during", "fsdp", "predicted"),
    ),
    "reading.py": Quick(
        "--pairs 200 --rounds 1", "benchmarks/results/reading.json", ("tokenising",), slow=False
    ),
    "recipes.py": Quick(
        "quick --work work --results results",
        "results/recipes_quick.json",
        ("tokenised_bleu", "exact"),
        ("experiment",),
    ),
    "scale.py": Quick("--pairs 2000", ""),
    "serve_load.py": Quick(
        "model --sources source --count 4 --single 2 --clients 2 --seconds 0.5 --requests 20 "
        "--json out.json",
        holds=('"SIGTERM: exit status": 0', '"twice capacity: other": 0'),
        world=("model", "text"),
    ),
    "serving_parts.py": Quick("model --quick --json out.json", world=("model",)),
    "sound_speed.py": Quick(
        "tones --device cpu --updates 1 --rounds 1 --limit 2",
        "benchmarks/results/sound_speed_cpu.json",
        ("training", "greedy", "searched"),
        ("tones",),
        ("soundfile",),
        slow=False,
    ),
    "steps_in_c.py": Quick(
        "model --input source --rows 3 --rounds 1 --json out.json",
        holds=("greedy", "one by one", '"same_texts": 3'),
        world=("model", "text"),
        slow=False,
    ),
    "store_reading.py": Quick(
        "--pairs 2000 --latency 0 --out out.json",
        holds=("pool 65,536, cache a tenth", "requests_per_1000_pairs", "bytes_per_pair"),
    ),
    "stream_order.py": Quick(
        "--quick --rounds 1",
        "benchmarks/results/stream_order.json",
        (
            *("rank_correlation", "first_batch", "of_the_processor", "2 workers, filtered"),
            *("longest_seconds", "private"),
        ),
    ),
    "to_quality.py": Quick("--quick --device cpu --out out.json"),
    "tokenise.py": Quick(
        "data",
        "data/multi30k-tokenised/train.en",
        ("it &apos;s tea .",),
        ("untokenised",),
        ("sacremoses",),
    ),
    "toy_tasks.py": Quick(
        "--only gru-attention --tasks copy --override train.steps=2 --override model.width=8 "
        "--override validation.limit=2 --out out.json",
        holds=("gru-attention", "exact"),
        slow=False,
    ),
    "train_speed.py": Quick(
        "--quick --device cpu --kinds synthetic --modes eager --steps 1 --out out.json",
        holds=("ours", "marian", "torch"),
        packages=("transformers",),
    ),
    "whisper.py": Quick(
        "speed --ours whisper-imported --theirs whisper-ctranslate2 --audio sounds.tsv --beam 1 "
        "--rounds 1 --precisions float32 --json out.json",
        holds=("transduce", "faster-whisper"),
        world=("whisper-ctranslate2", "sounds"),
        packages=("faster_whisper", "av", "soundfile"),
    ),
    "whisper_fine_tuning.py": Quick(
        "whisper --output out.json --steps 1 --recordings 1 --device cpu",
        holds=("full", "lora", "start"),
        world=("whisper", "prompts"),
        packages=("soundfile",),
        variables=DATA,
    ),
    "whisper_made.py": Quick(
        "made --size tiny --files 2 --tokens 4",
        "made/ours/recipe.yaml",
        ("features: whisper",),
        packages=("transformers",),
    ),
    "whisper_profile.py": Quick(
        "--ours whisper --audio sounds.tsv --device cpu --precision float32 --rounds 1 "
        "--json out.json",
        holds=("encoder", "features"),
        world=("whisper", "sounds"),
        packages=("soundfile",),
        slow=False,
    ),
    "whisper_times.py": Quick(
        "whisper sounds.tsv --vad --seconds 4 --alone 1 --beam 1 --json out.json",
        holds=("transduce, vad", "segments_beside_speech", "made_up_in_music"),
        world=("whisper", "sounds"),
        packages=("soundfile",),
        slow=False,
    ),
    "web_speed.py": Quick(
        "model --sources source --count 3 --rounds 1 --json out.json",
        "out.json",
        ('"engine": "Node"', '"same": 3', '"cpu_seconds"'),
        ("model", "text"),
    ),
    "words.py": Quick(
        "inflection inflection --languages kat --size large --updates 2 --json out.jsonl "
        "--settings recurrent+width64 recurrent+width64+substrings",
        "out.jsonl",
        holds=("recurrent+width64+substrings", "exact"),
        world=("inflection",),
    ),
}
PARTS = {
    "alone.py": "train_speed.py",
    "clients.py": "serve_load.py",
    "decode_engines.py": "decode_speed.py",
    "decode_model.py": "decode_speed.py",
    "decode_twin.py": "decode_speed.py",
    "decode_worker.py": "decode_speed.py",
    "scores.py": "recipes.py",
    "systems.py": "train_speed.py",
    "whisper_systems.py": "whisper.py",
}
"""Modules of a script, and the script."""


class World:
    """A copy of benchmarks/, so that no results of the repository are written over, and beside it
    what the scripts read, each part made when a script first needs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("results", "__pycache__")
        shutil.copytree(ROOT / "benchmarks", folder / "benchmarks", ignore=ignored)
        (folder / "benchmarks" / "results").mkdir()
        (folder / "docs" / "figures").mkdir(parents=True)
        (folder / "docs" / "guides").symlink_to(ROOT / "docs" / "guides")
        for name in ("src", "tools", "LICENSE"):
            (folder / name).symlink_to(ROOT / name)
        self.need = cache(self._need)

    def _need(self, part: str) -> None:
        getattr(self, part.replace("-", "_"))()

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def run(self, name: str, quick: Quick) -> subprocess.CompletedProcess[str]:
        for part in quick.world:
            self.need(part)
        words = [word.replace("~", " ") for word in quick.options.split()]
        words = [word.replace("WORLD", str(self.folder)) for word in words]
        added = dict([quick.variables.split("=")]) if quick.variables else {}
        if torch.cuda.is_available():
            added["CUDA_VISIBLE_DEVICES"] = ""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | added
        return forked.run(
            [sys.executable, f"benchmarks/{name}", *words],
            cwd=self.folder,
            env=environment,
            timeout=600,
        )

    # ------------------------------------------------------------------------------------ text

    def model(self) -> None:
        tiny().save(self.folder / "model")

    def text(self) -> None:
        lines = [line for line in SOURCES if line.strip()] * 3
        for side in ("source", "target"):
            self.write(side, "".join(f"{line}\n" for line in lines))

    def pairs(self) -> None:
        self.write("pairs.tsv", "tea\tT IY\ncup\tK AH P\n")

    def multi30k(self) -> None:
        (self.folder / "multi30k").mkdir()
        lines = "".join(f"{line}\n" for line in SOURCES if line).encode()
        for name in ("val", "test_2016_flickr", "test_2017_flickr", "test_2017_mscoco"):
            for language in ("en", "de"):
                path = self.folder / "multi30k" / f"{name}.{language}.gz"
                path.write_bytes(gzip.compress(lines))

    def hungarian(self) -> None:
        letters = "abcdefgh"
        rows = "".join(f"{a}{b}\t{b} {a} {b}\n" for a in letters for b in letters)
        for name in ("train", "valid", "test"):
            self.write(f"data/hungarian-1000/{name}.tsv", rows)

    def untokenised(self) -> None:
        for language in ("en", "de", "fr"):
            self.write(f"data/multi30k/train.{language}", "It's tea.\n")

    def inflection(self) -> None:
        rows = "".join(f"{word}\t{word}s\tN;{kind}\n" for word in "abc" for kind in ("PL", "DU"))
        for name in ("kat_large.train", "kat.dev", "kat.gold"):
            self.write(f"inflection/{name}", rows)

    def languages(self) -> None:
        texts = {"eng": "the tea of the uncle is good", "deu_1996": "der Tee des Onkels ist gut"}
        rows = ["code\tsegment\ttext"]
        for code, text in texts.items():
            rows += [f"{code}\ta{article:02}.1\t{text} {article}" for article in range(6)]
        (self.folder / "languages").mkdir()
        path = self.folder / "languages" / "paragraphs.tsv.xz"
        path.write_bytes(lzma.compress("".join(f"{row}\n" for row in rows).encode()))

    def experiment(self) -> None:
        overrides = "train.steps=1, model.width=8, model.dropout=0.0, validation.limit=2"
        self.write(
            "benchmarks/experiments/quick.yaml",
            f"quick: {{recipe: copy, overrides: [{overrides}], metrics: [exact], "
            f"also: [tokenised_bleu]}}\n",
        )

    # ---------------------------------------------------------------------------------- speech

    def tones(self) -> None:
        self._listener("tones")

    def live(self) -> None:
        chunked = "chunk: {ms: 160, trained: [40, 320]}"
        encoder = (
            f"{{kind: conformer, layers: 1, heads: 2, feed_forward: 16, kernel: 3, {chunked}}}"
        )
        self._listener("live", f"model.encoder={encoder}", "audio.normalize=global")
        shutil.copy(self.folder / "live-sounds/sounds/test0.wav", self.folder / "live/sound.wav")

    def _listener(self, name: str, *overrides: str) -> None:
        """A model that has learnt next to nothing, with its corpus beside it."""
        sounds = write_tones(self.folder / f"{name}-sounds", {"train": 12, "valid": 2, "test": 3})
        small = ["train.steps=2", "train.batch_tokens=300", "decode.beam=2", "model.width=16"]
        recipe = load_recipe(sounds / "tones.yaml", [*small, *overrides])
        train(recipe, self.folder / name)

    def declaration(self) -> None:
        """In English and, as far as the names go, in French."""
        write_declaration(self.folder / "data")
        corpus = self.folder / "data" / "udhr"
        (corpus / METADATA).unlink()
        for path in corpus.iterdir():
            text = path.read_text("utf-8").replace("deu_1996", "fra").replace("de-1996", "fr")
            path.write_text(text.replace("German", "French"), "utf-8")
        write_json(corpus / METADATA, metadata_of(corpus, name="udhr"))

    def sounds(self) -> None:
        import soundfile

        rows = []
        for number, wave in enumerate(tiny_whisper.noises(2)):
            soundfile.write(self.folder / f"sound{number}.wav", wave, tiny_whisper.RATE)
            rows.append(f"sound{number}.wav\ttea for uncle\n")
        self.write("sounds.tsv", "".join(rows))

    def whisper(self) -> None:
        tiny_whisper.our_model().save(self.folder / "whisper")

    def prompts(self) -> None:
        self.need("sounds")
        corpus = self.folder / "data" / "asterisk"
        (corpus / "sounds").mkdir(parents=True)
        shutil.copy(self.folder / "sound0.wav", corpus / "sounds" / "one.wav")
        for split in ("train", "valid", "test"):
            self.write(f"data/asterisk/{split}.tsv", "path\ttext\nsounds/one.wav\ttea for uncle\n")
        write_json(corpus / METADATA, metadata_of(corpus, name="asterisk"))

    def whisper_ctranslate2(self) -> None:
        """A folder of CTranslate2, and what is imported from it."""
        theirs, folder = self.folder / "whisper-huggingface", self.folder / "whisper-ctranslate2"
        theirs.mkdir()
        # faster-whisper knows windows of 30 s and outputs of 448 tokens only.
        model = tiny_whisper.huggingface_folder(theirs, positions=1500, longest=448)
        tiny_whisper.ctranslate2_folder(folder, model, theirs)
        import_model(folder, self.folder / "whisper-imported")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def test_every_script_is_listed() -> None:
    assert sorted([*QUICK, *PARTS]) == SCRIPTS
    assert set(PARTS.values()) <= set(QUICK)


def test_what_the_scripts_import_is_there() -> None:
    """Of all scripts, as those whose quick run is slow are not run each time."""
    missing = []
    for name in SCRIPTS:
        for node in ast.walk(ast.parse((ROOT / "benchmarks" / name).read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("transduce"):
                missing += [
                    f"{name}:{node.lineno}: {node.module} has no {wanted.name}"
                    for wanted in node.names
                    if not is_there(str(node.module), wanted.name)
                ]
    assert missing == []


def is_there(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(module), name) or bool(find_spec(f"{module}.{name}"))
    except ModuleNotFoundError as error:
        return not str(error.name).startswith("transduce")  # else of a package for extras


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * QUICK[n].slow) for n in QUICK]
)
def test_quick(world: World, name: str) -> None:
    quick = QUICK[name]
    for package in quick.packages:
        optional.skip_without(package)
    made = world.folder / quick.writes
    if quick.writes:
        made.unlink(missing_ok=True)
    done = world.run(name, quick)
    assert done.returncode == 0, done.stdout + done.stderr
    if quick.writes:
        text = made.read_text("utf-8")
        assert [word for word in quick.holds if word not in text] == []
        if made.suffix == ".json":
            json.loads(text)


# ---------------------------------------------------------------------------- missing systems


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.mark.usefixtures("scripts")
def test_a_peer_that_is_missing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    import systems

    assert systems.peers("") == ["marian", "torch"]
    monkeypatch.setattr(systems.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="marian: transformers is not installed"):
        systems.peers("")
    assert systems.peers("marian") == ["torch"]
    systems.end({})


@pytest.mark.usefixtures("scripts")
def test_what_is_counted_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """What whisper_times.py counts: the quick run has a model that hears nothing."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import numpy as np
    from whisper_times import Heard, Recording, Span, Word, judge

    talk = Recording(np.zeros(16_000 * 20, np.float32))
    talk.texts = [["please", "hold"], ["agent", "logged", "off"]]
    talk.spans = [Span(2.0, 3.0), Span(10.0, 11.0)]
    words = [Word("Please", 2.1, 2.5), Word("hold,", 2.5, 3.5), Word("aged", 9.0, 10.3)]
    words += [Word("logged", 10.4, 10.6), Word("off.", 10.6, 11.1)]
    row = judge(talk, Heard(words, [Span(2.1, 3.5), Span(9.0, 11.1)], 1.0))
    assert (row["edges"], row["near"], row["largest"]) == (3, 0.667, 0.5)  # "agent" was not heard
    assert (row["recognised"], row["longest_word"]) == (0.8, 1.3)
    assert (row["segments_beside_speech"], row["no_speech"]) == (1.6, 18.0)


def test_what_is_counted_of_announcements(monkeypatch: pytest.MonkeyPatch) -> None:
    """What announcements.py counts: the quick run has a model that finds no line."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from announcements import judge
    from whisper_times import Span

    from transduce.alignment.align import Aligned, Utterance

    found = (
        Utterance(1, "ten signs.", 1.0, 2.3, 1.0),
        Utterance(2, "ten signs."),
        Utterance(3, "ten signs.", 5.0, 6.0, 1.0),
        Utterance(4, "ten signs."),
    )
    spans = [Span(1.0, 2.0), None, Span(5.0, 6.0), Span(6.5, 7.0)]
    row = judge(Aligned(Path("a.wav"), 20.0, found, ((3.0, 3.4),)), spans, Span(3.0, 3.5))
    assert (row["found"], row["falsely_absent"], row["unread_line_named"]) == (2, [4], True)
    assert (row["untold_speech_named"], row["near"]) == (0.8, 0.75)


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize(
    ("output", "wrong", "false", "errors"),
    [
        ("call ann brown or ann", 0, 0, 0),
        ("call ann brawn or ann", 1, 1, 0),  # a part of a phrase is heard as a phrase itself
        ("call ann black brown or ann", 1, 1, 1),  # not in one piece
        ("ann call ann brown ann", 0, 1, 2),
        ("call or", 2, 0, 0),
        ("", 2, 0, 2),
    ],
)
def test_what_is_counted_of_hotwords(output: str, wrong: int, false: int, errors: int) -> None:
    from hotwords import count

    found = count("Call Ann Brown, or Ann!", output, ["Ann Brown", "Ann"])
    assert (found.listed, found.others) == (2, 2)
    assert (found.wrong, found.false, found.errors) == (wrong, false, errors)


def test_telephone_numbers_are_of_one_speaker_and_have_each_recording_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import numpy as np
    import scores
    import soundfile

    from transduce.evaluation.items import Item

    items = []
    for place in range(22):  # of two speakers in turn; one each is left over
        path = tmp_path / f"{place}.wav"
        soundfile.write(path, np.full(80, (place + 1) / 100), 8000)
        items.append(Item(str(path), [f"w{place}"], str(place % 2)))
    heard: list[list[int]] = []

    def run(paths: list[str]) -> list[SimpleNamespace]:
        """Reads words by the loudness of samples, but leaves out the first word of all."""
        for path in paths:
            samples, rate = soundfile.read(path)
            assert rate == 8000
            assert 800 + 9 * 0.1 * rate <= len(samples) <= 800 + 9 * 0.4 * rate
            heard.append(list(dict.fromkeys(round(100 * one) - 1 for one in samples if one)))
        texts = [" ".join(f"w{word}" for word in words) for words in heard]
        texts[0] = texts[0].partition(" ")[2]
        return [SimpleNamespace(text=text, tokens=[], probabilities=[]) for text in texts]

    model = SimpleNamespace(recipe=load_recipe("digits-letters"), run=run)
    found = scores.telephone_wer(model, "test", SimpleNamespace(items=items))  # type: ignore[arg-type]
    assert [len(set(words)) for words in heard] == [10, 10]
    assert [{word % 2 for word in words} for words in heard] == [{0}, {1}]
    assert found.value == pytest.approx(100 / 20)
    assert (found.details["numbers"], found.details["right"]) == (2, 1)


def test_what_is_counted_of_alignments(monkeypatch: pytest.MonkeyPatch) -> None:
    """What alignment.py counts: the quick run has a model that finds no line."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from alignment import Truth, evaluate

    from transduce.alignment.align import Aligned, Utterance
    from transduce.data.audio.intervals import Interval

    words = tuple(Interval(at, at + 0.2, word) for word, at in (("a", 1.0), ("b", 1.5)))
    found = (
        Utterance(1, "a b", 1.05, 2.2, 1.0, words),
        Utterance(2, "c", 3.0, 4.0, 1.0, words[:1]),
        Utterance(3, "d"),
        Utterance(4, "e"),
    )
    spans = [(1.0, 2.0), (3.0, 4.05), (5.0, 6.0), None]
    starts: list[dict[int, float]] = [{0: 1.0, 1: 1.7}, {0: 3.0, 1: 3.5}, {0: 5.0}, {}]
    row = evaluate(Aligned(Path("one.wav"), 60.0, found), Truth(spans, starts), [True] * 4)
    assert (row["boundaries"], row["near_starts"], row["near_ends"], row["near"]) == (6, 2, 1, 3)
    assert (row["words"], row["near_words"]) == (5, 1)
    assert (row["left_out"], row["left_out_found"], row["read_missed"]) == (1, 1, 1)


@pytest.mark.usefixtures("scripts")
def test_both_engines_of_decode_speed_write_the_same(tmp_path: Path) -> None:
    """In this process: the quick run, which starts others, is slow."""
    optional.skip_without("transformers")
    from decode_engines import ENGINES, Wish
    from decode_model import make_model
    from systems import SIZES

    make_model(SIZES["tiny"], tmp_path)
    sources, targets = [[9, 8, 7, 20, 21], [30, 31]], [[40, 41, 42], [50]]
    written, scores = [], []
    for name in ("ours", "hf"):
        engine = ENGINES[name]("cpu", torch.get_num_threads())
        engine.load(tmp_path, "float32")
        plan = engine.plan(Wish(sources, 1, 2, 6))
        written.append([row[:5] for row in plan.read(plan.run())])  # one ends its outputs itself
        scores.append([one for row in engine.score(sources, targets) for one in row])
    assert written[0] == written[1]
    assert [len(row) for row in written[0]] == [5, 5]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)


@pytest.mark.usefixtures("scripts")
def test_the_twin_of_hugging_face_says_the_same() -> None:
    """As decode_speed.py needs it, for both positions of norms."""
    transformers: Any = optional.package("transformers")
    from decode_twin import twin_of

    for place in ("pre", "post"):
        part = {"norm_position": place}
        model = tiny(part, part, tie_embeddings="all")
        theirs = twin_of(model, transformers).eval()
        sources, targets = torch.tensor([[5, 7, 6, 3]]), torch.tensor([[2, 6, 5, 8]])
        network = model.network
        with torch.no_grad():
            memory = network.encode(sources, torch.tensor([4]))
            ours_BTV = network.head(network.decoder(targets, memory)).log_softmax(dim=-1)
            logits_BTV = theirs(input_ids=sources, decoder_input_ids=targets).logits
        torch.testing.assert_close(ours_BTV, logits_BTV.log_softmax(dim=-1), rtol=0, atol=1e-4)


# --------------------------------------------------------------------------------- recipes.py


@pytest.mark.usefixtures("scripts")
def test_some_seeds_of_an_experiment() -> None:
    import recipes

    (whole,), (some,) = (
        recipes.chosen(["mboshi-conformer"], []),
        recipes.chosen(["mboshi-conformer"], [], [3, 1, 7]),
    )
    assert whole.units == ["1", "2", "3", "ensemble"]
    assert some.units == ["1", "3"]
    assert some.fingerprint == whole.fingerprint  # one table takes both


# ------------------------------------------------------------------------------ to_quality.py


@pytest.mark.usefixtures("scripts")
def test_races_are_of_recipes_and_metrics_that_exist() -> None:
    import scores
    import to_quality

    from transduce.evaluation.metrics import HIGHER_IS_BETTER
    from transduce.recipe import load_recipe

    races = to_quality.read_races()
    assert len(races) == 6
    for race in [*races.values(), *to_quality.quick().values()]:
        recipe = load_recipe(race.recipe, race.overrides)
        name = to_quality._plain(race)
        assert name in recipe.metrics or hasattr(scores, name)
        higher = HIGHER_IS_BETTER.get(name, False)
        assert race.higher == (higher != race.metric.startswith("100 - "))
        assert race.reached(race.target)
        assert race.reached(race.target + 1) == race.higher
        assert race.reached(race.target - 1) != race.higher


@pytest.mark.usefixtures("scripts")
def test_the_clock_reads_what_a_run_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    import to_quality

    now = [10.0]
    monkeypatch.setattr(to_quality.time, "perf_counter", lambda: now[0])
    clock = to_quality.Clock()
    for line in (
        'to_quality: {"what": "imported"}',
        "Training: 9 pairs, 9 source and 9 target tokens.",
        "Validation: 9 pairs, 9 source and 9 target tokens.",
        "step 1/4  loss 3.0",
        "step 4/4  loss 2.0",
        "step 4/4  valid  loss 2.5  bleu 1.00  best",
        'to_quality: {"what": "trained"}',
        'to_quality: {"what": "scored", "score": 41.0, "updates": 4}',
    ):
        now[0] += 1
        clock.hear(line)
    found = clock.result()
    times = ("imported", 1), ("read", 3), ("first update", 4), ("last update", 6), ("trained", 7)
    assert found["times"] == {**dict(times), "scored": 8}
    assert (found["seconds"], found["score"], found["updates"]) == (8, 41.0, 4)
    assert found["validations"] == [{"seconds": 6, "said": "loss 2.5  bleu 1.00  best"}]


@pytest.mark.usefixtures("scripts")
def test_caches_of_a_race_are_new_and_empty(tmp_path: Path) -> None:
    import to_quality

    with to_quality.caches(None) as one, to_quality.caches(None) as other:
        for name in to_quality.CACHES:
            assert one[name] != other[name]
            assert not Path(one[name]).exists()
    with to_quality.caches(tmp_path) as kept:
        assert {Path(kept[name]).parent for name in to_quality.CACHES} == {tmp_path}


@pytest.mark.usefixtures("scripts")
def test_records_are_added(tmp_path: Path) -> None:
    import to_quality

    (tmp_path / "x.json").write_text('{"note": "n", "records": [{"race": "a"}]}')
    to_quality.write(tmp_path / "x.json", [{"race": "b"}])
    to_quality.write(tmp_path / "y.json", [{"race": "b"}])
    assert json.loads((tmp_path / "x.json").read_text()) == {
        "note": "n",
        "records": [{"race": "a"}, {"race": "b"}],
    }
    assert json.loads((tmp_path / "y.json").read_text()) == {"records": [{"race": "b"}]}


@pytest.mark.usefixtures("scripts")
def test_seeds_run_later_are_of_the_same_record(tmp_path: Path) -> None:
    import to_quality

    race = to_quality.read_races()["mboshi"]
    asked = argparse.Namespace(commit="abc", record="why", jobs=1, caches=None)

    def record(score: float, seconds: float, seed: int, **more: Any) -> dict[str, Any]:
        machine = {"device": "a GPU", "torch": "2", "python": "3"}
        found = {"seconds": seconds, "score": score, "machine": machine}
        return {**to_quality.entry(race, {seed: found}, asked), **more}

    kept, others = tmp_path / "kept.json", tmp_path / "others.json"
    to_quality.write(kept, [record(20.0, 90.0, 1), record(22.0, 60.0, 1, overrides=["a=1"])])
    to_quality.write(others, [record(21.5, 110.0, 2), record(22.5, 80.0, 3)])
    to_quality.add_runs(kept, others, to_quality.read_races())
    one, other = json.loads(kept.read_text())["records"]
    assert list(one["runs"]) == ["1", "2", "3"]
    assert (one["score"], one["seconds"], one["reached"]) == (pytest.approx(64 / 3), 90.0, False)
    assert one["runs"]["2"]["commit"] == "abc"
    assert list(other["runs"]) == ["1"]
    # A seed that was run again does not take the place of the older figure.
    to_quality.write(again := tmp_path / "again.json", [record(19.0, 50.0, 2)])
    to_quality.add_runs(kept, again, to_quality.read_races())
    *before, last = json.loads(kept.read_text())["records"]
    assert before == [one, other]
    assert (last["seconds"], list(last["runs"])) == (50.0, ["2"])
