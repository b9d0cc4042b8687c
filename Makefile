# Everything a fresh machine needs: Python 3.11 or later, make, a package index.
#   make demo    a short tour that ends by itself
#   make test    check, then every test, against real servers
#   make sim     seeds of the simulator, until every boundary has been broken at in every way
#   make soak    the long campaigns (the column soak of tests/options.toml), then make versions
#   make versions  the tests on every CPython from 3.11 on that is found or can be installed
#   make reference  docs/reference and the tables of docs/settings.md, from code
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= 4
# Hundreds of processes import the package: compiled once, each starts in half the time.
unexport PYTHONDONTWRITEBYTECODE
# A worker that dies ends the tests at once: replacing one, xdist may wait for ever for work that was done already.
PARALLEL := -n $(JOBS) --max-worker-restart 0
TESTS ?= tests
SEEDS ?= 600

.PHONY: demo test check style types versions sim soak bench reference format lock clean
.DEFAULT_GOAL := test

$(READY): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Worldline needs Python 3.11 or later; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY)
	$(BIN)/python -m worldline.demo

# The two halves take about the same time, each on one core.
check: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 style types

style: $(READY)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/arch

types: $(READY)
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest -q $(PARALLEL) --ignore=tests/arch --durations=15

versions: $(READY)
	$(BIN)/python -m tests.versions -- $(PARALLEL) $(TESTS)

sim: $(READY)
	$(BIN)/worldline simulate --suite tests.campaign.suite --seeds $(SEEDS) --jobs $(JOBS) --every-cell

soak: $(READY)
	WORLDLINE_DOSE=soak $(BIN)/python -m pytest -q $(PARALLEL) --durations=15 tests
	$(BIN)/python -m tests.versions --strict -- $(PARALLEL) tests

bench: $(READY)
	$(BIN)/python -m bench.run

reference: $(READY)
	$(BIN)/python tools/api_reference.py
	$(BIN)/python tools/settings_tables.py

format: $(READY)
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

# requirements/lock.txt pins the tool that pins: it is changed by hand, with the hashes of the version that is wanted.
lock: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/lock.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --all-extras --group dev pyproject.toml -o requirements/dev.txt

clean:
	rm -rf $(VENV) .versions .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
