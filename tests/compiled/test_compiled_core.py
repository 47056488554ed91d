"""A compiled core, as a wheel contains it, gives the results of its sources byte by byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cells.workers import Tick, Ticked, run_jobs
from harness.compile import obstacle
from harness.load.background import Background
from harness.load.settings import Load, Machine, Server, SweepSettings
from harness.sweep.resolve import resolve
from servers.basics.compiled_core import CHOICE, WORKER, find_core, offered_to_workers
from servers.basics.cores import cpu_cores
from servers.sim import engine
from servers.variants import POLICIES
from tests.compiled.wheel import build_core
from tests.harness.small import contents, run_sweep
from traces import Program, Turn

ROOT = Path(__file__).parents[2]
PYTHON = "python"


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a core as a wheel contains it: what `make test-all` has built, or a new one."""
    if (built := find_core().folder) is not None:
        return built
    if reason := obstacle():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("wheel") / "core"
    build_core(folder)
    return folder


def describe(_shared: None, job: str, tick: Tick) -> None:
    """Report the file of the engine here, or in a process that this one starts."""
    code = "from servers.sim import engine; print(engine.__file__)"
    if job == "child":
        tick(1, subprocess.check_output([sys.executable, "-c", code], text=True).strip())
    else:
        tick(1, str(engine.__file__))


def file_of_engine(job: str) -> str:
    with offered_to_workers(find_core()):
        (event,) = [e for e in run_jobs([job], describe, None, 1) if isinstance(e, Ticked)]
    return event.stage


def test_workers_import_compiled_modules_and_the_processes_that_they_start_the_sources(
    core: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHOICE, str(core))
    assert file_of_engine("worker").startswith(str(core / "servers/sim/engine."))
    assert file_of_engine("child") == str(engine.__file__)
    monkeypatch.setenv(CHOICE, PYTHON)
    assert file_of_engine("worker") == str(engine.__file__)


DERIVE = """
from servers.policies.base import Costs
from servers.sim import engine
from servers.variants import POLICIES
for name in POLICIES.built_in:
    derived = type("Derived", (POLICIES.load(name),), {"name": f"derived-{name}"})
    print(derived(Costs(prefill_s=float)).name)
"""


def test_an_interpreted_class_can_derive_from_every_compiled_policy(core: Path) -> None:
    printed = subprocess.check_output(
        [sys.executable, "-c", DERIVE], env={**os.environ, WORKER: str(core)}, text=True
    )
    assert printed.split() == [f"derived-{name}" for name in POLICIES.built_in]


SHORT_OF_MEMORY = SweepSettings(
    jps="0.2",
    load=Load(programs=24, once=True),
    machine=Machine(kv_blocks=10_000, offload_gb=30, ssd_gb=60),
)
"""As in the sweep of `.ci/results`, whose test compares every policy, compiled, with saved
results."""
SWEEPS = {
    "a steady state, and more jobs than finish": SweepSettings(
        policies="autellix+", jps="0.02,0.2", no_capacity=True, seeds="1"
    ),
    "jobs beside a background": SweepSettings(
        policies="continuum", jps="0.1", load=Load(programs=24, once=True)
    ),
    "sliding windows": SweepSettings(
        policies="continuum",
        jps="1",
        load=Load(programs=8, once=True),
        machine=Machine(hardware="a100-80g", model="gpt-oss-20b", kv_blocks=20_000),
    ),
    "replicas behind routers, of which one is from outside": replace(
        SHORT_OF_MEMORY,
        policies="turnstile",
        server=Server(
            replicas=3,
            router="round-robin,least-loaded(load=kv),power-of-two,sticky,prefix-aware,thunderagent,"
            "program-scheduling(global_queue=true,stats_window_size=5),"
            "tests.compiled.derived:LongPromptsLast",
        ),
    ),
    "prefill and decode engines, short of memory": replace(
        SHORT_OF_MEMORY,
        policies="infercept",
        server=Server(
            disaggregate="1P2D,2P1D",
            router="thunderagent,tests.compiled.derived:LongPromptsLast",
            transfer_gb_per_s=5.0,
            transfer_latency_s=0.01,
        ),
    ),
    "policies from outside": replace(
        SHORT_OF_MEMORY,
        policies="tests.compiled.derived:ShortPromptsFirst,tests.compiled.derived:PatientContinuum+",
        jps="0.1",
    ),
}


REQUESTS = tuple(Program(f"background/{k}", (Turn(500 * k, 10 * k),)) for k in (1, 2, 3, 4))
BACKGROUNDS = {
    name: Background("requests", REQUESTS, 0.2, "")
    for name in (
        "jobs beside a background",
        "replicas behind routers, of which one is from outside",
    )
}
"""Sweeps with requests beside the jobs."""


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_writes_the_bytes_that_the_sources_write(
    name: str, core: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(resolve(SWEEPS[name]), background=BACKGROUNDS.get(name))
    written = {}
    for choice in (str(core), PYTHON):
        monkeypatch.setenv(CHOICE, choice)
        assert find_core().folder == (None if choice == PYTHON else core)
        folder = tmp_path / ("python" if choice == PYTHON else "compiled")
        outcome = run_sweep(plan, folder, workers=cpu_cores(), reuse=False)
        assert outcome.failed == {}
        written[choice] = contents(folder)
        made_by = json.loads(written[choice].pop("sweep.json"))["made_by"]
        assert made_by["core"] == ("python" if choice == PYTHON else "compiled")
    assert len(written[PYTHON]) >= 4 * len(plan.cells())
    assert written[str(core)] == written[PYTHON]


def test_random_workloads_have_equal_results_under_every_policy(core: Path) -> None:
    def simulated(environment: dict[str, str]) -> list[str]:
        ran = subprocess.run(
            [sys.executable, "-m", "tests.compiled.worlds"],
            cwd=ROOT, env={**os.environ, **environment}, check=True, capture_output=True, text=True,
        )  # fmt: skip
        return ran.stdout.splitlines()

    with ThreadPoolExecutor(2) as both:
        compiled, interpreted = both.map(simulated, ({WORKER: str(core)}, {}))
    assert compiled[0].startswith(f"engine {core}")
    assert interpreted[0] == f"engine {engine.__file__}"
    assert compiled[1:] == interpreted[1:]
    assert len(compiled) > 10
