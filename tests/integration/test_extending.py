"""Parts of one's own: docs/guides/extending.md as it is; each kind of part, trained and used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import forked
from command_line import Ended, sentence
from docs_blocks import ROOT, blocks_of
from forked import Forked
from slow_params import some_slow
from transduce import load, register, train
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import PluginError
from transduce.models import Transformer
from transduce.recipe import Train, load_recipe, parse_recipe
from transduce.registry import load_plugin, not_loaded
from transduce.training.update import Update

PAGE = ROOT / "docs" / "guides" / "extending.md"
BLOCKS = list(blocks_of(PAGE))
PLUGINS = {
    block.text.split("\n")[0].removeprefix("# "): block.text
    for block in BLOCKS
    if block.kind == "python"
}
RECIPES = [block.text for block in BLOCKS if block.kind == "yaml"]
SHORT = [
    "model.width=32",
    "train.steps=15",
    "train.lr=0.01",
    "train.warmup=5",
    "train.batch_tokens=256",
    "train.device=cpu",
    "validation.every=15",
    "decode.beam=2",
    "data.test={file: valid.tsv}",
]


def write_files(folder: Path) -> None:
    """Those that the page's recipes name: letters, to be written in capitals."""
    words = ["".join("abcd"[(n >> 2 * i) & 3] for i in range(2 + n % 4)) for n in range(64)]
    rows = [f"{word}\t{word.upper()}" for word in words]
    (folder / "train.tsv").write_text("\n".join(rows) + "\n")
    (folder / "valid.tsv").write_text("\n".join(rows[:8]) + "\n")
    for name, text in PLUGINS.items():
        (folder / name).write_text(text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRANSDUCE_PLUGINS", raising=False)
    yield tmp_path
    for registry in register.registries:
        for name in list(registry):
            registry.remove(name)


def transduce(*words: str) -> Ended:
    """In a process of its own, which knows no plugin yet."""
    command = [sys.executable, "-m", "transduce", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Forked(command, env={**os.environ, "NO_COLOR": "1"}, **pipes) as process:  # type: ignore[var-annotated]
        out, err = process.communicate()
    return Ended(process.returncode, out, err)


def test_the_page_has_three_examples() -> None:
    assert list(PLUGINS) == ["my_metrics.py", "bilinear_tanh.py", "state_space.py"]
    lines = {name: sum(map(bool, text.splitlines())) for name, text in PLUGINS.items()}
    assert lines["my_metrics.py"] <= 5
    assert lines["bilinear_tanh.py"] <= 12
    assert lines["state_space.py"] <= 60


@pytest.mark.parametrize("number", some_slow(range(3), [0, 1]), ids=list(PLUGINS))
def test_the_examples_of_extending_train_and_are_used(folder: Path, number: int) -> None:
    (folder / "my.yaml").write_text(RECIPES[number])
    plugin = list(PLUGINS)[number]
    small = ["model.preset=transformer-tiny"] if number == 0 else []
    ended = transduce("train", "my.yaml", *SHORT, *small)
    assert ended.status == 0, ended.err
    if number == 0:
        assert "first_letter" in ended.err
    # The model cannot be had without its plugin, which is not run unasked.
    assert f"--plugin {plugin}" in sentence(transduce("run", "runs/model", "abba"))
    ended = transduce("--plugin", plugin, "run", "runs/model", "abba")
    assert ended.status == 0, ended.err
    assert ended.out.strip()
    ended = transduce("--plugin", plugin, "evaluate", "runs/model")
    assert ended.status == 0, ended.err
    assert ("first_letter" in ended.out) == (number == 0)


@pytest.fixture(scope="module")
def state_space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose encoder is a plugin; to be copied by whoever writes into its folder."""
    forked.load("torch._dynamo")  # torch's, for the sizes of a part that it does not know
    folder = tmp_path_factory.mktemp("state-space")
    write_files(folder)
    (folder / "my.yaml").write_text(RECIPES[2])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert transduce("train", "my.yaml", *SHORT, "train.steps=2").status == 0
    return folder / "runs" / "model"


def test_a_file_in_a_model_folder_is_never_run(state_space: Path, folder: Path) -> None:
    model = folder / "runs" / "model"
    shutil.copytree(state_space, model)
    trap = "open('trap.txt', 'w').write('sprung')\n" + PLUGINS["state_space.py"]
    (folder / "state_space.py").write_text(trap)
    (model / "state_space.py").write_text(trap)
    assert "never run by itself" in sentence(transduce("run", "runs/model", "ab"))
    assert not list(folder.rglob("trap.txt"))
    assert transduce("--plugin", "state_space.py", "run", "runs/model", "ab").status == 0
    assert (folder / "trap.txt").read_text() == "sprung"


def test_plugins_for_all_commands(
    state_space: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSDUCE_PLUGINS", str(folder / "state_space.py"))
    assert transduce("run", str(state_space), "ab").status == 0
    monkeypatch.setenv("TRANSDUCE_PLUGINS", str(folder / "missing.py"))
    assert "does not exist" in sentence(transduce("run", str(state_space), "ab"))


# --------------------------------------------------------------------------- the other parts

EVERYTHING = '''
import torch
from torch import nn
from transduce import register

@register.decoder("conv-causal")
class Causal(nn.Module):
    """Causal convolution, and the mean of the source."""
    def __init__(self, width: int, dropout: float, kernel: int = 3):
        super().__init__()
        self.kernel = kernel
        self.mix = nn.Conv1d(width, width, kernel)
        self.source = nn.Linear(width, width)
    def forward(self, x_BTD, states_BSD, real_BS):
        padded = nn.functional.pad(x_BTD.mT, (self.kernel - 1, 0))
        y_BTD = torch.relu(self.mix(padded).mT) + x_BTD
        if states_BSD is None:
            return y_BTD
        scores = (y_BTD @ self.source(states_BSD).mT).masked_fill(~real_BS[:, None], -1e9)
        return y_BTD + scores.softmax(-1) @ states_BSD

@register.decoder("conv-steps")
class Steps(Causal):
    """The same, one step at a time."""
    def start(self, states_BSD, real_BS):
        past = states_BSD.new_zeros(len(states_BSD), self.kernel - 1, states_BSD.shape[-1])
        return {"past": past, "source": (states_BSD, real_BS)}
    def step(self, x_BD, state):
        window = torch.cat([state["past"], x_BD[:, None]], 1)
        y_BD = torch.relu(self.mix(window.mT).squeeze(-1)) + x_BD
        states_BSD, real_BS = state["source"]
        scores = (y_BD[:, None] @ self.source(states_BSD).mT).masked_fill(~real_BS[:, None], -1e9)
        context = (scores.softmax(-1) @ states_BSD).squeeze(1)
        return y_BD + context, {"past": window[:, 1:], "source": state["source"]}

@register.positions("ramp")
class Ramp(nn.Module):
    def __init__(self, width: int, max_positions: int):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.01, 1, width))
    def forward(self, length: int, start: int = 0):
        return torch.sin(torch.arange(start, start + length)[:, None] * self.scale)

@register.tokenizer("pairs")
def pairs(text: str) -> list[str]:
    return [text[i : i + 2] for i in range(0, len(text), 2)]

@register.optimizer("sgd-momentum")
def sgd(groups, settings):
    return torch.optim.SGD(groups, lr=settings.lr, momentum=0.9)

@register.metric("distance", higher_is_better=False)
def distance(hypothesis, references):
    return min(abs(len(hypothesis) - len(reference)) for reference in references)
'''
ALL_OF_IT = """
name: all
plugins: [everything.py]
data:
  train: {file: train.tsv}
  valid: {file: valid.tsv}
  tokens:
    both: {level: pairs}
model:
  width: 32
  encoder: {layers: 1, heads: 2, feed_forward: 32, positions: ramp}
  decoder: {kind: conv-causal, kernel: 4}
metrics: [exact, distance]
train: {optimizer: sgd-momentum, lr: 0.05, steps: 10, warmup: 1, batch_tokens: 128, device: cpu}
validation: {every: 5, metric: distance}
"""


@pytest.fixture
def everything(folder: Path) -> Path:
    (folder / "everything.py").write_text(EVERYTHING)
    (folder / "all.yaml").write_text(ALL_OF_IT)
    return folder


def test_all_kinds_of_parts_in_one_recipe(everything: Path) -> None:
    trained = train("all.yaml", everything / "out")
    model = load(everything / "out")
    assert model.recipe.plugins == ["everything.py"]
    assert model.target_tokens.pieces(model.target_tokens.encode("ABBA")) == ["AB", "BA"]
    outputs = model.run(["ab", "abcd", "cc"], beam=3, nbest=2)
    for found in outputs:
        assert len(found.alternatives) == 2
    scores = model.score(["ab", "abcd", "cc"], [found.text for found in outputs])
    for found, given in zip(outputs, scores, strict=True):
        penalty = ((5 + len(given.tokens)) / 6) ** model.recipe.decode.length_penalty
        assert given.log_probability / penalty == pytest.approx(found.score, abs=1e-4)
    resumed = train("all.yaml", everything / "out", resume=True, overrides=["train.steps=12"])
    assert resumed.state.step == 12
    assert trained.state.step == 10


def test_pieces_with_white_space_come_back(everything: Path) -> None:
    settings = load_recipe("all.yaml").data.tokens.both
    assert settings is not None
    texts = ["a b\tc d", "ab  \n", "<s>x</s>"]
    tokens = Tokens.from_json(Tokens.train(settings, texts).to_json())
    assert tokens.pieces(tokens.encode("a b\t")) == ["a\u2420", "b\u2409"]
    for text in [*texts, ""]:
        assert tokens.decode(tokens.encode(text)) == text


def test_steps_of_ones_own_give_the_same_outputs(everything: Path) -> None:
    load_recipe("all.yaml")
    whole = train("all.yaml", everything / "whole").model
    other_kind = ["model.decoder.kind=conv-steps"]
    stepped = train("all.yaml", everything / "steps", overrides=other_kind).model
    stepped.network.load_state_dict(whole.network.state_dict())
    sources = ["ab", "abcdab", "cc", "d"]
    one, other = whole.run(sources, beam=3), stepped.run(sources, beam=3)
    assert [output.text for output in one] == [output.text for output in other]
    for a, b in zip(one, other, strict=True):
        assert a.score == pytest.approx(b.score, abs=1e-4)


def test_the_choices_of_a_recipe_and_its_errors_know_plugins(everything: Path) -> None:
    load_recipe("all.yaml")
    for wrong, reported in {
        "kind: conv-causal, kernle: 4": "did you mean model.decoder.kernel?",
        "kind: conv-casual": "did you mean conv-causal?",
        "kind: conv-causal, kernel: many": "model.decoder.kernel is many; it must be a whole",
    }.items():
        text = ALL_OF_IT.replace("kind: conv-causal, kernel: 4", wrong)
        with pytest.raises(Exception, match=r"all\.yaml") as error:
            parse_recipe(text, "all.yaml", everything, run_plugins=True)
        assert reported in str(error.value)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("import no_such_module", "failed in line 1: ModuleNotFoundError"),
        ("x = (", "SyntaxError"),
        ("\n\n1 / 0", "failed in line 3: ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit"),
        (
            "from transduce import register\n@register.metric('bleu')\ndef f(a, b): return 0.0",
            "the metric 'bleu' is built in",
        ),
        (
            "from transduce import register\n@register.encoder('x')\ndef f(width, odd: list): ...",
            "takes the argument odd",
        ),
        (
            "from transduce import register\n@register.metric('a b')\ndef f(a, b): return 0.0",
            "a name begins with a letter",
        ),
    ],
)
def test_a_plugin_that_fails_is_one_sentence(folder: Path, text: str, reported: str) -> None:
    (folder / "broken.py").write_text(text)
    before = [dict(one) for one in register.registries]
    (folder / "my.yaml").write_text("plugins: [broken.py]\n" + ALL_OF_IT.split("\n", 3)[3])
    with pytest.raises(PluginError, match=r"\w") as error:
        load_recipe("my.yaml")
    assert reported in str(error.value)
    assert "\n" not in str(error.value)
    assert [dict(one) for one in register.registries] == before


def test_a_part_with_wrong_shapes_says_so(folder: Path) -> None:
    class Narrow(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(width, width // 2)

        def forward(self, x_BSD: torch.Tensor, real_BS: torch.Tensor) -> torch.Tensor:
            return self.layer(x_BSD)

    register.encoder("narrow")(Narrow)
    try:
        recipe = RECIPES[2].replace("plugins: [state_space.py]", "")
        recipe = recipe.replace("state-space, layers: 2, state: 8", "narrow")
        (folder / "my.yaml").write_text(recipe)
        with pytest.raises(PluginError, match="the encoder narrow must give a tensor of the shape"):
            train("my.yaml", folder / "out", overrides=SHORT)
    finally:
        register.encoder.remove("narrow")


def test_entry_points_of_installed_packages(folder: Path) -> None:
    """A package is installed by files in a folder of the path."""
    (folder / "site" / "syllables").mkdir(parents=True)
    (folder / "site" / "syllables" / "__init__.py").write_text(
        PLUGINS["my_metrics.py"].replace("first_letter", "installed_metric")
    )
    about = folder / "site" / "syllables-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: syllables\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[transduce.plugins]\nsyllables = syllables\n")
    recipe = RECIPES[0].replace("plugins: [my_metrics.py]\n", "")
    (folder / "my.yaml").write_text(recipe.replace("first_letter", "installed_metric"))
    reported = sentence(transduce("train", "my.yaml", *SHORT))
    assert "installed_metric" in reported
    script = "from transduce.recipe import load_recipe; print(load_recipe('my.yaml').plugins)"
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "site"), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "['syllables']"


def test_a_name_belongs_to_one_plugin(folder: Path) -> None:
    metric = PLUGINS["my_metrics.py"]
    (folder / "other.py").write_text(metric)
    load_plugin(folder / "my_metrics.py")
    before = register.metric["first_letter"].part
    with pytest.raises(PluginError, match=r"twice, by my_metrics\.py and by other\.py"):
        load_plugin(folder / "other.py")
    assert register.metric["first_letter"].part is before
    assert not_loaded(["elsewhere/my_metrics.py", "other.py"]) == ["other.py"]


def test_an_optimizer_of_ones_own_is_not_stepped_with_bad_gradients() -> None:
    network = Transformer(9, 9, width=8, layers=1, heads=2, feed_forward=8)
    before = [weight.detach().clone() for weight in network.parameters()]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    update = Update(network, optimizer, Train(), torch.float32)
    for skipped in (1.0, 0.0):
        for weight in network.parameters():
            weight.grad = torch.ones_like(weight)
        update.skip.fill_(skipped)
        update.apply()
        same = [torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True)]
        assert all(same) if skipped else not any(same)
