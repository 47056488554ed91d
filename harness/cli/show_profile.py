"""Prints the step times and the memory of a profile, as tables or JSON."""

from __future__ import annotations

import orjson

from harness.cli.print_profile import print_profile
from harness.console import print_message
from harness.engines.sim import DEFAULT_MODEL, resolve_profile
from harness.load.machines import refuse_list
from harness.load.settings import Machine
from servers.basics.errors import InvalidInput
from servers.profiles.end_to_end import end_to_end_error
from servers.profiles.files import tables_of
from servers.profiles.kv_groups import kv_tokens_of
from servers.profiles.reference_steps import beside_tables, reference_steps
from servers.profiles.shipped import shipped_steps


def show_profile(machine: Machine, as_json: bool) -> None:
    """Raises InvalidInput."""
    refuse_list(machine)
    if machine.step_tokens < 1:
        raise InvalidInput(f"--step-tokens {machine.step_tokens}: must be at least 1")
    found = resolve_profile(machine)
    profile, file = found.profile(), found.file
    remarks = file.notes() if file else found.notes
    steps = measured = None
    if profile.provenance == "operator-table" and found.gpus and not file:
        model = machine.model or DEFAULT_MODEL
        listed = tables_of(profile.hardware, model) or model
        steps = shipped_steps(profile.hardware, listed, found.gpus)
        measured = end_to_end_error(profile.hardware, listed, found.gpus)
    errors = file.errors if file else steps.errors if steps else {}
    points = reference_steps(profile, machine.step_tokens)
    if steps:
        points = beside_tables(points, profile, steps.reference_ms)
    kv_tokens = kv_tokens_of(profile, machine.step_tokens)
    if as_json:
        document = {
            "hardware": profile.hardware,
            "model": profile.model,
            "gpus": found.gpus,
            "steps": [point.json() for point in points],
            "kv_tokens": kv_tokens,
            "max_model_len": profile.max_model_len,
            "provenance": f"{profile.provenance}: {remarks[0]}",
            "notes": list(remarks[1:]),
            "fit_errors": {what: each.model_dump() for what, each in errors.items()},
            "end_to_end": measured.model_dump() if measured else None,
        }
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
        return
    print_profile(profile, found.gpus, points, kv_tokens, remarks[0], errors)
    for remark in remarks[1:]:
        print_message(remark)
