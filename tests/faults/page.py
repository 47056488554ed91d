"""docs/reference/reliability.md from the rows that the tests assert: python -m tests.faults.page"""

from __future__ import annotations

from pathlib import Path

from tests.faults.table import REAL, STANDING_IN, Fault, Outcome

PAGE = Path(__file__).parents[2] / "docs/reference/reliability.md"
HEAD = Path(__file__).with_name("reliability.md")
COLUMNS = (
    "what goes wrong",
    "cell",
    "noticed after",
    "the turn's `error`",
    "reported as",
)


def page() -> str:
    tables = {"{{engines}}": STANDING_IN, "{{vllm}}": REAL}
    text = HEAD.read_text().replace("{{outcomes}}", "\n".join(_outcomes()))
    for place, rows in tables.items():
        text = text.replace(place, "\n".join(_table(rows)))
    return text


def _table(rows: list[Fault]) -> list[str]:
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    return lines + [_row(row) for row in rows]


def _row(row: Fault) -> str:
    said = "no turn is affected" if row.error is None else f"`{row.error}`"
    why = f"`{row.why}`" if row.why else "not reported: nothing is lost"
    if row.why == row.error:
        why = "the same"
    return f"| {' | '.join((row.name, row.outcome.cell, row.noticed, said, why))} |"


def _outcomes() -> list[str]:
    rows = [
        f"| {each.cell} | {each.meaning} | {each.on_continue} | {each.on_stop} | {each.exit_code} |"
        for each in Outcome
    ]
    return [
        "| cell | | `--on-error continue` | `--on-error stop` | exit code |",
        "|---|---|---|---|---|",
        *rows,
    ]


if __name__ == "__main__":
    PAGE.write_text(page())
