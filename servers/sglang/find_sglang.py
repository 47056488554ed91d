"""Finds the Python environment that SGLang is installed in.

The search order is TURNSTILE_SGLANG_PYTHON, the running interpreter, `.venv-sglang` in the working
directory, and that next to Turnstile's sources. Virtual time looks first for
`.venv-sglang-scheduler`, which has SGLang without what needs a GPU. SGLang is not imported.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from servers.basics.checkout import make_or
from servers.basics.errors import NotInstalled, Unavailable
from servers.processes.package_version import PROBE_TIMEOUT_S, package_version

VARIABLE = "TURNSTILE_SGLANG_PYTHON"
ROOT = Path(__file__).resolve().parents[2]
OLDEST = (0, 5, 23)
"""The version whose code was read. It is the first that is known to have every flag."""
TESTED = ("0.5.23",)
"""Versions whose scheduler is tested in virtual time, which uses private code of SGLang."""
SERVER, SCHEDULER = ".venv-sglang", ".venv-sglang-scheduler"
REMEDY = (
    "on a machine with a GPU, get it with: python3 -m venv .venv-sglang && "
    f".venv-sglang/bin/pip install sglang (or set {VARIABLE} to the Python of an environment)"
)


@dataclass(frozen=True, slots=True)
class SglangInstallation:
    """A Python environment with SGLang."""

    python: str
    version: str


def find_sglang() -> SglangInstallation:
    """Return the first installation that has all of SGLang. Raises Unavailable, with the command to
    install it."""
    return _first((SERVER,), REMEDY)


def find_scheduler() -> SglangInstallation:
    """Return the first installation that has SGLang's scheduler. Raises Unavailable if it cannot
    run in virtual time, with the command to install it."""
    if (machine := platform.machine()).lower() not in ("x86_64", "amd64"):
        raise NotInstalled(
            f"SGLang's scheduler runs in virtual time on x86-64 only, and this machine is {machine}"
            "; use --engine sim, or another machine"
        )
    remedy = _scheduler_remedy()
    sglang = _first((SCHEDULER, SERVER), remedy)
    if sglang.version not in TESTED:
        raise NotInstalled(
            f"{sglang.python} has SGLang {sglang.version}, whose scheduler is not tested in "
            f"virtual time, unlike {', '.join(TESTED)}'s; {remedy}"
        )
    return sglang


def _scheduler_remedy() -> str:
    by_pip = f"python3 -m venv {SCHEDULER} && {SCHEDULER}/bin/pip install sglang=={TESTED[-1]}"
    return f"get it with: {make_or('sglang', by_pip)} (or set {VARIABLE})"


def _first(environments: tuple[str, ...], remedy: str) -> SglangInstallation:
    python = next(_candidates(environments), None)
    if python is None:
        raise NotInstalled(f"SGLang is not installed; {remedy}")
    try:
        version = package_version(python, "sglang")
    except OSError as error:
        raise Unavailable(f"{VARIABLE} {python}: {error.strerror}; {remedy}") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{python}: no response within {PROBE_TIMEOUT_S:g} s") from None
    if version is None:
        raise NotInstalled(f"{python} has no SGLang; {remedy}")
    if not _new_enough(version):
        oldest = ".".join(map(str, OLDEST))
        raise Unavailable(
            f"{python} has SGLang {version}, but Turnstile needs {oldest} or newer; {remedy}"
        )
    return SglangInstallation(python, version)


def _candidates(environments: tuple[str, ...]) -> Iterator[str]:
    if chosen := os.environ.get(VARIABLE):
        yield chosen
        return
    if importlib.util.find_spec("sglang") is not None:
        yield sys.executable
    for environment in environments:
        for folder in dict.fromkeys((Path.cwd(), ROOT)):
            python = folder / environment / "bin/python"
            if python.exists():
                yield str(python)


def _new_enough(version: str) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return numbers is not None and tuple(map(int, numbers.groups())) >= OLDEST
