"""`bench fidelity --silicon`: hold virtual time against end-to-end measurements of GPUs.

The tables and the verdict go to stdout, progress to stderr.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from harness.cli.errors import one_line_errors
from servers.basics.errors import InvalidInput

if TYPE_CHECKING:
    from harness.calibrate.silicon_rows import Row
    from reports.fidelity.end_to_end import Point
    from reports.fidelity.end_to_end_card import EndToEndCard

OUT = Path("runs/fidelity_silicon")


def run_silicon(
    hardware: str | None, model: str | None, out: Path | None, save: Path | None
) -> None:
    """Write and print the card. Exit with code 1 if a target is missed."""
    from harness.calibrate.silicon import errors_file
    from harness.calibrate.silicon_rows import package, read_rows
    from reports.fidelity.end_to_end_card import write_end_to_end
    from servers.basics.atomic import refuse_unwritable, write_file

    with one_line_errors():
        if save is not None:
            refuse_unwritable(save)
        rows, left_out = read_rows(hardware, model)
        chosen = _chosen(rows, hardware, model)
        points = _points(chosen, left_out)
        if not points:
            reasons = "; ".join(f"{why} ({count})" for why, count in left_out.items())
            raise InvalidInput(f"--silicon: no measurement can be compared: {reasons}")
        about = {
            "measurements": f"{package()}, silicon_sample.csv, rows of vLLM",
            "step times": f"operator tables of {package()}",
            "compared": f"{len(points):,} of {len(points) + sum(left_out.values()):,} rows",
        }
        card = write_end_to_end(points, left_out, about, out or OUT)
        if save is not None:
            errors = errors_file(points, package(), about["step times"])
            write_file(save, f"{errors.model_dump_json(indent=1)}\n".encode())
    _show(card, left_out)
    if not card.verdict.good:
        raise typer.Exit(1)


def _chosen(rows: list[Row], hardware: str | None, model: str | None) -> list[Row]:
    for option, value, known in (
        ("hardware", hardware, {row.hardware for row in rows}),
        ("model", model, {row.model for row in rows}),
    ):
        if value is not None and value not in known:
            raise InvalidInput(
                f"--{option} {value}: no measurement of it; with --silicon use "
                f"{' or '.join(sorted(known))}"
            )
    chosen = [
        row for row in rows if hardware in (None, row.hardware) and model in (None, row.model)
    ]
    if not chosen:
        raise InvalidInput(
            f"--model {model}: was not measured on {hardware}; leave out one of them"
        )
    # Rows of the same profile follow each other, so that a process evaluates it once.
    return sorted(chosen, key=lambda row: (row.hardware, row.model, row.gpus, row.kv_fp8, row.id))


def _points(rows: list[Row], left_out: dict[str, int]) -> list[Point]:
    from harness.calibrate.silicon import points
    from harness.cli.start_server import StatusLine

    found: list[Point] = []
    with StatusLine() as status:
        for number, result in enumerate(points(rows), 1):
            status.show(f"{number:,} of {len(rows):,} measurements")
            if isinstance(result, str):
                left_out[result] = left_out.get(result, 0) + 1
            else:
                found.append(result)
    return found


def _show(card: EndToEndCard, left_out: dict[str, int]) -> None:
    from harness.cli.tables import show_rows
    from reports.fidelity.end_to_end_card import COLUMNS, apart_rows, pair_rows

    head = [
        name.replace("median |error|", "median").replace("P90 |error|", "P90") for name in COLUMNS
    ]
    show_rows([["measurements", *head], *apart_rows(card.points)], "dense models apart")
    show_rows([["GPU", "model", *head], *pair_rows(card.points)], "by GPU and model")
    if left_out:
        show_rows([(why, str(count)) for why, count in left_out.items()], "left out")
    marks = {True: "met", False: "missed", None: "–"}
    show_rows([(marks[c.held], c.target, c.found) for c in card.verdict.checks], "targets")
    print(f"\n{card.headline}")
    print(f"fidelity card: {card.path}")
