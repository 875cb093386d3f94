"""What a head is worth, and models without some: pruned means the same as switched off."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from language import language_model
from tiny_models import SOURCES, TARGETS, tiny
from tiny_sounds import audio_model, noise
from transduce import recipe
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError, TransduceError
from transduce.evaluation.bootstrap import Difference
from transduce.evaluation.items import Item
from transduce.inspection import figures
from transduce.inspection.ablation.measure import (
    Head,
    HeadImportance,
    Removal,
    Trial,
    heads_of,
    loss_rows,
    measure_heads,
    prune_greedily,
    pruned,
    save_pruned,
)
from transduce.inspection.ablation.show import (
    Ablation,
    ablation_page,
    draw_ablation,
    write_ablation,
)
from transduce.interop.ctranslate2 import check
from transduce.models.lens import Gates
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.recipe import Recipe
from transduce.tasks.transduce import Model, Transducer, create, load

if TYPE_CHECKING:
    from matplotlib.figure import Figure

pytestmark = pytest.mark.filterwarnings("ignore:gates are set")
FULL = [place for place, source in enumerate(SOURCES) if source and TARGETS[place]]
ITEMS = [Item(SOURCES[place], [TARGETS[place]]) for place in FULL]


def without(model: Model, heads: list[Head]) -> None:
    """The columns of the output projection that belong to heads set to zero: for good."""
    for head in heads:
        part = model.network.get_submodule(head.part)
        assert isinstance(part, MultiHeadAttention)
        width = part.head_width
        with torch.no_grad():
            part.out_projection.weight[:, head.head * width : (head.head + 1) * width] = 0.0


def nll(model: Model) -> float:
    scores = model.score([i.source for i in ITEMS], [i.references[0] for i in ITEMS])
    total = sum(score.log_probability for score in scores)
    return -total / sum(len(score.tokens) for score in scores)


def test_all_heads_by_kind() -> None:
    found = heads_of(tiny())
    assert len(found) == 2 * 2 * 3
    assert {head.kind for head in found} == {"encoder self", "decoder self", "cross"}
    assert {head.kind for head in heads_of(language_model())} == {"decoder self"}
    with pytest.raises(ModelError, match="nothing to ablate"):
        heads_of(tiny({"kind": "recurrent"}, {"kind": "recurrent"}))


def test_the_change_is_that_of_a_model_without_the_head() -> None:
    whole = nll(tiny())
    value, importances = measure_heads(Trial(tiny(), ITEMS, "loss"), resamples=50)
    assert value == pytest.approx(whole, abs=1e-5)
    for importance in importances:
        model = tiny()
        without(model, [importance.head])
        assert importance.change.value == pytest.approx(nll(model) - whole, abs=1e-5)
        assert importance.change.low is not None
    assert len({round(importance.change.value, 6) for importance in importances}) > 6


def test_a_head_that_gives_nothing_is_worth_nothing_and_goes_first() -> None:
    model = tiny()
    idle = heads_of(model)[5]
    without(model, [idle])
    for metric in ("loss", "cer"):
        trial = Trial(model, ITEMS, metric, beam=1)
        _, importances = measure_heads(trial, resamples=20)
        importance = next(one for one in importances if one.head == idle)
        assert importance.change.value == pytest.approx(0.0, abs=1e-6)
    # All others made to hurt: what was measured last says whom to try.
    reported = [
        HeadImportance(one.head, Difference(0.0 if one.head == idle else 9.0, None, None, None))
        for one in importances
    ]
    trial = Trial(model, ITEMS, "loss")
    first = prune_greedily(trial, reported, keep=len(trial.heads) - 1, candidates=1, resamples=10)
    assert [step.head for step in first] == [idle]


def test_pruning_takes_the_best_of_all_and_leaves_each_attention_a_head() -> None:
    trial = Trial(tiny(), ITEMS, "loss")
    value, importances = measure_heads(trial, resamples=10)
    removals = prune_greedily(trial, importances, keep=6, candidates=0, resamples=10)
    assert [step.kept for step in removals] == [11, 10, 9, 8, 7, 6]
    assert removals[0].change.value == pytest.approx(min(one.change.value for one in importances))
    gone = [step.head for step in removals]
    assert len({head.part for head in gone}) == 6
    # The change of the last step is that of all heads that are gone.
    model = tiny()
    without(model, gone)
    assert removals[-1].change.value == pytest.approx(nll(model) - value, abs=1e-5)
    assert prune_greedily(trial, importances, keep=1, candidates=1, resamples=2)[-1].kept == 6


def test_how_many_can_go() -> None:
    head = Head("x", "cross", 0, 0)
    steps = [
        Removal(head, 9 - place, Difference(value, None, None, None))
        for place, value in enumerate([-0.05, -0.3, -0.2, -0.6, -2.0])
    ]
    points = Ablation("m", "bleu", 30.0, "c", 5, [], steps)  # BLEU: lower is worse
    assert points.affordable == {0.1: 1, 0.5: 3, 1.0: 4}
    errors = Ablation("m", "wer", 30.0, "c", 5, [], steps)
    assert errors.affordable == {0.1: 5, 0.5: 5, 1.0: 5}


SHAPES: list[dict[str, Any]] = [
    {},
    {"positions": "rotary"},
    {"norm_position": "post", "norm": "rms", "activation": "swiglu"},
]


def reported(model: Model, **settings: Any) -> tuple[list[str], list[float]]:
    outputs = model.run([item.source for item in ITEMS], **settings)
    return [one.text for one in outputs], [one.score for one in outputs]


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "rotary", "post"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_pruned_means_switched_off(shape: dict[str, Any], precision: str, tmp_path: Path) -> None:
    model = tiny(shape, shape, banned=True)
    heads = heads_of(model)
    off = [heads[0], heads[3], heads[4], heads[7], heads[10]]
    smaller = pruned(model, off)
    assert isinstance(smaller, Transducer)
    smaller.save(tmp_path)
    smaller.network.eval()
    again = load(tmp_path)
    if precision == "bfloat16":
        with Gates(model.network) as gates:
            for head in off:
                gates.gate(head.part, head=head.head)
            wanted = nll(model)
        assert nll(again) == pytest.approx(wanted, abs=1e-5)
        again.compute_in("bfloat16").run([item.source for item in ITEMS])
        return
    for settings in ({"beam": 1}, {"beam": 3}):
        with Gates(model.network) as gates:
            for head in off:
                gates.gate(head.part, head=head.head)
            texts, scores = reported(model, **settings)
        # The gates are on the network's own modules; the saved model takes its steps in C.
        assert reported(again, **settings) == (texts, pytest.approx(scores, abs=2e-4))
    one, other = model.network, again.network
    count = sum(p.numel() for p in one.parameters()) - sum(p.numel() for p in other.parameters())
    assert count == 5 * (4 * 8 * 16 + 3 * 8)  # of each head: 3 times 8 rows and biases, 8 columns
    assert again.recipe.model.encoder is not None
    with pytest.raises(TransduceError, match="were pruned"):
        check(again.recipe.model)


def test_pruned_int8_still_answers() -> None:
    model = tiny(banned=True)
    smaller = pruned(model, heads_of(model)[:1])
    texts = [one.text for one in smaller.compute_in("int8").run([item.source for item in ITEMS])]
    plain = [one.text for one in smaller.compute_in("float32").run([i.source for i in ITEMS])]
    assert sum(a == b for a, b in zip(texts, plain, strict=True)) >= len(plain) - 2


def test_language_models_are_pruned_too() -> None:
    model = language_model(decoder={"layers": 2, "heads": 2, "feed_forward": 16})
    off = heads_of(model)[1:2]
    smaller = pruned(model, off)
    smaller.network.double()
    texts = ["a cup of tea", "tea"]
    with Gates(model.network) as gates:
        gates.gate(off[0].part, head=off[0].head)
        wanted = [score.log_probability for score in model.score(texts)]
    assert [s.log_probability for s in smaller.score(texts)] == pytest.approx(wanted)


@pytest.mark.parametrize("encoder", ["relative", "conformer"])
def test_conformers_are_pruned_too(encoder: str) -> None:
    model = audio_model(encoder=encoder)
    off = [head for head in heads_of(model) if head.kind == "encoder self"][:1]
    smaller = pruned(model, off)
    smaller.network.eval()
    sounds = [noise(1.0), noise(0.7, seed=2)]
    with Gates(model.network) as gates:
        gates.gate(off[0].part, head=off[0].head)
        wanted = [s.log_probability for s in model.score(sounds, ["ab", "c"], rate=4000)]
    found = [s.log_probability for s in smaller.score(sounds, ["ab", "c"], rate=4000)]
    assert found == pytest.approx(wanted, abs=1e-4)


def test_an_attention_without_heads_is_refused() -> None:
    model = tiny()
    heads = heads_of(model)
    with pytest.raises(ModelError, match=r"encoder\.blocks\.0\.self_attention would have no head"):
        pruned(model, [head for head in heads if head.part == heads[0].part])


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_the_loss_of_labels(task: str) -> None:
    settings = Recipe.model_validate(
        {
            "task": task,
            "data": {
                "train": {"file": "train.tsv"},
                "valid": {"file": "valid.tsv"},
                "tokens": {"source": {"level": "symbol"}},
            },
            "model": {
                "width": 16,
                "encoder": {"kind": "transformer", "layers": 1, "heads": 2, "feed_forward": 16},
            },
        }
    )
    level = "label" if task == "classify" else "symbol"
    source = Tokens.train(recipe.Tokens(level="symbol"), ["a b c d"])
    target = Tokens.train(recipe.Tokens(level=level), ["X", "Y", "Z"])
    torch.manual_seed(2)
    model = create(settings, source, target)
    model.network.eval()
    items = [Item("a b c", ["X" if task == "classify" else "X Y Z"]), Item("d", ["Y"])]
    rows = loss_rows(model, items)
    assert rows[:, 1].tolist() == ([1, 1] if task == "classify" else [3, 1])
    (output,) = model.run(["d"])
    if output.tokens == ["Y"] or output.text == "Y":
        assert rows[1, 0] == pytest.approx(-math.log(output.probabilities[0]), abs=1e-5)
    # All labels of the last item together have the probability 1.
    each = [loss_rows(model, [Item("d", [label])])[0, 0] for label in ("X", "Y", "Z")]
    assert np.exp(-np.array(each)).sum() == pytest.approx(1.0, abs=1e-5)
    assert len(measure_heads(Trial(model, items, "accuracy"), resamples=5)[1]) == 2


def test_a_saved_model_is_measured_and_a_full_folder_left_alone(tmp_path: Path) -> None:
    model = tiny()
    model.save(tmp_path / "whole")
    off = heads_of(model)[:2:2]
    sources = [item.source for item in ITEMS]
    found = save_pruned(model, tmp_path / "whole", off, sources, tmp_path / "small")
    assert found.parameters[0] - found.parameters[1] == 4 * 8 * 16 + 3 * 8
    assert found.bytes[1] < found.bytes[0]
    kept = json.loads((tmp_path / "small" / "metrics.json").read_text())["pruning"]
    assert kept["removed"] == [["encoder.blocks.0.self_attention", 0]]
    assert (tmp_path / "small" / "README.md").is_file()
    with pytest.raises(ModelError, match="is not empty"):
        save_pruned(model, tmp_path / "whole", off, sources, tmp_path / "small")


def test_the_page_and_pictures(tmp_path: Path) -> None:
    trial = Trial(tiny(), ITEMS, "loss")
    value, importances = measure_heads(trial, resamples=10)
    removals = prune_greedily(trial, importances, keep=10, resamples=10)
    found = Ablation("<i>m</i>", "loss", value, "c & d", len(ITEMS), importances, removals)
    page = ablation_page(found)
    assert "<i>m" not in page
    assert "<script" not in page
    assert page.count("<svg") == 4
    shown = found._repr_html_()
    assert shown.startswith('<iframe sandbox=""')
    assert "<i>" not in shown
    for name in ("a.html", "a.json", "a.png", "a.svg"):
        write_ablation(found, tmp_path / "new" / name)
        assert (tmp_path / "new" / name).stat().st_size > 1000
    values = json.loads((tmp_path / "new" / "a.json").read_text())
    assert len(values["heads"]) == 12
    assert values["pruning"][1]["kept"] == 10


def test_nothing_of_the_picture_lies_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    value, importances = measure_heads(Trial(tiny(), ITEMS, "loss"), resamples=10)
    draw_ablation(
        Ablation("m", "loss", value, "c", len(ITEMS), importances, []), tmp_path / "a.png"
    )
    places = [axes.get_position() for axes in drawn[0].axes]
    assert len(places) == 4  # three kinds of attention, and the colours
    assert all(0 <= place.x0 < place.x1 <= 1 for place in places)
    assert all(0 <= place.y0 < place.y1 <= 1 for place in places)
