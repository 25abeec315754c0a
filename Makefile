# make run    the sample app with all that it needs, on this machine
# make test   everything that is tested: half an hour on two cores
# make check  what is quick: lint, types, unit tests
# make chaos  whatever fails, is anything lost? DURATION=300 (seconds), SEED=7
# make docs   the documentation as a site, in build/site
# make spec   the protocol's model, checked exhaustively; SPEC=--full for what takes much longer
# make audit  known vulnerabilities of what is installed; says so if it cannot reach its data
# make bench  what it costs, beside other locks; ARGS="--quick", "--json", "--plot FILE"
# make load   the sample app under mixed traffic: wrong answers, lost updates, leaks; SECONDS=60
# make simulation   a day of traffic of a site with 10^4 to 10^8 users; ARGS="--json", "--check"
VENV := .venv
PY := $(VENV)/bin/python
PYTEST := $(VENV)/bin/pytest -q
# What measures no times runs on two cores at once.
BESIDE := -n 2 --dist loadfile
# The unit tests of the library itself.
LIBRARY := $(addprefix tests/unit/,cli lock ndb stores testing) $(wildcard tests/unit/test_*.py)
# It takes into account how busy the machine is.
TRIAL := tests/system/test_chaos.py

.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

# --- the two commands ---------------------------------------------------------------------

.PHONY: run
run: $(VENV)/.ready-run
	@$(PY) -m sample_app run

.PHONY: test
test: $(VENV)/.ready-dev servers check test-around spec test-servers test-slow test-oldest

# --- parts --------------------------------------------------------------------------------

.PHONY: check
check: lint types test-library

.PHONY: lint
lint: $(VENV)/.ready-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

.PHONY: types
types: $(VENV)/.ready-dev
	$(VENV)/bin/mypy

# Nothing but Python, and next to no waiting. The library's: less than half a minute.
.PHONY: test-library
test-library: $(VENV)/.ready-dev
	$(PYTEST) $(BESIDE) -m 'not slow' $(LIBRARY)

# Of all that is around it, and random programs: as long again.
.PHONY: test-around
test-around: $(VENV)/.ready-dev
	$(PYTEST) $(BESIDE) -m 'not slow' tests/unit tests/property $(LIBRARY:%=--ignore=%)

# Real servers, official clients, faults, a browser: some ten minutes.
.PHONY: test-servers
test-servers: $(VENV)/.ready-dev
	$(PYTEST) $(BESIDE) -m 'not slow' tests/contract tests/browser
	$(PYTEST) -m 'not slow' tests/faults tests/system

# Whole stacks, load, long waits: some fifteen minutes.
.PHONY: test-slow
test-slow: $(VENV)/.ready-dev
	$(PYTEST) $(BESIDE) -m slow tests/unit tests/property tests/contract tests/browser $(TRIAL)
	$(PYTEST) -m slow tests/faults tests/system --ignore=$(TRIAL)

# The model layer with the oldest releases of google-cloud-ndb and -datastore that pyproject.toml
# allows, in an environment of its own.
.PHONY: test-oldest
test-oldest: $(VENV)/oldest/.ready-oldest
	$(VENV)/oldest/bin/pytest -q -W "ignore:You are using a Python version:FutureWarning" \
		$(BESIDE) -m 'not slow' tests/unit/ndb tests/contract/ndb

# Random programs in several processes, and everything that may fail fails; a checker says whether
# what was promised was kept. A short form is part of `test-slow`: five minutes in all, of which
# the negative controls take one and a half.
#   make chaos DURATION=3600 SEED=7
DURATION := 300
SEED :=
OUT := .run/chaos
.PHONY: chaos
chaos: $(VENV)/.ready-dev servers
	@$(PY) -m tests.chaos --seconds $(DURATION) --seed "$(SEED)" --out $(OUT)

.PHONY: servers
servers:
	@tools/need-servers.sh

# Warnings are errors: links, anchors, pages that are missing in mkdocs.yml, docstrings. A test
# (tests/browser/test_documentation.py) builds it as well.
.PHONY: docs
docs: $(VENV)/.ready-docs
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	@echo "build/site/index.html"

.PHONY: spec
spec: $(VENV)/.ready-dev servers
	@$(PY) -m spec $(SPEC)

# Asks the network, so it is no part of `make test`.
.PHONY: audit
audit: $(VENV)/.ready-dev $(VENV)/audit/bin/pip-audit
	@$(PY) -m tools.audit $(VENV)/audit/bin/pip-audit

.PHONY: bench
bench: $(VENV)/.ready-bench
	@$(PY) -m benchmarks $(ARGS)

.PHONY: simulation
simulation: $(VENV)/.ready-dev
	@$(PY) -m tools.traffic $(ARGS)

# A quarter of a minute of it is part of `test-slow`.
SECONDS := 60
.PHONY: load
load: $(VENV)/.ready-run servers
	@$(PY) -m tools.load --seconds $(SECONDS) $(ARGS)

.PHONY: format
format: $(VENV)/.ready-dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

.PHONY: clean
clean:
	rm -rf $(VENV) .run .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist

# --- set-up -------------------------------------------------------------------------------

$(VENV)/.ready-% $(VENV)/oldest/.ready-%: pyproject.toml emulator/pyproject.toml tools/setup.sh
	@tools/setup.sh $*

$(VENV)/audit/bin/pip-audit:
	@$(PY) -m venv $(VENV)/audit
	@$(VENV)/audit/bin/pip install --quiet --disable-pip-version-check pip-audit
