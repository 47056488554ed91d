"""`--engine vllm --replicas N --router …`, with a substitute for vLLM."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.agents.test_runs import WITHOUT_SANDBOX
from tests.crash.small_sweep import output_of
from tests.crash.trials import Warm
from tests.faults import agent
from tests.faults.engine import engine
from tests.gateway.test_recording import DEAD_PROXY
from tests.lines import read_lines
from tests.sentences import mentions
from traces import Program, Turn
from traces.formats.native import write_programs

PROGRAMS = [
    Program(f"p{k}", tuple(Turn(10 + 16 * i, 6, 16 * i, ("ls",), None, 0.01) for i in range(3)))
    for k in range(4)
]
BROKEN = """
from servers.routers.base import Router


class Broken(Router):
    name = "broken"

    def route(self, turn, now_s):
        if turn.index == 1:
            raise KeyError(turn.program_id)
        return 0
"""


def test_each_policy_runs_behind_each_router_and_a_broken_one_fails_its_cell(
    warm: Warm, tmp_path: Path
) -> None:
    """One program after the other, so that round-robin alternates within each."""
    write_programs(tmp_path / "t.jsonl", PROGRAMS)
    (tmp_path / "mine.py").write_text(BROKEN)
    variants = ("fcfs@round-robin", "fcfs@broken")
    cells = {name: name.replace("@", "-") + "_closed-1_seed1" for name in variants}
    python = engine(tmp_path, dict.fromkeys(cells.values(), ""))
    options = ["--engine", "vllm", "--vllm-python", python, "--policies", "fcfs"]
    options += ["--replicas", "2", "--router", "round-robin,mine:Broken"]
    options += ["--traces", "t.jsonl", "--arrivals", "closed:1", "--out", "o"]
    assert warm.run(tmp_path, ["sweep", *options]) == 1, output_of(tmp_path)
    found = {folder.name for folder in (tmp_path / "o").iterdir() if folder.is_dir()}
    assert found == set(cells.values())
    rows = read_lines(tmp_path / "o" / cells["fcfs@round-robin"] / "turns.jsonl")
    assert [row["replica"] for row in rows] == [0, 1] * 6
    assert {row["held_s"] for row in rows} == {0.0}
    cell = json.loads((tmp_path / "o" / cells["fcfs@round-robin"] / "cell.json").read_text())
    assert (cell["variant"], cell["router"]["name"]) == ("fcfs@round-robin", "round-robin")
    failed = json.loads((tmp_path / "o" / cells["fcfs@broken"] / "failed.json").read_text())
    assert mentions(failed["error"], "router broken", "`route`", "KeyError: 'p0'")
    assert failed["traceback"] is None


def test_a_broken_router_fails_a_cell_of_agents_too(
    warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent gets an error for its second turn, and the cell fails with the router's name. The
    agent has a proxy, but not for the gateway."""
    for name, address in DEAD_PROXY.items():
        monkeypatch.setenv(name, address)
    (tmp_path / "mine.py").write_text(BROKEN)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "a", "task": "go on"}))
    cell = "fcfs-broken_closed-1_seed1"
    options = ["--engine", "vllm", "--vllm-python", engine(tmp_path, {cell: ""})]
    options += ["--policies", "fcfs", "--replicas", "2", "--router", "mine:Broken"]
    options += ["--agent-command", f"{sys.executable} {agent.__file__} {{base_url}} {{task}}"]
    options += ["--tasks", "tasks.jsonl", *WITHOUT_SANDBOX, "--arrivals", "closed:1", "--out", "o"]
    assert warm.run(tmp_path, ["sweep", *options]) == 1, output_of(tmp_path)
    first, second, _exit = read_lines(tmp_path / "o" / cell / "turns.jsonl")
    message = "the router broken failed in `route`: KeyError: 'a'"
    assert (first["error"], second["error"]) == (None, message)
    assert json.loads((tmp_path / "o" / cell / "failed.json").read_text())["error"] == message
