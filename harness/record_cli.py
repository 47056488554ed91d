"""`bench record`: a trace of any program that talks to an OpenAI URL."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from harness.ask import one_line_errors

app = typer.Typer(rich_markup_mode="rich", add_completion=False)
GRACE_S = 10.0

HELP = """Run a command whose OpenAI client talks to a server through us, and keep a trace of it.

The command finds its server in OPENAI_BASE_URL and OPENAI_API_BASE. All that it asks is one
program, unless --many: then it runs several, which are told apart by what they say of themselves,
or by their conversations. The exit code is the command's.

[bold]Examples[/bold]

  bench record http://127.0.0.1:8000 -- python my_agent.py

  bench record http://127.0.0.1:8000 --many --out runs/mine -- my-batch --workers 8
"""


@app.command(help=HELP)
def record(
    url: Annotated[str, typer.Argument(metavar="URL", help="An OpenAI-compatible server.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="What to run.")],
    many: Annotated[
        bool, typer.Option("--many", help="The command runs several programs.")
    ] = False,
    messages: Annotated[
        bool,
        typer.Option(
            "--messages", help="Keep what was said too, for guided replay. It may be private."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="For the record. Default: in runs/record/."),
    ] = None,
) -> None:
    from harness.gateway_cli import tell
    from harness.recording import Recording, backends, default_folder, recording

    async def run() -> tuple[int, Recording]:
        async with recording(servers, folder, keeps_messages=messages) as made:
            program = Path(command[0]).name
            base = made.base_url + ("" if many else f"/programs/{quote(program)}") + "/v1"
            code = await _run(command, base)
            await made.gateway.end_all()
            return code, made

    with one_line_errors():
        servers = backends([url])
        folder = out or default_folder("record")
        code, made = asyncio.run(run())
    tell(made)
    if code:
        print(f"bench: the command exited with {code}", file=sys.stderr)
        raise typer.Exit(code)


async def _run(command: list[str], base_url: str) -> int:
    """The command's exit code; 128 + number for a signal. Should we end, it is ended first."""
    env = {**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_BASE": base_url}
    env.setdefault("OPENAI_API_KEY", "none")
    try:
        process = await asyncio.create_subprocess_exec(*command, env=env)
    except OSError as error:
        raise ValueError(f"{command[0]}: {(error.strerror or str(error)).lower()}") from None
    try:
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), GRACE_S)
            except TimeoutError:
                process.kill()
    return code if code >= 0 else 128 - code
