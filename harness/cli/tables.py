"""Print tables to stdout: columns on a terminal, tab-separated lines in a pipe."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from rich.console import Console
from rich.table import Table

from servers.basics.text import printable


def show_rows(
    rows: Iterable[Sequence[str]], title: str | None = None, heads: Sequence[str] = ()
) -> None:
    """Print one line per row in a pipe, so that cut and grep work on it. `heads` are the heads of
    columns on a terminal."""
    rows = [[printable(text) for text in row] for row in rows]
    if not sys.stdout.isatty():
        if title is not None:
            print(f"\n{title}")
        for row in rows:
            print("\t".join(row))
        return
    table = Table(
        box=None, show_header=bool(heads), pad_edge=False, title=title, title_justify="left"
    )
    for row in rows:
        while (number := len(table.columns)) < len(row):
            head = heads[number] if heads else ""
            table.add_column(head, overflow="fold", style="" if number else "bold")
        table.add_row(*row)
    Console(highlight=False).print(table)


def show_cell(folder: Path) -> str:
    """Print settings, result and time breakdown of a cell. Return its failed gates."""
    import numpy as np

    from reports.metrics.measure import measure, read_recorded, settings_of
    from reports.metrics.steady import unstable_cells
    from reports.run_folder.read import read_cell
    from reports.run_folder.turns import PARTS

    cell = read_cell(folder)
    unstable = unstable_cells([cell]).get(cell.folder.name)
    row, turns, _ = measure(read_recorded(cell), cell, unstable)
    config = to_builtins(cell.config)
    show_rows(list(_flat(config, omit=("profile", "workload", "format"))), "settings")
    if "profile" in config:
        show_rows(list(_flat(config["profile"])), "profile")
    show_rows(list(_flat(config["workload"], omit=("left_out",))), "workload")
    values = settings_of(cell) | row
    show_rows([(name, _text(value)) for name, value in values.items() if name != "cell"], "result")
    lateness_s = turns["sent_at_s"] - turns["scheduled_at_s"]
    sums = {part: np.nansum(turns[part]) for part in (*PARTS, "gap_s", "wait_s")}
    sums["lateness_s"] = lateness_s.sum()
    total, count = sum(sums.values()) or 1.0, len(np.unique(turns["job_id"])) or 1
    shares = [
        (part, f"{value / count:.3f} s per job", f"{value / total:.1%}")
        for part, value in sums.items()
    ]
    show_rows(shares, "where the time went (sub-agents add up)")
    show_rows(sorted(_events(cell.folder / "engine.jsonl")), "engine events")
    done = _flat(to_builtins(cell.done), omit=("usage",))
    show_rows([row for row in done if not row[0].endswith(".percentiles")], "engine")
    print(f"\n{cell.folder}")
    return str(row["failed_gates"])


def _events(path: Path) -> list[tuple[str, str]]:
    from reports.run_folder.lines import json_lines

    counts: Counter[str] = Counter()
    for event in json_lines(path):
        reason = f" ({event['reason']})" if "reason" in event else ""
        counts[event["event"] + reason] += 1
    return [(name, str(count)) for name, count in counts.items()]


def _flat(
    values: dict[str, Any], omit: Sequence[str] = (), prefix: str = ""
) -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        if name in omit:
            continue
        if isinstance(value, dict) and value:
            yield from _flat(value, prefix=f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _text(value)


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
