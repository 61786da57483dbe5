# The commands of this project; `make` alone explains them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN_READY := $(VENV)/.run-ready
DEV_READY := $(VENV)/.dev-ready
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard hpcncf/native/src/*)
# If it is set, each of the hundreds of processes that the tests start compiles hpcncf anew.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: help demo test coverage test-slurm chaos lint typecheck format check sanitize bench bench-all bench-gpu schemas docs wheels pyz clean
.DEFAULT_GOAL := help

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

demo: $(RUN_READY)  ## Train the demo on this machine: a first report in two minutes, all in five
	$(BIN)/hpcncf data prepare frappe --or-synthetic -o data/frappe
	@trap 'trap "" INT; $(BIN)/hpcncf cancel --all results/demo; $(BIN)/hpcncf report results/demo; exit 130' INT; \
	for round in 1 2 3; do \
		echo "round $$round of 3 (Ctrl-C ends it with a report; make demo goes on)"; \
		$(BIN)/hpcncf submit jobs/demo.yaml -s repeats=$$round --cluster local --wait; \
		$(BIN)/hpcncf report results/demo || exit; \
	done

test: $(DEV_READY)  ## Run the tests; on real Frappe data with HPCNCF_DATA=folder of Mobile_Frappe.zip
	$(BIN)/pytest -n 4 --dist worksteal --durations 15 -m 'not slurm'

# A few tests measure the machine or the imports of a process, which the counting of lines changes:
# whether tests pass is for `make test` to say.
coverage: $(DEV_READY)  ## Count the lines of the product that the tests reach, and fail below the floor in pyproject.toml
	$(BIN)/coverage erase
	-$(BIN)/coverage run -m pytest -q -n 4 --dist worksteal -m 'not slurm and not alone'
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

test-slurm: $(DEV_READY)  ## Run the launcher on a real Slurm (root, Debian; installs missing packages)
	HPCNCF_TEST_SLURM=1 CHAOS_SEED=$(or $(CHAOS_SEED),6) $(BIN)/pytest -n 5 --dist load --maxschedchunk 1 --durations 15 -m slurm tests/slurm

chaos: $(DEV_READY)  ## Inject random faults into a real Slurm under sixty runs (CHAOS_RUNS, CHAOS_SEED, CHAOS_FAULTS)
	HPCNCF_TEST_SLURM=1 CHAOS_RUNS=$(or $(CHAOS_RUNS),60) $(BIN)/pytest -s -m slurm tests/slurm/chaos

lint: $(DEV_READY)  ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(DEV_READY)  ## Check types, strictly
	$(BIN)/mypy

format: $(DEV_READY)  ## Fix style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint typecheck test  ## Run lint, typecheck and test

sanitize: $(VENV)/native-driver  ## Run engine native on bad input under address and undefined-behaviour sanitizers
	$<

$(VENV)/native-driver: tests/native/driver.cpp $(wildcard hpcncf/native/src/*)
	mkdir -p $(VENV)
	$(CXX) -std=c++17 -O1 -g -Wall -Wextra -Werror -Wno-psabi -pthread -Ihpcncf/native/src \
		-fsanitize=address,undefined -fno-sanitize-recover=all $< -o $@

bench: $(DEV_READY)  ## Measure docs/results.md (45 minutes on two quiet cores; HPCNCF_DATA as for test, and ml-1m.* in NCF's format)
	$(BIN)/python -m benchmarks --write

bench-all: $(DEV_READY)  ## The same, and the diagnosis of made and of public programs, RecBole and cornac (77 minutes)
	$(BIN)/python -m benchmarks --all --write

bench-gpu: $(DEV_READY)  ## Measure one GPU, into docs/results.md (HPCNCF_DATA as for test)
	$(BIN)/python -m benchmarks --write gpu

schemas: $(DEV_READY)  ## Regenerate hpcncf/schemas and the generated pages of docs/
	$(BIN)/python -m docs.generate

docs: results/demo/report/report.html .venv-release/.ready  ## Build the documentation's site into build/site, the demo's report in it
	.venv-release/bin/mkdocs build

results/demo/report/report.html:
	$(MAKE) demo

wheels: .venv-release/.ready  ## Build the source archive and the wheels into dist/
	.venv-release/bin/python release/build.py wheels

pyz: .venv-release/.ready  ## Build hpcncf without torch as one file for this Python into dist/ (after wheels)
	.venv-release/bin/python release/build.py pyz

.venv-release/.ready: release/requirements.txt
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

clean:  ## Remove build products, keep results
	rm -rf $(VENV) .venv-release dist build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(RUN_READY): $(SOURCES) | $(BIN)/pip
	$(INSTALL) .
	touch $@

$(DEV_READY): $(SOURCES) | $(BIN)/pip
	$(INSTALL) '.[dev]'
	touch $(RUN_READY) $@

$(BIN)/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hpcncf needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
