"""Reads the version of a package in another Python environment, without importing the package."""

from __future__ import annotations

import subprocess

PROBE = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
PROBE_TIMEOUT_S = 60.0


def package_version(python: str, package: str) -> str | None:
    """Return the version, or None if the environment lacks the package. Raises OSError if the
    Python cannot be started, and subprocess.TimeoutExpired."""
    process = subprocess.run(  # noqa: S603
        [python, "-c", PROBE, package],
        capture_output=True,
        text=True,
        timeout=PROBE_TIMEOUT_S,
        check=False,
    )
    return process.stdout.strip() if process.returncode == 0 else None
