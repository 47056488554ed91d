"""`bench gateway`: runs the proxy by itself, until Ctrl-C.

Base URLs go to stdout, progress to stderr.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.errors import one_line_errors

if TYPE_CHECKING:
    from harness.gateway.recording import Recording

app = typer.Typer(rich_markup_mode="rich", add_completion=False)
LOOK_EVERY_S = 0.5

Urls = Annotated[
    list[str],
    typer.Argument(
        metavar="URL...",
        help="OpenAI-compatible servers; several share the programs. API key: TURNSTILE_API_KEY.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Folder of the recording. Default: a new folder in runs/gateway/.",
    ),
]

HELP = """Run an OpenAI-compatible proxy that identifies programs and records their turns.

The program of a request is given by its path ([bold]/programs/NAME/v1/…[/bold]), a header
(X-Program-Id, X-Job-Id, X-Session-Id), or a field (program_id, job_id, session_id,
prompt_cache_key); else it is the program whose conversation the request continues. The gateway
passes the program to a vLLM that runs a policy of Turnstile.

[bold]Examples[/bold]

  bench gateway http://127.0.0.1:8000 --port 9000

  OPENAI_BASE_URL=http://127.0.0.1:9000/programs/task-7/v1 my-agent

  bench sweep --traces runs/gateway/…/trace.jsonl
"""


@app.command(help=HELP)
def gateway(
    urls: Urls,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0: a free one.")] = 0,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="ADDRESS",
            help="Address to listen on. Default: loopback. On any other, clients need the token "
            "in TURNSTILE_GATEWAY_TOKEN.",
        ),
    ] = "127.0.0.1",
    out: Out = None,
) -> None:
    from harness.gateway.access import TOKEN, check_listen
    from harness.gateway.recording import backends, default_folder, recording
    from harness.gateway.serving import tune_garbage_collector

    recorded: list[Recording] = []

    async def run() -> None:
        async with recording(servers, folder, listen, port, token=token) as made:
            recorded.append(made)
            print(f"{made.base_url}/v1")
            print(f"{made.base_url}/programs/NAME/v1", flush=True)
            print(f"recording to {made.lines_file}; Ctrl-C ends it", file=sys.stderr)
            await asyncio.Event().wait()

    tune_garbage_collector()
    with one_line_errors():
        token = os.environ.get(TOKEN, "").strip() or None
        check_listen(listen, token)
        servers = backends(urls)
        folder = out or default_folder("gateway")
        try:
            asyncio.run(run())
        except KeyboardInterrupt:
            if not recorded:
                raise
    if not print_recording(recorded[0]):
        raise typer.Exit(1)


def print_recording(made: Recording) -> bool:
    """Writes the trace and prints a summary. Returns whether a turn succeeded."""
    from reports.phrasing import counted

    loaded = made.write_trace()
    if loaded is None:
        print(f"no turn succeeded; {made.turns} recorded in {made.lines_file}", file=sys.stderr)
        return False
    turns = sum(len(program.turns) for program in loaded.programs)
    failed = f", {made.failed} failed" if made.failed else ""
    print(f"{counted(len(loaded.programs), 'program')}, {counted(turns, 'turn')}{failed}")
    if made.without_messages:
        print(
            f"{counted(made.without_messages, 'turn')} of them no chat requests: "
            "no messages are kept in the trace",
            file=sys.stderr,
        )
    print(f"trace: {made.trace_file}")
    print(f"replay it: bench sweep --traces {made.trace_file}")
    return True
