"""The command that installs a part of Turnstile here: a make target in a checkout, else pip."""

from __future__ import annotations

from pathlib import Path

INSTALL = "pip install CHECKOUT"
"""CHECKOUT: the folder of Turnstile's sources, since no package index has it yet."""
REINSTALL = "pip install --force-reinstall --no-deps CHECKOUT"
"""Compiles the core if TURNSTILE_COMPILE is set."""
ROOT = Path(__file__).resolve().parents[2]


def make_or(target: str, command: str) -> str:
    """Return `make TARGET` where there is a Makefile of ours, else the command."""
    return f"make {target}" if (ROOT / "Makefile").is_file() else command
