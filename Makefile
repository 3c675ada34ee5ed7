# Needs make and Python 3.11+ with venv; everything else is installed into .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Each folder is a distribution of its own.
PACKAGES := email webhooks reports

# Else each of the hundreds of processes that tests start would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: docs demo dev test test-all check crash failover soak bench bench-costs bench-fairness bench-upkeep bench-reports bench-pages bench-long clean

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

# The core and the packages, built by the environment's own hatchling: an isolated one for each would take seconds.
$(VENV)/.distributions: $(VENV)/.made pyproject.toml $(PACKAGES:%=%/pyproject.toml)
	$(BIN)/python -m pip install --quiet hatchling
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable . $(PACKAGES:%=--editable ./%)
	touch $@

# One stamp for each set of extras: a target installs only what it uses.
$(VENV)/.%: $(VENV)/.distributions
	$(BIN)/python -m pip install --quiet 'effects-toolkit[$*]' $(PACKAGES:%=effects-toolkit-%)
	touch $@

demo: $(VENV)/.demo
	$(BIN)/python -m examples.demo

# An inbox of what an example sends, with its first message. Nothing leaves this machine.
dev: $(VENV)/.demo
	cd examples && rm -rf dev.db* .effects-dev \
	&& export EFFECTS_DATABASE_URL=sqlite:///dev.db PATH="$(CURDIR)/$(BIN):$$PATH" && eval "export $$(effects keys generate)" \
	&& effects --app signup:app init \
	&& effects --app signup:app webhooks endpoints add https://crm.example/hooks --pattern "user.*" \
	&& python signup.py ann@example.com Ann \
	&& exec effects --app signup:app dev --take-over

# The site, in site/. Fails for a warning and for a link that leads nowhere.
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

# What a contributor needs, in minutes. Everything: `make test-all`.
test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto --dist worksteal --quick

# Everything, in samples: of most tests that run on both databases, one of the two. `make soak` runs each case on each.
test-all: $(VENV)/.test $(VENV)/.types
	$(BIN)/python -m pytest -n auto --dist worksteal --either

check: $(VENV)/.check $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff format --check --line-length 76 $(filter-out docs/adding-a-package.md,$(wildcard *.md docs/*.md */README.md))
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/audit.py

crash: $(VENV)/.test
	EFFECTS_TEST_KILLS=1000 EFFECTS_TEST_REPORT_KILLS=300 $(BIN)/python -m pytest -m crash -n 0 -s tests

failover: $(VENV)/.test
	EFFECTS_TEST_PROMOTIONS=20 EFFECTS_TEST_LOSSES=20 $(BIN)/python -m pytest -n 0 -s tests/failover

# Every case of the matrices of which `make test-all` runs a sample.
soak: $(VENV)/.test
	EFFECTS_TEST_FULL=1 $(BIN)/python -m pytest -n auto --timeout 3600

# A peer of Node runs beside it where npm is.
bench: $(VENV)/.bench
	-command -v npm >/dev/null && npm install --silent --no-save --prefix $(VENV)/node graphile-worker@0.17.3
	$(BIN)/python -m benchmarks

# Where the time goes.
bench-costs: $(VENV)/.bench
	$(BIN)/python -m benchmarks --group costs

# What jobs of one key, group or partner cost those of others.
bench-fairness: $(VENV)/.bench
	$(BIN)/python -m benchmarks --group fairness

# Retention, rollups, dead letters, a worker's start.
bench-upkeep: $(VENV)/.bench
	$(BIN)/python -m benchmarks --group upkeep

# Reports beside psql, XlsxWriter and pyarrow, by two workers, and the memory of each format.
bench-reports: $(VENV)/.bench
	$(BIN)/python -m benchmarks --group reports

# Lists and pages beside a million ended jobs.
bench-pages: $(VENV)/.bench
	$(BIN)/python -m benchmarks --group pages

# What takes longer: a large backlog, a snapshot that is held for half an hour.
bench-long: $(VENV)/.bench
	$(BIN)/python -m benchmarks --group long

clean:
	rm -rf $(VENV)
