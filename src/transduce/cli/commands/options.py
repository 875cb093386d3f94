"""Arguments and options shared by several commands."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from transduce.cores import count_cores


def model_folder(place: str) -> Path:
    """The folder of a model that a person named: a path, or hf://user/name@revision."""
    if not place.startswith("hf://"):
        return Path(place)
    from transduce.hub.locate import resolve_model

    return resolve_model(place)


RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A YAML file, or the name of a shipped recipe.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE...", help="Overrides, e.g. train.lr=3e-4 model.width=256."),
]
DataOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE...",
        help="Overrides of the model's recipe, e.g. data.folder=../corpora if files have moved.",
    ),
]
ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="A model folder, written by `transduce train`, or hf://user/name@revision.",
        parser=model_folder,
    ),
]
Beam = Annotated[
    int | None, typer.Option(help="Beam size; 1 is greedy search. Default: as in the recipe.")
]
LengthPenalty = Annotated[
    float | None, typer.Option(help="Length penalty: larger favours longer outputs; 0: off.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Workers = Annotated[
    int,
    typer.Option(min=0, help="Worker processes for a long input, on a CPU. Default: one per core."),
]
Precision = Annotated[
    str, typer.Option(help="auto, float32, bfloat16 or (on a CPU) int8: precision of decoding.")
]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", help="ctranslate2 or onnx, after export. Default: transduce's own."),
]
Sample = Annotated[
    bool, typer.Option("--sample", help="Sample tokens at random instead of searching.")
]
Temperature = Annotated[
    float, typer.Option(help="Sampling temperature: below 1 safer, above 1 more varied.")
]
TopK = Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0: from all.")]
TopP = Annotated[
    float,
    typer.Option(help="Nucleus sampling: from the most likely tokens with total probability p."),
]
SamplingSeed = Annotated[int, typer.Option(help="Random seed of sampling.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
EnsembleOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--ensemble",
        metavar="MODEL",
        help="Another model of an ensemble; repeatable.",
        parser=model_folder,
    ),
]
AdapterOption = Annotated[
    Path | None, typer.Option("--adapter", help="An adapter of the model: its folder, or PEFT's.")
]
Base = Annotated[
    Path | None, typer.Option(help="Of an adapter: the model that it was trained on, if moved.")
]
Tag = Annotated[
    list[str] | None, typer.Option(help="Tag of each source, such as its language; repeatable.")
]
Prefix = Annotated[str, typer.Option(help="Prefix constraint: each output begins with this text.")]
Include = Annotated[
    list[str] | None,
    typer.Option(help="Constraint: a phrase each output must contain; repeatable."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(help="Constraint: a phrase no output may contain; repeatable."),
]
Nbest = Annotated[int, typer.Option(help="Size of the n-best list of each source.")]
CoveragePenalty = Annotated[
    float | None,
    typer.Option(help="Coverage penalty for source tokens without attention; 0: off."),
]
Groups = Annotated[
    int, typer.Option(help="Diverse beam search: number of groups; 1: plain beam search.")
]
Diversity = Annotated[
    float, typer.Option(help="Diverse beam search: penalty for tokens of earlier groups.")
]
Mbr = Annotated[
    str | None,
    typer.Option(help="Minimum Bayes risk decoding with samples; utility: chrf or bleu."),
]
Samples = Annotated[int, typer.Option(help="Number of samples for --mbr.")]
NoRepeatNgram = Annotated[int | None, typer.Option(help="Repeat no n-gram of this size; 0: off.")]
MinLength = Annotated[int, typer.Option(help="Minimum length of an output, in tokens.")]
MaxLength = Annotated[
    int | None,
    typer.Option(help="Maximum length of an output, in tokens. Default: as in the recipe."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Vocabulary constraint: use only tokens of this text; repeatable."),
]
Unknown = Annotated[
    bool, typer.Option("--unknown/--no-unknown", help="Whether outputs may contain <unk>.")
]
Geometric = Annotated[
    bool,
    typer.Option(
        "--geometric",
        help="Average the log-probabilities of an ensemble, not the probabilities.",
    ),
]
Rerank = Annotated[
    Path | None,
    typer.Option(
        metavar="MODEL",
        help="Rerank the n-best list with this second model.",
        parser=model_folder,
    ),
]
RerankWeight = Annotated[float, typer.Option(help="Weight of the --rerank model.")]
LanguageModel = Annotated[
    Path | None,
    typer.Option(
        metavar="MODEL", help="Shallow fusion with this language model.", parser=model_folder
    ),
]
LmWeight = Annotated[float, typer.Option(help="Weight of the language model (shallow fusion).")]
CtcWeight = Annotated[
    float | None,
    typer.Option(help="Speech: weight of CTC in search, 0 to 1. Default: as in the recipe."),
]
ChunkMs = Annotated[
    float | None,
    typer.Option(
        help="Speech models with model.encoder.chunk: read audio in chunks of so many "
        "milliseconds; live, shorter ones appear sooner. Default: whole recordings; live, as in "
        "the recipe."
    ),
]
Language = Annotated[
    str | None,
    typer.Option(help="Whisper: language of the recordings, such as en. Default: detected."),
]
SpeechTask = Annotated[
    str | None, typer.Option("--task", help="Whisper: transcribe, or translate to English.")
]
Timestamps = Annotated[
    bool | None,
    typer.Option(
        "--timestamps/--no-timestamps",
        help="Whisper: predict timestamps, which say where windows of long recordings end. "
        "Default: as in the recipe.",
    ),
]
Prompt = Annotated[
    str, typer.Option(help="Whisper: text that goes before, such as names to spell.")
]
PreviousText = Annotated[
    bool, typer.Option("--previous-text", help="Whisper: each window of 30 s sees the text before.")
]
Fallback = Annotated[
    bool,
    typer.Option(
        "--fallback", help="Whisper: sample again where an output is unlikely or repeats itself."
    ),
]

USUAL: dict[str, Any] = {
    "chunk_ms": None,
    "beam": None,
    "nbest": 1,
    "length_penalty": None,
    "coverage_penalty": None,
    "groups": 1,
    "diversity": 0.5,
    "sample": False,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "seed": 1,
    "mbr": None,
    "samples": 32,
    "no_repeat_ngram": None,
    "min_length": 0,
    "max_length": None,
    "only": None,
    "unknown": True,
    "ensemble": [],
    "geometric": False,
    "rerank": None,
    "rerank_weight": 1.0,
    "language_model": None,
    "lm_weight": 0.3,
    "ctc_weight": None,
    "language": None,
    "task": None,
    "timestamps": None,
    "prompt": "",
    "previous_text": False,
    "fallback": False,
}
"""The default of each decoding setting."""


# Settings of a search that `run` and `batch` pass on as they are typed.
SEARCH_SETTINGS = (
    *("beam", "nbest", "length_penalty", "coverage_penalty", "groups", "diversity"),
    *("sample", "temperature", "top_k", "top_p", "seed", "mbr", "samples"),
    *("no_repeat_ngram", "min_length", "max_length", "only", "unknown"),
    *("geometric", "rerank_weight", "lm_weight", "ctc_weight"),
)


# Those of `evaluate`, which reads one output for each source.
EVALUATION_SETTINGS = tuple(
    name for name in SEARCH_SETTINGS if name not in ("nbest", "groups", "diversity")
)


def chosen(names: Sequence[str], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Those options of a command that have these names; asked: all, as its own `locals()`."""
    return {name: asked[name] for name in names}


def given_settings(**values: Any) -> dict[str, Any]:
    """Only settings that differ from their default: models of other tasks have other settings."""
    return {name: value for name, value in values.items() if value != USUAL[name]}


def count_processes(asked: int, many: bool) -> int:
    """The number of worker processes on a CPU.

    With several, each has one OpenMP thread, which must be set before torch is loaded.
    """
    count = asked or (count_cores() if many else 1)
    if count > 1:
        os.environ["OMP_NUM_THREADS"] = "1"
    return count
