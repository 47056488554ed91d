"""Sweeps reuse finished cells with the same settings and code from any folder under `runs/`."""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from in_process import bench
from msgspec import structs
from small import contents, run_sweep, small_plan

from harness.cells.workers import Tick
from harness.engines.base import engine_kind
from harness.sweep import finished
from harness.sweep.cell import Work, run_cell
from harness.sweep.fingerprint import class_sha256, same_cell
from harness.sweep.finished import TAKEN_FROM, copy_cell, say_taken, take_finished
from harness.sweep.plan import Cell, SweepPlan
from servers.basics.errors import CannotWrite
from servers.variants import behind_routers
from tests.lines import rewrite
from tests.reports.make_run import seal
from tests.sentences import mentions

RUN = Path("runs/first")
FCFS = "fcfs_jps0.5_seed1"


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_and_list_new_cells(plan: SweepPlan, folder: Path, *, reuse: bool = True) -> list[str]:
    before = {path.parent for path in folder.glob("*/done.json")}
    outcome = run_sweep(plan, folder, workers=1, reuse=reuse)
    assert not outcome.failed
    after = {path.parent for path in folder.glob("*/done.json")}
    return sorted(path.name for path in after - before if not (path / TAKEN_FROM).exists())


@pytest.mark.parametrize(
    ("extended", "new_cells"),
    [
        (small_plan("fcfs,continuum,infercept"), ["infercept_jps0.5_seed1"]),
        (
            small_plan(jps=(0.5, 0.7)),
            ["continuum_jps0.7_seed1", "fcfs_jps0.7_seed1"],
        ),
        (
            replace(small_plan(), seeds=(1, 2)),
            ["continuum_jps0.5_seed2", "fcfs_jps0.5_seed2"],
        ),
    ],
    ids=["policy", "rate", "seed"],
)
@pytest.mark.parametrize("folder", [RUN, Path("runs/second")], ids=["the same", "another"])
def test_a_sweep_with_one_more_policy_rate_or_seed_runs_only_the_new_cells(
    extended: SweepPlan, new_cells: list[str], folder: Path
) -> None:
    run_sweep(small_plan(), RUN, workers=1)
    assert run_and_list_new_cells(extended, folder) == new_cells
    run_sweep(extended, Path("straight"), workers=1, reuse=False)
    files = {k: v for k, v in contents(folder).items() if not k.endswith(TAKEN_FROM)}
    assert files == contents(Path("straight"))


def test_a_reused_cell_names_its_original_folder() -> None:
    run_sweep(small_plan("fcfs"), RUN, workers=1)
    for folder in ("runs/second", "runs/third"):
        run_sweep(small_plan(), Path(folder), workers=1)
        taken = json.loads(Path(folder, FCFS, TAKEN_FROM).read_text())
        assert taken == {"cell": f"runs/first/{FCFS}"}


def test_cells_of_other_code_are_not_reused() -> None:
    run_sweep(small_plan("fcfs"), RUN, workers=1)
    other = replace(small_plan("fcfs"), code_sha256="abc")
    assert run_and_list_new_cells(other, Path("runs/second")) == [FCFS]


def test_an_unreadable_cell_is_not_reused() -> None:
    run_sweep(small_plan("fcfs"), RUN, workers=1)
    (RUN / FCFS / "turns.jsonl.zst").write_text("{")
    assert run_and_list_new_cells(small_plan("fcfs"), Path("runs/second")) == [FCFS]


def test_a_measurement_that_failed_a_gate_is_not_taken_from_another_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = small_plan("fcfs")
    run_sweep(plan, RUN, workers=1)
    rewrite(
        RUN / FCFS / "turns.jsonl",
        lambda turns: turns.replace(b'"error":null', b'"error":"reset"', 1),
    )
    seal(RUN / FCFS)
    planned = {FCFS: plan.cell_record(plan.cells()[0])}
    Path("runs/second").mkdir()
    assert take_finished(planned, Path("runs/second"), live=True) == {}
    err = capsys.readouterr().err
    assert mentions(err, "runs/first/fcfs_jps0.5_seed1", "1 failed turn", "reset")
    assert take_finished(planned, Path("runs/second")) == {FCFS: RUN}


def test_a_measurement_that_is_taken_can_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    plan = small_plan("fcfs")
    live = replace(plan, engine=replace(plan.engine, kind=engine_kind("http://127.0.0.1:9")))
    work = Work(live, Path("runs/second"), taken=[RUN, RUN])
    for _ in range(2):  # the second call says nothing
        say_taken([work])
    assert capsys.readouterr().err == (
        "bench: took 2 finished cells with the same settings from runs/first; --fresh measures "
        "them again\n"
    )


def test_without_reuse_no_cell_is_taken() -> None:
    run_sweep(small_plan("fcfs"), RUN, workers=1)
    assert run_and_list_new_cells(small_plan("fcfs"), Path("runs/second"), reuse=False) == [FCFS]


PACKAGE = {
    "elsewhere/__init__.py": "",
    "elsewhere/policy.py": """
from elsewhere.helper import K
from servers.policies.fcfs import Fcfs

class Mine(Fcfs):
    name = "mine"
""",
    "elsewhere/helper.py": "K = 1\n",
}


def test_a_changed_module_of_a_custom_policy_gives_a_different_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = small_plan("elsewhere.policy:Mine")
    cell = before.cells()[0]
    config = before.cell_record(cell)
    assert same_cell(config, before.cell_record(cell))
    (tmp_path / "elsewhere/helper.py").write_text("K = 2\n")
    assert not same_cell(config, before.cell_record(cell))


FLAT = {
    "own_policy.py": """
from own_base import Base

class Mine(Base):
    name = "mine"

    def finished(self, request, now_s):
        import own_lazily
        return super().finished(request, now_s)
""",
    "own_base.py": """
from own_number import K
from own_tools.gaps import gap
from servers.policies.fcfs import Fcfs

class Base(Fcfs):
    name = "base"
""",
    "own_number.py": "K = 1\n",
    "own_lazily.py": "K = 1\n",
    "own_tools/gaps.py": "from . import inner\ngap = 1\n",
    "own_tools/inner.py": "K = 1\n",
    "own_router.py": """
import own_number
from servers.routers.sticky import Sticky

class MyRouter(Sticky):
    name = "my-router"
""",
    "own_unrelated.py": "K = 1\n",
}


@pytest.fixture
def flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FLAT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("own_")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.parametrize("name", FLAT)
def test_each_module_that_a_policy_imports_from_its_folder_decides_its_cells(
    flat: Path, name: str
) -> None:
    plan = small_plan("own_policy:Mine")
    config = plan.cell_record(plan.cells()[0])
    (flat / name).write_text(FLAT[name] + "# changed\n")
    assert same_cell(config, plan.cell_record(plan.cells()[0]))
    (flat / name).write_text(FLAT[name] + "changed = 1\n")
    is_imported = name not in ("own_router.py", "own_unrelated.py")
    assert same_cell(config, plan.cell_record(plan.cells()[0])) is not is_imported


def test_the_modules_of_a_custom_router_decide_its_cells(flat: Path) -> None:
    variants = tuple(behind_routers(small_plan("fcfs").variants, "own_router:MyRouter,sticky"))
    plan = replace(small_plan("fcfs"), variants=variants)
    mine, sticky = (plan.cell_record(cell) for cell in plan.cells())
    (flat / "own_number.py").write_text("K = 2\n")
    changed, same = (plan.cell_record(cell) for cell in plan.cells())
    assert not same_cell(mine, changed)
    assert same_cell(sticky, same)


def test_installed_packages_that_a_policy_imports_do_not_decide_its_cells(flat: Path) -> None:
    installed = flat / "site-packages"
    installed.mkdir()
    sys.path.insert(0, str(installed))
    try:
        (installed / "own_installed.py").write_text("K = 1\n")
        module = flat / "own_number.py"
        module.write_text(
            "import json, numpy, own_installed\ndef late(): import nowhere.at_all\nK = 1\n"
        )
        policy = small_plan("own_policy:Mine").variants[0].policy
        before = class_sha256(policy)
        (installed / "own_installed.py").write_text("K = 2\n")
        assert class_sha256(policy) == before
    finally:
        sys.path.remove(str(installed))


def test_with_fresh_no_cell_is_reused() -> None:
    command = ["sweep", "--once", "--programs", "2", "--policies", "fcfs", "--jps", "0.5"]
    assert bench(*command, "--out", str(RUN))[0] == 0
    taken = "took 1 finished cell with the same settings from runs/first"
    assert taken in bench(*command, "--out", "runs/second")[2]
    assert "took" not in bench(*command, "--out", "runs/third", "--fresh")[2]


def test_cells_outside_of_runs_are_not_reused() -> None:
    run_sweep(small_plan("fcfs"), Path("elsewhere"), workers=1)
    assert run_and_list_new_cells(small_plan("fcfs"), Path("runs/second")) == [FCFS]


def test_a_reused_cell_is_copied_completely_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    run_sweep(small_plan("fcfs"), RUN, workers=1)

    def killed(_source: str, _target: str) -> None:
        raise KeyboardInterrupt

    Path("runs/second").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(finished.os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            copy_cell(RUN / FCFS, Path("runs/second") / FCFS)
    assert not (Path("runs/second") / FCFS).exists()
    run_sweep(small_plan("fcfs"), Path("runs/third"), workers=1)
    assert [path.name for path in Path("runs/third").iterdir() if path.is_dir()] == [FCFS]


def test_a_disk_that_fills_up_during_a_copy_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run_sweep(small_plan("fcfs"), RUN, workers=1)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    Path("runs/second").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(finished.os, "link", full)
        patched.setattr(finished.shutil, "copy2", full)
        with pytest.raises(CannotWrite, match=r": no space left on device; free some space$"):
            copy_cell(RUN / FCFS, Path("runs/second") / FCFS)
    assert not list(Path("runs/second").iterdir())


def fail_once(work: Work, cell: Cell, tick: Tick) -> None:
    if not Path("failed-once").exists():
        Path("failed-once").touch()
        raise RuntimeError("no such luck")
    run_cell(work, cell, tick)


def test_files_of_an_interrupted_cell_are_removed_once_the_cell_finishes() -> None:
    run_sweep(small_plan("fcfs"), RUN, workers=1, run=fail_once)
    (RUN / FCFS).mkdir(exist_ok=True)
    (RUN / f"{FCFS}.aside-1").mkdir()
    assert run_and_list_new_cells(small_plan("fcfs"), RUN) == [FCFS]
    assert sorted(path.name for path in RUN.iterdir()) == [FCFS, "sweep.json", "sweep.toml"]


def test_every_field_of_a_cell_counts_except_the_version_of_turnstile() -> None:
    config = small_plan().cell_record(small_plan().cells()[0])
    assert same_cell(config, structs.replace(config, turnstile_version="9"))
    for field in set(config.__struct_fields__) - {"turnstile_version"}:
        assert not same_cell(config, structs.replace(config, **{field: "other"})), field
