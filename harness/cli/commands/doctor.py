"""`bench doctor`: check this machine, and with --pins that vLLM keeps pinned KV in memory."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.options import AllBut, CommandApp, Only, refuse_given
from harness.console import print_message
from harness.load.option import Option
from harness.load.settings import Server

app = CommandApp()

HELP = """Check whether this machine is set up, and print what to do if it is not.

With --pins, run one program on vLLM and compare its pinned KV memory with virtual time. The program
has five turns. In each tool gap, vLLM's gauge must show the blocks that the same policy pins in
virtual time, and none after the last turn. Exit code 0: all checks pass; 1: one fails.

[bold]Examples[/bold]

  bench doctor

  bench doctor --pins

  bench doctor --pins --policy continuum --model llama-3.1-8b
"""


@app.command(help=HELP)
def doctor(
    context: typer.Context,
    pins: Annotated[bool, Option("Check that vLLM keeps pinned KV in memory.")] = False,
    policy: Annotated[
        str, Option("With --pins: a name from bench list policies.", "NAME")
    ] = "continuum-preview",
    model: Annotated[str, Option("With --pins: as for bench serve.", "NAME|PATH")] = "tiny",
    gap_s: Annotated[
        float,
        Option(
            "With --pins: length of tool gaps, below the policy's TTLs.", "SECONDS", min=0.6, max=60
        ),
    ] = 1.0,
    kv_blocks: Annotated[
        int, Option("With --pins: size of the KV cache in blocks.", "N", min=40)
    ] = 500,
    *,
    settings: Annotated[Server, Only("vllm_python", "ready_within_s")],
) -> None:
    if pins:
        _check_pins(policy, model, gap_s, kv_blocks, settings)
        return
    from harness.cli.checks import checks
    from harness.cli.tables import show_rows

    refuse_given(context, AllBut("pins"), "only with --pins")
    results = list(checks())
    show_rows([(c.state, c.name, c.finding) for c in results])
    failed = [check for check in results if not check.passed]
    for check in failed:
        print_message(f"{check.name}: {check.remedy}")
    if failed:
        raise typer.Exit(1)


def _check_pins(policy: str, model: str, gap_s: float, kv_blocks: int, settings: Server) -> None:
    from harness.calibrate.verify_pins import (
        EXPENSIVE_COSTS,
        EXPENSIVE_PREFILL,
        expected_blocks,
        measure_gaps,
    )
    from harness.cli.start_server import fresh_folder, running_servers
    from harness.cli.tables import show_rows
    from harness.replay.live_server import LiveServer
    from servers.variants import make_policy, variants
    from servers.vllm.launch.command_line import ServerConfig

    config = ServerConfig(model=model, policy=policy, costs=EXPENSIVE_PREFILL, kv_blocks=kv_blocks)
    with running_servers(config, fresh_folder("pins"), settings) as ([server], _):
        info = server.info
        chosen = make_policy(variants(policy)[0], EXPENSIVE_COSTS)
        expected = expected_blocks(chosen, gap_s, info.block_size, info.kv_blocks)
        replica = LiveServer(server.base_url, server.events_path)
        gaps = measure_gaps(info, replica, expected, gap_s)
    print(
        f"vLLM {info.version} on {info.device}, {info.model}, policy {policy}: {info.kv_blocks} "
        f"blocks of {info.block_size} tokens, tool gaps of {gap_s:g} s"
    )
    head = ("after turn", "tokens with KV", "blocks expected", "min seen", "max seen", "next hits")
    rows = [
        (
            str(gap.turn),
            str(gap.held_tokens),
            str(gap.expected_blocks),
            str(gap.min_blocks),
            str(gap.max_blocks),
            "–" if gap.next_hit_tokens is None else str(gap.next_hit_tokens),
            "ok" if gap.good else "WRONG",
        )
        for gap in gaps
    ]
    show_rows([head, *rows])
    wrong = [gap for gap in gaps if not gap.good]
    if wrong:
        print_message(f"the gauge differs from virtual time after turn {wrong[0].turn}")
        raise typer.Exit(1)
    if any(gap.expected_blocks for gap in gaps):
        print("verified: pinned KV stays in memory through every gap, and none after the end")
    else:
        print(f"verified: {policy} pins nothing, and no KV stays in memory between turns")
