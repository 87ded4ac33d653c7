# `make demo` and `make test` do all the set-up that they need: a virtual environment with the locked dependencies.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
DEVELOPMENT := $(VENV)/.development
CONFORMANCE := tests/conformance
SUITE := $(CONFORMANCE)/node_modules/.package-lock.json
# Two processes, a file to each in turn: half the suite is CPU, the other half waits for processes that it started.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile
CLIENTS := tests/clients
CALLERS := $(CLIENTS)/node_modules/.package-lock.json
AGENTS := tests/agents/node_modules/.package-lock.json
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint requirements.lock

.PHONY: demo test check conformance heavy run bench docs lock clean

demo: $(RUNTIME)
	$(BIN)/oubliette demo

run: $(RUNTIME)
	$(BIN)/python -m oubliette

test: $(DEVELOPMENT)
	$(PYTEST)

check: $(DEVELOPMENT)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) --cov --cov-report=term:skip-covered

# The official MCP suite, and callers on the TypeScript SDK; once they are installed they are a part of `make test`.
conformance: $(DEVELOPMENT) $(SUITE) $(CALLERS)
	$(BIN)/python -m pytest $(CONFORMANCE) tests/e2e/test_mcp_clients.py

# Real agents, with a scripted model: a gigabyte of packages, and ten seconds of CPU a turn for some. Fork bombs, memory hogs,
# and smoke tests of the benchmarks, which take the whole machine. So they are apart from `make test`; CI runs them.
heavy: $(DEVELOPMENT) $(AGENTS)
	$(BIN)/python -m pytest -m heavy

bench: $(DEVELOPMENT)
	$(BIN)/python -m benchmarks.relay
	$(BIN)/python -m benchmarks.fanout
	$(BIN)/python -m benchmarks.crowd
	$(BIN)/python -m benchmarks.parallel
	$(BIN)/python -m benchmarks.idle
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.ot
	$(BIN)/python -m benchmarks.agents

# The outputs in docs/ot.md, which a test compares.
docs: $(DEVELOPMENT)
	$(BIN)/python -m scripts.ot_page

# The versions that everybody develops and tests with; the package itself asks for lower bounds.
lock:
	rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet --editable '.[dev]'
	$(VENV)-lock/bin/python -m pip freeze --exclude-editable > requirements.lock
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) $(VENV)-lock tests/*/node_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)

$(RUNTIME): $(BIN)/python pyproject.toml requirements.lock
	$(PIP) --editable .
	@touch $@

$(DEVELOPMENT): $(RUNTIME)
	$(PIP) --editable '.[dev]'
	@touch $@

$(SUITE): $(CONFORMANCE)/package.json $(CONFORMANCE)/package-lock.json
	npm ci --prefix $(CONFORMANCE) --no-audit --no-fund
	@touch $@

$(CALLERS): $(CLIENTS)/package.json $(CLIENTS)/package-lock.json
	npm ci --prefix $(CLIENTS) --no-audit --no-fund
	@touch $@

$(AGENTS): tests/agents/package.json tests/agents/package-lock.json
	npm ci --prefix tests/agents --no-audit --no-fund
	@touch $@
