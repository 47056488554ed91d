"""Markers, hypothesis profile and fixtures shared by all groups of tests.

Three markers divide the tests into groups. `acceptance` marks those that take long: `make test`
leaves them out, `make test-all` runs them. `serial` and `podman` mark those that run one at a time
in a process of their own. Tests get their markers by path, from the tuples below; a single test of
a file can also be marked `acceptance` there.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from servers.basics.compiled_core import find_core, offered_to_workers

if TYPE_CHECKING:
    from tests.crash.trials import Warm

HERE = Path(__file__).parent
ACCEPTANCE = (
    "agents/test_openhands.py",
    "agents/test_runs.py",
    "browser",
    "ci/test_results.py",
    "cluster/test_ray.py",
    "compiled",
    "crash",
    "faults",
    "foreign_routers",
    "harness/test_cluster_examples.py",
    "harness/test_fidelity_run.py",
    "harness/test_live_routers.py",
    "security/test_agents.py",
    "security/test_escapes.py",
    "security/test_listening.py",
    "security/test_secrets.py",
    "soak",
    "test_extras_package.py",
    "test_leaks.py",
    "traces/test_exports_in_other_tools.py",
)
"""Folders and files below `tests` that `make test` leaves out and `make test-all` runs."""
PODMAN = (
    "real/test_agent_container.py",
    "real/test_container.py",
    "real/test_container_escapes.py",
)
"""Files whose tests use podman, whose locks belong to the whole machine."""
SERIAL = (
    # Beside a second server the client runs so late that it disconnects from a turn that has ended.
    "real/test_pins.py",
    # It counts all objects and the memory of its process.
    "soak",
)
"""Folders and files whose tests share no process, and those of `real` no machine: they measure time
or memory."""
BENCHMARKS = "bench"
"""A folder that `make bench` and, every night, `make bench-once` run."""
ALONE = {"serial": SERIAL, "acceptance and serial": SERIAL, "podman": PODMAN}
"""Files by the expressions of `-m` that the Makefile runs them alone with."""
WITHOUT_SLOW, ONLY_SLOW = "not acceptance", "acceptance and not serial"
"""Expressions of `-m` that the Makefile leaves slow tests out with, and that it runs them with."""
FIRST = (
    "real/test_agents.py",
    "real/test_plugin.py",
    "real/test_vllm_package.py",
    "real/test_recorded_answers.py",
    "real/test_vllm_virtual.py",
    "real/test_offload.py",
    "real/test_faults.py",
    "real/test_profile.py",
    "real/test_launcher.py",
    "real/test_sweep.py",
    "faults",
    "docs",
    "agents/test_runs.py",
    "crash/test_faults.py",
    "security/test_secrets.py",
    "browser",
    "harness",
    "sim",
)
"""The longest files, which run first, so that at the end no worker waits for a long file. A worker
gets its next file when two tests of the last one are left, so of files of one or two tests that
begin together the first ones are not followed by the longest. The order of `real` is the one in
which three workers ended at nearly the same time in simulations with the durations of past runs."""

# Hypothesis draws the same examples each time, so that results are reproducible: few on each push,
# and every night `make test EXAMPLES=many`. --hypothesis-profile=default draws others.
SLOW_EXAMPLES = (HealthCheck.too_slow, HealthCheck.data_too_large)
for profile, examples in (("few", 10), ("many", 200)):
    settings.register_profile(
        profile,
        derandomize=True,
        max_examples=examples,
        deadline=None,
        suppress_health_check=(*SLOW_EXAMPLES, HealthCheck.function_scoped_fixture),
    )
settings.load_profile("few")

if sys.platform == "linux":
    from tests.leaks import (  # noqa: F401 (fixtures)
        nothing_left,
        nothing_left_by_the_session,
        watch,
    )

# A shell starts its background processes with SIGINT ignored, which the tests' processes inherit;
# tests of Ctrl-C would then wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the tests' modules and items, half a million objects, out of garbage collections."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of which no test runs: importing all takes each worker longer than many files
    of tests. Benchmarks run only in a run of their own."""
    if collection_path == HERE / BENCHMARKS and config.option.markexpr:
        return True
    is_slow = any(map(collection_path.is_relative_to, _below(ACCEPTANCE)))
    if is_slow and config.option.markexpr == WITHOUT_SLOW:
        return True
    if config.option.markexpr == ONLY_SLOW and not is_slow and collection_path.is_file():
        return "mark.acceptance" not in collection_path.read_text("utf-8") or None
    if config.option.markexpr not in ALONE:
        return None
    paths = [HERE / path for path in ALONE[config.option.markexpr]]
    near = any(
        collection_path.is_relative_to(path) or path.is_relative_to(collection_path)
        for path in paths
    )
    return None if near else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("serial"):
            raise pytest.UsageError(f"{item.nodeid}: name its file in SERIAL of tests/conftest.py")
        for marker in _markers(item.path):
            item.add_marker(marker)
    items.sort(key=lambda item: _priority(item.path))


@cache
def _markers(file: Path) -> list[str]:
    groups = (("acceptance", ACCEPTANCE), ("podman", PODMAN), ("serial", SERIAL))
    return [marker for marker, paths in groups if any(map(file.is_relative_to, _below(paths)))]


@cache
def _priority(file: Path) -> int:
    turns = (turn for turn, path in enumerate(_below(FIRST)) if file.is_relative_to(path))
    return next(turns, len(FIRST))


def _below(paths: tuple[str, ...]) -> list[Path]:
    return [HERE / path for path in paths]


@pytest.fixture(scope="session")
def bench() -> str:
    """The path of the console script `bench`."""
    return str(Path(sys.executable).parent / "bench")


@pytest.fixture(scope="session")
def fork_server() -> Iterator[BaseContext]:
    """A process that has imported what workers of sweeps need, from which they can be forked. It
    uses the compiled core if `TURNSTILE_CORE` names one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.warm_workers"])
    with tempfile.TemporaryDirectory() as sockets, pytest.MonkeyPatch.context() as patch:
        # Otherwise multiprocessing creates a folder, which it removes at the end of this process.
        patch.setitem(multiprocessing.current_process()._config, "tempdir", sockets)
        with offered_to_workers(find_core()):
            forkserver.ensure_running()
        yield context
        forkserver._forkserver._stop()


@pytest.fixture(scope="session")
def warm_of_session() -> Iterator[Warm]:
    """A process that forks `bench` after the imports, which saves most of each start."""
    from tests.crash import trials

    with trials.warm() as started:
        yield started


@pytest.fixture
def warm(warm_of_session: Warm) -> Iterator[Warm]:
    """The same process; what a failed test has begun ends with the test."""
    yield warm_of_session
    warm_of_session.end_all()


@pytest.fixture(scope="module")
def forked_workers(fork_server: BaseContext) -> Iterator[None]:
    """Fork the workers of sweeps in this process, which saves most of the start of each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", lambda _kind=None: fork_server)
        yield
