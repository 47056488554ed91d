"""Writes a comparison of two runs as one HTML page that needs no network. In: a verdict."""

from __future__ import annotations

from pathlib import Path

from reports.compare.verdict import HEAD, Verdict, headline, notes, row, shown
from reports.page.environment import write_page
from servers.basics.phrasing import counted

COMPARISON = "compare.html"


def draw(verdict: Verdict, base: str, new: str, max_regression: float, out: Path) -> None:
    """Write the page. `base` and `new` are the names of the two runs."""
    different = shown(verdict.changes)
    same = len(verdict.changes) - len(different)
    write_page(
        out,
        "compare.html.j2",
        context=verdict.context,
        base=base,
        new=new,
        headline=headline(verdict, max_regression),
        head=HEAD,
        rows=[row(change) for change in different],
        same=counted(same, "number") if same else "",
        notes=[f"{note[:1].upper()}{note[1:]}" for note in notes(verdict)],
    )
