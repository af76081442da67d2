# Everything a checkout needs. `make demo` and `make test` start from nothing but python3 >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
WORKERS ?= 2
SCALE ?= 5
KILLS ?= 20
ROUNDS ?= 10
CLUSTER := .venv-cluster
CLUSTER_PYTHON ?=

ifneq ($(UV),)
MAKE_VENV = $(UV) venv --quiet --allow-existing --python "$(PYTHON)" $(VENV)
INSTALL = $(UV) pip install --quiet --python $(BIN)/python
else
MAKE_VENV = $(PYTHON) -m venv $(VENV)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

.PHONY: demo demo-waves demo-team demo-cluster cluster test attack attack-machines restate compat lint style mypy pyright format notebooks reference docs bench dev clean
# Processes that the tests start would compile the package each time.
unexport PYTHONDONTWRITEBYTECODE
# Half an environment, left by an attempt that failed, must not count as one.
.DELETE_ON_ERROR:

demo: $(VENV)/.examples  ## Ask the hotel agent its three questions.
	@$(BIN)/graph-agent run --config examples/hotel/agent.yaml --today 2026-11-21 \
		"Check availability for January 17-19" \
		"one night in Hanukkah" \
		"Check availability for Hanukkah and also next weekend"

demo-waves: $(VENV)/.examples  ## Ask them with structured planning: plans, waves of parallel calls, answers.
	@$(BIN)/python examples/hotel/waves.py

demo-team: $(VENV)/.team  ## Ask a team of three agents, each its own process, over A2A.
	@$(BIN)/python examples/research_team/team.py

demo-cluster: $(CLUSTER)/.ready  ## Run agents on two instances of Aegra, with Python 3.12 or newer; kill one, and pause one.
	@$(CLUSTER)/bin/python -m deploy.aegra.demo

cluster: $(CLUSTER)/.ready $(VENV)/.dev  ## Kill and pause instances of Aegra, ROUNDS=10 times in each way, for about ten minutes.
	GRAPH_AGENT_CLUSTER_ROUNDS=$(ROUNDS) $(BIN)/pytest -m cluster tests/cluster

test: $(VENV)/.dev  ## Run every test, and the notebooks.
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup tests

attack: $(VENV)/.dev  ## Kill, pause and cut off workers, skew clocks, fill disks; SCALE=1 lasts about a minute.
	GRAPH_AGENT_ATTACK_SCALE=$(SCALE) $(BIN)/pytest -m attack tests/attack

attack-machines: $(VENV)/.dev  ## Kill, pause and restart four servers and their database for two minutes, while 200 sessions run.
	GRAPH_AGENT_ATTACK_SCALE=10 $(BIN)/pytest -m attack tests/attack/test_machines.py

restate: $(VENV)/.dev  ## Kill workers behind a real Restate server, which npm downloads; KILLS=20 is how often.
	GRAPH_AGENT_RESTATE_KILLS=$(KILLS) $(BIN)/pytest -m restate tests/restate $(if $(ONLY),-k "$(ONLY)")

compat: $(VENV)/.dev  ## Have older and newer versions of the official clients, and LangChain's, talk to a server; it installs them.
	$(BIN)/python -m tests.compat.run

lint: style mypy pyright  ## Check style, types, layers, file lengths, and the prose of docstrings; -j2 runs the types in parallel.

style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tests/checks/file_lengths.py
	$(BIN)/python tests/checks/independent_tests.py
	$(BIN)/python tests/checks/register.py

mypy: $(VENV)/.dev
	$(BIN)/mypy graph_agent examples tests benchmarks scripts deploy

pyright: $(VENV)/.dev
	$(BIN)/pyright

format: $(VENV)/.dev  ## Put the code in its standard form.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

notebooks: $(VENV)/.dev  ## Run the notebooks, and store their outputs where they have changed.
	$(BIN)/python -m tests.support.notebooks

reference: $(VENV)/.dev  ## Write docs/reference/ and the schema of the agent file from the code.
	$(BIN)/python -m scripts.reference

docs: $(VENV)/.docs  ## Build the documentation into site/; a warning is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.dev  ## Run all benchmarks, in about ten minutes, and write benchmarks/RESULTS.md.
	$(BIN)/python -m benchmarks.results

dev: $(VENV)/.studio  ## Serve the example to LangGraph Studio, offline.
	LANGGRAPH_CLI_NO_ANALYTICS=1 LANGGRAPH_NO_VERSION_CHECK=1 LANGSMITH_TRACING=false \
		$(BIN)/langgraph dev --no-browser --n-jobs-per-worker 10

clean:  ## Remove the virtual environment and what tools left behind.
	rm -rf $(VENV) $(CLUSTER) dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .langgraph_api

$(BIN)/python:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
		{ echo "Python 3.11 or newer is needed; say which with: make PYTHON=python3.12 ..."; exit 1; }
	@$(MAKE_VENV)

$(VENV)/.examples: EXTRAS = examples
$(VENV)/.team: EXTRAS = examples,server
$(VENV)/.studio: EXTRAS = examples,server,studio
$(VENV)/.docs: EXTRAS = docs
$(VENV)/.examples $(VENV)/.team $(VENV)/.studio $(VENV)/.docs: pyproject.toml | $(BIN)/python
	@echo "Installing graph-agent[$(EXTRAS)] into $(VENV); the first time takes a minute."
	@$(INSTALL) -e ".[$(EXTRAS)]"
	@touch $@

# The extra `dev` includes the others.
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "Installing what the tests need into $(VENV); the first time takes a few minutes."
	@$(INSTALL) -e ".[dev]"
	@touch $(VENV)/.examples $(VENV)/.team $(VENV)/.studio $(VENV)/.docs $@

# An environment of its own, because Aegra needs a newer Python. What the system lacks is installed as a wheel.
$(CLUSTER)/.ready: pyproject.toml deploy/aegra/requirements.txt
	@python=$$(CLUSTER_PYTHON="$(CLUSTER_PYTHON)" sh deploy/aegra/find_python.sh) && \
		echo "Installing Aegra into $(CLUSTER) with $$python; the first time takes a minute." && \
		$$python -m venv $(CLUSTER)
	@$(CLUSTER)/bin/python -m pip install --quiet --disable-pip-version-check -r deploy/aegra/requirements.txt \
		-e ".[examples,server,postgres]" $$($(CLUSTER)/bin/python -m deploy.aegra.services)
	@touch $@
