"""Check that Python imports this installation."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("agents", "harness", "reports", "servers", "traces")


class InstallationCheck(NamedTuple):
    name: str
    passed: bool
    finding: str
    remedy: str = ""
    absent: str = ""
    """What is the matter with an optional component that is not there, such as `not installed`."""

    @property
    def state(self) -> str:
        if not self.passed:
            return "NOT OK"
        return self.absent or "ok"


def check_package(name: str, owners: Iterable[str] = ()) -> InstallationCheck:
    """Check that `import name` finds this installation. The names are common words, so another
    distribution or folder may precede it on the path, or have overwritten its files:
    openai-agents has a package `agents` too. `owners`: the distributions with such a package."""
    expected = Path(__file__).resolve().parents[1] / name
    spec = importlib.util.find_spec(name)
    origin = Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
    others = {*owners} - {"turnstile-bench"}
    return InstallationCheck(
        f"package {name}",
        origin == expected and not others,
        ", also a package of ".join([str(origin or "not found"), *sorted(others)]),
        f"expected {expected}, only of turnstile-bench: another `{name}` comes first on the path "
        "or has overwritten its files; use an environment with Turnstile alone, another working "
        "directory, and no PYTHONPATH",
    )


def overwritten_agents() -> str | None:
    """Return what to do if openai-agents is installed here too, since pip overwrites the files of
    other distributions silently. Finding all such distributions, as `bench doctor` does, would take
    longer than a command needs to start."""
    for folder in map(Path, sys.path):
        for record in folder.glob("openai_agents-*.dist-info/RECORD"):
            if re.search("^agents/__init__.py,", record.read_text("utf-8"), re.MULTILINE):
                return (
                    f"openai-agents in {folder} has a package `agents` as turnstile-bench has, and "
                    "only the one installed last works; install turnstile-bench in an environment "
                    "of its own, for example with pipx, and openai-agents again"
                )
    return None
