"""Checks that this installation is the one that Python imports, and counts its CPU cores."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("agents", "harness", "reports", "servers", "traces")


class Check(NamedTuple):
    name: str
    good: bool
    finding: str
    remedy: str = ""


def package(name: str) -> Check:
    """Our import names are common words; another distribution or folder may come first."""
    ours = Path(__file__).resolve().parents[1] / name
    spec = importlib.util.find_spec(name)
    origin = Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
    return Check(
        f"package {name}",
        origin == ours,
        str(origin or "not found"),
        f"expected {ours}: another `{name}` comes first on the path; run in the .venv that "
        "`make install` makes, from another folder, and without PYTHONPATH",
    )


def cpu_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
