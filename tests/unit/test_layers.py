"""The layers of the package: no import upward, none in a circle; importing stays light."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import transduce

ROOT = Path(transduce.__file__).parent

# From the lowest layer up: a package may import those listed before it, and its own modules.
LAYERS = [
    ["errors"],
    ["storage", "hardware", "cores", "terminal"],
    ["nn"],
    ["checksums", "recipe"],
    ["hub"],
    ["corpora"],
    ["data"],
    ["synthesis"],
    ["models"],
    ["runtime"],
    ["decoding"],
    ["tasks"],
    ["alignment"],
    ["evaluation"],
    ["interop", "inspection"],
    ["batch_inference", "serving", "training"],
    ["lessons"],
    ["cli"],
    ["__main__"],
]
LAYER = {package: number for number, packages in enumerate(LAYERS) for package in packages}
AT_THE_TOP = 8  # modules outside any package
IN_A_PACKAGE = 16  # modules side by side


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


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


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_nothing_imports_upward(path: Path) -> None:
    own = module_name(path)
    if own == "transduce":  # the public names, each imported when it is first used
        return
    for name in imports_of(path):
        other, mine = package_of(name), package_of(own)
        lower = LAYER[other] < LAYER[mine]
        assert lower or other == mine, f"{own} must not import {name}"


NETWORKS = [path for path in FILES if package_of_path(path) in ("models", "nn")]


@pytest.mark.parametrize("path", NETWORKS, ids=module_name)
def test_networks_are_made_of_plain_numbers(path: Path) -> None:
    """Only models/build.py turns a recipe into networks."""
    if path.parent.name == "models" and path.name.startswith("build"):
        return
    for name in imports_of(path):
        message = f"{module_name(path)} must not import {name}; let models/build.py"
        assert package_of(name) not in ("recipe", "storage", "corpora"), message


def test_no_folder_is_crowded() -> None:
    for folder in {path.parent for path in FILES}:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        most = AT_THE_TOP if folder == ROOT else IN_A_PACKAGE
        assert len(modules) <= most, f"{folder.relative_to(ROOT.parent)}: {len(modules)} modules"


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


@pytest.mark.parametrize("heavy", ["torch", "numpy", "pydantic", "rich", "matplotlib"])
def test_importing_transduce_is_light(heavy: str) -> None:
    run("-c", f"import sys, transduce; assert {heavy!r} not in sys.modules")


NOT_FOR_TEXT = ["matplotlib", "tensorboard", "pyarrow", "pandas", "onnx", "onnxruntime"]
NOT_FOR_TEXT += ["ctranslate2", "soundfile", "soxr", "espeakng_loader", "datasets", "fastapi"]


def test_using_a_model_of_text_loads_nothing_that_it_does_not_need() -> None:
    model = Path(__file__).parents[1] / "fixtures" / "models" / "translate"
    use = f"import sys, transduce; assert transduce.load({str(model)!r})('abc')"
    shown = run("-c", f"{use}; print(*(set({NOT_FOR_TEXT!r}) & set(sys.modules)))").stdout
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
        subprocess.run([sys.executable, str(root / "docs" / made), "--check"], check=True)


def test_the_figure_of_the_layers_is_up_to_date(tmp_path: Path) -> None:
    docs = ROOT.parent.parent / "docs"
    check = [sys.executable, str(docs / "make_layers.py"), "--check"]
    assert subprocess.run(check, check=False).returncode == 0, "run python docs/make_layers.py"
    # A package that is in no figure yet, and a figure that does not exist.
    copy = tmp_path / "docs"
    (copy / "figures").mkdir(parents=True)
    script = copy / "make_layers.py"
    script.write_text((docs / "make_layers.py").read_text("utf-8"), "utf-8")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "transduce").symlink_to(ROOT)
    missing = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert missing.returncode == 1
    drawn = (docs / "figures" / "layers.svg").read_text("utf-8")
    other = drawn.replace("<title>cli (layer ", "<title>cli (layer 1")
    assert other != drawn
    (copy / "figures" / "layers.svg").write_text(other, "utf-8")
    changed = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert changed.returncode == 1
