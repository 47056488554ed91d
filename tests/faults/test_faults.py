"""Each row of docs/reference/reliability.md, end to end: `bench sweep` on a failing engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.agents.test_runs import WITHOUT_SANDBOX
from tests.faults import agent
from tests.faults.engine import FAULTY_TURN, TURN_FAULTS
from tests.faults.page import PAGE, page
from tests.faults.sweeping import REPLAY, Cell, Sweep, cell_name, standalone_server, sweep
from tests.faults.sweeping import sweep_of_vllm as of_vllm
from tests.faults.table import (
    AT_START,
    BEHIND_THE_GATEWAY,
    OF_A_TURN,
    OF_A_URL,
    REPLAYED,
    REPLICAS,
    TIER,
    Fault,
    Outcome,
    matches,
)

MAX_NOTICED_S = 60.0
"""The timeouts of these sweeps are a few seconds; some of the defaults are hundreds."""
HALVES = (REPLAYED[::2], REPLAYED[1::2])
"""The rows of two concurrent sweeps, which mostly wait for timeouts."""
TURNS = "turns"
AGENT = f"{sys.executable} {agent.__file__} {{base_url}} {{task}}"


@pytest.fixture(scope="module")
def sweeps(bench: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sweep]:
    """Run all sweeps concurrently and wait for them."""
    root = tmp_path_factory.mktemp("faults")
    sweeps = {
        "turns": of_vllm(bench, root / "turns", "fcfs", [TURNS], *REPLAY),
        "even": of_vllm(bench, root / "even", "fcfs", _keys(HALVES[0]), *REPLAY),
        "odd": of_vllm(bench, root / "odd", "fcfs", _keys(HALVES[1]), *REPLAY),
        "stopped": of_vllm(
            bench, root / "stop", "fcfs", [TURNS, "killed", "killed"], *REPLAY, "--on-error", "stop"
        ),
        "start": of_vllm(
            bench, root / "start", "fcfs", _keys(AT_START), *REPLAY, "--ready-within-s", "25"
        ),
        "tier": of_vllm(bench, root / "tier", "lmcache", _keys(TIER), *REPLAY, "--offload-gb", "1"),
        "replicas": of_vllm(
            bench, root / "two", "fcfs", _keys(REPLICAS), *REPLAY, "--replicas", "2"
        ),
        "agents": _agents(bench, root / "agents"),
    }
    server, url = standalone_server(root / "url", "killed")
    (root / "url/url").write_text(url)
    sweeps["url"] = sweep(bench, root / "url", "--engine", url, "--seeds", "1,2", *REPLAY)
    with ExitStack() as stack:
        stack.enter_context(server)
        stack.callback(server.kill)
        for each in sweeps.values():
            stack.enter_context(each.process)
            stack.callback(each.process.kill)
        for each in sweeps.values():
            each.ended()
    return sweeps


def _keys(rows: list[Fault]) -> list[str]:
    return [row.key for row in rows]


def _agents(bench: str, folder: Path) -> Sweep:
    folder.mkdir()
    tasks = [json.dumps({"id": f"job-{k}", "task": "go on"}) for k in range(4)]
    (folder / "tasks.jsonl").write_text("\n".join(tasks))
    options = (
        "--agent-command",
        AGENT,
        "--tasks",
        "tasks.jsonl",
        *WITHOUT_SANDBOX,
        "--replicas",
        "2",
    )
    return of_vllm(bench, folder, "fcfs", _keys(BEHIND_THE_GATEWAY), *options)


def rows(rows: list[Fault]) -> Callable[..., pytest.MarkDecorator]:
    return pytest.mark.parametrize("row", rows, ids=[row.name for row in rows])  # type: ignore[return-value]


def check(row: Fault, cell: Cell, complaints: str, program_id: str = FAULTY_TURN[0]) -> None:
    if row.error is not None:
        assert matches(row.error, cell.error_of(program_id))
    failed = cell.failed()
    if row.outcome is Outcome.FAILED:
        assert failed is not None
        assert matches(row.message, failed["error"])
        assert failed["traceback"] is None
        assert not cell.is_done()
        assert cell.noticed_within_s() < MAX_NOTICED_S
        return
    assert (failed, cell.is_done()) == (None, True)
    gates = [line for line in complaints.splitlines() if f" {cell.folder.name}: " in line]
    if row.outcome is Outcome.MARKED:
        assert matches(f"failed: {cell.folder.name}: {row.message}…", gates[0])
    else:  # a busy machine may fail the gate on lateness, and no other
        assert all("client lateness" in gate and "; " not in gate for gate in gates)


@rows(REPLAYED)
def test_a_fault_of_a_server_fails_only_its_cell_and_the_sweep_continues(
    row: Fault, sweeps: dict[str, Sweep]
) -> None:
    name, half = ("even", HALVES[0]) if row in HALVES[0] else ("odd", HALVES[1])
    exit_code, complaints = sweeps[name].ended()
    assert exit_code == 1
    seed = 1 + half.index(row)
    check(row, sweeps[name].cell(cell_name("fcfs", seed)), complaints)


@rows(OF_A_TURN)
def test_a_failed_turn_stops_its_program_and_marks_the_cell(
    row: Fault, sweeps: dict[str, Sweep]
) -> None:
    exit_code, complaints = sweeps["turns"].ended()
    assert exit_code == row.outcome.exit_code
    cell = sweeps["turns"].cell(cell_name("fcfs", 1))
    check(row, cell, complaints, TURN_FAULTS[row.key][0])
    assert [line["error"] for line in cell.lines() if line["program_id"] == "job-9"] == [None] * 3


@rows(AT_START)
def test_a_server_that_does_not_start_fails_its_cell(row: Fault, sweeps: dict[str, Sweep]) -> None:
    exit_code, complaints = sweeps["start"].ended()
    assert exit_code == row.outcome.exit_code
    cell = sweeps["start"].cell(cell_name("fcfs", 1 + AT_START.index(row)))
    check(row, cell, complaints)
    assert cell.lines() == []


@rows(TIER)
def test_a_lost_offload_tier_fails_or_marks_the_cell_and_never_goes_unnoticed(
    row: Fault, sweeps: dict[str, Sweep]
) -> None:
    exit_code, complaints = sweeps["tier"].ended()
    assert exit_code == row.outcome.exit_code
    seed = 1 + TIER.index(row)
    check(row, sweeps["tier"].cell(cell_name("lmcache", seed)), complaints)


@rows(REPLICAS)
def test_a_lost_replica_fails_its_cell(row: Fault, sweeps: dict[str, Sweep]) -> None:
    exit_code, complaints = sweeps["replicas"].ended()
    assert exit_code == row.outcome.exit_code
    cell = sweeps["replicas"].cell(cell_name("fcfs-sticky", 1))
    check(row, cell, complaints)
    assert {line["replica"] for line in cell.lines() if line["error"] is None} == {0, 1}


@rows(BEHIND_THE_GATEWAY)
def test_a_lost_replica_fails_the_cell_of_agents_too(row: Fault, sweeps: dict[str, Sweep]) -> None:
    exit_code, complaints = sweeps["agents"].ended()
    assert exit_code == row.outcome.exit_code
    cell = sweeps["agents"].cell(cell_name("fcfs-sticky", 1 + BEHIND_THE_GATEWAY.index(row)))
    check(row, cell, complaints)


@rows(OF_A_URL)
def test_a_lost_server_at_a_url_fails_its_cells_soon(
    row: Fault, sweeps: dict[str, Sweep], bench: str, tmp_path: Path
) -> None:
    exit_code, complaints = sweeps["url"].ended()
    if row.outcome is Outcome.REFUSED:
        url = (sweeps["url"].folder / "url").read_text()
        refused = sweep(bench, tmp_path, "--engine", url, *REPLAY).ended()
        assert refused[0] == row.outcome.exit_code
        assert matches(row.message + "\n", refused[1])
        assert not (tmp_path / "o").exists()
        return
    assert exit_code == row.outcome.exit_code
    cell = sweeps["url"].cell(cell_name("as-served", 1 + OF_A_URL.index(row)))
    cell = Cell(cell.folder, sweeps["url"].folder / "struck-url")
    check(row, cell, complaints, FAULTY_TURN[0])


def test_the_reliability_page_lists_what_these_tests_assert() -> None:
    assert PAGE.read_text() == page(), "regenerate it: make reliability"


def test_on_error_stop_stops_at_a_failed_cell_and_not_at_a_marked_one(
    sweeps: dict[str, Sweep],
) -> None:
    exit_code, complaints = sweeps["stopped"].ended()
    cells = [sweeps["stopped"].cell(cell_name("fcfs", seed)) for seed in (1, 2, 3)]
    assert exit_code == 1
    assert [cell.is_done() for cell in cells] == [True, False, False]
    assert cells[1].failed() is not None
    assert not cells[2].folder.exists()
    assert "1 of 3 cells failed" in complaints


def test_the_report_lists_failed_cells_and_marked_ones_with_their_reasons(
    sweeps: dict[str, Sweep],
) -> None:
    sweeps["stopped"].ended()
    page = (sweeps["stopped"].folder / "o/report.html").read_text()
    assert "was ended by signal 9" in page
    assert "9 failed turns in 9 jobs" in page
