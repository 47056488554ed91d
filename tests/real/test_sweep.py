"""`bench sweep --engine vllm`: folder and report as in virtual time, and no process left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lines import read_lines
from traces import Program, Turn
from traces.formats.native import write_programs

BENCH = str(Path(sys.executable).parent / "bench")
pytestmark = pytest.mark.usefixtures("forked_vllm")
POLICIES = ["fcfs", "continuum-preview", "thunderagent", "turnstile"]
"""Policies that order turns, hold KV in different ways, and admit programs. Tests of the plug-in
and of `vllm-virtual` run all policies in vLLM's scheduler."""
PROGRAMS = [
    Program(
        f"job-{k}",
        (
            Turn(320, 100, 0, ("ls",), None, 0.5),
            Turn(640, 100, 420, ("pytest",), None, 0.5),
            Turn(900, 80, 740),
        ),
    )
    for k in range(6)
]
"""Contexts of up to 980 tokens, which take 31 blocks of 32."""
POOL_BLOCKS = 50
"""Too few for two full contexts. Four first prompts of 10 blocks fit, but with their answers they
need 14 blocks each, so vLLM has to preempt."""
START_S = 300.0
"""How long vLLM may take to start and to reach a stage of a cell."""
BURST_JPS = "50"
"""Jobs per second: all six arrive within 0.1 s, so that they contend even on a fast machine."""


def begin(folder: Path, *options: str) -> subprocess.Popen[str]:
    write_programs(folder / "t.jsonl", PROGRAMS)
    fixed = ("sweep", "--engine", "vllm", "--model", "tiny", "--traces", "t.jsonl", "--out", "o")
    return subprocess.Popen(
        [BENCH, *fixed, "--kv-blocks", str(POOL_BLOCKS), *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_policies_of_each_kind_complete_a_contended_workload(tmp_path: Path) -> None:
    sweep = begin(tmp_path, "--jps", BURST_JPS, "--policies", ",".join(POLICIES))
    output, complaints = sweep.communicate(timeout=1800)
    assert sweep.returncode in (0, 1), complaints
    assert output.startswith("engine vllm: vLLM 0.")
    rows = {row["variant"]: row for row in json.loads((tmp_path / "o/cells.json").read_text())}
    assert rows.keys() == set(POLICIES)
    for row in rows.values():
        assert (row["jobs"], row["failed_turns"]) == (6, 0)
        # A busy machine may fail the gate on client lateness, and no other.
        assert not row["failed_gates"] or row["failed_gates"].startswith("client lateness")
        assert row["residual"] < 1e-6
    assert rows["fcfs"]["preemptions"] > 0
    for name in POLICIES:
        log = tmp_path / f"o/{name}_jps{BURST_JPS}_seed1/engine.jsonl"
        events = read_lines(log)
        pins = [event["event"] for event in events if event["event"] in ("pinned", "unpinned")]
        assert pins.count("pinned") == pins.count("unpinned"), name
        if name == "continuum-preview":
            assert pins
        assert sum(event["event"] == "finished" for event in events) == 18
