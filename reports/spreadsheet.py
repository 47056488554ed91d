"""Makes texts of traces and servers safe for spreadsheets, so that none is read as a formula."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def harmless(text: str) -> str:
    """Puts a `'`, which spreadsheets do not show, before a formula (OWASP, CSV injection)."""
    return f"'{text}" if text.startswith(FORMULA) else text
