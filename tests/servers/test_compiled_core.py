"""When workers may use a compiled core, and that only they do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.basics import compiled_core
from servers.basics.compiled_core import CHOICE, FOLDER, MANIFEST, SUFFIX, WORKER, Core, find_core


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that says that it was built from the present sources for this Python."""
    write_manifest(tmp_path)
    return tmp_path


def write_manifest(folder: Path, **changes: str) -> None:
    manifest = {"suffix": SUFFIX, "sources_sha256": compiled_core.sources_sha256()}
    (folder / MANIFEST).write_text(json.dumps(manifest | changes))


def found(folder: Path) -> Core:
    return find_core({CHOICE: str(folder)})


def test_a_core_from_the_present_sources_is_used(folder: Path) -> None:
    assert found(folder) == Core(folder, f"in {folder}")


def test_a_core_from_other_sources_is_outdated(folder: Path) -> None:
    write_manifest(folder, sources_sha256="0" * 64)
    assert found(folder) == Core(None, "built from other sources", is_outdated=True)


def test_a_core_for_another_python_is_outdated(folder: Path) -> None:
    write_manifest(folder, suffix=".cpython-399-arm.so")
    finding = f"built for .cpython-399-arm.so, not for {SUFFIX}"
    assert found(folder) == Core(None, finding, is_outdated=True)


def test_users_can_choose_the_sources() -> None:
    assert find_core({CHOICE: "python"}) == Core(None, "not used, since TURNSTILE_CORE=python")


@pytest.mark.parametrize("manifest", ["", "[]", "{}", "\0", '{"suffix": 1}'])
def test_a_core_with_a_damaged_manifest_is_not_used(manifest: str, tmp_path: Path) -> None:
    assert found(tmp_path) == Core(None, f"absent: no core.json in {tmp_path}")
    (tmp_path / MANIFEST).write_text(manifest)
    finding = f"damaged: {tmp_path / MANIFEST} cannot be read"
    assert found(tmp_path) == Core(None, finding, is_outdated=True)


def test_without_a_choice_the_core_beside_the_packages_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert Path(compiled_core.__file__).parents[2] / "turnstile_core" == FOLDER
    monkeypatch.setattr(compiled_core, "FOLDER", tmp_path)
    assert find_core({}) == Core(None, "absent")
    write_manifest(tmp_path)
    assert find_core({}).folder == tmp_path


@pytest.mark.parametrize(
    "change",
    ["servers/sim/kv.py", "servers/basics/clock.py", "servers/policies/fcfs.py", "traces/new.py"],
)
def test_any_change_of_a_source_gives_another_hash(
    change: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("servers/sim/kv.py", "servers/basics/clock.py", "servers/policies/fcfs.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("before")
    monkeypatch.setattr(compiled_core, "ROOT", tmp_path)
    before = compiled_core.sources_sha256()
    assert compiled_core.sources_sha256() == before
    (tmp_path / change).parent.mkdir(exist_ok=True)
    (tmp_path / change).write_text("after")
    assert compiled_core.sources_sha256() != before


def test_modules_that_other_processes_share_are_not_compiled() -> None:
    compiled = {path.as_posix() for path in compiled_core.modules()}
    assert {
        "servers/sim/engine.py",
        "servers/policies/fcfs.py",
        "servers/basics/clock.py",
    } <= compiled
    assert not compiled & {
        "servers/sim/settings.py",
        "servers/sim/__init__.py",
        "servers/policies/arguments.py",
        "servers/policies/contract.py",
        "servers/records/turns.py",
    }


@pytest.fixture
def meta_path() -> Iterator[None]:
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before


@pytest.mark.usefixtures("meta_path")
def test_only_a_process_that_was_offered_a_core_imports_its_modules(folder: Path) -> None:
    module = folder / "servers/sim" / f"engine{SUFFIX}"
    module.parent.mkdir(parents=True)
    module.touch()
    before = list(sys.meta_path)
    compiled_core.use_offered_core()
    assert sys.meta_path == before
    with compiled_core.offered_to_workers(Core(folder, "")):
        assert os.environ[WORKER] == str(folder)
        compiled_core.use_offered_core()
        assert WORKER not in os.environ, "a process that a worker starts"
    assert WORKER not in os.environ
    finder = sys.meta_path[0]
    spec = finder.find_spec("servers.sim.engine", None)
    assert spec is not None
    assert spec.origin == str(module)
    assert finder.find_spec("servers.sim.kv", None) is None


def test_no_core_is_offered_if_there_is_none() -> None:
    with compiled_core.offered_to_workers(compiled_core.SOURCES_ONLY):
        assert WORKER not in os.environ
