"""Texts of traces and servers, as spreadsheets may have them: none begins a formula."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def harmless(text: str) -> str:
    """With a `'` before what would be one; spreadsheets do not show it (OWASP, CSV injection)."""
    return f"'{text}" if text.startswith(FORMULA) else text
