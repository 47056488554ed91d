"""Makes texts of traces and servers safe for spreadsheets, which would execute formulas."""

from __future__ import annotations

import unicodedata

STARTS = ("=", "+", "-", "@")


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet may take a text for a formula.

    Spreadsheets skip blanks and invisible characters before a formula, take its first character in
    every width (`＝`), and split a cell that begins with a tab or the end of a line (OWASP, CSV
    injection).
    """
    if text[:1] in ("\t", "\r", "\n"):
        return True
    # Categories C (control, format) and Z (separators) are not visible.
    first = next((each for each in text if unicodedata.category(each)[0] not in "CZ"), "")
    return unicodedata.normalize("NFKC", first).startswith(STARTS)


def escape_formula(text: str) -> str:
    """Put a `'`, which spreadsheets do not show, before a formula."""
    return f"'{text}" if is_formula(text) else text
