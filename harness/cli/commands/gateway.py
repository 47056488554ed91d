"""`bench gateway`: run the proxy until Ctrl-C.

Base URLs go to stdout, progress to stderr.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import CommandApp
from harness.load.option import Option
from servers.basics.phrasing import counted
from servers.routing import ROUTERS

if TYPE_CHECKING:
    from harness.gateway.recording import Recording

app = CommandApp()

Tokenizer = Annotated[
    Path | None,
    Option(
        "A model's tokenizer.json, which counts the tokens of turns for which the server "
        "reports none. Default: the trace leaves them out.",
        "FILE",
    ),
]

HELP = """Run an OpenAI-compatible proxy that identifies programs and records their turns.

The program of a request is given by its path ([bold]/programs/NAME/v1/…[/bold]), a header
(X-Program-Id, X-Job-Id, X-Session-Id, or headers of other routers and agents), or a field
(program_id, job_id, session_id, prompt_cache_key). Otherwise it is the program whose conversation
the request continues. The gateway passes the program on to its servers.

[bold]Examples[/bold]

  bench gateway http://127.0.0.1:8000 --port 9000

  bench gateway http://127.0.0.1:8000 http://127.0.0.1:8001 --router thunderagent

  OPENAI_BASE_URL=http://127.0.0.1:9000/programs/task-7/v1 my-agent

  bench sweep --traces runs/gateway/…/trace.jsonl
"""


@app.command(help=HELP)
def gateway(
    urls: Annotated[
        list[str],
        Option(
            "OpenAI-compatible servers, which share the programs. API key: TURNSTILE_API_KEY.",
            "URL...",
            positional=True,
        ),
    ],
    port: Annotated[int, Option("0: any free port.", "N", min=0, max=65535)] = 0,
    listen: Annotated[
        str,
        Option(
            "Address to listen on. Default: loopback. Others require clients to send the "
            "token in TURNSTILE_GATEWAY_TOKEN.",
            "ADDRESS",
        ),
    ] = "127.0.0.1",
    router: Annotated[
        str | None,
        Option(
            f"Which of several servers gets a turn: {', '.join(ROUTERS.built_in)}, or your class, "
            "optionally with arguments. Default: sticky.",
            "NAME",
        ),
    ] = None,
    tokenizer: Tokenizer = None,
    out: Annotated[
        Path | None,
        Option("Folder of the recording. Default: a new folder in runs/gateway/.", "FOLDER"),
    ] = None,
) -> None:
    from harness.gateway.access import TOKEN, check_listen
    from harness.gateway.recording import backends, default_folder, recording, router_for
    from harness.gateway.serving import tune_garbage_collector
    from traces.token_counts import by_tokenizer

    started: list[Recording] = []

    async def run() -> None:
        async with recording(
            *(servers, folder, listen, port), token=token, router=chosen, counter=counter
        ) as recorded:
            started.append(recorded)
            print(f"{recorded.base_url}/v1")
            print(f"{recorded.base_url}/programs/NAME/v1", flush=True)
            print(f"recording to {recorded.lines_file}; Ctrl-C ends it", file=sys.stderr)
            await asyncio.Event().wait()

    tune_garbage_collector()
    token = os.environ.get(TOKEN, "").strip() or None
    check_listen(listen, token)
    servers = backends(urls)
    chosen = router_for(router, servers)
    counter = None if tokenizer is None else by_tokenizer(tokenizer)
    folder = out or default_folder("gateway")
    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        if not started:
            raise
    if not print_recording(started[0]):
        raise typer.Exit(1)


def print_recording(recorded: Recording) -> bool:
    """Write the trace and print a summary. Return whether a turn succeeded."""
    trace = recorded.write_trace()
    if recorded.uncounted:
        print(
            f"{counted(recorded.uncounted, 'turn')} left out of the trace: the server sent no "
            "usage; count them with --tokenizer FILE, or record from a server that supports "
            "stream_options.include_usage",
            file=sys.stderr,
        )
    if recorded.counted:
        print(
            f"the tokens of {counted(recorded.counted, 'turn')} were counted with --tokenizer: the "
            "server sent no usage",
            file=sys.stderr,
        )
    if trace is None:
        none = "no turn can be replayed" if recorded.uncounted else "no turn succeeded"
        print(
            f"{none}; {recorded.turns} recorded in {recorded.lines_file}",
            file=sys.stderr,
        )
        return False
    turns = sum(len(program.turns) for program in trace.programs)
    failed = f", {recorded.failed} failed" if recorded.failed else ""
    aborted = f", {recorded.aborted} aborted by clients" if recorded.aborted else ""
    print(f"{counted(len(trace.programs), 'program')}, {counted(turns, 'turn')}{failed}{aborted}")
    if recorded.without_messages:
        print(
            f"{counted(recorded.without_messages, 'turn')} not from chat requests: "
            "the trace keeps no messages",
            file=sys.stderr,
        )
    print(f"trace: {recorded.trace_file}")
    print(f"replay it: bench sweep --traces {recorded.trace_file}")
    return True
