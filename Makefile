# make setup | demo | test | lint | bench | clean. Every target sets up what it needs.
# make cluster | cluster-down | test-cluster | test-e2e: Kubernetes (tests/cluster/README.md).
#   make demo ARGS='--prompt "Why is the sky blue?"'
#   make test ARGS='tests/worker/cli -k demo'
#   make test TORCH='torch==2.13.0+cpu'      with UV_FIND_LINKS naming a folder of wheels

TORCH ?=
MODEL ?= smollm2-135m
ARGS ?=
BIN := .venv/bin

export TORCH

.PHONY: help setup model demo test lint bench clean cluster cluster-down test-cluster test-e2e

help:
	@sed -n '1,/^$$/s/^# //p' Makefile

setup:
	@scripts/setup.sh

model: setup
	@$(BIN)/pdserve fetch $(MODEL)

demo: model
	@$(BIN)/pdserve demo --model $(MODEL) $(ARGS)

# With ARGS nothing is built first: what needs a Kubernetes that is not there is skipped.
test: model $(if $(ARGS),,kubernetes)
	OMP_NUM_THREADS=1 $(BIN)/pytest -ra $(ARGS)

# The programs and images of a real Kubernetes, as far as this user can run one; kept in the cache.
.PHONY: kubernetes
kubernetes: model
	@$(BIN)/python -m tests.cluster build || \
		echo "make: no Kubernetes on this machine; the tests that need one are skipped"

lint: setup
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: model
	@MODEL=$(MODEL) scripts/bench.sh $(ARGS)

# A Kubernetes with the project's images that stays up to play with, as root.
cluster: model
	@$(BIN)/python -m tests.cluster up

cluster-down:
	@$(BIN)/python -m tests.cluster down

test-cluster: model
	@$(BIN)/python -m tests.cluster build
	PDSERVE_TEST_ALL=1 $(BIN)/pytest -ra -m 'cluster or node' $(ARGS)

# On any cluster: make test-e2e KUBECONFIG=... (tests/cluster/target.py says what it must hold).
test-e2e: setup
	PDSERVE_E2E_KUBECONFIG=$(KUBECONFIG) $(BIN)/pytest -ra tests/e2e/kubernetes $(ARGS)

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
