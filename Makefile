# Every target sets up .venv by itself, once; `make help` lists them.
#
#   PYTHON       interpreter that creates .venv (3.10 or newer)      make test PYTHON=python3.12
#   PIP_ARGS     extra arguments for each `pip install`              make train PIP_ARGS="--no-cache-dir"
#   ARGS         passed on to the command that the target runs       make train ARGS="seed=1"
#   CONSTRAINTS  file with the exact versions to install             make test CONSTRAINTS=constraints-latest.txt

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
PIP_ARGS ?=
ARGS ?=
CONSTRAINTS ?= constraints.txt

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.rlstack-stamp
EXTRAS_STAMP := $(VENV)/.rlstack-extras-stamp
DOCS_STAMP := $(VENV)/.rlstack-docs-stamp
PIP_INSTALL := $(PY) -m pip --disable-pip-version-check install $(PIP_ARGS) -c $(CONSTRAINTS)

.PHONY: help venv train report test test-portable test-all lint format docs bench gpu wheel pins clean

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## set up .venv (the other targets do so themselves)

# One environment for everything. An existing .venv, whatever made it, is completed, not replaced.
# torch goes first, alone and pinned, so that nothing that follows can move it.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	@echo 'setting up $(VENV) (the first time takes a few minutes)'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Python 3.10 or newer is needed: make PYTHON=...")'
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip --upgrade
	@$(PIP_INSTALL) torch
	@$(PIP_INSTALL) --quiet -e '.[dev]'
	@touch $@

$(EXTRAS_STAMP): $(STAMP)
	@$(PIP_INSTALL) --quiet -e '.[dev,atari,box2d,classic,export,hub,mujoco,offline,pettingzoo,rocketsim,sb3,sweep]'
	@touch $@

$(DOCS_STAMP): $(STAMP)
	@$(PIP_INSTALL) --quiet -e '.[dev,docs]'
	@touch $@

train: $(STAMP) ## train with the shipped defaults; ARGS="seed=1 ..." overrides
	$(PY) -m rlstack.train agent=acqn env=marinenav $(ARGS)

report: $(STAMP) ## a page about a run or a folder of runs; ARGS="runs/<run>"
	$(PY) -m rlstack.report $(ARGS)

# Small networks gain nothing from several threads, test files do from several processes.
# They start many, so compiled code is kept, whatever the shell says; beside the sources, since what pip compiled of torch is
# there, too.
KEEP_COMPILED := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=
PYTEST := $(KEEP_COMPILED) OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --dist loadfile

test: $(STAMP) ## the test suite
	$(PYTEST) $(ARGS)

# What compares numbers computed in two ways: recordings, other libraries, batches of other sizes. Each CPU rounds in its own
# order, so this must hold with any instructions; torch obeys these two variables.
NUMERICAL := tests/losses tests/networks tests/data tests/adapters/test_interleaved.py tests/adapters/test_sb3_models.py \
	tests/adapters/test_marinenav_published.py tests/agents/test_ppo_published.py tests/agents/test_torchrl_parity.py \
	tests/agents/test_options.py tests/play/test_echelon_sides.py tests/envs/arena/test_arena_rollouts.py \
	tests/envs/marinenav/test_recorded_rollouts.py tests/envs/rocket/test_recordings.py tests/envs/echelon/test_worked_numbers.py
INSTRUCTIONS ?= ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41

test-portable: $(STAMP) ## what compares numbers, with a CPU's plainest instructions; INSTRUCTIONS="ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2"
	$(INSTRUCTIONS) $(PYTEST) $(NUMERICAL) $(ARGS)

test-all: $(EXTRAS_STAMP) ## the same, the slow proofs and what needs optional packages, with coverage (takes twice the time)
	$(PYTEST) -m "" --cov --cov-report=term $(ARGS)

lint: $(STAMP) ## ruff check, ruff format --check, import-linter, mypy, and whether every test can be imported
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports
	$(PY) -m mypy
	$(KEEP_COMPILED) $(PY) -m pytest -q --deselect tests || test $$? = 5 # pytest's status where it ran no test

format: $(STAMP) ## apply ruff's fixes and format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

docs: $(DOCS_STAMP) ## build the site into build/site, and check every link in it; ARGS="--site-dir <folder>"
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build $(ARGS)

bench: $(EXTRAS_STAMP) ## speed of the worlds, and of training beside peers; ARGS="--compare <earlier speed.json>" names what got slower
	$(PY) -m experiments.benchmarks.speed $(ARGS)
	$(PY) -m experiments.benchmarks.peers

gpu: $(STAMP) ## checks and speeds of everything on a GPU, five minutes; ARGS="only=<names>"
	$(PY) -m experiments.gpu $(ARGS)

wheel: $(STAMP) ## build the source archive, and out of it the wheel, into dist/
	$(PY) -m build --no-isolation --outdir dist .

pins: $(STAMP) ## rewrite CONSTRAINTS from what .venv holds
	@{ grep '^#' $(CONSTRAINTS); $(PY) -m pip freeze --all --exclude-editable --exclude pip --exclude rlstack-torchrl \
		| sed -E 's/^(torch==[^+]+)\+.*/\1/; /^(torch|torchrl|tensordict)==/!s/$$/ ; python_version >= "3.11"/'; } > constraints.tmp
	@mv constraints.tmp $(CONSTRAINTS)
	@touch $(STAMP)

clean: ## remove caches and build output; runs/ and .venv stay
	rm -rf build dist htmlcov .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	find . \( -path ./$(VENV) -o -path ./runs -o -path ./.git \) -prune -o -type d -name __pycache__ -print0 | xargs -0 rm -rf
