"""`bench profile`: measure a live engine, and write or print a profile.

The summary goes to stdout, progress to stderr.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import AllBut, CommandApp, Only, refuse_given
from harness.load.option import Option
from harness.load.settings import Machine, Server

app = CommandApp()
OF_A_PRINTED_PROFILE = ("step_times", "scheduling", "layout", "json")
NOT_OF_A_PRINTED_PROFILE = AllBut(
    *OF_A_PRINTED_PROFILE,
    *("show", "hardware", "model", "kv_cache_dtype", "gpus", "kv_blocks", "max_model_len"),
    *("max_num_seqs", "step_tokens"),
)
NOT_OF_TABLES = AllBut(
    *("from_", "hardware", "backend_version", "model", "out", "vllm_python"),
    *("gpus", "kv_blocks", "max_model_len", "step_tokens"),
)

HELP = """Measure how fast vLLM is on this machine: prefills, decode steps, KV memory.

Starts a server without a policy and stops it; its log stays in runs/profile/. Other commands read
the profile as --hardware FILE. The machine should be idle. Arguments after -- are passed to vLLM;
those that an option of bench sets are refused.

With --show nothing is measured: step times, KV memory, provenance and errors of a profile are
printed. Where operator tables cover the GPU and the model, their times are printed too, without CPU
time between steps. Tables compute a prompt in one step, so the profile's time in one step is
printed beside them.

With --from aiconfigurator or --from aisimulate nothing is measured here: step times of the GPU in
--hardware come from the operator tables of the package aiconfigurator-core, or of its successor
aisimulate, which need no GPU.

[bold]Examples[/bold]

  bench profile

  bench profile --model llama-3.1-8b --out h200.json

  bench profile --tier lmcache

  bench profile --url http://127.0.0.1:8000 --within-s 300

  bench profile --show --hardware h100 --model llama-3.1-8b

  bench profile --show --hardware b200 --model llama-3.1-70b --gpus 8 --json

  bench profile --from aiconfigurator --hardware h100 --model llama-3.1-8b
"""


@app.command(help=HELP)
def profile(
    *,
    context: typer.Context,
    show: Annotated[bool, Option("Print a profile, and measure nothing.")] = False,
    json: Annotated[bool, Option("With --show: print JSON.")] = False,
    model: Annotated[
        str | None,
        Option(
            "As for bench serve. Required with --url unless the server's model has one of "
            "these names. Default: tiny.",
            "NAME|PATH",
        ),
    ] = None,
    url: Annotated[
        str | None, Option("Measure this idle vLLM server instead of starting one.", "URL")
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            "A new file. Default: MODEL-profile.json, or HARDWARE-MODEL.json with --from, "
            "numbered if the file exists.",
            "FILE",
            dir_okay=False,
        ),
    ] = None,
    within_s: Annotated[
        float, Option("Time limit for measuring.", "SECONDS", min=10, max=540)
    ] = 120.0,
    tier: Annotated[
        str | None, Option("Also measure reloads: lmcache or native (vLLM's own).", "KIND")
    ] = None,
    from_: Annotated[
        str | None,
        Option(
            "Take step times from a package's operator tables instead of measuring. aiconfigurator "
            "needs the extra silicon, and aisimulate that package.",
            "aiconfigurator|aisimulate",
        ),
    ] = None,
    hardware: Annotated[
        str | None,
        Option(
            "A GPU of bench list hardware, for --show and --from, and for --url if KV bytes "
            "depend on it. With --show also a TOML file that describes a GPU, or a file of bench "
            "profile, which contains its model.",
            "NAME|FILE",
        ),
    ] = None,
    backend_version: Annotated[
        str | None,
        Option(
            "With --from: the vLLM that the operators were measured with. Default: the one "
            "that the package recommends for the GPU.",
            "VERSION",
        ),
    ] = None,
    machine: Annotated[
        Machine,
        Only(
            "offload_gb",
            "gpus",
            "kv_cache_dtype",
            "kv_blocks",
            "max_model_len",
            "max_num_seqs",
            "step_tokens",
            "step_times",
            "scheduling",
            "layout",
        ),
    ],
    server: Annotated[Server, Only("vllm_flags", "weights", "vllm_python", "ready_within_s")],
) -> None:
    machine = replace(machine, model=model, hardware=hardware)
    if show:
        from harness.cli.print_profile import show_profile

        refuse_given(context, NOT_OF_A_PRINTED_PROFILE, "not supported with --show")
        show_profile(machine, json)
        return
    refuse_given(context, OF_A_PRINTED_PROFILE, "only with --show")
    if from_ is None:
        if url is None:
            refuse_given(context, ("hardware",), "only with --show, --url or --from")
        refuse_given(context, ("backend_version",), "only with --from")
        from harness.cli.measure_profile import measure_profile

        measure_profile(machine, server, out, within_s, url, tier)
        return
    refuse_given(context, NOT_OF_TABLES, "not supported with --from")
    from harness.cli.measure_profile import write_from_tables

    write_from_tables(from_, machine, out, backend_version)
