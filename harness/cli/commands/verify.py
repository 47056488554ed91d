"""`bench verify pins`: checks with vLLM's own gauge that pinned KV stays in memory."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.errors import one_line_errors
from harness.cli.options import Only, takes_settings
from harness.console import complain
from harness.load.settings import Server

app = typer.Typer(
    rich_markup_mode="rich",
    add_completion=False,
    no_args_is_help=True,
    help="Check on a live engine what virtual time claims.",
)


@app.callback()
def verify() -> None:
    """Check on a live engine what virtual time claims."""


HELP = """Drive one program through vLLM and watch its KV memory through the tool gaps.

Five turns as in the execution note, §4. Between them vLLM's gauge must show what the same policy
pins in virtual time, and nothing after the last turn. Exit code 0 if so, else 1.

[bold]Examples[/bold]

  bench verify pins

  bench verify pins --policy continuum --model llama-3.1-8b
"""


@app.command(help=HELP)
@takes_settings()
def pins(
    settings: Annotated[Server, Only("vllm_python", "ready_within_s")],
    policy: Annotated[
        str, typer.Option("--policy", metavar="NAME", help="Whose pins: bench list policies.")
    ] = "continuum-preview",
    model: Annotated[
        str, typer.Option("--model", metavar="NAME|PATH", help="As for bench serve.")
    ] = "tiny",
    gap_s: Annotated[
        float, typer.Option("--gap-s", min=0.6, max=60, help="Tool gap; shorter than the TTLs.")
    ] = 1.0,
    kv_blocks: Annotated[
        int, typer.Option("--kv-blocks", min=40, help="KV pool in vLLM's blocks.")
    ] = 500,
) -> None:
    from harness.calibrate.verify_pins import DEAR, DEAR_COSTS, expected_blocks, watch
    from harness.cli.start_server import booted, fresh_folder
    from harness.cli.tables import show_rows
    from harness.replay.live import Replica
    from servers.variants import make_policy, variants
    from servers.vllm.launch.command_line import ServerConfig

    with one_line_errors():
        wanted = ServerConfig(model=model, policy=policy, costs=DEAR, kv_blocks=kv_blocks)
        with booted(
            wanted,
            fresh_folder("verify"),
            python=settings.vllm_python,
            ready_within_s=settings.ready_within_s,
        ) as ([server], _):
            info = server.info
            chosen = make_policy(variants(policy)[0], DEAR_COSTS)
            expected = expected_blocks(chosen, gap_s, info.block_size, info.kv_blocks)
            gaps = watch(info, Replica(server.base_url, server.events_path), expected, gap_s)
    print(
        f"vLLM {info.version} on {info.device}, {info.model}, policy {policy}: {info.kv_blocks} "
        f"blocks of {info.block_size} tokens, tool gaps of {gap_s:g} s"
    )
    head = ("after turn", "tokens with KV", "blocks expected", "seen, least", "most", "next hits")
    rows = [
        (
            str(gap.turn),
            str(gap.held_tokens),
            str(gap.expected_blocks),
            str(gap.least_blocks),
            str(gap.most_blocks),
            "–" if gap.next_hit_tokens is None else str(gap.next_hit_tokens),
            "ok" if gap.good else "WRONG",
        )
        for gap in gaps
    ]
    show_rows([head, *rows])
    wrong = [gap for gap in gaps if not gap.good]
    if wrong:
        complain(f"the gauge differs from virtual time after turn {wrong[0].turn}")
        raise typer.Exit(1)
    if any(gap.expected_blocks for gap in gaps):
        print("verified: what the policy pins is held through every gap, and nothing after the end")
    else:
        print(f"verified: {policy} pins nothing, and nothing is held between turns")
