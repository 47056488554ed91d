"""Regenerates `servers/profiles/tables/`, the step times that come with Turnstile.

    make profiles

Each GPU that `aiconfigurator-core` has tables of gets a file with its listed models, for 1, 2, 4
and 8 GPUs if the model fits their memory. What the tables do not cover is printed and left out.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from harness.calibrate.operator_tables import Reach, StepSeconds, open_tables
from harness.calibrate.operator_tables import evaluate as evaluate_tables
from servers.basics.errors import DoesNotFit, InvalidInput, UnknownProfile
from servers.profiles import MODELS
from servers.profiles.from_tables import Tables, fitted_to_tables
from servers.profiles.kv_budget import TENSOR_PARALLEL
from servers.profiles.machines.gpus import OPERATOR_TABLES
from servers.profiles.reference_steps import STEPS
from servers.profiles.shipped import FOLDER, ShippedSteps


def main() -> None:
    for hardware in OPERATOR_TABLES:
        models, tables = _models(hardware)
        if tables is None:
            continue
        head = {"tables": tables.model_dump(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
        path = FOLDER / f"{hardware}.json"
        path.write_text(_text(head, models))
        print(f"{path.name}: {len(models)} models, {path.stat().st_size / 1000:.0f} kB")


def _models(hardware: str) -> tuple[dict[str, dict[int, ShippedSteps]], Tables | None]:
    found: dict[str, dict[int, ShippedSteps]] = {}
    tables = None
    for model in MODELS:
        reasons: dict[str, list[int]] = {}
        for gpus in TENSOR_PARALLEL:
            try:
                reach = Reach.of(hardware, model, gpus)
                times, tables = open_tables(hardware, model, gpus, None)
                found.setdefault(model, {})[gpus] = _steps(times, reach)
            except UnknownProfile as missing:
                reasons.setdefault(str(missing).partition("(")[2].partition(");")[0], []).append(
                    gpus
                )
            except (DoesNotFit, InvalidInput):  # too little memory; heads that GPUs cannot share
                continue
        for reason, without in reasons.items():
            print(f"{model} on {without} x {hardware}: {reason}", file=sys.stderr)
    return {model: by_gpus for model, by_gpus in found.items() if by_gpus}, tables


def _steps(times: StepSeconds, reach: Reach) -> ShippedSteps:
    fit = fitted_to_tables(*evaluate_tables(times, reach))
    errors = {
        "prefills": fit["prefill_errors"],
        "decodes": fit["decode_errors"],
        "mixed steps": fit["mixed_errors"],
    }
    return ShippedSteps(steps=fit["steps"], errors=errors, reference_ms=reference_ms(times, reach))


def reference_ms(times: StepSeconds, reach: Reach) -> tuple[float | None, ...]:
    """Return what the tables give for `reference_steps`, in that order."""
    found: list[float | None] = []
    for n, cached, batch, context in STEPS:
        if max(n + cached, context) > reach.longest:
            found.append(None)
        elif not batch:
            found.append(round(1000 * times.prefill_s(n, cached), 3))
        elif not n:
            found.append(round(1000 * times.decode_s(batch, context), 3))
        else:
            found.append(round(1000 * times.mixed_s(n, cached, batch, context), 3))
    return tuple(found)


def _text(head: dict[str, Any], models: dict[str, dict[int, ShippedSteps]]) -> str:
    """Return JSON with one line per model and number of GPUs, so that differences are readable."""
    by_model = ",\n".join(
        f' "{model}": {{\n' + ",\n".join(_line(n, each) for n, each in by_gpus.items()) + "\n }"
        for model, by_gpus in models.items()
    )
    return json.dumps(head)[:-1] + ',\n"models": {\n' + by_model + "\n}}\n"


def _line(gpus: int, found: ShippedSteps) -> str:
    values = found.model_dump()
    for errors in values["errors"].values():
        errors |= {kind: round(errors[kind], 4) for kind in ("median", "worst")}
    return f'  "{gpus}": {json.dumps(values, separators=(",", ":"))}'


if __name__ == "__main__":
    main()
