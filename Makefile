# The words users use here. `make help` lists them; each target sets up what it needs by itself.
SHELL := /bin/sh
.DEFAULT_GOAL := help

PYTHON ?= python3
TORCH ?= torch==2.13.0
# Without CUDA, which is gigabytes on Linux and not needed for CPUs; `make setup TORCH_INDEX=` takes PyPI's build.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
BIN := .venv/bin
# Tests run in so many processes side by side, since many wait for others; a file's stay together, for they share gateways
# (tests/distribution.py has the order, the longest first).
WORKERS ?= 4
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help setup demo demo-market dev check fix test test-slow test-browser screenshots clients-npm clients-agents bench bench-check bench-gateway lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ------------------------------------------------------------------ set-up
.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Millrace needs Python 3.11 or newer; try make PYTHON=python3.12 ...")'
	@echo "making .venv" >&2
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/node: .venv/made requirements/node.lock pyproject.toml
	@echo "installing Millrace and torch (minutes on the first run)" >&2
	@$(PIP) --require-hashes -r requirements/node.lock
	@$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX) --retries 1 --timeout 20) $(TORCH)
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/dev: .venv/node requirements/dev.lock
	@echo "installing the tools for checks and tests" >&2
	@$(PIP) --require-hashes -r requirements/dev.lock
	@touch $@

setup: .venv/node ## install Millrace (pinned by hash) and torch (pinned by version) into .venv

# ------------------------------------------------------------------ use
demo: .venv/node ## gateway and two nodes on this machine answer one chat (ONCE=1: then stop)
	@$(BIN)/python -m demo $(if $(filter-out 0,$(ONCE)),--once)

demo-market: .venv/dev ## a marketplace, a seller and a buyer trade one answer, and their ledgers agree (ONCE=1: then stop)
	@$(BIN)/python -m demo.market $(if $(filter-out 0,$(ONCE)),--once)

dev: .venv/dev ## gateway and two nodes with readable logs; Ctrl-C stops
	@MILLRACE_LOG__FORMAT=console MILLRACE_LOG__LEVEL=debug $(BIN)/millrace up --model demo/model --nodes 2 --data-dir .dev

# ------------------------------------------------------------------ quality
check: .venv/dev ## style, types, direction of imports, structure and words
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python .ci/structure.py

fix: .venv/dev ## repair what the formatter and linter can repair
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Of hundreds of processes that tests start each would compile all of our modules anew, where bytecode is not kept.
test: export PYTHONDONTWRITEBYTECODE =
test: .venv/dev ## the tests that every change passes (8 to 11 minutes on 2 cores)
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow and not browser" $(ARGS)

# Debian's etcd, unpacked beside us and not installed: nothing is started, and nobody has to be root.
.bench/etcd/usr/bin/etcd:
	@mkdir -p $(dir $@) && cd .bench/etcd && apt-get download -q etcd-server >&2 && dpkg -x etcd-server_*.deb . \
		|| echo "etcd cannot be had here: its tests are left out" >&2

test-slow: .venv/dev $(if $(shell command -v etcd),,.bench/etcd/usr/bin/etcd) ## soak, chaos and large property runs
	@$(BIN)/python -m pytest -q -m "slow or hypothesis" --timeout 3600 --hypothesis-profile=wide $(ARGS)

test-browser: .venv/dev ## console pages in a real Chromium
	@command -v chromium >/dev/null || apt-get install -y --no-install-recommends chromium >&2
	@$(BIN)/python -m pytest -q -m browser $(ARGS)

screenshots: .venv/dev ## pictures of every console page into docs/images
	@command -v chromium >/dev/null || apt-get install -y --no-install-recommends chromium >&2
	@$(BIN)/python -m tests.console.screenshots docs/images

clients-npm: ## install the npm clients that `make test` then tries too (needs node 20)
	@cd tests/clients/npm && npm ci --no-audit --no-fund --ignore-scripts

# Not `npm ci`, which fails if a registry lacks the packages of some other platform. Versions and hashes are the lock's.
clients-agents: ## install the coding agents that `make test` then tries too (needs node 20, 1.3 GB)
	@cd tests/clients/agents && npm install --no-save --no-audit --no-fund --ignore-scripts

bench: .venv/dev ## tokens per second of the cluster, entries per second of the ledger
	@$(BIN)/python -m bench $(ARGS)

bench-check: .venv/dev ## measure the promised latencies, and fail if one is broken (3 minutes)
	@$(BIN)/python -m bench check $(ARGS)

# Other people's programs, each in a folder of its own: nothing of theirs is imported by ours. One that cannot be had
# is missing from the table.
PEERS := .bench/sglang .bench/litellm
.bench/sglang: PEER := sglang-router==0.3.2
.bench/litellm: PEER := litellm[proxy]==1.106.2
$(PEERS):
	@echo "installing $(PEER) into $@" >&2
	@$(PYTHON) -m venv $@ && $@/bin/pip install --quiet --disable-pip-version-check '$(PEER)' \
		|| { rm -rf $@; echo "$(PEER) cannot be had here" >&2; }

bench-gateway: .venv/dev $(PEERS) ## what a request costs through ours, nginx, SGLang's router and LiteLLM (Linux)
	@command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || apt-get install -y --no-install-recommends nginx >&2 || true
	@$(BIN)/python -m bench gateway $(ARGS)

# ------------------------------------------------------------------ upkeep
LOCK := $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --unsafe-package torch \
	--no-emit-find-links --no-emit-index-url --no-emit-options --no-header --upgrade

lock: .venv/made ## pin every dependency again (except torch)
	@$(PIP) pip-tools
	@$(LOCK) --extra node -o requirements/node.lock pyproject.toml
	@$(LOCK) --extra node --extra dev --constraint requirements/node.lock -o requirements/dev.lock pyproject.toml
	@sed -i '/^# The following packages are considered/,$$d' requirements/node.lock requirements/dev.lock

clean: ## remove what the targets above made
	@rm -rf .venv .dev .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
