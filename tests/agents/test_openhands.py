"""Real OpenHands conversations against a server that answers with tool calls."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agents.openhands import PYTHON, OpenHands
from traces import Provenance, read_traces

TIMEOUT_S = 900.0
MAX_CONCURRENT = 2
COMMAND = "sleep 0.3 && echo hi > x"
Call = tuple[str, dict[str, Any]]
ANSWERS: dict[str, Sequence[Call | None]] = {
    "finishes": (
        ("terminal", {"command": COMMAND}),
        ("file_editor", {"command": "view", "path": "/usr"}),
        ("finish", {"message": "done"}),
    ),
    "goes-on": tuple(("terminal", {"command": f"echo {n}"}) for n in range(9)),
    "breaks": (("terminal", {"command": "echo 1"}), None),
    "waits": (),
}
MAX_TURNS = {"goes-on": 2}


@dataclass
class Conversation:
    folder: Path
    code: int
    requests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return result


class Server:
    """A server that reports 1000 + 100 n prompt and 10 + n output tokens for turn n."""

    def __init__(self) -> None:
        self.requests: dict[str, list[dict[str, Any]]] = {name: [] for name in ANSWERS}

    async def answer(self, request: web.Request) -> web.Response:
        program = request.match_info["program"]
        n = len(self.requests[program])
        self.requests[program].append(await request.json())
        call = ANSWERS[program][n]
        if call is None:
            return web.json_response({"error": {"message": "out of order"}}, status=500)
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": f"call_{n}", "type": "function", "function": function}],
        }
        usage = {"prompt_tokens": 1000 + 100 * n, "completion_tokens": 10 + n}
        return web.json_response(
            {
                "id": f"{program}-{n}", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
                "usage": {**usage, "total_tokens": sum(usage.values())},
            }
        )  # fmt: skip


async def limited_run(
    agent: OpenHands, url: str, program: str, folder: Path, slots: asyncio.Semaphore
) -> Conversation:
    async with slots:
        return await run(agent, url, program, folder)


async def run(agent: OpenHands, url: str, program: str, folder: Path) -> Conversation:
    workspace = folder / "workspace"
    workspace.mkdir(parents=True)
    subprocess.run(["git", "init", "-q"], cwd=workspace, check=True)
    launch = {
        "program_id": program, "task": "Say hi.", "base_url": f"{url}/programs/{program}/v1",
        "model": "m", "workspace": str(workspace), "folder": str(folder),
        "max_turns": MAX_TURNS.get(program),
    }  # fmt: skip
    (folder / "launch.json").write_text(json.dumps(launch))
    process = await asyncio.create_subprocess_exec(
        *agent.command(folder / "launch.json"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=workspace,
        env={"PATH": os.environ["PATH"], **agent.env()},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        if program != "waits":
            process.stdin.write(b"go\n")
        process.stdin.close()
        assert await process.stdout.read() == b""
        return Conversation(folder, await process.wait())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def run_all(agent: OpenHands, folder: Path) -> dict[str, Conversation]:
    server, app = Server(), web.Application()
    app.router.add_post("/programs/{program}/v1/chat/completions", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        async with asyncio.timeout(TIMEOUT_S):
            url, slots = f"http://{host}:{port}", asyncio.Semaphore(MAX_CONCURRENT)
            runs = [limited_run(agent, url, name, folder / name, slots) for name in ANSWERS]
            conversations = dict(zip(ANSWERS, await asyncio.gather(*runs), strict=True))
    finally:
        await runner.cleanup()
    for name, run in conversations.items():
        run.requests = server.requests[name]
    return conversations


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Conversation]:
    agent = OpenHands()
    try:
        agent.check()
    except ValueError as missing:
        pytest.skip(str(missing))
    return asyncio.run(run_all(agent, tmp_path_factory.mktemp("openhands")))


def test_a_finished_conversation_returns_its_changes(
    conversations: dict[str, Conversation],
) -> None:
    run = conversations["finishes"]
    assert run.code == 0
    assert run.result["exit_status"] == "finished"
    assert "diff --git a/x b/x\nnew file" in run.result["submission"]
    assert "\n+hi\n" in run.result["submission"]


def test_a_conversation_can_be_read_as_a_trace(conversations: dict[str, Conversation]) -> None:
    loaded = read_traces(conversations["finishes"].folder / "openhands")
    (program,) = loaded.programs
    assert program.id == "finishes"
    assert loaded.repairs == loaded.rejections == ()
    assert [(t.prompt_tokens, t.output_tokens, t.kept_tokens) for t in program.turns] == [
        (1000, 10, 0), (1100, 11, 1010), (1200, 12, 1111),
    ]  # fmt: skip
    assert [turn.tools for turn in program.turns] == [
        ("sleep", "echo"), ("file_editor",), ("finish",),
    ]  # fmt: skip
    assert program.turns[0].command == COMMAND
    assert program.turns[0].tool_gap_s >= 0.3
    assert all(turn.gap_provenance is Provenance.MEASURED for turn in program.turns)
    assert program.prefix is not None
    assert [message.role for message in program.messages] == []  # they were not requested


def test_requests_are_not_streamed_and_carry_the_id_of_their_conversation(
    conversations: dict[str, Conversation],
) -> None:
    requests = conversations["finishes"].requests
    tools = {tool["function"]["name"] for tool in requests[0]["tools"]}
    assert tools == {"terminal", "file_editor", "task_tracker", "finish", "think"}
    assert not any(body.get("stream") for body in requests)
    (conversation,) = {body["prompt_cache_key"] for body in requests}
    (folder,) = (conversations["finishes"].folder / "openhands").iterdir()
    assert folder.name == conversation.replace("-", "")


def test_all_programs_share_their_system_prompt(conversations: dict[str, Conversation]) -> None:
    first = [run.requests[0]["messages"][0] for run in conversations.values() if run.requests]
    assert first[0]["role"] == "system"
    assert all(message == first[0] for message in first)


def test_a_conversation_stops_at_the_maximum_number_of_turns(
    conversations: dict[str, Conversation],
) -> None:
    run = conversations["goes-on"]
    assert (run.code, run.result["exit_status"]) == (0, "max iterations")
    assert len(run.requests) == 2


def test_a_failed_turn_ends_the_conversation_without_a_retry(
    conversations: dict[str, Conversation],
) -> None:
    run = conversations["breaks"]
    assert (run.code, run.result["exit_status"]) == (1, "error")
    assert len(run.requests) == 2


def test_no_request_is_sent_before_the_start_signal(conversations: dict[str, Conversation]) -> None:
    run = conversations["waits"]
    assert (run.code, run.requests) == (1, [])
    assert not (run.folder / "result.json").exists()


def test_the_home_of_a_conversation_is_its_folder(conversations: dict[str, Conversation]) -> None:
    assert (conversations["finishes"].folder / ".openhands").is_dir()


@pytest.mark.parametrize("python", ["/no/such/python", sys.executable])
def test_a_python_without_openhands_is_refused_with_the_remedy(python: str) -> None:
    with pytest.raises(ValueError, match=r"\Aopenhands[^\n]+make openhands[^\n]+\Z") as refused:
        OpenHands(python).check()
    assert python in str(refused.value)


def test_python_is_taken_from_the_argument_then_the_environment_then_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    launch = tmp_path / "launch.json"
    monkeypatch.setenv(PYTHON, "/named")
    assert OpenHands("/given").command(launch)[0] == "/given"
    assert OpenHands().command(launch)[0] == "/named"
    monkeypatch.delenv(PYTHON)
    local = tmp_path / ".venv-openhands/bin/python"
    local.parent.mkdir(parents=True)
    local.touch()
    assert OpenHands().command(launch)[0] == str(local)
