"""A live sweep on a real vLLM, of a policy that admits programs, that is killed while its server
boots, and while it serves: every night (`make crash-live`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from servers.processes.supervisor import descendants
from tests.crash.trials import Snapshot
from tests.lines import read_lines
from tests.processes import wait_until, wait_until_gone
from tests.real.test_sweep import BURST_JPS, START_S, begin

pytestmark = [
    pytest.mark.skipif("TURNSTILE_KILLS" not in os.environ, reason="make crash-live runs it"),
    pytest.mark.usefixtures("forked_vllm"),
]
POLICY = "thunderagent"
CELL = f"{POLICY}_jps{BURST_JPS}_seed1"
TURNS = sorted((f"job-{k}", turn) for k in range(6) for turn in range(3))


def test_a_sweep_killed_at_each_stage_leaves_no_process_and_measures_each_turn_once(
    tmp_path: Path,
) -> None:
    run, options = tmp_path / "o", ("--jps", BURST_JPS, "--policies", POLICY)
    cell = run / CELL
    stages: list[Callable[[], object]] = [
        (cell / "server/server.log").exists,
        lambda: lines_of(cell) == len(TURNS),
    ]
    left = []
    for reached in stages:
        sweep = begin(tmp_path, *options)
        wait_until(reached, START_S, sweep)
        processes = descendants(sweep.pid)
        sweep.kill()
        sweep.communicate()
        wait_until_gone(processes)
        left.append(Snapshot.of(run, live=True))
    last = begin(tmp_path, *options)
    output, complaints = last.communicate(timeout=600)
    assert last.returncode in (0, 1), complaints
    assert output.startswith("engine vllm: vLLM 0.")
    turns = read_lines(cell / "turns.jsonl")
    assert sorted((turn["program_id"], turn["turn"]) for turn in turns) == TURNS
    assert {turn["error"] for turn in turns} == {None}
    (row,) = json.loads((run / "cells.json").read_text())
    assert (row["jobs"], row["failed_turns"]) == (6, 0)
    events = [event["event"] for event in read_lines(cell / "engine.jsonl")]
    assert events.count("finished") == len(TURNS)
    for before in left:
        before.check_kept(run)


def lines_of(cell: Path) -> int:
    path = cell / "turns.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
