# `make` prints what can be made: each target stands with its sentence behind `##`.
#
# Each makes a virtual environment in .venv first, and brings it up to date when pyproject.toml has changed.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of processes: each would compile all of geomx anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo lossy-demo examples test grids faults engines trainers explore mutants lint docs packages constraints learn bench-quick bench clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.has-examples  ## train one model over two data centers, emulated on this machine
	@mkdir -p out/demo
	@$(BIN)/geomx run examples/demo.toml --report out/demo/report.json --trace out/demo/trace.json

lossy-demo: $(VENV)/.has-examples  ## train over links that lose 5 %: with TCP, then with datagrams; four minutes, needs root
	@$(BIN)/python -m lab demo

examples: $(VENV)/.has-examples  ## run every example, one after the other: one for each technique, and whole runs
	@$(BIN)/geomx examples all --plain

test: $(VENV)/.has-dev  ## run the tests
	@$(BIN)/python -m pytest -n $(JOBS) -m "not grids and not faults and not matrix and not engines" $(PYTEST_OPTIONS)

grids: $(VENV)/.has-dev  ## run the long tests: all cells of grids of which `make test` runs the pairs, a small cell of the benchmark
	@$(BIN)/python -m pytest -n $(JOBS) -m "grids and not engines"

# Rows of the table mostly wait, so twice as many are played at a time.
faults: $(VENV)/.has-dev  ## play the table of faults in real processes; faults in more places, policies and seeds
	@$(BIN)/python -m pytest -n $$((2 * $(JOBS))) -m matrix --fault-table out/faults.json
	@$(BIN)/python -m pytest -n $(JOBS) -m "faults and not matrix"

trainers: $(VENV)/.has-dev $(VENV)/.has-trainers  ## train by the trainers of other libraries, over two parties and alone
	@$(BIN)/python -m pytest tests/integrations

engines: $(VENV)/.has-dev  ## bring runs up by every engine: over machines in namespaces, Slurm, Ray; needs root, installs what is missing
	@tests/engines/install $(BIN)/python
	@$(BIN)/python -m pytest -n $(JOBS) -m engines

explore: $(VENV)/.has-dev  ## try many new examples of each property that the tests state
	@$(BIN)/python -m pytest -n $(JOBS) -m hypothesis --hypothesis-profile=explore

mutants: $(VENV)/.has-mutation  ## make small changes to the code, one at a time, and tell which of them the tests do not notice
	@$(BIN)/python tests/mutation/mutants.py

lint: $(VENV)/.has-dev  ## check style, types and imports
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(VENV)/.has-docs  ## build the documents as HTML, in docs/_build/html
	@$(BIN)/python docs/make_configuration.py
	@$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

packages: $(VENV)/.has-dev  ## build the sdist and the wheel, in dist
	@$(BIN)/python -m build --no-isolation

constraints: $(VENV)/.has-dev $(VENV)/.has-docs  ## write the versions that .venv has into constraints.txt
	@{ sed '/^#/!d' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | sed 's/+[a-z0-9]*$$//'; } > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt

learn: $(VENV)/.has-benchmarks  ## train each algorithm of geomx.learn over three parties, beside one machine and a reference; out/learn.json
	@$(BIN)/python benchmarks/learn.py

bench-quick: $(VENV)/.has-benchmarks  ## measure geomx beside PyTorch DDP, MXNet and the floor, over one emulated network; ten minutes, needs root
	@$(BIN)/python benchmarks/run.py quick --page

bench: $(VENV)/.has-benchmarks  ## measure every system, network and workload; hours. Stopped, it goes on from there when it is run again
	@for suite in quick dense scale fallback full accuracy; do $(BIN)/python benchmarks/run.py $$suite --missing --page || exit 1; done

clean:  ## remove the virtual environment and everything that was built
	rm -rf $(VENV) .ci-venv build dist out docs/_build .coverage .coverage.* .hypothesis
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find src tests examples benchmarks docs lab -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.has-%: pyproject.toml | $(BIN)/pip
	@echo "installing geomx[$*] into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$*]"
	@touch $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "geomx needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
