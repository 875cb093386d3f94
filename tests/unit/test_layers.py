"""The layers of the package: no import upward, none in a circle; importing stays light."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import transduce

ROOT = Path(transduce.__file__).parent

# From the lowest layer up: a package may import those listed before it, and its own modules.
LAYERS = [
    ["errors", "decoding_settings"],
    ["registry", "garbage"],
    ["storage", "hardware", "memory", "cores", "terminal", "shared_library"],
    ["nn"],
    ["checksums", "recipe"],
    ["hub"],
    ["corpora"],
    ["data"],
    ["synthesis", "automatic"],
    ["models"],
    ["runtime"],
    ["decoding"],
    ["adapters"],
    ["tasks"],
    ["alignment"],
    ["evaluation"],
    ["interop", "inspection"],
    ["whisper", "web"],
    ["batch_inference", "serving", "training"],
    ["tuning"],
    ["lessons"],
    ["cli"],
    ["__main__"],
]
LAYER = {package: number for number, packages in enumerate(LAYERS) for package in packages}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports_of(path: Path, everywhere: bool = True) -> set[str]:
    """The modules of transduce that a file imports; without `everywhere`, at import time alone."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = list(ast.walk(tree)) if everywhere else tree.body
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names = {name for name in inner if name in MODULES}
            found |= names if names else {node.module}
    return {name for name in found if name.startswith("transduce.") and name != "transduce"}


FILES = sorted(ROOT.rglob("*.py"))
MODULES = {module_name(path) for path in FILES}


def package_of(module: str) -> str:
    return module.split(".")[1]


def package_of_path(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def test_every_package_has_a_layer() -> None:
    packages = {package_of(name) for name in MODULES if "." in name}
    assert packages <= set(LAYER), f"add {packages - set(LAYER)} to LAYERS"


def test_nothing_imports_upward() -> None:
    upward = []
    for path in FILES:
        own = module_name(path)
        if own == "transduce":  # the public names, each imported when it is first used
            continue
        for name in sorted(imports_of(path)):
            other, mine = package_of(name), package_of(own)
            if other != mine and LAYER[other] >= LAYER[mine]:
                upward.append(f"{own} must not import {name}")
    assert upward == []


def test_networks_are_made_of_plain_numbers() -> None:
    """Only models/build.py turns a recipe into networks; architectures.py gives it sections."""
    networks = [path for path in FILES if package_of_path(path) in ("models", "nn")]
    assert networks
    found = [
        f"{module_name(path)} must not import {name}; let models/build.py"
        for path in networks
        if not (path.parent.name == "models" and path.stem in ("build", "architectures"))
        for name in sorted(imports_of(path))
        if package_of(name) in ("recipe", "storage", "corpora")
    ]
    assert found == []


def test_every_package_says_what_it_is() -> None:
    for path in FILES:
        if path.name == "__init__.py":
            assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), f"{path}: no docstring"


def test_no_import_circle() -> None:
    graph = {module_name(path): imports_of(path) for path in FILES}
    state: dict[str, str] = {}

    def visit(name: str, trail: list[str]) -> None:
        if state.get(name) == "done":
            return
        assert state.get(name) != "open", f"import circle: {' -> '.join([*trail, name])}"
        state[name] = "open"
        for other in sorted(graph.get(name, ())):
            if other != name:
                visit(other, [*trail, name])
        state[name] = "done"

    for name in sorted(graph):
        visit(name, [])


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def test_importing_transduce_is_light() -> None:
    heavy = {"torch", "numpy", "pydantic", "rich", "matplotlib"}
    shown = run("-c", f"import sys, transduce; print(*({heavy!r} & set(sys.modules)))").stdout
    assert shown.split() == []


NOT_FOR_TEXT = ["matplotlib", "tensorboard", "pyarrow", "pandas", "onnx", "onnxruntime"]
NOT_FOR_TEXT += ["ctranslate2", "soundfile", "soxr", "espeakng_loader", "datasets", "fastapi"]
NOT_FOR_TEXT += ["torch._dynamo", "sympy"]  # torch's compiler and what it needs: two seconds

# A model is loaded, used and updated, and a network for speech is built that has no weights.
USE = """
import sys, transduce
model = transduce.load(sys.argv[1])
assert model("abc")
from transduce.training.optimizer import build_optimizer
network = model.network.train()
sum(parameter.requires_grad_(True).sum() for parameter in network.parameters()).backward()
build_optimizer(network, model.recipe.train).step()
from transduce.models.weights import no_weights
from transduce.nn.speech.mel import LogMel
with no_weights():
    assert LogMel().window_A.is_meta
print(*set(sys.argv[2:]) & set(sys.modules))
"""


def test_using_a_model_of_text_loads_nothing_that_it_does_not_need() -> None:
    model = Path(__file__).parents[1] / "fixtures" / "models" / "translate"
    shown = run("-c", USE, str(model), *NOT_FOR_TEXT).stdout
    assert shown.split() == [], "import these where they are used, not at the top of a file"


def test_no_private_name_of_torch_is_used_outside_of_its_module() -> None:
    private = re.compile(
        r"torch\._[a-zA-Z]|torch\.ops\.|[a-z]\._(version|buffers|parameters)\b"
        r'|[."]_(forward_(pre_)?hooks|non_persistent_buffers_set)'
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in FILES
        if path.name != "torch_private.py"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        # Names in quotes are those that files have, of pickles that are only read.
        if private.search(re.sub(r'"torch\.[^"]*"', "", line))
    ]
    assert found == [], "torch may change these: put a function into nn/torch_private.py"


def test_the_command_line_does_not_load_torch_to_say_what_it_can() -> None:
    heavy = "{'torch', 'pydantic'}"
    code = f"import sys, transduce.cli.main; sys.exit(bool({heavy} & set(sys.modules)))"
    run("-c", code)


def test_help_answers_at_once() -> None:
    before = os.times()
    shown = run("-m", "transduce", "--help").stdout
    after = os.times()
    assert "train" in shown
    # Of its own work, not of the clock: that is the same however busy the machine is.
    worked = after.children_user + after.children_system
    assert worked - before.children_user - before.children_system < 2.0  # a quarter of one is usual


def test_pages_say_what_was_measured() -> None:
    root = ROOT.parent.parent
    for made in ("make_results.py", "make_tables.py"):
        subprocess.run([sys.executable, str(root / "tools" / made), "--check"], check=True)


def test_the_figure_of_the_layers_is_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = ROOT.parent.parent / "tools" / "make_layers.py"
    main = runpy.run_path(str(script), run_name="make_layers")["main"]
    monkeypatch.setattr(sys, "argv", ["make_layers.py", "--check"])
    main()  # or it says: run python tools/make_layers.py
    # A figure that does not exist, and one with a package of another layer.
    drawn = (script.parents[1] / "docs" / "figures" / "layers.svg").read_text("utf-8")
    figure = tmp_path / "layers.svg"
    monkeypatch.setitem(main.__globals__, "FIGURE", figure)
    with pytest.raises(SystemExit, match="is out of date"):
        main()
    other = drawn.replace("<title>cli (layer ", "<title>cli (layer 1")
    assert other != drawn
    figure.write_text(other, "utf-8")
    with pytest.raises(SystemExit, match="is out of date"):
        main()
    figure.write_text(drawn, "utf-8")
    main()
