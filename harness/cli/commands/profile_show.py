"""`bench profile show`: print the step times and the memory of a profile, as tables or JSON."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.errors import one_line_errors
from harness.cli.options import Only, takes_settings
from harness.console import print_message
from harness.load.settings import Machine
from servers.basics.errors import InvalidInput

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

HELP = """Print a profile: step times, KV memory, provenance, errors of the fit.

A prompt is computed in chunks of --step-tokens. --hardware is a name of bench list hardware, a
TOML file that describes a GPU, or a file of bench profile, which contains its model. Where operator
tables cover the GPU and the model, their times are printed too, without CPU time between steps.
Tables compute a prompt in one step, so the profile's time in one step is beside them.

[bold]Examples[/bold]

  bench profile show --hardware h100 --model llama-3.1-8b

  bench profile show --hardware b200 --model llama-3.1-70b --gpus 8 --json

  bench profile show --hardware h100 --model llama-3.1-8b --step-times analytic

  bench profile show --hardware here.json
"""


@app.command(help=HELP)
@takes_settings()
def show(
    *,
    machine: Annotated[
        Machine,
        Only(
            "hardware",
            "model",
            "step_times",
            "scheduling",
            "kv_cache_dtype",
            "gpus",
            "kv_blocks",
            "max_model_len",
            "step_tokens",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    import orjson

    from harness.cli.print_profile import print_profile
    from harness.engines.sim import DEFAULT_MODEL, resolve_profile
    from harness.load.machines import refuse_list
    from servers.profiles.end_to_end import end_to_end_error
    from servers.profiles.files import tables_of
    from servers.profiles.kv_groups import kv_tokens_of
    from servers.profiles.reference_steps import beside_tables, reference_steps
    from servers.profiles.shipped import shipped_steps

    with one_line_errors():
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
