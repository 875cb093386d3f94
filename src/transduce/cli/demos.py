"""Demos: a real model, trained in minutes, evaluated, and its attention plotted.

Of words: grapheme-to-phoneme conversion. Of speech: synthesized, and a recognizer that transcribes
voices that it has not heard.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress
from rich.table import Table

from transduce.cores import count_cores
from transduce.corpora.speech import ANNOUNCEMENT_COUNTS
from transduce.data.audio.read import parse_place
from transduce.data.text.pairs import read_pairs
from transduce.errors import ModelError
from transduce.evaluation.evaluate import evaluate
from transduce.evaluation.items import Item, items_of
from transduce.evaluation.results import Evaluation, write_evaluation
from transduce.inspection.figures import attention_grid, training_curve
from transduce.inspection.model_card import write_card
from transduce.inspection.speech_figure import draw_speech_attention
from transduce.recipe import Recipe, load_recipe
from transduce.synthesis.announcements import make_announcements
from transduce.synthesis.voices import HELD_OUT, KNOWN
from transduce.tasks.folder import holds_run
from transduce.tasks.speech import SpeechModel
from transduce.tasks.transduce import Model
from transduce.terminal import console as make_console
from transduce.training import train
from transduce.training.log import read_log
from transduce.training.loop import Trained
from transduce.training.run_directory.checkpoint import has_state

# In no dictionary: made for films, books and this demo.
NEW_WORDS = ["gryffindor", "westeros", "transduceful", "zorblax", "quibbleberry", "unbluetoothable"]
# Letters and phones differ in number: silent letters, one phone for two letters, two for one.
PICTURED = ["phoenix", "knight", "queue", "shower", "tomatoes", "extra"]


def pronounce(folder: Path, seed: int, overrides: Sequence[str] = ()) -> None:
    """Train, evaluate, plot; the model and its figures are in `folder`."""
    console = make_console(highlight=False, soft_wrap=True)
    recipe = load_recipe("pronounce", [f"seed={seed}", *overrides])
    console.print(
        "Training a network with attention to pronounce English: letters in, phones out.\n"
        f"It starts from scratch and trains for at most {recipe.train.minutes:g} minutes.\n"
    )
    trained = train_anew(recipe, folder)
    if trained.interrupted:
        console.print(f"\nStopped; resume with: transduce demo --output {folder} --seed {seed}")
        return
    model = trained.model
    evaluation = _evaluated(
        console,
        model,
        folder,
        lambda items: f"Pronouncing the {len(items):,} words of the test set, unseen in training",
        "PER: phone error rate; exact: % of correct words; 95 % intervals",
    )
    table = _table("word", "pronounced", "dictionary", "")
    for item, text in _spread(evaluation, 10):
        right = text in item.references
        truth = text if right else item.references[0]
        table.add_row(item.source, text, truth, "right" if right else "wrong")
    console.print(table)
    console.print("\nWords that are in no dictionary:")
    for word, output in zip(NEW_WORDS, model.run(NEW_WORDS), strict=True):
        console.print(f"  {word:16} {output.text}")
    panels = []
    for output in model.run(PICTURED, attention=True):
        assert output.attention is not None
        weights_TS = output.attention[-1].mean(axis=0)  # the last layer, its heads averaged
        panels.append((weights_TS, output.source_tokens, output.tokens, ""))
    attention_grid(panels, folder / "attention.png")
    training_curve(read_log(folder / "log.jsonl"), folder / "training.png")
    console.print(
        f"\nFigures: {folder}/attention.png (the letters attended to for each phone) and "
        f"{folder}/training.png\n\nTry next:\n"
        f"  transduce run {folder} your-name --nbest 3 --scores\n"
        f"  transduce train pronounce model.preset=transformer-tiny --output runs/transformer\n"
        f"  transduce recipes pronounce > my.yaml     # start a recipe of your own"
    )


SHOWN = 8


def listen(folder: Path, seed: int, overrides: tuple[str, ...] = ()) -> None:
    """Synthesize, train, evaluate, plot; the model and its figures are in `folder`."""
    console = make_console(highlight=False, soft_wrap=True)
    recipe = load_recipe("announcements", [f"seed={seed}", *overrides])
    console.print(
        f"Synthesizing speech: {sum(ANNOUNCEMENT_COUNTS.values()):,} announcements of a railway "
        f"station by {len(KNOWN) + len(HELD_OUT)} voices of espeak, with room acoustics and noise."
    )
    _speak(console)
    console.print(
        "Training a speech recognizer that outputs letters, with CTC and attention.\n"
        f"It starts from scratch and trains for at most {recipe.train.minutes:g} minutes.\n"
    )
    trained = train_anew(recipe, folder)
    if trained.interrupted:
        console.print(f"\nStopped; resume with: transduce demo speech --output {folder}")
        return
    model = trained.model
    assert isinstance(model, SpeechModel)
    evaluation = _evaluated(
        console,
        model,
        folder,
        lambda items: (
            f"Transcribing {len(items):,} unseen announcements by {len(HELD_OUT)} unseen voices"
        ),
        "character and word error rate in %; 95 % confidence intervals",
    )
    table = _table("voice", "reference", "prediction")
    for item, text in _spread(evaluation, SHOWN):
        reference = item.references[0]
        table.add_row(_voice(item.source), reference, "the same" if text == reference else text)
    console.print(table)
    pictured = _pictured(evaluation)
    draw_speech_attention(model, pictured, folder / "attention.png", _title(evaluation, pictured))
    training_curve(read_log(folder / "log.jsonl"), folder / "training.png")
    console.print(
        f"\nFigures: {folder}/attention.png (where in the audio it attends for each letter) and "
        f"{folder}/training.png\n\nTry next:\n"
        f"  transduce run {folder} {pictured} --format json\n"
        f"  transduce train announcements model.encoder.positions=rotary --output runs/rotary\n"
        f"  transduce recipes announcements > my.yaml     # start a recipe of your own"
    )


def _speak(console: Console) -> None:
    bar = Progress(
        "  readings",
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not sys.stdout.isatty(),
    )
    task = bar.add_task("", total=None)
    with bar:
        place, new = make_announcements(
            count_cores(), lambda done, total: bar.update(task, completed=done, total=total)
        )
    console.print(f"  They are in {place}{'' if new else ', made earlier'}.\n")


def _voice(source: str) -> str:
    return parse_place(source)[0].parent.name


def _pictured(evaluation: Evaluation) -> str:
    """The longest announcement that was transcribed correctly; else the first of all.

    Only those without repeated words: attention may go to either of two equal words.
    """
    pairs = list(zip(evaluation.items, evaluation.outputs, strict=True))
    right = [item for item, output in pairs if output.text == item.references[0]]
    right = [item for item in right if _all_differ(item.references[0].split())]
    best = max(right, key=lambda item: len(item.references[0]), default=evaluation.items[0])
    return best.source


def _all_differ(words: list[str]) -> bool:
    return len(set(words)) == len(words)


def _title(evaluation: Evaluation, source: str) -> str:
    (text,) = (item.references[0] for item in evaluation.items if item.source == source)
    return f"“{text}”, by {_voice(source)}, a voice that is not in the training set"


def train_anew(recipe: Recipe, folder: Path) -> Trained:
    """Resume the same demo where it was stopped before its evaluation; else start over."""
    written = folder / "recipe.yaml"
    if written.exists():
        name = load_recipe(written).name
        if name != recipe.name:
            raise ModelError(
                f"{folder} holds a run of another recipe, {name}, which the demo would overwrite; "
                "give it another --output"
            )
    resume = has_state(folder) and not (folder / "metrics.json").exists()
    # Only a run may be overwritten: the demo was not asked to replace anything else.
    return train(recipe, folder, resume=resume, overwrite=not resume and holds_run(folder))


def _evaluated(
    console: Console, model: Model, folder: Path, what: Callable[[list[Item]], str], units: str
) -> Evaluation:
    """The model on its test set: its scores are printed, and kept in the folder with its card."""
    recipe = model.recipe
    assert recipe.data.test is not None
    pairs = list(read_pairs(recipe.data.test, recipe.data.folder))
    items = items_of(pairs, recipe.data.multiple_references)
    console.print(f"\n{what(items)} ...")
    evaluation = evaluate(model, items, recipe.metrics)
    write_evaluation(folder, "test", evaluation)
    if notice := write_card(model, folder):
        console.print(notice, markup=False)
    for metric in evaluation.metrics.values():
        console.print(f"  {metric}", style="bold")
    console.print(f"  ({units})\n")
    return evaluation


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column)
    return table


def _spread(evaluation: Evaluation, shown: int) -> list[tuple[Item, str]]:
    """Items spread evenly over the test set, correct or not, and the texts of their outputs."""
    pairs = list(zip(evaluation.items, evaluation.outputs, strict=True))
    some = pairs[:: max(len(pairs) // shown, 1)][:shown]
    return [(item, output.text) for item, output in some]
