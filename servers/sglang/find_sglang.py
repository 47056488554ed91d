"""Finds the Python environment that SGLang is installed in.

The search order is TURNSTILE_SGLANG_PYTHON, the running interpreter, `.venv-sglang` in the working
directory, and that next to Turnstile's sources. Virtual time looks first for
`.venv-sglang-scheduler`, which has SGLang without what needs a GPU. SGLang is not imported.
"""

from __future__ import annotations

import os
import platform

from servers.basics.checkout import make_or
from servers.basics.errors import NotInstalled, Unavailable
from servers.processes.environments import Installation, at_least, package_version, pythons

VARIABLE = "TURNSTILE_SGLANG_PYTHON"
OLDEST = (0, 5, 23)
"""The version whose code was read. It is the first that is known to have every flag."""
TESTED = ("0.5.23",)
"""Versions whose scheduler is tested in virtual time, which uses private code of SGLang."""
SERVER, SCHEDULER = ".venv-sglang", ".venv-sglang-scheduler"
REMEDY = (
    "on a machine with a GPU, get it with: python3 -m venv .venv-sglang && "
    f".venv-sglang/bin/pip install sglang (or set {VARIABLE} to the Python of an environment)"
)


def find_sglang() -> Installation:
    """Return the first installation that has all of SGLang. Raises Unavailable, with the command to
    install it."""
    return _first((SERVER,), REMEDY)


def find_scheduler() -> Installation:
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


def _first(environments: tuple[str, ...], remedy: str) -> Installation:
    chosen = os.environ.get(VARIABLE)
    python = next(pythons(chosen, *environments, module="sglang"), None)
    if python is None:
        raise NotInstalled(f"SGLang is not installed; {remedy}")
    version = package_version(python, "sglang", VARIABLE, remedy)
    if version is None:
        raise NotInstalled(f"{python} has no SGLang; {remedy}")
    if not at_least(OLDEST, version):
        oldest = ".".join(map(str, OLDEST))
        raise Unavailable(
            f"{python} has SGLang {version}, but Turnstile needs {oldest} or newer; {remedy}"
        )
    return Installation(python, version)
