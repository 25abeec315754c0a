# Everything a developer needs: `make run`, `make test`, `make check`, `make bench`.
VENV := .venv
PY := $(VENV)/bin/python

$(VENV)/.installed: pyproject.toml emulator/pyproject.toml
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install -q -e . -e ./emulator -e '.[dev]'
	touch $@

.PHONY: lint
lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
