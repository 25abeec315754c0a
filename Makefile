# make run       the sample app with all that it needs, on this machine
# make check     lint, types, unit tests of the library: half a minute
# make test      the above, real servers, official clients, the model, a short fault trial: eight minutes
# make test-some a part of test-all: a browser, fault trials with controls, oldest releases, other Pythons: six minutes
# make test-all  the rest: a browser, all fault trials, load, oldest releases, other Pythons
# make test-long  what takes longer still: long fault trials, killed transactions of pessimistic mode
# make test-pythons  unit and contract tests on the Pythons of the PATH and of pyenv: PYTHONS="3.12 3.13"
# make chaos     a fault trial: DURATION=300 (seconds), SEED=7, STORE=redis, memcacheds, cluster, sentinel, datastore…
# make docs      the documentation as a site, in build/site
# make reference the docstrings as text, in reference/
# make spec      the models of lock and outbox, checked exhaustively; SPEC=--full takes much longer
# make dist      both packages in dist/, installed into an empty environment and tried
# make release   VERSION=0.2.0: changelog, versions, commit, build, checks, tag; publishes nothing
# make lock      requirements/: the exact versions that all of this installs, with hashes
# make bench     the costs, beside other locks; ARGS="--quick", "--json", "--plot FILE"
# make bench-appengine  App Engine's own transactional tasks, an hour without their engine
# make bench-idempotency  twelve faults of a paid request, beside other idempotency packages
# make compare-emulators  random programs here and on Google's emulators; skipped without a Cloud SDK; ARGS="--all"
# make mutants   how many of 300 planted faults the fast tests notice; ARGS="--paths userlock/stores --count 50"
# make load      the sample app under mixed traffic: wrong answers, lost updates, leaks; SECONDS=60
# make simulation  a day of traffic of a site with 10^4 to 10^8 users; ARGS="--json", "--check"
# The tests start hundreds of processes: each would compile all that it imports if the shell's
# environment forbids to keep it.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
PY := $(VENV)/bin/python
PYTEST := $(VENV)/bin/pytest -q
# On both cores: each worker begins with one half of the tests in their order, so that neighbours
# share servers, and takes from the other's half when it has done its own. Slow tests of faults and
# whole stacks measure times, and run alone.
BOTH := -n 2 --dist worksteal
LIBRARY := $(addprefix tests/unit/,constraints lock ndb outbox stores testing) $(wildcard tests/unit/test_*.py)
CHAOS := $(addprefix tests/system/test_,chaos.py dockerfile.py installed.py lab.py) \
	$(addprefix tests/faults/,idempotency test_hostile.py)
# Of the fault trials: one of each other kind of store, the unchanged library, four rules disabled.
TRIALS := nothing_is_wrong and redis or unchanged_library or memcached-tickets or redis-checked_release or jobs_claimed or claims_checked

.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

# --- the two commands ---------------------------------------------------------------------

.PHONY: run
run: $(VENV)/.ready-run
	@$(PY) -m sample_app run

.PHONY: test
test: $(VENV)/.ready-dev servers check types test-rest spec

.PHONY: test-some
test-some: $(VENV)/.ready-dev servers test-browser test-oldest
	$(PYTEST) $(BOTH) -m 'slow and not long' tests/system/test_chaos.py -k '$(TRIALS)'
	@TESTS="$(LIBRARY) tests/contract/ndb" tools/test-pythons.sh 3.13

.PHONY: test-all
test-all: $(VENV)/.ready-dev servers test-browser test-slow test-oldest test-pythons

# --- parts --------------------------------------------------------------------------------

# The types are checked while the tests run.
.PHONY: check
check: $(VENV)/.ready-dev lint
	@$(MAKE) --no-print-directory -j2 -O types-library test-library

.PHONY: lint
lint: $(VENV)/.ready-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

.PHONY: types-library
types-library: $(VENV)/.ready-dev
	$(VENV)/bin/mypy userlock emulator/userlock_emulator

.PHONY: types
types: $(VENV)/.ready-dev
	$(VENV)/bin/mypy

# Python only, and next to no waiting.
.PHONY: test-library
test-library: $(VENV)/.ready-dev
	$(PYTEST) $(BOTH) -m 'not slow and not long' $(LIBRARY)

# The emulator, the sample app, random programs, tools.
.PHONY: test-around
test-around: $(VENV)/.ready-dev
	$(PYTEST) $(BOTH) -m 'not slow and not long' tests/unit tests/property $(LIBRARY:%=--ignore=%)

# All that `test-library` leaves, without a browser: real servers, official clients, faults as well.
.PHONY: test-rest
test-rest: $(VENV)/.ready-dev
	$(PYTEST) $(BOTH) -m 'not slow and not long' tests $(LIBRARY:%=--ignore=%) --ignore=tests/browser

# Journeys, and each page of the site and of the documentation, in a browser.
.PHONY: test-browser
test-browser: $(VENV)/.ready-dev
	$(PYTEST) $(BOTH) -m 'not slow and not long' tests/browser

.PHONY: test-slow
test-slow: $(VENV)/.ready-dev
	$(PYTEST) $(BOTH) -m 'slow and not long' tests/unit tests/property tests/contract tests/browser $(CHAOS)
	$(PYTEST) -m 'slow and not long' tests/faults tests/system $(CHAOS:%=--ignore=%)

.PHONY: test-long
test-long: $(VENV)/.ready-dev servers
	$(PYTEST) -m long tests

# The model layer with the oldest releases of google-cloud-ndb and -datastore that pyproject.toml
# allows, in an environment of its own.
.PHONY: test-oldest
test-oldest: $(VENV)/oldest/.ready-oldest
	$(VENV)/oldest/bin/pytest -q -W "ignore:You are using a Python version:FutureWarning" \
		$(BOTH) -m 'not slow and not long' tests/unit/ndb tests/contract/ndb tests/contract/constraints

PYTHONS := 3.12 3.13
.PHONY: test-pythons
test-pythons: servers
	@tools/test-pythons.sh $(PYTHONS)

# Random programs in several processes while servers, network and processes fail. A checker says
# whether the guarantees were kept.
#   make chaos DURATION=3600 SEED=7 STORE=memcacheds
DURATION := 300
SEED :=
STORE := memcached
OUT := .run/chaos
.PHONY: chaos
chaos: $(VENV)/.ready-dev servers
	@$(PY) -m tests.chaos --seconds $(DURATION) --seed "$(SEED)" --store $(STORE) --out $(OUT)

.PHONY: servers
servers:
	@tools/need-servers.sh

# Warnings are errors: links, anchors, pages that are missing in mkdocs.yml, docstrings. A test
# (tests/browser/test_documentation.py) builds it as well.
.PHONY: reference
reference: $(VENV)/.ready-dev
	$(PY) -m tools.reference

.PHONY: docs
docs: $(VENV)/.ready-dev
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	@echo "build/site/index.html"

.PHONY: spec
spec: $(VENV)/.ready-dev servers
	@$(PY) -m spec $(SPEC)

# The tests install these very files.
.PHONY: dist
dist: $(VENV)/.ready-dev servers
	@$(PY) -m tools.dist dist
	DIST=$(abspath dist) $(PYTEST) -m 'slow and not long' tests/system/test_installed.py

.PHONY: release
release: $(VENV)/.ready-dev
	@$(PY) -m tools.release --check-only "$(VERSION)"
	@$(MAKE) check dist
	@$(PY) -m tools.release "$(VERSION)"

.PHONY: lock
lock: $(VENV)/.ready-dev
	@tools/lock.sh

# Clusters are those of the tests.
.PHONY: bench
bench: $(VENV)/.ready-bench servers
	@$(PY) -m benchmarks $(ARGS)

# Its pins differ from those of the library, so it has an environment of its own.
.PHONY: bench-appengine
bench-appengine: $(VENV)/appengine/.ready
	@$(VENV)/appengine/bin/python -W ignore benchmarks/appengine.py

# The same: what the packages need beside each other is older than the library's own.
.PHONY: bench-idempotency
bench-idempotency: $(VENV)/idempotency/.ready $(VENV)/.ready-run
	@$(PY) -m benchmarks.idempotency_peers $(VENV)/idempotency/bin/python $(ARGS)

# Google's emulators are those of an installed Cloud SDK, or the one at GOOGLE_EMULATOR=HOST:PORT.
# It is no part of the tests. One of them tries it on two emulators of ours.
.PHONY: compare-emulators
compare-emulators: $(VENV)/.ready-dev
	@$(PY) -m tools.compare $(ARGS)

.PHONY: mutants
mutants: $(VENV)/.ready-dev servers
	@$(PY) -m tools.mutants $(ARGS)

.PHONY: simulation
simulation: $(VENV)/.ready-dev
	@$(PY) -m tools.traffic $(ARGS)

# A quarter of a minute of it is part of `make test-all`.
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

$(VENV)/.ready-% $(VENV)/oldest/.ready-%: requirements/%.txt pyproject.toml emulator/pyproject.toml tools/setup.sh
	@tools/setup.sh $*

$(VENV)/.ready-bench: | $(VENV)/.ready-dev

$(VENV)/appengine/.ready $(VENV)/idempotency/.ready: $(VENV)/%/.ready: requirements/%.txt | $(VENV)/.ready-run
	@$(PY) -m venv $(VENV)/$*
	@$(VENV)/$*/bin/pip install --quiet --disable-pip-version-check -r $< --no-deps --require-hashes
	@touch $@
