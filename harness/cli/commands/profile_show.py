"""`bench profile show`: print the step times and the memory of a profile, as tables or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.errors import one_line_errors
from harness.cli.options import Only, takes_settings
from harness.console import print_message
from harness.load.settings import Machine
from servers.errors import InvalidInput

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

HELP = """Print a profile: step times, KV memory, provenance, errors of the fit.

A prompt is computed in chunks of --step-tokens. --hardware is a name of bench list hardware, a
TOML file that describes a GPU, or a file of bench profile, which contains its model.

[bold]Examples[/bold]

  bench profile show --hardware h100 --model llama-3.1-8b

  bench profile show --hardware b200 --model llama-3.1-70b --gpus 8 --json

  bench profile show --hardware here.json
"""


@app.command(help=HELP)
@takes_settings()
def show(
    *,
    machine: Annotated[
        Machine, Only("hardware", "model", "gpus", "kv_blocks", "max_model_len", "step_tokens")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    import orjson

    from harness.cli.print_profile import print_profile
    from harness.engines.sim import DEFAULT_HARDWARE, DEFAULT_MODEL
    from harness.load.machines import refuse_list
    from servers.profiles import model as find_model
    from servers.profiles import notes
    from servers.profiles.files import is_file, profile_for, read_measured
    from servers.profiles.gpu_file import gpu_of_file
    from servers.profiles.reference_steps import reference_steps

    name, model = machine.hardware or DEFAULT_HARDWARE, machine.model or DEFAULT_MODEL
    with one_line_errors():
        refuse_list(machine)
        if machine.step_tokens < 1:
            raise InvalidInput(f"--step-tokens {machine.step_tokens}: must be at least 1")
        file = read_measured(Path(name)) if is_file(name) else None
        profile = profile_for(
            name,
            machine.model if file else model,
            gpus=machine.gpus,
            kv_blocks=machine.kv_blocks,
            max_model_len=machine.max_model_len,
        )
        remarks = file.notes() if file else notes(profile, gpu_of_file(name), find_model(model))
    if as_json:
        found = {
            "steps": [point.json() for point in reference_steps(profile, machine.step_tokens)],
            "kv_tokens": profile.kv_blocks * profile.block_tokens,
            "provenance": f"{profile.provenance}: {remarks[0]}",
        }
        print(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
        return
    print_profile(profile, machine.step_tokens, remarks[0], file)
    for remark in remarks[1:]:
        print_message(remark)
