"""Skip tests that need bubblewrap and user namespaces where these are missing."""

from __future__ import annotations

import pytest

from agents.sandbox.bubblewrap import Bubblewrap


def reason_to_skip() -> str:
    try:
        Bubblewrap().check()
    except ValueError as missing:
        return str(missing)
    return ""


SKIP_REASON = reason_to_skip()
needs_bubblewrap = pytest.mark.skipif(bool(SKIP_REASON), reason=SKIP_REASON)
