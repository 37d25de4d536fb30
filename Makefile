# Every target sets up what it needs: a virtual environment in .venv with samplr, and with its test tools and the real
# simulators where they are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable
READY := $(VENV)/.ready
TESTABLE := $(VENV)/.testable

.PHONY: demo test test-slow test-gpu lint bench clean

demo: $(READY)
	$(BIN)/samplr demo --out demo

# Two worker processes, since most of the time goes into compiling small programs. The tests of a file stay together, so
# that fixtures that compile are made once.
test: $(TESTABLE)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not gpu"

test-slow: $(TESTABLE)
	$(BIN)/python -m pytest -m slow

test-gpu: $(TESTABLE)
	$(BIN)/python -m pytest -m gpu

lint: $(TESTABLE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(TESTABLE)
	$(BIN)/python benchmarks/throughput.py
	SDL_VIDEODRIVER=dummy $(BIN)/python benchmarks/black_ice.py
	$(BIN)/python benchmarks/fruit_choice.py

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "samplr needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	@touch $(READY)

$(TESTABLE): $(READY)
	$(INSTALL) '.[test]'
	@touch $(TESTABLE)

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
