# Two commands do everything on a machine with python3 (3.11 or newer) and make: `make demo` and `make test`.
# Each makes its own virtual environment first. On an x86 Linux machine the default index serves a CUDA build of torch;
# TORCH_ARGS can name another one (for example an index of CPU builds).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TORCH_ARGS ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

export OMP_NUM_THREADS := 1
export TORCHAO_FORCE_SKIP_LOADING_SO_FILES := 1

.PHONY: demo test setup lint bench corpus clean

demo: setup
	$(BIN)/triage-monitor demo

test: setup lint
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: setup
	$(BIN)/triage-monitor bench

# Trains what is missing of the benchmark's runs: hours on two cores, resumable.
corpus: setup
	$(BIN)/triage-monitor corpus --workers 2

setup: $(READY)

$(READY): pyproject.toml .ci/constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "triage_monitor needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing torch, then the package with its development tools (a few minutes the first time)" >&2
	$(PIP) install -c .ci/constraints.txt $(TORCH_ARGS) torch==2.13.0
	$(PIP) install -c .ci/constraints.txt -e '.[torch,nvfp4,dev]'
	@touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
