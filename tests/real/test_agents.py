"""Real mini-swe-agent and OpenHands, guided, in bubblewrap, through the gateway, on real vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.agents.bubblewrap import needs_bubblewrap
from tests.lines import read_lines
from traces import Program, read_traces
from traces.cut import cut
from traces.formats.native import write_programs

BENCH = str(Path(sys.executable).parent / "bench")
ROOT = Path(__file__).parents[2]
TRAJECTORIES = ROOT.parent / "shared" / "data" / "mini-swe-agent"
"""Eighty published trajectories on SWE-bench, which are not part of this repository."""
EXAMPLES = ROOT / "examples"
PROGRAMS = 2
"""Each is a process that needs seven CPU seconds for its imports."""
SCALE = 0.05
"""Factor of their token counts; contexts then have some hundred to two thousand tokens."""
BURST_JPS = "20"
"""Jobs per second: all arrive within a second, so that they contend on any machine."""
EXPENSIVE_PREFILL = {"base_s": 2.0, "linear_s": 0.0, "quadratic_s": 0.0}
"""Prefill takes more than 1 s, so that Continuum's first TTL is positive whatever the queue."""

pytestmark = [needs_bubblewrap, pytest.mark.usefixtures("forked_vllm")]


def needs(variable: str, agent: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(variable not in os.environ, reason=f"{agent}: no {variable}")


def recorded() -> list[Program]:
    """Return the shortest trajectories or, if they are missing, the examples."""
    if not TRAJECTORIES.is_dir():
        return read_traces(EXAMPLES / "recorded.jsonl", messages=True).programs
    loaded = read_traces(TRAJECTORIES, messages=True).programs
    shortest = sorted(loaded, key=lambda program: len(program.turns))[:PROGRAMS]
    return cut(shortest, token_scale=SCALE)


def bench(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BENCH, *options], cwd=folder, capture_output=True, text=True, check=False, timeout=2400
    )


def shape(program: Program) -> list[tuple[int, int, int]]:
    return [(turn.prompt_tokens, turn.output_tokens, turn.kept_tokens) for turn in program.turns]


@needs("TURNSTILE_AGENT_PYTHON", "mini-swe-agent")
def test_mini_swe_agent_completes_guided_programs_whose_kv_continuum_pins(tmp_path: Path) -> None:
    programs = recorded()
    write_programs(tmp_path / "t.jsonl", programs)
    (tmp_path / "costs.json").write_text(json.dumps(EXPENSIVE_PREFILL))
    run = bench(
        tmp_path,
        *("sweep", "--agent", "mini-swe-agent", "--guided", "--traces", "t.jsonl", "--out", "o"),
        *("--engine", "vllm", "--model", "tiny", "--kv-blocks", "60", "--jps", BURST_JPS),
        *("--programs", str(PROGRAMS), "--policies", "continuum", "--costs", "costs.json"),
    )
    assert run.returncode in (0, 1), run.stderr
    assert "agent mini-swe-agent 2." in run.stdout
    by_id = {program.id: program for program in programs}
    cell = tmp_path / "o" / f"continuum_jps{BURST_JPS}_seed1"
    ends = read_lines(cell / "programs.jsonl")
    assert Counter(end["exit_status"] for end in ends) == {"Submitted": PROGRAMS}
    assert all(end["error"] is None for end in ends)
    assert len(read_lines(cell / "predictions.jsonl")) == PROGRAMS
    trace = read_traces(cell / "turns.jsonl").programs
    assert len(trace) == PROGRAMS
    for program in trace:
        guide = by_id[program.id.partition("#")[0]]
        assert shape(program) == shape(guide)
        # The tools really ran, so their times differ from the recording.
        assert all(turn.tool_gap_s > 0 for turn in program.turns[:-1])
    turns = read_lines(cell / "turns.jsonl")
    assert all(turn["queue_s"] is not None for turn in turns)  # as the engine itself reports
    check_replay(tmp_path, cell, trace)
    (row,) = json.loads((tmp_path / "o/cells.json").read_text())
    assert (row["jobs"], row["failed_turns"]) == (PROGRAMS, 0)
    assert not row["failed_gates"] or row["failed_gates"].startswith("client lateness")
    assert '"event":"pinned"' in (cell / "engine.jsonl").read_text()
    # How much it hits depends on how many agents compete, and so on the machine.
    assert any(turn["pinned_hit"] for turn in turns)


def check_replay(folder: Path, cell: Path, trace: list[Program]) -> None:
    """Check that a replay of the agents' turns has the same turns, tokens and gaps."""
    replayed = bench(
        folder,
        *("sweep", "--traces", str(cell / "turns.jsonl"), "--arrivals", "recorded"),
        *("--policies", "fcfs", "--out", f"replay-{cell.name}"),
    )
    assert replayed.returncode in (0, 1), replayed.stderr
    again = folder / f"replay-{cell.name}" / "fcfs_recorded_seed1" / "turns.jsonl.zst"
    assert {p.id: p.turns for p in read_traces(again).programs} == {p.id: p.turns for p in trace}


@needs("TURNSTILE_OPENHANDS_PYTHON", "OpenHands")
def test_openhands_completes_a_guided_conversation_whose_tools_continuum_knows(
    tmp_path: Path,
) -> None:
    run = bench(
        tmp_path,
        *("sweep", "--agent", "openhands", "--guided", "--out", "o", "--programs", "1"),
        *("--traces", str(EXAMPLES / "recorded.jsonl"), "--tasks", str(EXAMPLES / "tasks.jsonl")),
        *("--engine", "vllm", "--model", "tiny", "--jps", "1", "--policies", "continuum"),
    )
    assert run.returncode in (0, 1), run.stderr
    cell = tmp_path / "o" / "continuum_jps1_seed1"
    ends = read_lines(cell / "programs.jsonl")
    assert Counter(end["exit_status"] for end in ends) == {"finished": 1}
    turns = read_lines(cell / "turns.jsonl")
    assert Counter(turn["program_id"] for turn in turns) == {"toolbox-durations": 7}
    patches = {p["instance_id"]: p["model_patch"] for p in read_lines(cell / "predictions.jsonl")}
    assert '"h": 3600' in patches["toolbox-durations"]
