"""The word demo: grapheme-to-phoneme conversion, trained, evaluated, its attention plotted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from transduce.cli.demo.train import train_anew
from transduce.data.text.pairs import read_pairs
from transduce.evaluation.evaluate import evaluate
from transduce.evaluation.items import items_of
from transduce.evaluation.results import Evaluation, write_evaluation
from transduce.inspection.figures import attention_grid, training_curve
from transduce.inspection.model_card import write_card
from transduce.recipe import load_recipe
from transduce.tasks.transduce import Model
from transduce.terminal import console as make_console
from transduce.training.log import read_log

# In no dictionary: made for films, books and this demo.
NEW_WORDS = ["gryffindor", "westeros", "transduceful", "zorblax", "quibbleberry", "unbluetoothable"]
# Letters and phones differ in number: silent letters, one phone for two letters, two for one.
PICTURED = ["phoenix", "knight", "queue", "shower", "tomatoes", "extra"]


def pronounce(folder: Path, seed: int, overrides: Sequence[str] = ()) -> None:
    """Train, evaluate, plot; the model and its figures are in `folder`."""
    console = make_console(highlight=False, soft_wrap=True)
    recipe = load_recipe("pronounce", [f"seed={seed}", *overrides])
    minutes = recipe.train.minutes
    console.print(
        "Training a network with attention to pronounce English: letters in, phones out.\n"
        f"It starts from scratch and trains for at most {minutes:g} minutes.\n"
    )
    trained = train_anew(recipe, folder)
    if trained.interrupted:
        console.print(f"\nStopped; resume with: transduce demo --output {folder} --seed {seed}")
        return
    model = trained.model
    assert recipe.data.test is not None
    pairs = list(read_pairs(recipe.data.test, recipe.data.folder))
    items = items_of(pairs, recipe.data.multiple_references)
    console.print(f"\nPronouncing the {len(items):,} words of the test set, unseen in training ...")
    evaluation = evaluate(model, items, recipe.metrics)
    write_evaluation(folder, "test", evaluation)
    if notice := write_card(model, folder):
        console.print(notice, markup=False)
    for metric in evaluation.metrics.values():
        console.print(f"  {metric}", style="bold")
    console.print("  (PER: phone error rate; exact: % of correct words; 95 % intervals)\n")
    console.print(_examples(evaluation))
    console.print("\nWords that are in no dictionary:")
    for word, output in zip(NEW_WORDS, model.run(NEW_WORDS), strict=True):
        console.print(f"  {word:16} {output.text}")
    _draw(model, folder)
    console.print(
        f"\nFigures: {folder}/attention.png (the letters attended to for each phone) and "
        f"{folder}/training.png\n\nTry next:\n"
        f"  transduce run {folder} your-name --nbest 3 --scores\n"
        f"  transduce train pronounce model.preset=transformer-tiny --output runs/transformer\n"
        f"  transduce recipes pronounce > my.yaml     # start a recipe of your own"
    )


def _examples(evaluation: Evaluation) -> Table:
    """Ten words spread evenly over the test set, correct or not."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("word", "pronounced", "dictionary", ""):
        table.add_column(column)
    count = len(evaluation.items)
    for index in list(range(0, count, max(count // 10, 1)))[:10]:
        item, output = evaluation.items[index], evaluation.outputs[index]
        right = output.text in item.references
        truth = output.text if right else item.references[0]
        table.add_row(item.source, output.text, truth, "right" if right else "wrong")
    return table


def _draw(model: Model, folder: Path) -> None:
    panels = []
    for output in model.run(PICTURED, attention=True):
        assert output.attention is not None
        weights_TS = output.attention[-1].mean(axis=0)  # the last layer, its heads averaged
        panels.append((weights_TS, output.source_tokens, output.tokens, ""))
    attention_grid(panels, folder / "attention.png")
    training_curve(read_log(folder / "log.jsonl"), folder / "training.png")
