"""Makes texts of traces and servers safe for spreadsheets, which would execute formulas."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def escape_formula(text: str) -> str:
    """Put a `'`, which spreadsheets do not show, before a formula (OWASP, CSV injection)."""
    return f"'{text}" if text.startswith(FORMULA) else text
