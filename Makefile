# Set-up, demo, tests. Needs python3 >= 3.11, pip and make; everything else lands in .venv.
#
#   make demo        compile a BERT layer from PyTorch to PTX and run it on the emulated device
#   make test        lit and pytest (without the tests marked slow)
#   make test-full   the same with the slow tests
#   make lint        ruff (lint, format) and pyright
#   make docs        write the generated documents again
#   make clean       remove .venv and everything that was generated

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_FLAGS := $(if $(CI),--quiet --progress-bar off)
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install $(PIP_FLAGS)
TORCH := torch==2.13.0
# Two workers fit two cores and 8 GB; more gain little because the slowest files bound the run.
PYTEST_ARGS ?= -n 2
STAMP_VENV := $(VENV)/.stamp-venv
STAMP_TORCH := $(VENV)/.stamp-torch
STAMP_RUN := $(VENV)/.stamp-run
STAMP_DEV := $(VENV)/.stamp-dev
SOURCES := mlirstitch tests test examples

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full test-lit lint format docs clean

help:
	@sed -n '3,8s/^#   //p' Makefile

$(STAMP_VENV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: $(PYTHON) is older than 3.11; call make PYTHON=python3.12 or the like" >&2; exit 1; }
	@# Some systems ship python3 without ensurepip: let the system's pip fill the empty environment.
	$(PYTHON) -m venv $(VENV) \
	  || { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install pip; }
	@touch $@

# torch alone and first: together with other requirements pip picks the CUDA build and downloads several GB.
$(STAMP_TORCH): | $(STAMP_VENV)
	@echo "setting up $(VENV): $(TORCH)"
	$(INSTALL) $(TORCH)
	@touch $@

$(STAMP_RUN): pyproject.toml | $(STAMP_TORCH)
	@echo "setting up $(VENV): mlirstitch and what it needs to run"
	$(INSTALL) -e '.[torch]'
	@touch $@

$(STAMP_DEV): pyproject.toml | $(STAMP_RUN)
	@echo "setting up $(VENV): what the tests need"
	$(INSTALL) -e '.[torch,dev]'
	@touch $@

setup: $(STAMP_DEV)

demo: $(STAMP_RUN)
	$(BIN)/python -m mlirstitch.driver.demo

test: $(STAMP_DEV) test-lit
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-full: $(STAMP_DEV) test-lit
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "slow or not slow"

test-lit: $(STAMP_DEV)
	$(BIN)/lit -sv test/lit

lint: $(STAMP_DEV)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/pyright

format: $(STAMP_DEV)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

docs: $(STAMP_DEV)
	$(BIN)/python -m mlirstitch.driver.generate_docs

clean:
	rm -rf $(VENV) demo-out build dist *.egg-info .pytest_cache .ruff_cache .hypothesis mlirstitch-reproducer-* random-cluster-failures
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
