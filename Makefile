# Every target makes the virtual environment it needs, see tools/environment.py. `make help` lists them.

PYTHON ?= python3
JOBS ?= 3
BIN := .venv/bin
PYTEST := $(BIN)/pytest --quiet --dist loadgroup --no-loadscope-reorder

# make test LONG=1: crash tests in their longer forms.
ifdef LONG
export SMISTA_LONG := $(LONG)
endif

# make test LIVES=20000: so many simulated lives of the broker, not 2,000.
ifdef LIVES
export SMISTA_TEST_LIVES := $(LIVES)
endif

.DEFAULT_GOAL := help
.PHONY: help run test check types imports fast bench bench-peers lock format clean environment python

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile

run: python ## start the broker; in a new checkout it installs what it needs first
	@$(PYTHON) -m tools.environment run
	@echo "A broker with its data in ./data; Ctrl-C stops it. When it listens, in another terminal:"
	@echo "  $(BIN)/python examples/first_program.py   # a first program"
	@echo "  $(BIN)/smista --help                      # what can be done from a shell"
	@$(BIN)/python -m smista serve

test: environment ## run every test (LONG=1: the longer crash tests, LIVES=n: simulated lives, JOBS=n: n at a time)
	@$(PYTEST) --numprocesses $(JOBS)

check: environment ## format, lint, types, imports and the fast tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(MAKE) --no-print-directory --jobs 3 types imports fast

types:
	@$(BIN)/mypy

imports:
	@$(BIN)/lint-imports --no-logo

fast:
	@$(PYTEST) -m "not slow" --numprocesses 2

bench: environment ## measure
	@$(BIN)/python -m bench

bench-peers: environment ## measure beside other brokers, by turns; installs them where it may
	@$(BIN)/python -m bench peers

lock: python ## write requirements.lock anew, with the newest versions pyproject.toml allows
	@$(PYTHON) -m tools.lock

format: environment ## format, and fix what the linter can fix
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

clean: ## remove whatever the other targets made
	rm -rf .venv .venv.lock .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests bench tools -name __pycache__ -prune -exec rm -rf {} +

environment: python
	@$(PYTHON) -m tools.environment

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Smista needs Python 3.11 or newer, and '$(PYTHON)' is not one." \
			"Install it, or name one: make PYTHON=python3.11" >&2; exit 1; }
