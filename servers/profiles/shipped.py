"""Reads the shipped step times of listed GPUs and models, one file per GPU in `tables/`.

`make profiles` fits them to operator tables. In: names of a GPU and a model, and a number of GPUs.
Out: the coefficients of `TableProfile`, their origin and their errors, or None. Lengths are tokens,
errors are ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder

from servers.profiles.end_to_end import end_to_end_error
from servers.profiles.fit import StrictModel
from servers.profiles.from_tables import Tables, TableSteps
from servers.profiles.machines.gpus import HARDWARE
from servers.profiles.measured import Errors, large_errors
from servers.profiles.profile import Profile, TableProfile

FOLDER = Path(__file__).parent / "tables"


class ShippedSteps(StrictModel):
    """Step times of one model on a number of GPUs, without the CPU time between steps."""

    steps: TableSteps
    errors: dict[str, Errors]
    """Errors of the fit, by kind of step."""
    reference_ms: tuple[float | None, ...]
    """Times of the tables for `reference_steps`, in that order. A prompt is computed in one step;
    None if it is longer than the model's limit."""


class ShippedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Step times of one GPU."""

    tables: Tables
    date: str
    models: dict[str, dict[int, Raw]]
    """JSON of `ShippedSteps` by model and number of GPUs. A file has up to 60 of them, and a run
    uses one, so each is decoded when it is used."""


def _record(kind: type[Any], fields: Any) -> Any:
    """Convert a value to a pydantic record, for msgspec."""
    return kind.model_validate(fields)


FILE: Decoder[ShippedFile] = Decoder(ShippedFile, dec_hook=_record)


@cache
def shipped_file(hardware: str) -> ShippedFile | None:
    path = FOLDER / f"{hardware}.json"
    if hardware not in HARDWARE or not path.is_file():
        return None
    return FILE.decode(path.read_bytes())


@cache
def shipped_steps(hardware: str, model: str, gpus: int) -> ShippedSteps | None:
    file = shipped_file(hardware)
    found = file.models.get(model, {}).get(gpus) if file else None
    return ShippedSteps.model_validate_json(bytes(found)) if found is not None else None


def with_steps(analytic: Profile, found: ShippedSteps) -> TableProfile:
    """Return the profile, with memory and links from the analytic profile, and without CPU time.
    The tables include the effect of windows."""
    kept = {field.name: getattr(analytic, field.name) for field in fields(Profile)}
    steps = {**found.steps.model_dump(), "window": None}
    return TableProfile(**{**kept, **steps, "provenance": "operator-table"})


def shipped_notes(hardware: str, model: str, gpus: int) -> tuple[str, ...]:
    """Return origin and errors of shipped step times, in one sentence each."""
    file, found = shipped_file(hardware), shipped_steps(hardware, model, gpus)
    if file is None or found is None:
        return ()
    tables, measured = file.tables, end_to_end_error(hardware, model, gpus)
    notes = [
        f"step times come from operator tables: {tables.package}, {tables.system}, vLLM"
        f" {tables.engine_version}, fitted on {file.date} with errors of {_listed(found.errors)}",
        *large_errors(found.errors),
        *slow_single_decode(found.reference_ms),
    ]
    if measured is not None:
        notes.append(str(measured))
    return tuple(notes)


def slow_single_decode(reference_ms: Sequence[float | None]) -> list[str]:
    """Return a sentence if, in the tables, a decode of one turn is slower than one of a batch."""
    one, many = reference_ms[3:5]
    if one is None or many is None or one <= many:
        return []
    return [
        f"in the tables, decoding 1 turn takes {one:.3g} ms, but decoding 32 turns {many:.3g} ms "
        "(2,048 tokens each), so the step times of small batches are too long"
    ]


def _listed(errors: dict[str, Errors]) -> str:
    texts: Sequence[str] = [
        f"{each.median:.1%} (median) and {each.worst:.1%} (worst) for {what}"
        for what, each in errors.items()
    ]
    return ", ".join(texts)
