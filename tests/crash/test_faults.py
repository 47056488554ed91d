"""Each operation on a run folder fails in each way; the same command then completes the run."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.faults import FAULTS, Fault, Operation, operations
from tests.crash.power import cut_power
from tests.crash.small_sweep import ALONE, RUN, output_of, sweep_folder
from tests.crash.trials import Warm, check_resume, finished
from tests.sentences import mentions

EVERY = bool(os.environ.get("TURNSTILE_EVERY_FAULT"))
"""Test each operation with each fault, as every night; by default every fourth operation gets one
of them, and each kind of operation gets them in rotation."""
ERRORS = ("full", "eio")


@pytest.fixture(scope="module")
def done(warm_of_session: Warm, tmp_path_factory: pytest.TempPathFactory) -> list[Operation]:
    """Return the operations of an uninterrupted run."""
    folder = sweep_folder(tmp_path_factory.mktemp("counted"))
    fault = Fault(str(folder / RUN), str(folder / "log"))
    assert warm_of_session.run(folder, ALONE, fault) == 0, output_of(folder)
    return [op for op in operations(folder / "log") if op.path.startswith(fault.folder)]


def test_every_file_of_a_run_is_replaced_atomically_or_appended_to_and_synced(
    done: list[Operation], straight: dict[str, bytes]
) -> None:
    for name in straight:
        path = Path(RUN, name)
        own = [op.kind for op in done if op.path.endswith(f"/{path}")]
        part = str(path.with_name(f".{path.name}.part"))
        hidden = [op.kind for op in done if op.path.endswith(f"/{part}")]
        if path.name.endswith((".jsonl", ".jsonl.zst")):
            assert (own, hidden) == (["create", "write", "fsync"], []), name
        else:
            assert (own, hidden) == ([], ["create", "open", "write", "fsync", "rename"]), name


KINDS = {"full": ("create", "mkdir", "write"), "half": ("write",), "lost": ("rename",)}
"""The kinds of operations to which a fault applies; a fault that is not listed applies to all."""


def applies(kind: str, operation: Operation) -> bool:
    if kind == "alone":
        return "_seed1/" in operation.path
    return operation.kind in KINDS.get(kind, operation.kind)


def trials(done: list[Operation]) -> list[tuple[int, str]]:
    faults = [(at, [k for k in FAULTS if applies(k, op)]) for at, op in enumerate(done)]
    if EVERY:
        return [(at, kind) for at, kinds in faults for kind in kinds]
    # The second cell has the same operations as the first, and a file that was created is opened
    # again before anything is written.
    faults = [
        (at, kinds)
        for at, kinds in faults
        if "/continuum" not in done[at].path and done[at].kind != "open"
    ]
    drawn, seen = [], Counter[str]()
    for at, kinds in faults[::4]:
        operation = done[at].kind
        drawn.append((at, kinds[seen[operation] % len(kinds)]))
        seen[operation] += 1
    return drawn


def test_after_a_fault_at_any_operation_the_same_command_completes_the_run(
    warm: Warm, done: list[Operation], straight: dict[str, bytes], tmp_path: Path
) -> None:
    for at, kind in trials(done):
        folder = sweep_folder(tmp_path / f"{at}-{kind}")
        fault = Fault(str(folder / RUN), str(folder / "log"), at, kind)
        code = warm.run(folder, ALONE, fault)
        where = f"{kind} at {at}, {done[at]}: {output_of(folder)}"
        assert "Traceback" not in output_of(folder), where
        if kind in ERRORS:
            assert code == 2, where
            assert output_of(folder).splitlines()[-1].startswith("bench: cannot write "), where
        elif kind == "alone":
            assert code == 1, where
            assert mentions(output_of(folder), "worker process", "SIGKILL"), where
        else:
            assert code == -9, where
        if kind == "power":
            cut_power(folder / RUN, operations(folder / "log"))
            check_finished_cells_are_durable(folder / RUN, done, at)
        if kind == "half":
            check_report_of_finished_cells(warm, folder)
        check_resume(warm, folder, ALONE, straight)


def check_finished_cells_are_durable(run: Path, done: list[Operation], at: int) -> None:
    for cell in ("fcfs_jps0.5_seed1", "continuum_jps0.5_seed1"):
        own = [index for index, op in enumerate(done) if f"/{RUN}/{cell}" in op.path]
        assert at < own[-1] or (run / cell / "done.json").exists(), (cell, done[at])


def check_report_of_finished_cells(warm: Warm, folder: Path) -> None:
    before = finished(folder / RUN)
    code = warm.run(folder, ("report", RUN))
    if (folder / RUN / "sweep.json").exists():
        cells = list((folder / RUN).glob("*_seed1/done.json"))
        assert code == (len(cells) < 2), output_of(folder)
    else:
        assert code == 2
        assert mentions(output_of(folder), "run is not a run", "sweep.json")
    assert finished(folder / RUN) == before
