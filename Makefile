# Two commands from a fresh clone, with nothing but Python 3.11-3.14 and make: `make train` and `make test`.
#
#   make train ARGS="experiment=cmnist_gsc seed=1"    Hydra overrides
#   make test ARGS="tests/selectors -x"               pytest arguments
#   make train PYTHON=/path/to/python3.12             the interpreter that .venv is made from, read only when it is made

# What is installed: the lock, by the sha256 of every file; or the extra `test` under other constraints, CONSTRAINTS=lowest.txt.
LOCK ?= requirements.lock
SEED ?= 0
PYTHONS := $(if $(PYTHON),"$(PYTHON)",python3.13 python3.14 python3.12 python3.11 python3)
USABLE := import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))
PIP := .venv/bin/python -m pip install

.DEFAULT_GOAL := help
.PHONY: help train test test-slow attack lint docs dist clean
.NOTPARALLEL:
# Or each of the hundreds of processes that tests start would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo 'make train   set up .venv, then python src/train.py (ARGS="experiment=cmnist_gsc seed=1" for overrides)'
	@echo 'make test    set up .venv, then the tests (ARGS="tests/selectors -x" for arguments of pytest)'
	@echo 'make test-slow   set up .venv, then the tests that take minutes each'
	@echo 'make attack  set up .venv, then attacks drawn by SEED=0: kills, bit flips, forgeries, corrupt data (a quarter of an hour)'
	@echo 'make lint    set up .venv, then ruff and mypy'
	@echo 'make docs    set up .venv, then the documentation site: build/docs/index.html'
	@echo 'make dist    build the wheel and the sdist into dist/, and check them'
	@echo 'make clean   remove .venv and caches; keeps data/ and logs/'

# `exec`: the job itself is make's child, so that it gets the signals and make waits until it has saved.
train: .venv/.installed
	exec .venv/bin/python src/train.py $(ARGS)

# At most 8 workers: each one imports torch.
test: .venv/.installed
	exec .venv/bin/python -m pytest -n auto --maxprocesses=8 --dist=worksteal --cpu-record=build/cpu.csv $(ARGS)

test-slow: .venv/.installed
	exec .venv/bin/python -m pytest -n auto --maxprocesses=8 --dist=worksteal -m slow $(ARGS)

attack: .venv/.installed
	ATTACK_SEED=$(SEED) .venv/bin/python -m pytest -n auto --maxprocesses=8 --dist=worksteal -m slow tests/cli/attack $(ARGS)

lint: .venv/.installed
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy

# -W: a dead link, a page without a place in the menu and a formula that cannot be drawn are errors. -E: docstrings are read anew.
docs: .venv/.installed
	.venv/bin/python -m sphinx -q -E -W --keep-going -c docs -b html -d build/doctrees . build/docs $(ARGS)

# Tools have an environment of their own: what builds the package is no part of it, and need not agree with its requirements.
dist: build/tools/.installed
	rm -rf dist
	build/tools/bin/python -m build --no-isolation
	build/tools/bin/python -m twine check --strict dist/*

build/tools/.installed: tools.lock | .venv/bin/python .venv/bin/pip
	.venv/bin/python -m venv --clear build/tools
	build/tools/bin/python -m pip install --quiet --no-deps --require-hashes -r tools.lock
	@touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist docs/api
	find src tests conf -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written only once pip has succeeded: a second call installs nothing, a failed install is tried again.
.venv/.installed: pyproject.toml $(or $(CONSTRAINTS),$(LOCK)) | .venv/bin/python .venv/bin/pip
ifdef CONSTRAINTS
	$(PIP) -c $(CONSTRAINTS) -e '.[test]'
else
	$(PIP) --no-deps --require-hashes -r $(LOCK)
	$(PIP) --no-deps --no-build-isolation -e .
endif
	@touch $@

.venv/.installed-%: .venv/.installed
	@touch $@

# The first interpreter that runs, not the first that exists: a shim of pyenv may point at a version that is not installed.
# A .venv that works is kept as it is; if it was made without pip, or only half made, it is given what it lacks.
.venv/bin/python .venv/bin/pip:
	@if .venv/bin/python -m ensurepip --default-pip >/dev/null 2>&1; then exit; fi; \
	for python in $(PYTHONS); do \
	  if "$$python" -c '$(USABLE)' >/dev/null 2>&1; then exec "$$python" -m venv --clear .venv; fi; \
	done; \
	echo 'Expected a Python 3.11 to 3.14 that has venv, but got none from: $(PYTHONS): install one' \
	  '(Debian and Ubuntu: apt install python3 python3-venv) or pass PYTHON=/path/to/python3.12.' >&2; \
	exit 1
