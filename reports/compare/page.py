"""Draws a comparison of two runs as one HTML page that needs no network.

In: a verdict. Out: the page, with a figure of the changes and the table of all of them.
"""

from __future__ import annotations

from pathlib import Path

from reports.compare.change_figure import changes
from reports.compare.verdict import Verdict
from reports.compare.verdict_files import HEAD, headline, notes, row, shown
from reports.figures.legend import legend
from reports.figures.styles import styles
from reports.page.page import with_figures
from servers.basics.atomic import write_file
from servers.basics.phrasing import counted
from servers.records.sweep import VariantRecord

COMPARISON = "compare.html"


def draw(verdict: Verdict, base: str, new: str, max_regression: float, out: Path) -> None:
    """Write the page. `base` and `new` are the names of the two runs."""
    names = list(dict.fromkeys(change.variant for change in verdict.changes))
    style = styles([VariantRecord(name=name) for name in names])
    different = shown(verdict.changes)
    figure = changes(verdict.changes, style) if different else None
    same = len(verdict.changes) - len(different)
    content = (
        with_figures()
        .get_template("compare.html.j2")
        .render(
            context=verdict.context,
            base=base,
            new=new,
            headline=headline(verdict, max_regression),
            head=HEAD,
            rows=[row(change) for change in different],
            same=counted(same, "number") if same else "",
            figure=figure,
            legend=legend(names, style, names),
            notes=[f"{note[:1].upper()}{note[1:]}" for note in notes(verdict)],
        )
    )
    write_file(out, content.encode())
