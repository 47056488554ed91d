"""Live sweeps on a real vLLM, killed: while a server of their own boots, serves and is stopped; and
at random moments, TURNSTILE_KILLS of them (`make crash-live KILLS=200`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from servers.processes.supervisor import descendants
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.server import launch
from tests.crash import trials
from tests.crash.live import survives
from tests.crash.trials import Left
from tests.real.test_sweep import AT_ONCE, begin, until, until_gone

CELL = f"fcfs_jps{AT_ONCE}_seed1"
TURNS = sorted((f"job-{k}", turn) for k in range(6) for turn in range(3))


def test_killed_in_every_stage_it_leaves_no_process_and_measures_each_turn_once(
    tmp_path: Path,
) -> None:
    run, options = tmp_path / "o", ("--jps", AT_ONCE, "--policies", "fcfs")
    cell = run / CELL
    stages: list[Callable[[], object]] = [
        (cell / "server/server.log").exists,
        lambda: lines_of(cell) > 0,
        lambda: lines_of(cell) == len(TURNS),
    ]
    left = []
    for reached in stages:
        sweep = begin(tmp_path, *options)
        until(sweep, reached)
        processes = descendants(sweep.pid)
        sweep.kill()
        sweep.communicate()
        until_gone(processes)
        left.append(Left.by(run))
    last = begin(tmp_path, *options)
    _, complaints = last.communicate(timeout=300)
    assert last.returncode in (0, 1), complaints
    turns = [json.loads(line) for line in (cell / "turns.jsonl").read_text().splitlines()]
    assert sorted((turn["program_id"], turn["turn"]) for turn in turns) == TURNS
    assert {turn["error"] for turn in turns} == {None}
    (row,) = json.loads((run / "cells.json").read_text())
    assert (row["jobs"], row["failed_turns"]) == (6, 0)
    for one in left:
        one.stays(run)


def test_killed_at_random_moments_it_measures_each_turn_once(tmp_path: Path) -> None:
    with (
        launch(ServerConfig(), tmp_path / "server", ready_within_s=600) as server,
        trials.warm() as warm,
    ):
        survives(int(os.environ.get("TURNSTILE_KILLS", "8")), warm, server.base_url, tmp_path)


def lines_of(cell: Path) -> int:
    path = cell / "turns.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
