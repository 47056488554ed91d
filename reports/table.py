"""A table of text, which the page and the terminal render, and texts that spreadsheets do not
execute.

`templates/parts.html.j2` renders a `Table`. A terminal prints the first `Layout` of a `Fitted`
table that is not too wide, or else the last one; without a terminal, there are plain columns.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from rich import box
from rich import table as rich_table
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.measure import Measurement
from rich.text import Text

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


class TableCell(NamedTuple):
    text: str
    best: bool = False
    kind: str = ""
    """The CSS class of its colour."""
    tint: int = 0
    """How strong the colour is, in percent."""
    title: str = ""
    """Appears when the reader hovers over the cell."""
    hollow: bool | None = None
    """Whether the cell is past saturation; None in tables that do not mark it."""
    lines: tuple[str, ...] = ()
    """Smaller lines beneath the text."""
    href: str = ""


class TableRow(NamedTuple):
    name: str
    cells: Sequence[TableCell]
    is_reference: bool = False
    group: str = ""
    """The heading above the rows that share it."""


class Table(NamedTuple):
    heads: Sequence[str]
    """The first is for the names of rows."""
    rows: Sequence[TableRow]
    here: str = ""
    """The head of the column with the load of the answer."""


def texts(name: str, values: Iterable[str], is_reference: bool = False) -> TableRow:
    return TableRow(name, [TableCell(value) for value in values], is_reference)


Head = tuple[str, JustifyMethod]


def right(heads: Iterable[str]) -> list[Head]:
    return [(head, "right") for head in heads]


class Line(NamedTuple):
    cells: Sequence[str]
    style: str = ""
    group: str = ""
    """A terminal separates lines of different groups."""


class Layout(NamedTuple):
    heads: Sequence[Head]
    lines: Sequence[Line]
    caption: str = ""


class Fitted(Protocol):
    """A table that has several layouts, from the widest to the narrowest."""

    def layouts(self) -> Iterator[Layout]: ...

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update(max_width=10_000)
        table = rich_table.Table()
        for layout in self.layouts():
            table = _rich(layout, console.is_terminal)
            if Measurement.get(console, unbounded, table).maximum <= options.max_width:
                break
        yield table


def _rich(layout: Layout, terminal: bool) -> rich_table.Table:
    # Text, not str: Rich would read a name in brackets as markup.
    table = rich_table.Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False)
    for head, justify in layout.heads:
        table.add_column(Text(head), justify=justify, no_wrap=True, overflow="ellipsis")
    before = None
    for line in layout.lines:
        if before is not None and line.group != before.group:
            table.add_section()
        before = line
        table.add_row(*map(Text, line.cells), style=line.style)
    if layout.caption:
        table.caption, table.caption_justify = Text(layout.caption), "left"
    return table
