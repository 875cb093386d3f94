"""The speech demo: synthesize speech, train a recognizer, transcribe unseen voices."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress
from rich.table import Table

from transduce.cli.demo.train import train_anew
from transduce.cores import count_cores
from transduce.corpora.speech import ANNOUNCEMENT_COUNTS
from transduce.data.audio.read import parse_place
from transduce.data.text.pairs import read_pairs
from transduce.evaluation.evaluate import evaluate
from transduce.evaluation.items import items_of
from transduce.evaluation.results import Evaluation, write_evaluation
from transduce.inspection.figures import training_curve
from transduce.inspection.model_card import write_card
from transduce.inspection.speech_figure import draw_speech_attention
from transduce.recipe import load_recipe
from transduce.synthesis.announcements import make_announcements
from transduce.synthesis.voices import HELD_OUT, KNOWN
from transduce.tasks.speech import SpeechModel
from transduce.terminal import console as make_console
from transduce.training.log import read_log

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
    assert recipe.data.test is not None
    items = items_of(list(read_pairs(recipe.data.test, recipe.data.folder)), False)
    console.print(
        f"\nTranscribing {len(items):,} unseen announcements by {len(HELD_OUT)} unseen voices ..."
    )
    evaluation = evaluate(model, items, recipe.metrics)
    write_evaluation(folder, "test", evaluation)
    if notice := write_card(model, folder):
        console.print(notice, markup=False)
    for metric in evaluation.metrics.values():
        console.print(f"  {metric}", style="bold")
    console.print("  (character and word error rate in %; 95 % confidence intervals)\n")
    console.print(_examples(evaluation))
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


def _examples(evaluation: Evaluation) -> Table:
    """Announcements spread evenly over the test set, correct or not."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("voice", "reference", "prediction"):
        table.add_column(column)
    count = len(evaluation.items)
    for index in list(range(0, count, max(count // SHOWN, 1)))[:SHOWN]:
        item, output = evaluation.items[index], evaluation.outputs[index]
        reference = item.references[0]
        prediction = "the same" if output.text == reference else output.text
        table.add_row(_voice(item.source), reference, prediction)
    return table


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
