# make help lists the targets. Everything happens in .venv; nothing outside this folder is touched.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.stamp
BENCHMARKS ?= exactness

# One thread per process: tests run several processes, and equal bits need a fixed number of threads.
export OMP_NUM_THREADS = 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full check bench

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## make .venv with everything in it

demo: $(STAMP) ## train digits on three emulated devices
	$(BIN)/potluck demo

test: $(STAMP) ## the quick tests
	$(BIN)/pytest -q -n 2 -m 'not full'

test-full: $(STAMP) ## the slow tests
	$(BIN)/pytest -q -n 2 -m full

check: $(STAMP) ## style, types, import direction, house rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.house

bench: $(STAMP) ## the benchmarks, in their quick form
	@set -e; for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python -m benchmarks.$$name --quick; done

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'potluck needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 $(or $(MAKECMDGOALS),setup)' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	@touch $(STAMP)
