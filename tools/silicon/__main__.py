"""Compares virtual time with end-to-end measurements of GPUs: `make silicon`.

    python -m tools.silicon --hardware h200 --model llama-3.3-70b-fp8

Nothing runs live: the measurements in the package `aiconfigurator-core` are replayed in virtual
time. The exit code is 1 if a target is missed, unless --save writes the errors. The tables and the
verdict go to stdout, progress to stderr.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.calibrate.operator_tables import AICONFIGURATOR
from harness.cli.errors import one_line_errors
from harness.cli.start_server import StatusLine
from harness.cli.tables import show_rows
from reports.fidelity.targets import TargetVerdict
from servers.basics.atomic import refuse_unwritable, write_file
from servers.basics.compiled_core import find_core, offered_to_workers
from servers.basics.errors import InvalidInput
from tools.silicon import predictions as replayed
from tools.silicon import rows as measurements
from tools.silicon.errors import COLUMNS, Prediction, apart_rows, headline, judge, pair_rows
from tools.silicon.rows import Row

Text = str | None


def main(
    hardware: Annotated[
        Text, typer.Option(metavar="NAME", help="Use measurements of this GPU. Default: all.")
    ] = None,
    model: Annotated[
        Text, typer.Option(metavar="NAME", help="Use measurements of this model. Default: all.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", dir_okay=False, help="Write the errors by GPU and model here."
        ),
    ] = None,
) -> None:
    """Replay the end-to-end measurements of aiconfigurator-core in virtual time."""

    with one_line_errors():
        if save is not None:
            refuse_unwritable(save)
        rows, left_out = measurements.read_rows(hardware, model)
        chosen = _chosen(rows, hardware, model)
        predictions = _predictions(chosen, left_out)
        if not predictions:
            reasons = "; ".join(f"{why} ({count})" for why, count in left_out.items())
            raise InvalidInput(f"no measurement can be compared: {reasons}")
        if save is not None:
            step_times = f"operator tables of {AICONFIGURATOR.installed}"
            errors = replayed.errors_file(predictions, AICONFIGURATOR.installed, step_times)
            write_file(save, f"{errors.model_dump_json(indent=1)}\n".encode())
    if not _show(predictions, left_out).good and save is None:
        raise typer.Exit(1)


def _chosen(rows: list[Row], hardware: str | None, model: str | None) -> list[Row]:
    for option, value, known in (
        ("hardware", hardware, {row.hardware for row in rows}),
        ("model", model, {row.model for row in rows}),
    ):
        if value is not None and value not in known:
            raise InvalidInput(
                f"--{option} {value}: no measurement of it; use {' or '.join(sorted(known))}"
            )
    chosen = [
        row for row in rows if hardware in (None, row.hardware) and model in (None, row.model)
    ]
    if not chosen:
        raise InvalidInput(
            f"--model {model}: was not measured on {hardware}; leave out one of them"
        )
    # Rows of the same profile follow each other, so that a process evaluates it once, the shortest
    # first, since the first rows are replayed without the compiled core.
    return sorted(
        chosen,
        key=lambda row: (row.hardware, row.model, row.gpus, row.kv_fp8, row.clients, row.id),
    )


def _predictions(rows: list[Row], left_out: dict[str, int]) -> list[Prediction]:
    found: list[Prediction] = []
    with offered_to_workers(find_core()), StatusLine() as status:
        for number, result in enumerate(replayed.predictions(rows), 1):
            status.show(f"{number:,} of {len(rows):,} measurements")
            if isinstance(result, str):
                left_out[result] = left_out.get(result, 0) + 1
            else:
                found.append(result)
    return found


def _show(predictions: list[Prediction], left_out: dict[str, int]) -> TargetVerdict:
    verdict = judge(predictions)
    show_rows([["measurements", *COLUMNS], *apart_rows(predictions)], "dense models apart")
    show_rows([["GPU", "model", *COLUMNS], *pair_rows(predictions)], "by GPU and model")
    if left_out:
        show_rows([(why, str(count)) for why, count in left_out.items()], "left out")
    marks = {True: "met", False: "missed", None: "–"}
    show_rows([(marks[c.held], c.target, c.found) for c in verdict.checks], "targets")
    print(f"\n{headline(predictions, verdict)}")
    return verdict


if __name__ == "__main__":
    typer.run(main)
