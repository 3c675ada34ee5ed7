# Needs make and Python 3.11+ with venv; everything else is installed into .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test check crash bench clean

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

# One stamp for each set of extras: a target installs only what it uses.
$(VENV)/.%: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/effects demo

test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto

check: $(VENV)/.check $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

crash: $(VENV)/.test
	EFFECTS_TEST_KILLS=1000 EFFECTS_TEST_REPORT_KILLS=300 $(BIN)/python -m pytest -m crash -n 0 -s tests

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV)
