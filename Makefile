# Two commands do everything on a machine with Python 3.10+: `make quickstart` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

docs: $(VENV)/.ready
	$(BIN)/mkdocs build --strict

# The explorer as a part of the site, at explorer/; needs npm.
docs-explorer: docs
	$(BIN)/capsroute explore --static build/site/explorer

docs-serve: $(VENV)/.ready
	$(BIN)/mkdocs serve

.PHONY: docs docs-explorer docs-serve quickstart test test-slow lint clean
quickstart: $(VENV)/.ready
	$(BIN)/capsroute train

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One thread a worker: workers whose threads fight for the same cores take ten times as long.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n auto tests/form --ignore-glob "*/test_plain.py"

test-slow: $(VENV)/.ready
	OMP_NUM_THREADS=2 $(BIN)/pytest -m "slow or network" -n 0

clean:
	rm -rf $(VENV) build dist runs
