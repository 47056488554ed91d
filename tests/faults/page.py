"""Writes docs/reference/reliability.md from the rows that the tests check:
python -m tests.faults.page
"""

from __future__ import annotations

from pathlib import Path

from tests.faults.table import FAKE_SERVER, REAL, Fault, Outcome

PAGE = Path(__file__).parents[2] / "docs/reference/reliability.md"
HEAD = Path(__file__).with_name("reliability.md")
COLUMNS = (
    "fault",
    "cell",
    "detected after",
    "reason",
)


def page() -> str:
    tables = {"{{engines}}": FAKE_SERVER, "{{vllm}}": REAL}
    text = HEAD.read_text().replace("{{outcomes}}", "\n".join(_outcomes()))
    for place, rows in tables.items():
        text = text.replace(place, "\n".join(_table(rows)))
    return text


def _table(rows: list[Fault]) -> list[str]:
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    return lines + [_row(row) for row in rows]


def _row(row: Fault) -> str:
    """Return a fault with the reason of its cell, or of the first failed turn in a finished one."""
    reason = row.error if row.outcome is Outcome.MARKED and row.error else row.message
    shown = f"`{reason}`" if reason else "none, because nothing is lost"
    return f"| {' | '.join((row.name, row.outcome.cell, row.detected, shown))} |"


def _outcomes() -> list[str]:
    rows = [
        f"| {each.cell} | {each.meaning} | {each.on_continue} | {each.on_stop} | {each.exit_code} |"
        for each in Outcome
    ]
    return [
        "| cell | result | `--on-error continue` | `--on-error stop` | exit code |",
        "|---|---|---|---|---|",
        *rows,
    ]


if __name__ == "__main__":
    PAGE.write_text(page())
