# Every target sets up what it needs, once: a virtual environment from requirements.lock and JavaScript clients from
# package-lock.json. A second run finds both in place.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
ENVIRONMENT := .venv
BIN := $(ENVIRONMENT)/bin
PYTHON_READY := $(ENVIRONMENT)/.ready
NODE_READY := node_modules/.ready
SPECIFICATIONS_READY := build/specifications/.ready

# The versions of Python beside the oldest one that are tried where they are installed, and what is tried on them: the
# parts that stand on the interpreter and its library, and a cluster that runs on it.
OTHER_PYTHONS := 3.12 3.13 3.14
QUICK := tests/daemon/test_*.py tests/deploy/test_processes.py tests/deploy/test_pid_files.py tests/wire/test_message.py \
    tests/integration/test_crud_pymongo.py

# Most tests wait for other processes. Each worker has clusters of its own, which the tests of a file share.
WORKERS ?= 3
SIDE_BY_SIDE := --numprocesses $(WORKERS) --dist loadfile

.PHONY: setup demo test test-all test-pythons quick check pytest bench chaos lock clean

setup: $(PYTHON_READY) $(NODE_READY)

$(PYTHON_READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(ENVIRONMENT)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Install scripts only build optional native add-ons, which nothing here needs.
$(NODE_READY): package-lock.json package.json
	@command -v npm >/dev/null || { echo "Node.js 20.19.2 or newer with npm is needed" >&2; exit 1; }
	npm ci --ignore-scripts --omit=optional --no-audit --no-fund
	@touch $@

# MongoDB's own tests of discovery and selection, which come with the source distribution of pymongo.
$(SPECIFICATIONS_READY): $(PYTHON_READY)
	$(BIN)/python -m tests.specifications.sources
	@touch $@

demo: setup
	$(BIN)/python -m shardwright.deploy.demo

test: check pytest test-pythons

check: $(PYTHON_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

pytest: setup $(SPECIFICATIONS_READY)
	$(BIN)/pytest $(SIDE_BY_SIDE)

test-pythons: $(OTHER_PYTHONS:%=test-python-%)

# An interpreter may be on PATH, or one of pyenv's that is not activated.
test-python-%: setup
	@for python in python$* "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$*.*/bin/python; do \
	    if "$$python" -c "" 2>/dev/null; then \
	        echo "Python $*: a quick selection of the tests"; \
	        exec $(MAKE) --no-print-directory quick PYTHON="$$python" ENVIRONMENT=.venv-$*; \
	    fi; \
	done; \
	echo "Python $* is not installed here and was not tried"

quick: $(PYTHON_READY)
	$(BIN)/pytest -q -p no:cacheprovider $(QUICK)

# All of every matrix and every long property run, some of which "make test" samples or leaves out.
test-all: check setup $(SPECIFICATIONS_READY)
	$(BIN)/pytest --all $(SIDE_BY_SIDE)

bench: setup
	$(BIN)/python -m bench

# Moves and faults at random under checked workloads, see docs/correctness.md:
# make chaos [MINUTES=10] [SEED=...] [MEMBERS=1|3] [WORKLOADS=a,b] [NEMESES=a,b]
chaos: setup
	$(BIN)/python -m tests.chaos --minutes "$(or $(MINUTES),10)" $(if $(SEED),--seed "$(SEED)") \
	    $(if $(MEMBERS),--members "$(MEMBERS)") $(if $(WORKLOADS),--workloads "$(WORKLOADS)") \
	    $(if $(NEMESES),--nemeses "$(NEMESES)")

# Bring the locks up to date with pyproject.toml and package.json; neither may name a package index.
lock: $(PYTHON_READY)
	$(BIN)/pip install --quiet "pip-tools>=7.5,<8"
	$(BIN)/pip-compile --quiet --upgrade --generate-hashes --strip-extras --extra embedded --extra dev --all-build-deps \
	    --no-header --no-emit-options --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
	    --output-file requirements.lock pyproject.toml
	npm install --ignore-scripts --omit=optional --package-lock-only --no-audit --no-fund
	! grep -nE '://|"resolved"' requirements.lock || exit 1
	! grep -nE '"resolved"' package-lock.json || exit 1

clean:
	rm -rf .venv .venv-* node_modules build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
