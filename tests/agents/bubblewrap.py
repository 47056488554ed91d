"""Tests that need bubblewrap, and a kernel that lets it make namespaces: else they are skipped."""

from __future__ import annotations

import pytest

from agents.sandbox.bubblewrap import Bubblewrap


def why_not() -> str:
    try:
        Bubblewrap().check()
    except ValueError as missing:
        return str(missing)
    return ""


WHY_NOT = why_not()
needs_bubblewrap = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
