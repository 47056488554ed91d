"""`--engine vllm-virtual`: vLLM's own scheduler in virtual time, as an engine of the sweep."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.load.settings import Machine, SweepSettings
from harness.sweep.resolve import resolve
from servers.variants import variants
from tests.processes import wait_until_none
from tests.real.test_sweep import PROGRAMS
from tests.sentences import mentions
from traces.formats.native import write_programs

BENCH = str(Path(sys.executable).parent / "bench")
SUPPORTED = {v.name for v in variants("all") if not {"tier", "unlimited KV"} & {*v.needs}}
POLICIES = ("infercept", "thunderagent", "turnstile")
"""Policies that pin while memory is free, admit programs, and displace them; each cell imports
vLLM. The tests of the plug-in compare every decision of all."""

BROKEN = """
from servers.policies.fcfs import Fcfs

class Broken(Fcfs):
    name = "broken"

    def finished(self, request, now_s):
        if request.prompt_tokens == 900:
            raise KeyError("no such thing")
        return super().finished(request, now_s)
"""
"""Fails at the last turns of PROGRAMS, which the check before a run does not reach."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_programs(tmp_path / "t.jsonl", PROGRAMS)
    (tmp_path / "broken.py").write_text(BROKEN)
    return tmp_path


def sweep(folder: Path, engine: str, policies: str, *more: str) -> subprocess.CompletedProcess[str]:
    load = ("--once", "--traces", "t.jsonl", "--jps", "50", "--kv-blocks", "70", "--seeds", "1")
    alone = ("--workers", "1")  # each worker imports vLLM
    return subprocess.run(
        [BENCH, "sweep", "--engine", engine, "--policies", policies, *load, *alone, *more],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_policies_with_an_offload_tier_or_without_a_limit_of_memory_are_left_out_of_all() -> None:
    machine = Machine(engine="vllm-virtual")
    plan = resolve(SweepSettings(policies="all", jps="1", machine=machine))
    assert {variant.name for variant in plan.variants} == SUPPORTED
    reasons = {each.name: each.reason for each in plan.left_out}
    assert mentions(reasons["lmcache"], "no offload tier", "--engine sim")
    assert mentions(reasons["unlimited-kv"], "KV memory has a limit")


def test_jobs_take_the_same_time_as_under_sim(folder: Path) -> None:
    vllm = sweep(folder, "vllm-virtual", ",".join(POLICIES), "--out", "v")
    assert vllm.returncode == 0, vllm.stderr
    assert mentions(vllm.stdout, "engine vllm-virtual", "vLLM 0.")
    assert sweep(folder, "sim", ",".join(POLICIES), "--out", "s").returncode == 0
    theirs, ours = (json.loads((folder / f"{o}/cells.json").read_text()) for o in ("v", "s"))
    assert {row["variant"] for row in theirs} == set(POLICIES)
    key = ("variant", "load", "seed", "jct_mean_s", "jct_p99_s", "hit_ratio", "preemptions")
    same = [[tuple(row[k] for k in key) for row in rows] for rows in (theirs, ours)]
    assert same[0] == same[1]
    assert any(row["preemptions"] for row in theirs)


def test_under_first_chunk_jobs_take_the_same_time_as_under_sim_and_a_policy_that_raises_fails(
    folder: Path,
) -> None:
    first_chunk, rows = ("--admission", "first-chunk"), {}
    for engine in ("vllm-virtual", "sim"):
        swept = sweep(folder, engine, "continuum,broken:Broken", *first_chunk, "--out", engine)
        assert swept.returncode == 1, swept.stderr
        assert "KeyError" in swept.stderr
        sweep_json = json.loads((folder / engine / "sweep.json").read_text())
        assert sweep_json["limits"]["admission"] == "first-chunk"
        cells = json.loads((folder / engine / "cells.json").read_text())
        rows[engine] = [[row[k] for k in ("variant", "seed", "jct_mean_s")] for row in cells]
    assert rows["vllm-virtual"] == rows["sim"]
    assert {name for name, *_ in rows["sim"]} == {"continuum"}
    wait_until_none(_processes)


def _processes() -> list[str]:
    return [
        command
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if "servers.vllm.virtual_time.process" in (command := _read(path))
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text().replace("\0", " ")
    except OSError:
        return ""


def test_a_policy_with_offload_is_refused_by_name(folder: Path) -> None:
    refused = sweep(folder, "vllm-virtual", "fcfs,lmcache", "--out", "v")
    assert refused.returncode == 2
    assert mentions(refused.stderr, "--policies lmcache", "no offload tier")
    assert not (folder / "v").exists()
