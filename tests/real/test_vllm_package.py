"""`turnstile-vllm`, installed for a real vLLM: clients that send only headers, or nothing."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import anthropic
import openai
import pytest

from harness.gateway import Gateway, serve_gateway
from harness.replay.live_server import LiveServer
from servers.basics.errors import ServerFailed
from servers.processes.metrics_page import samples
from servers.processes.server import launch as launch_server
from servers.processes.supervisor import descendants
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.find_vllm import VllmInstallation, find_vllm
from servers.vllm.launch.server import VllmServer
from tests.lines import Line, into
from tests.processes import group_of, wait_until, wait_until_gone
from tests.real.conftest import forked
from tests.real.test_launcher import READY_WITHIN_S, complete, post

ROOT = Path(__file__).parents[2]
OWN = """
from servers.policies.turnstile import Turnstile

class Mine(Turnstile):
    name = "mine"
    steps = 0

    def wake_s(self, now_s):  # each step calls it, since its time has passed by then
        self.steps += 1
        if self.steps % 100 == 0:
            raise RuntimeError("the policy fails in each 100th step")
        return now_s + 1e-6
"""
ASK = [{"role": "user", "content": "List the files of this folder, one by one."}]


class ServerWithPackage(VllmServer):
    """A vLLM as users start it, with the package and its flag, and nothing else of ours."""

    def __init__(
        self, vllm: VllmInstallation, site: Path, options: dict[str, Any], folder: Path
    ) -> None:
        super().__init__(ServerConfig(kv_blocks=400), vllm, folder)
        self._site, self._options = site, options

    def supervise(
        self, command: Sequence[str], env: Mapping[str, str], folder: Path | None = None
    ) -> None:
        paths = [str(self._site), env.get("PYTHONPATH", "")]
        env = {**env, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        config = json.dumps({"turnstile": self._options})
        flags = ["--scheduler-cls", "turnstile_vllm.Scheduler", "--additional-config", config]
        super().supervise([*command, *flags], env, folder)


def start(site: Path, folder: Path, **options: Any) -> VllmServer:
    vllm = find_vllm(None)
    with forked(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # not in a checkout, whose `servers` vLLM would import
        return launch_server(
            lambda: ServerWithPackage(vllm, site, options, folder),
            within_s=READY_WITHIN_S,
            on_progress=None,
            starts=1,
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package from a copy of its sources, since the build writes next to them."""
    folder = tmp_path_factory.mktemp("package")
    copy = folder / "plugins/turnstile-vllm"
    shutil.copytree(ROOT / "plugins/turnstile-vllm", copy)
    (folder / "servers").symlink_to(ROOT / "servers")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--no-index", "--target", str(folder / "site"), str(copy)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return folder / "site"


@pytest.fixture(scope="module")
def server(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "mine.py").write_text(OWN)
    with start(site, folder, policy="mine:Mine", events=str(folder / "engine.jsonl")) as started:
        yield started
    assert group_of(started.pid) == []


def arrivals(server: VllmServer) -> list[tuple[str, int]]:
    """Return the program and the number of each turn that has arrived."""
    path = server.events_path
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(e["program_id"], e["turn"]) for e in events if e["event"] == "arrival"]


def arrived(server: VllmServer, path: str, body: dict[str, Any], **headers: str) -> tuple[str, int]:
    """Send a request; return its program and the number of its turn."""
    before = len(arrivals(server))
    post(server, path, {"model": "tiny", "max_tokens": 8, **body}, **headers)
    wait_until(lambda: len(arrivals(server)) > before)
    ((program, turn),) = arrivals(server)[before:]
    return program, turn


def chat(server: VllmServer, messages: object = ASK, **headers: str) -> tuple[str, int]:
    return arrived(server, "/v1/chat/completions", {"messages": messages}, **headers)


def claude_code(url: str, session: str) -> None:
    """Two turns, of which the second repeats the first and its answer, as those of the next two."""
    sent: list[Any] = list(ASK)
    with anthropic.Anthropic(base_url=url, api_key="none") as client:
        for _turn in range(2):
            answer = client.messages.create(
                model="tiny", max_tokens=8, messages=sent,
                extra_headers={"X-Claude-Code-Session-Id": session},
            )  # fmt: skip
            sent += [{"role": "assistant", "content": answer.content}, *ASK]


def codex(url: str, session: str) -> None:
    sent: list[Any] = list(ASK)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        for header in ("session_id", "Session-Id"):
            answer = client.responses.create(
                model="tiny", max_output_tokens=8, input=sent, extra_headers={header: session}
            )
            sent += [*(item.model_dump(exclude_none=True) for item in answer.output), *ASK]


def chat_client(url: str, session: str) -> None:
    sent: list[Any] = list(ASK)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        for _turn in range(2):
            answer = client.chat.completions.create(
                model="tiny", max_tokens=8, messages=sent, extra_headers={"X-Session-Id": session}
            )
            content = answer.choices[0].message.content or ""
            sent += [{"role": "assistant", "content": content}, *ASK]


def programs_on_metrics_page(server: VllmServer) -> int:
    page = server.request("/metrics")[1].decode()
    return int(sum(sample.value for sample in samples(page, "turnstile:programs")))


def test_clients_that_send_only_headers_are_the_same_programs_to_events_metrics_and_recorder(
    server: VllmServer,
) -> None:
    """The plug-in identifies those that are sent to the server, and the gateway those that it
    records."""
    clients = {"claude": claude_code, "codex": codex, "chat": chat_client}
    before, programs = len(arrivals(server)), programs_on_metrics_page(server)
    for name, client in clients.items():
        client(server.base_url, name)
    lines: list[Line] = []

    async def record() -> None:
        backend = LiveServer(server.base_url, server.events_path, tagged=True)
        async with serve_gateway(Gateway([backend], into(lines))) as url:
            for name, client in clients.items():
                await asyncio.to_thread(client, url, f"{name}-recorded")

    asyncio.run(record())
    sent = [(name, turn) for name in clients for turn in range(2)]
    recorded = [(f"{name}-recorded", turn) for name, turn in sent]
    wait_until(lambda: len(arrivals(server)) == before + len(sent + recorded))
    assert arrivals(server)[before:] == sent + recorded
    assert [(line["program_id"], line["turn"]) for line in lines] == recorded
    wait_until(lambda: programs_on_metrics_page(server) == programs + 2 * len(clients))


def test_other_clients_are_known_by_a_field_before_a_header_before_nothing(
    server: VllmServer,
) -> None:
    header = {"X-Session-ID": "header"}
    assert chat(server, **header) == ("header", 0)
    path, body = "/v1/chat/completions", {"messages": ASK}
    assert arrived(server, path, body | {"session_id": "typed"}, **header) == ("typed", 0)
    tags = {"vllm_xargs": {"program_id": "tagged"}, "session_id": "typed"}
    assert arrived(server, path, body | tags, **header) == ("tagged", 0)


def test_a_program_ends_with_the_request_that_its_client_marks(server: VllmServer) -> None:
    header = {"X-Session-ID": "ending"}
    assert chat(server, **header) == ("ending", 0)
    assert chat(server, **header, **{"X-Dynamo-Session-Final": "true"}) == ("ending", 1)
    assert chat(server, **header) == ("ending", 0)


def test_a_client_that_says_nothing_is_known_by_its_conversation(server: VllmServer) -> None:
    system = {"role": "system", "content": "You are an agent that mends programs. " * 8}
    one = [system, {"role": "user", "content": "Mend the parser, which forgets the last line."}]
    other = [system, {"role": "user", "content": "Write the documentation of all options."}]
    program, _ = chat(server, one)
    assert chat(server, other) != (program, 1)
    one += [
        {"role": "assistant", "content": "ls"},
        {"role": "user", "content": "parser.py " * 20},
    ]
    assert chat(server, one) == (program, 1)
    # An id of 300 characters counts as absent.
    one += [{"role": "assistant", "content": "cat"}, {"role": "user", "content": "text " * 20}]
    assert chat(server, one, **{"X-Session-ID": "x" * 300}) == (program, 2)


def test_the_server_goes_on_although_its_policy_fails_in_each_100th_step(
    server: VllmServer,
) -> None:
    before = failures(server)
    answer = complete(server, list(range(100)), max_tokens=300)
    assert len(answer["choices"][0]["token_ids"]) == 300
    wait_until(lambda: failures(server) >= before + 2)
    log = (server.folder / "server.log").read_text()
    assert log.count("mine.wake_s failed; the server continues") == 1
    assert "RuntimeError: the policy fails" in log


def failures(server: VllmServer) -> float:
    """Return the failures of the policy that Prometheus would read."""
    with urllib.request.urlopen(server.base_url + "/metrics") as page:  # noqa: S310
        counters = samples(page.read().decode(), "turnstile:policy_failures_total")
    return sum(sample.value for sample in counters if sample.labels["method"] == "wake_s")


def test_of_a_killed_engine_its_client_sees_an_error_and_no_process_is_left(
    server: VllmServer,
) -> None:
    running, sent = descendants(server.pid), len(arrivals(server))
    (engine,) = (p for p in running if b"EngineCore" in Path(f"/proc/{p}/cmdline").read_bytes())
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(complete, server, list(range(100)), max_tokens=5000)
        wait_until(lambda: len(arrivals(server)) > sent)
        os.kill(engine, signal.SIGKILL)
        with pytest.raises(HTTPError) as failure:
            waiting.result()
    with failure.value as answer:
        assert answer.code == 500
        assert "EngineCore encountered an issue" in answer.read().decode()
    wait_until_gone(running)


def test_an_invalid_option_ends_the_start_with_one_line(site: Path, tmp_path: Path) -> None:
    message = r"exited with code 2: turnstile_vllm: .*unknown field `polcy`.*did you mean policy\?"
    with pytest.raises(ServerFailed, match=message):
        start(site, tmp_path, polcy="continuum")
