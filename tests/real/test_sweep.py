"""Live sweeps on a real vLLM: folder and report as in virtual time, no process left, and a card of
`bench fidelity`, which runs the sweep of these tests."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.stats import kendalltau

from reports.metrics.cells import failed_gates_of
from tests.harness import in_process
from tests.lines import read_lines
from tests.profiles.test_measured import measured
from tests.sentences import mentions
from traces import Program, Turn
from traces.formats.native import write_programs

BENCH = str(Path(sys.executable).parent / "bench")
pytestmark = pytest.mark.usefixtures("forked_vllm")
POLICIES = ["fcfs", "continuum-preview"]
"""Policies that do nothing and hold KV; `test_crash.py` runs one that admits programs. Tests of the
plug-in run all policies in vLLM's scheduler."""
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fidelity")
    write_programs(folder / "t.jsonl", PROGRAMS)
    (folder / "here.json").write_text(measured().model_dump_json())
    return folder


def fidelity(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [BENCH, "fidelity", "--traces", "t.jsonl", "--jps", BURST_JPS, "--out", "card"]
    command += ["--hardware", "here.json", "--kv-blocks", str(POOL_BLOCKS)]
    return subprocess.run(
        [*command, "--policies", ",".join(POLICIES)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )


@pytest.fixture(scope="module")
def ran(folder: Path) -> subprocess.CompletedProcess[str]:
    """A server is started for each policy, one after the other."""
    return fidelity(folder)


def test_policies_of_each_kind_complete_a_contended_workload(
    folder: Path, ran: subprocess.CompletedProcess[str]
) -> None:
    run = folder / "card/live-1"
    code, _, complaints = in_process.bench("report", str(run))
    assert code in (0, 1), complaints + ran.stderr
    rows = {row["variant"]: row for row in json.loads((run / "cells.json").read_text())}
    assert rows.keys() == set(POLICIES)
    for row in rows.values():
        assert (row["jobs"], row["failed_turns"]) == (6, 0)
        # A busy machine may fail the gate on client lateness, and no other.
        assert not row["failed_gates"] or row["failed_gates"].startswith("client lateness")
        assert row["residual"] < 1e-6
    assert rows["fcfs"]["preemptions"] > 0
    for name in POLICIES:
        events = read_lines(run / f"{name}_jps{BURST_JPS}_seed1/engine.jsonl")
        pins = [event["event"] for event in events if event["event"] in ("pinned", "unpinned")]
        assert pins.count("pinned") == pins.count("unpinned"), name
        if name == "continuum-preview":
            assert pins
        assert sum(event["event"] == "finished" for event in events) == 18


def test_fidelity_runs_the_cells_live_and_in_virtual_time_and_writes_a_card(
    folder: Path, ran: subprocess.CompletedProcess[str]
) -> None:
    """The size of the errors is not checked, because the profile is made up."""
    assert ran.returncode == 1, ran.stderr  # one rate is too few
    assert mentions(ran.stdout, "missed\t", "3 rates", "1 load")
    card = json.loads((folder / "card/fidelity.json").read_text())
    assert card["live"]["engine"] == "vllm"
    assert card["virtual"]["profile"]["kv_blocks"] == POOL_BLOCKS - 1
    assert {point["variant"] for point in card["points"]} == set(POLICIES)
    for point in card["points"]:
        assert 0 < point["live_s"] < 600
        assert 0 < point["virtual_s"] < 600
        assert point["live_hits"] is not None
    (ranking,) = card["rankings"]
    means_s = [[point[side] for point in card["points"]] for side in ("live_s", "virtual_s")]
    assert ranking["tau"] == pytest.approx(kendalltau(*means_s).statistic)

    live = [done.parent for done in (folder / "card/live-1").glob("*/done.json")]
    if any(failed_gates_of(cell) for cell in live):
        return  # A busy machine may fail the gate on lateness, and these cells would run again.
    again = fidelity(folder)
    assert re.findall(r"(\d) of 2 cells were finished already", again.stderr) == ["2", "2"]
    assert again.stdout == ran.stdout
