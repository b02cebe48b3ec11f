# make setup | demo | test | lint | bench | clean. Every target sets up what it needs.
#   make demo ARGS='--prompt "Why is the sky blue?"'
#   make test ARGS='tests/worker/cli -k demo'
#   make test TORCH='torch==2.13.0+cpu'      with UV_FIND_LINKS naming a folder of wheels

TORCH ?=
MODEL ?= smollm2-135m
ARGS ?=
BIN := .venv/bin

export TORCH

.PHONY: help setup model demo test lint bench clean

help:
	@sed -n '1,/^$$/s/^# //p' Makefile

setup:
	@scripts/setup.sh

model: setup
	@$(BIN)/pdserve fetch $(MODEL)

demo: model
	@$(BIN)/pdserve demo --model $(MODEL) $(ARGS)

test: model
	OMP_NUM_THREADS=1 $(BIN)/pytest -ra $(ARGS)

lint: setup
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: model
	@MODEL=$(MODEL) scripts/bench.sh $(ARGS)

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
