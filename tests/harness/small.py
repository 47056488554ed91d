"""A sweep that takes milliseconds: three programs, and memory for two of them. A small GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness.cells.workers import Tick
from harness.engines.sim import SimEngine
from harness.load.arrivals import parse_arrivals
from harness.load.settings import Execution, Keep, OnError, SweepSettings
from harness.load.workload import Workload
from harness.sweep.cell import RunCell, Work, run_cell
from harness.sweep.fingerprint import code_sha256
from harness.sweep.plan import ONE, Cell, SweepPlan
from harness.sweep.run import SweepOutcome, run_sweeps
from reports.capacity.slo import parse_slo
from reports.run_folder.lines import COMPRESSED
from reports.run_folder.read import load_run
from reports.statistics.searched import Searched, searched
from servers.profiles import analytic_profile
from servers.sim import Limits, Offload
from servers.variants import variants
from traces import Program, Provenance, Turn

GPU = """\
memory = "48 GiB"
memory-bandwidth = "1.5 TB/s"
bf16 = "300 TFLOP/s"
host-link = "31.5 GB/s"
price = "1.2 USD/h"
"""
"""A file that describes a GPU."""


def small_plan(
    policies: str = "fcfs,continuum",
    jps: tuple[float, ...] = (0.5,),
    limits: Limits = Limits(),  # noqa: B008
) -> SweepPlan:
    selected = tuple(variants(policies))
    profile = analytic_profile("a100-80g", "llama-3.1-8b", kv_blocks=200)
    arrivals = parse_arrivals("poisson")
    engine = SimEngine(profile, replace(profile, base_ps=2 * profile.base_ps), limits, Offload(1.0))
    workload = Workload("small", programs(3), "0" * 64, ())
    return SweepPlan(
        settings=SweepSettings(),
        variants=selected,
        left_out=(),
        amounts=jps,
        seeds=(1,),
        arrivals=arrivals,
        arrivals_text="poisson",
        engine=engine,
        workload=workload,
        baseline="fcfs",
        code_sha256=code_sha256(engine, workload, arrivals),
    )


def search_plan(
    policies: str = "fcfs",
    jps: tuple[float, ...] = (),
    seeds: tuple[int, ...] = (1,),
    slo: str = "mean<=2x",
) -> SweepPlan:
    """Return a search with jobs of two turns, which take half the time of those of `small_plan`."""
    plan = small_plan(policies, jps)
    short = tuple(replace(job, turns=job.turns[:2]) for job in plan.workload.programs)
    workload = replace(plan.workload, programs=short)
    return replace(plan, steady=True, seeds=seeds, slo=parse_slo(slo), workload=workload)


def run_sweep(
    plan: SweepPlan,
    folder: Path,
    *,
    workers: int,
    stop_on_error: bool = False,
    reuse: bool = True,
    run: RunCell = run_cell,
    keep: Keep | None = None,
) -> SweepOutcome:
    """Run a single plan."""
    on_error = OnError.STOP if stop_on_error else OnError.CONTINUE
    execution = Execution(workers=workers, on_error=on_error, fresh=not reuse, keep=keep)
    return run_sweeps({ONE: plan}, folder, execution, run=run)


def killed_before_the_end(work: Work, cell: Cell, tick: Tick) -> None:
    run_cell(work, cell, tick)
    (work.folder / cell.name / "done.json").unlink()
    raise RuntimeError("killed")


def never(_work: Work, cell: Cell, _tick: Tick) -> None:
    raise AssertionError(f"{cell.name} ran twice")


def cells_of(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("*/done.json")}


def found_in(folder: Path) -> Searched:
    found = searched(load_run(folder))
    assert found is not None
    return found


def programs(count: int) -> tuple[Program, ...]:
    """Return programs of three turns: 500, 1000 and 1500 prompt tokens, gaps of 1 and 2 s."""
    turns = (
        Turn(500, 50, 0, ("ls",), None, 1.0, Provenance.SYNTHESISED),
        Turn(1000, 50, 550, ("pytest",), None, 2.0, Provenance.SYNTHESISED),
        Turn(1500, 50, 1050),
    )
    return tuple(Program(f"job-{k}", turns, recorded_start_s=float(k)) for k in range(count))


def damages(name: str) -> list[Callable[[bytes], bytes]]:
    """Return ways to damage a file of a finished cell: one digit is another one; the last byte is
    lost; three lines in the middle are lost. A compressed file may have no digit: one byte is
    another one."""
    if name.endswith(COMPRESSED):
        return [
            lambda whole: whole[:20] + bytes([whole[20] ^ 1]) + whole[21:],
            lambda whole: whole[:-1],
            lambda _: b"",
        ]
    ways: list[Callable[[bytes], bytes]] = [
        lambda whole: re.sub(rb"\d", lambda m: b"%d" % ((int(m[0]) + 1) % 10), whole, count=1),
        lambda whole: whole[:-1],
    ]
    if name == "turns.jsonl":
        ways.append(lambda whole: b"".join((lines := whole.splitlines(True))[:2] + lines[5:]))
    return ways


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a run folder, except those that were set aside."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".aside-" not in str(path)
    }
