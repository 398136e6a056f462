# Everything runs in .venv, which the first command creates; a later command reuses it while pyproject.toml and
# constraints.txt stay as they are. A fresh machine needs only make and Python >= 3.11 with venv:
#   make demo PYTHON=python3.12

PYTHON ?= python3
# Extras that the tests use, separated by commas.
TEST_EXTRAS := cjk,dev,hub,pandas,langid,llm,models,monitor,ray,s3,semantic,spacy,sql,tokens,training,unicode,web,xenna
DEMO_OUTPUT ?= demo-output
# Two workers: more would not be faster on the smallest supported machine.
PYTEST_WORKERS ?= 2

VENV := .venv
CORE_VENV := .venv-core
BIN := $(VENV)/bin
comma := ,
CORE_STAMP := $(VENV)/.installed-core
TEST_STAMP := $(VENV)/.installed-$(subst $(comma),-,$(TEST_EXTRAS))
CORE_VENV_STAMP := $(CORE_VENV)/.installed
# The same pip options everywhere: quiet, no notice about newer versions of pip, no notice about the root user.
PIP_INSTALL := -m pip --disable-pip-version-check install --quiet --root-user-action=ignore
# The hostile tests first: they fork, which is slow in a process that has loaded models.
QUICK_TESTS := $(wildcard tests/hostile tests/unit tests/contract tests/docs)
INTEGRATION_TESTS := $(wildcard tests/integration)
RAY_TESTS := $(wildcard tests/integration/ray)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test check format docs bench bench-peers house wheel dist image lock test-core test-quick test-room test-integration services test-hostile test-cluster test-oldest test-newest bench-nightly clean

help:
	@echo "make demo     curate the shipped sample and show what was kept, what was dropped and why"
	@echo "make test     check, then run every test"
	@echo "make test-room ROOM=ledger  the unit tests of one room, and the contract tests that name it"
	@echo "make test-hostile  all hostile tests ('make test' runs some of them); writes docs/reference/hostile.md"
	@echo "make test-cluster  tests that start and kill multi-node Ray clusters"
	@echo "make check    formatting, lint, types, import layers and wording"
	@echo "make format   apply the formatter and the safe fixes of the linter"
	@echo "make house    check the size and simplicity of the source against its goals"
	@echo "make docs     build the documentation into site/"
	@echo "make bench    run the benchmarks and write benchmarks/results/"
	@echo "make bench-peers  compare with NeMo Curator and datatrove; about 15 minutes, 2.6 GB of environments"
	@echo "make wheel    build dist/gristmill-….whl with kernels compiled for this Python and CPU architecture"
	@echo "make dist     build the wheel and the sdist, check them, and test them in an empty environment"
	@echo "make image    build the container image with docker, podman or buildah, and run the demo in it"
	@echo "make lock     update constraints.txt; UPGRADE=all upgrades everything, UPGRADE=ray one package"
	@echo "make test-oldest  test with the oldest supported dependencies (core and light extras); test-newest: with the newest"
	@echo "make clean    remove all environments and everything built"

# An environment is created once and then only updated; 'make clean' removes it.
define make_venv
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(not (3, 11) <= v[:2] < (3, 14))' || { \
		echo "Gristmill needs Python 3.11, 3.12 or 3.13; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name another one: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12" >&2; exit 1; }
	@test -x $(1)/bin/python || { echo "Creating $(1)"; $(PYTHON) -m venv $(1); }
endef

# --no-compile: Python compiles what it imports, a fifth of what pip would compile.
$(CORE_STAMP): pyproject.toml constraints.txt
	$(call make_venv,$(VENV))
	@echo "Installing gristmill into $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) --no-compile -c constraints.txt -e .
	@touch $@

$(TEST_STAMP): pyproject.toml constraints.txt
	$(call make_venv,$(VENV))
	@echo "Installing gristmill[$(TEST_EXTRAS)] into $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) -c constraints.txt -e '.[$(TEST_EXTRAS)]'
	@touch $(CORE_STAMP) $@

$(CORE_VENV_STAMP): pyproject.toml constraints.txt
	$(call make_venv,$(CORE_VENV))
	@echo "Installing gristmill without extras into $(CORE_VENV)"
	@$(CORE_VENV)/bin/python $(PIP_INSTALL) -c constraints.txt -e .
	@touch $@

setup: $(TEST_STAMP)

demo: $(CORE_STAMP)
	$(BIN)/gristmill demo $(DEMO_OUTPUT)

check: $(TEST_STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports
	$(BIN)/python tools/wording.py
	$(BIN)/python tools/commit_subjects.py

format: $(TEST_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One after the other, even with 'make -j': they share the CPUs and the compiled kernels.
test:
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory test-core
	@$(MAKE) --no-print-directory test-quick
	@$(MAKE) --no-print-directory services
	@$(MAKE) --no-print-directory test-integration

# The standard library's unittest, so that the environment holds nothing but what a core install brings.
test-core: $(CORE_VENV_STAMP)
	$(CORE_VENV)/bin/python -W error -m unittest discover -s tests/core

# Each worker starts with one half, so that fixtures of a file are set up once; the first to finish takes over work.
test-quick: $(TEST_STAMP)
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal $(QUICK_TESTS)

# A folder of tests/unit, such as ledger or stages/text/filters, and the contract tests that name its package.
test-room: $(TEST_STAMP)
	@test -d "tests/unit/$(ROOM)" -a -n "$(ROOM)" || { \
		echo "ROOM is a folder of tests/unit, such as: make test-room ROOM=ledger (found: '$(ROOM)')" >&2; exit 1; }
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal tests/unit/$(ROOM) \
		$$(grep -lE "gristmill\.$(subst /,[.],$(ROOM))\b" tests/contract/test_*.py)

# Files in parallel, each in one process; then Ray, which keeps all CPUs busy itself.
test-integration: $(TEST_STAMP)
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile $(INTEGRATION_TESTS) --ignore=$(RAY_TESTS)
	$(BIN)/python -m pytest -m "not cluster" $(RAY_TESTS)

# What the integration tests need in addition to Python packages: Prometheus and a browser with its driver.
services:
	@for program in prometheus chromium chromedriver; do \
		command -v $$program >/dev/null || missing="$$missing $$program"; done; \
	test -z "$$missing" && exit 0; \
	echo "Installing$$missing"; \
	test "$$(id -u)" = 0 && command -v apt-get >/dev/null || { \
		echo "The integration tests need$$missing. Install the packages prometheus, chromium and chromium-driver" \
			"of your system, and run this again." >&2; exit 1; }; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -qq && apt-get install -y -qq --no-install-recommends \
		prometheus chromium chromium-driver >/dev/null

test-hostile: $(TEST_STAMP)
	GRISTMILL_HOSTILE=full $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal tests/hostile

# Starts and kills whole Ray clusters, which takes minutes: not part of 'make test'.
test-cluster: $(TEST_STAMP)
	$(BIN)/python -m pytest -m cluster $(INTEGRATION_TESTS)

house: $(TEST_STAMP)
	$(BIN)/python tools/house.py

docs: $(TEST_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(TEST_STAMP)
	@for program in $(sort $(wildcard benchmarks/bench_*.py)); do \
		echo "$$program"; $(BIN)/python "$$program" || exit 1; done

# Those that show a slowdown within minutes, and need nothing but a clone.
NIGHTLY_BENCHMARKS := start foundation_read_write foundation_small_job engine_memory

bench-nightly: $(TEST_STAMP)
	@for name in $(NIGHTLY_BENCHMARKS); do \
		echo "$$name"; $(BIN)/python "benchmarks/bench_$$name.py" || exit 1; done

# Both in environments of their own, below $(PEERS): their requirements exclude each other. torch comes first, as the build
# for CPUs where one is offered; pip before 23.3 knows the extra only as text-cpu.
PEERS ?= .venv-peers
PEERS_STAMP := $(PEERS)/.installed
PEERS_OPTIONS ?=

$(PEERS_STAMP):
	$(call make_venv,$(PEERS)/datatrove)
	$(call make_venv,$(PEERS)/nemo-curator)
	@echo "Installing datatrove and NeMo Curator below $(PEERS)"
	@$(PEERS)/datatrove/bin/python $(PIP_INSTALL) 'datatrove[io,processing]==0.10.1' spacy
	@$(PEERS)/nemo-curator/bin/python $(PIP_INSTALL) 'torch==2.13.0'
	@$(PEERS)/nemo-curator/bin/python $(PIP_INSTALL) 'torch==2.13.0' 'nemo-curator[text-cpu]==1.4.0'
	@touch $@

bench-peers: $(TEST_STAMP) $(PEERS_STAMP)
	$(BIN)/python benchmarks/compare_peers.py --nemo-curator $(PEERS)/nemo-curator/bin/python \
		--datatrove $(PEERS)/datatrove/bin/python $(PEERS_OPTIONS)

# For another Python: make clean, then make wheel PYTHON=python3.12.
wheel: $(CORE_STAMP)
	$(BIN)/python -m tools.build_kernels
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist .
	@rm -r src/gristmill/kernels/compiled  # a checkout compiles for itself

# Tools that build and check packages have an environment of their own, so that the core stays a core.
DIST_VENV := .venv-dist
DIST_STAMP := $(DIST_VENV)/.installed

$(DIST_STAMP): constraints.txt
	$(call make_venv,$(DIST_VENV))
	@$(DIST_VENV)/bin/python $(PIP_INSTALL) -c constraints.txt build twine
	@touch $@

# TAG=v0.1.0: fail unless that is the version.
dist: $(DIST_STAMP)
	@rm -rf dist
	@$(MAKE) --no-print-directory wheel
	$(DIST_VENV)/bin/python -m build --sdist --outdir dist .
	$(DIST_VENV)/bin/twine check --strict dist/*
	$(DIST_VENV)/bin/python tools/try_dist.py dist $(if $(TAG),--tag $(TAG))

BUILDERS := docker podman buildah
IMAGE ?= gristmill
IMAGE_OPTIONS ?=

image:
	@for builder in $(BUILDERS); do \
		$$builder info >/dev/null 2>&1 || continue; \
		echo "Building $(IMAGE) with $$builder"; \
		exec $(PYTHON) tools/try_image.py $$builder $(IMAGE) $(IMAGE_OPTIONS); done; \
	echo "None of $(BUILDERS) works here: no image was built." >&2; exit 1

lock: $(CORE_STAMP)
	$(BIN)/python -m tools.lock $(if $(UPGRADE),--upgrade $(filter-out all,$(UPGRADE)))

# Both ends of the ranges in pyproject.toml: the oldest versions of the core and of the light extras, the newest of all.
OLDEST_VENV := .venv-oldest
NEWEST_VENV := .venv-newest
TEST_TOOLS := pytest pytest-timeout hypothesis
OLDEST_EXTRAS := cjk,langid,pandas,sql,tokens,unicode,web,monitor,training
OLDEST_TESTS := $(addprefix tests/unit/,tasks tracking pipeline recipes stages/text/filters stages/text/io storage)

test-oldest:
	$(call make_venv,$(OLDEST_VENV))
	@$(PYTHON) -m tools.oldest $(subst $(comma), ,$(OLDEST_EXTRAS)) > $(OLDEST_VENV)/oldest.txt
	@$(OLDEST_VENV)/bin/python $(PIP_INSTALL) -c $(OLDEST_VENV)/oldest.txt -e '.[$(OLDEST_EXTRAS)]' $(TEST_TOOLS)
	$(OLDEST_VENV)/bin/python -m pytest $(OLDEST_TESTS)

test-newest:
	$(call make_venv,$(NEWEST_VENV))
	@$(NEWEST_VENV)/bin/python $(PIP_INSTALL) --upgrade --upgrade-strategy eager -e '.[$(TEST_EXTRAS)]'
	$(NEWEST_VENV)/bin/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal $(QUICK_TESTS)

clean:
	rm -rf $(VENV) $(CORE_VENV) $(DIST_VENV) $(OLDEST_VENV) $(NEWEST_VENV) $(PEERS) site dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache src/gristmill/kernels/compiled
