# `make demo` and `make test` need only Python 3.11 or newer, pip and make: everything else is put into .venv, once.
SHELL := /bin/bash
PYTHON ?= python3
SEED ?= 0
WORKERS ?= 2
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
LOG := $(VENV)/install.log
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet --constraint requirements.lock
# pip speaks only when it fails
QUIETLY = > $(LOG) 2>&1 || { cat $(LOG) >&2; exit 1; }

.PHONY: help demo test check test-all format clean
help:
	@echo "make demo [SEED=0]   learn to swing up the pendulum; leaves a GIF and a report in demo/pendulum-0"
	@echo "make test            the tests"
	@echo "make check           format, lint, types, house rules"
	@echo "make test-all        the tests that need Stable-Baselines3, PyTorch, Ray or Chromium"
	@echo "make format          put the code into the format that make check wants"

demo: $(VENV)/.ready
	@rm -rf demo/pendulum-$(SEED)
	$(BIN)/ctrlax train pendulum --seeds $(SEED) --out demo/pendulum-$(SEED)

test: $(VENV)/.ready
	$(BIN)/pytest -q -n $(WORKERS) -m "not extras" $(ARGS)

check: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/pytest -q tests/test_house.py tests/test_project.py -m "not extras"

test-all: $(VENV)/.ready-all
	$(BIN)/pytest -q -m extras $(ARGS)

format: $(VENV)/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf demo build dist .pytest_cache .ruff_cache

# One environment for all targets; the stamps make the second run quick.
$(VENV)/.ready: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit("ctrlax needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	@echo "Setting up $(VENV) (a minute or two, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@{ $(PIP) hatchling editables && $(PIP) --no-build-isolation --editable '.[test]'; } $(QUIETLY)
	@touch $@

$(VENV)/.ready-all: $(VENV)/.ready
	@echo "Adding the large extras to $(VENV) (a few minutes, once)"
	@$(PIP) --no-build-isolation --editable '.[all]' $(QUIETLY)
	@touch $@
