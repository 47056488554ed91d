"""What `--cluster` refuses before a sweep starts, and how the files of a cell come home."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cells.folder import CellFolder
from harness.cluster import connection
from harness.cluster.connection import Needs
from harness.cluster.tasks import needs_of, write_cell_folder
from harness.engines.base import engine_kind
from servers.basics.errors import CannotWrite, InvalidInput
from tests.harness.in_process import bench
from tests.harness.small import small_plan
from tests.sentences import mentions

SWEEP = ("sweep", "--once", "--programs", "2", "--policies", "fcfs", "--jps", "0.3")


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("address", ["slurm", "ray://", "host", "http://host:6379", "ray:x"])
def test_an_address_of_no_ray_cluster_is_refused(address: str) -> None:
    code, out, err = bench(*SWEEP, "--cluster", address)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert mentions(err, f"--cluster '{address}'", "ray", "HOST:6379", "ray://HOST:10001")
    assert os.listdir() == []


@pytest.mark.parametrize("scheme", ["", "ray://"])
@pytest.mark.parametrize("listens", [False, True], ids=["closed port", "no Ray"])
def test_an_address_that_does_not_answer_is_refused_before_anything_starts(
    scheme: str, listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT_S", 0.3)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if listens:
            listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(InvalidInput, match=r"no Ray cluster answered"):
            connection.refuse_silent(scheme + address, scheme + address)


def test_a_virtual_cell_needs_a_core_and_a_live_one_its_gpus() -> None:
    plan = small_plan()
    live = replace(plan, engine=replace(plan.engine, kind=engine_kind("vllm"), gpus=4))
    assert needs_of(plan, "ray") == Needs(cores=1, gpus=0)
    assert needs_of(live, "ray") == Needs(cores=1, gpus=4)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vllm", "--engine vllm uses all cores of a machine without GPUs"),
        ("http://127.0.0.1:9", "--engine http://127.0.0.1:9 is one server"),
    ],
)
def test_cells_that_would_disturb_each_other_are_refused(name: str, reason: str) -> None:
    plan = small_plan()
    engine = replace(plan.engine, kind=engine_kind(name), gpus=None)
    with pytest.raises(InvalidInput, match=f"^--cluster ray: {reason}"):
        needs_of(replace(plan, engine=engine), "ray")


def test_a_cell_comes_home_completely_and_removes_earlier_attempts(tmp_path: Path) -> None:
    cell = tmp_path / "fcfs_jps0.3_seed1"
    with CellFolder(cell, {"attempt": 1}):
        pass
    files = {"cell.json": b"{}", "turns.jsonl": b"{}\n", "server/server.log": b"up\n"}
    write_cell_folder(files, cell)  # as of a failed cell
    assert sorted(path.name for path in tmp_path.iterdir()) == [cell.name, f"{cell.name}.aside-1"]
    write_cell_folder({**files, "done.json": b"{}"}, cell)
    assert sorted(path.name for path in tmp_path.iterdir()) == [cell.name]
    assert (cell / "server/server.log").read_bytes() == b"up\n"


def test_a_cell_that_cannot_be_written_leaves_no_part(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match=f"cannot write {tmp_path}/cell: file name too long"):
        write_cell_folder({"x" * 300: b""}, tmp_path / "cell")
    assert list(tmp_path.iterdir()) == []
