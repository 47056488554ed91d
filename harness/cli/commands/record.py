"""`bench record`: record a trace of an agent or any other client."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from harness.cli.commands.gateway import Tokenizer, print_recording
from harness.cli.options import CommandApp
from harness.load.option import Option
from servers.basics.errors import InvalidInput
from servers.basics.redact import server_url

app = CommandApp()
TERMINATE_TIMEOUT_S = 10.0
BASE_URL_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
"""Environment variables with the base URL of the server, which clients read."""
CLAUDE_MODELS = tuple(f"ANTHROPIC_DEFAULT_{tier}_MODEL" for tier in ("OPUS", "SONNET", "HAIKU"))
"""Environment variables with the models that Claude Code asks for."""

HELP = """Run an agent or another client behind the gateway, and record a trace of it.

The command gets the URL of the gateway in OPENAI_BASE_URL, OPENAI_API_BASE and ANTHROPIC_BASE_URL;
Claude Code and Codex also get the server's model. Its requests form one program, apart from those
of sub-agents and of conversations with another system prompt. With --many, they are assigned to
programs as in bench gateway. The exit code is the command's, but 1 instead of 0 if no turn
succeeded.

[bold]Examples[/bold]

  bench record http://127.0.0.1:8000 -- python my_agent.py

  bench record http://127.0.0.1:8000 -- claude -p 'fix the failing test'

  bench record http://127.0.0.1:8000 -- codex exec 'fix the failing test'

  OPENAI_BASE_URL=http://127.0.0.1:8000/v1 bench record -- python my_agent.py

  bench record http://127.0.0.1:8000 --many --out runs/mine -- my-batch --workers 8
"""


@app.command(help=HELP)
def record(
    arguments: Annotated[
        list[str],
        Option(
            "OpenAI-compatible server (default: OPENAI_BASE_URL), and the command to run.",
            "[URL] -- COMMAND",
            positional=True,
        ),
    ],
    many: Annotated[bool, Option("The command runs several programs.")] = False,
    messages: Annotated[
        bool, Option("Record messages too, for guided replay. They may be private.")
    ] = False,
    tokenizer: Tokenizer = None,
    out: Annotated[
        Path | None,
        Option("Folder of the recording. Default: a new folder in runs/record/.", "FOLDER"),
    ] = None,
) -> None:
    from harness.gateway.recording import Recording, backends, default_folder, recording
    from harness.gateway.serving import tune_garbage_collector
    from harness.replay.live_server import served_models
    from traces.token_counts import by_tokenizer

    async def run() -> tuple[int, Recording]:
        async with recording(servers, folder, keeps_messages=messages, counter=counter) as recorded:
            program = Path(command[0]).name
            path = "" if many else f"/programs/{quote(program)}"
            code = await _run(command, f"{recorded.base_url}{path}", model)
            await recorded.gateway.end_all()
            return code, recorded

    tune_garbage_collector()
    url, command = _server_and_command(arguments)
    counter = None if tokenizer is None else by_tokenizer(tokenizer)
    servers = backends([url])
    model = next((str(m.get("id")) for m in served_models(url, "the server")), "")
    folder = out or default_folder("record")
    code, recorded = asyncio.run(run())
    succeeded = print_recording(recorded)
    if code:
        print(f"bench: the command exited with {code}", file=sys.stderr)
    if code or not succeeded:
        raise typer.Exit(code or 1)


def _server_and_command(arguments: list[str]) -> tuple[str, list[str]]:
    url: str | None
    if arguments[0].startswith(("http://", "https://")):
        url, *command = arguments
    else:
        command = arguments
        url = next(filter(None, map(os.environ.get, BASE_URL_VARIABLES)), None)
    if url is None:
        raise InvalidInput(
            f"no server: use bench record URL -- {command[0]} …, or set {BASE_URL_VARIABLES[0]}"
        )
    url = server_url(url, "the server")
    if not command:
        raise InvalidInput(f"no command: use bench record {url} -- COMMAND")
    return url, command


def _configured(
    command: list[str], env: Mapping[str, str], root: str, model: str
) -> tuple[list[str], dict[str, str]]:
    """Return the command and its environment for the gateway at this URL. Codex reads neither the
    URL nor the model from the environment."""
    base_url = f"{root}/v1"
    env = {
        "OPENAI_API_KEY": "none",
        **dict.fromkeys(CLAUDE_MODELS, model),
        **env,
        **dict.fromkeys(BASE_URL_VARIABLES, base_url),
        "ANTHROPIC_BASE_URL": root,
    }
    if "ANTHROPIC_API_KEY" not in env:  # without a key, Claude Code sends its login's
        env.setdefault("ANTHROPIC_AUTH_TOKEN", "none")
    name, *arguments = command
    if Path(name).name == "codex":
        provider = (
            f'{{name = "gateway", base_url = {json.dumps(base_url)}, env_key = "OPENAI_API_KEY", '
            'wire_api = "responses"}'
        )
        settings = {
            "model": json.dumps(model),
            "model_provider": '"gateway"',
            "model_providers.gateway": provider,
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        command = [name, *options, *arguments]
    return command, env


async def _run(command: list[str], root: str, model: str) -> int:
    """Run the command and return its exit code, or 128 + the signal number. Terminate it if this
    process is interrupted."""
    from harness.gateway.access import TOKEN
    from harness.replay.http import API_KEY, without_proxy

    inherited = {name: value for name, value in os.environ.items() if name not in (API_KEY, TOKEN)}
    configured, env = _configured(command, without_proxy(inherited, root), root, model)
    try:
        process = await asyncio.create_subprocess_exec(*configured, env=env)
    except OSError as error:
        raise InvalidInput(f"{command[0]}: {(error.strerror or str(error)).lower()}") from None
    try:
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), TERMINATE_TIMEOUT_S)
            except TimeoutError:
                process.kill()
    return code if code >= 0 else 128 - code
