"""Check that Python imports this installation."""

from __future__ import annotations

import importlib.util
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


def check_package(name: str) -> InstallationCheck:
    """Check that `import name` finds this installation. The names are common words, so another
    distribution or folder may precede it on the path."""
    expected = Path(__file__).resolve().parents[1] / name
    spec = importlib.util.find_spec(name)
    origin = Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
    return InstallationCheck(
        f"package {name}",
        origin == expected,
        str(origin or "not found"),
        f"expected {expected}: another `{name}` comes first on the path; use an environment with "
        "Turnstile alone, another working directory, and no PYTHONPATH",
    )
