"""The launcher with a real vLLM on this CPU."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from harness.gateway import Gateway, serve_gateway
from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from servers.basics.errors import ServerFailed
from servers.processes.metrics_page import samples
from servers.processes.supervisor import descendants
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.server import VllmServer, launch
from tests.crash import trials
from tests.crash.live import survives
from tests.lines import Line, into, read_lines
from tests.processes import group_of, wait_until, wait_until_gone, wait_until_none
from tests.real.conftest import forked
from tests.real.test_sweep import START_S, begin
from tests.sentences import mentions
from traces import Message, Program, Turn

READY_WITHIN_S = 240.0


def post(server: VllmServer, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    headers["Content-Type"] = "application/json"
    request = urllib.request.Request(  # noqa: S310
        server.base_url + path, json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
        content: dict[str, Any] = json.load(answer)
        return content


def complete(server: VllmServer, prompt: list[int], **options: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "ignore_eos": True}
    return post(server, "/v1/completions", {**body, "return_token_ids": True, **options})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    folder = tmp_path_factory.mktemp("server")
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    config = ServerConfig(policy="continuum", kv_blocks=200, flags=tools, long_prefill=16)
    with forked():
        server = launch(config, folder, ready_within_s=READY_WITHIN_S)
    with server as started:
        yield started
    assert group_of(started.pid) == []


def test_the_launcher_reads_the_servers_settings(server: VllmServer) -> None:
    info = server.info
    assert (info.model, info.policy) == ("tiny", "continuum")
    assert (info.kv_blocks, info.block_size) == (200, 32)
    assert info.max_model_len == 199 * 32  # one block is vLLM's own
    assert info.cache_config["enable_prefix_caching"] == "True"


def test_token_ids_in_and_out_have_the_requested_lengths(server: VllmServer) -> None:
    answer = complete(server, list(range(100)))
    assert answer["usage"]["prompt_tokens"] == 100
    assert len(answer["choices"][0]["token_ids"]) == 8


def test_answers_of_random_weights_depend_on_the_whole_prompt_and_are_reproducible(
    server: VllmServer,
) -> None:
    prompts = [[first, *([7] * 200)] for first in range(4)]
    answers = [complete(server, prompt, temperature=0) for prompt in prompts]
    tokens = [tuple(answer["choices"][0]["token_ids"]) for answer in answers]
    assert len(set(tokens)) > 1
    again = complete(server, prompts[0], temperature=0)
    assert tuple(again["choices"][0]["token_ids"]) == tokens[0]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 6 * 32


def test_tokens_of_a_text_are_its_bytes_and_chat_completions_work(server: VllmServer) -> None:
    assert post(server, "/tokenize", {"model": "tiny", "prompt": "h\u00e9"})["tokens"] == [
        *(0x68, 0xC3, 0xA9)
    ]
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    assert post(server, "/v1/chat/completions", chat)["usage"]["prompt_tokens"] == len(
        "user: hi\nassistant: "
    )


def test_recorded_messages_are_replayed_verbatim_with_exact_answers(server: VllmServer) -> None:
    messages = (Message("user", "fix it"), Message("assistant", "ls"), Message("user", "a.py"))
    turns = (Turn(9, 12, 0, ("ls",)), Turn(30, 7, 21))
    job = Program("text", turns, messages=messages, prompt_messages=(1, 3))
    lines: list[Line] = []
    replaying = replay_live(
        [job],
        [0.0],
        None,
        Service(
            [LiveServer(server.base_url, server.events_path)], "tiny", range(256), seed=0, text=True
        ),
        on_turn=into(lines),
    )
    assert asyncio.run(replaying).failed_turns == 0
    # One token per byte, with the chat template of tiny.
    assert [line["prompt_tokens"] for line in lines] == [
        len("user: fix it\nassistant: "),
        len("user: fix it\nassistant: ls\nuser: a.py\nassistant: "),
    ]
    assert [line["output_tokens"] for line in lines] == [12, 7]


def test_the_policy_in_the_server_writes_events(server: VllmServer) -> None:
    complete(server, [1, 2, 3], vllm_xargs={"program_id": "job-7", "turn": 0, "is_last": 1})
    body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 8}
    post(server, "/v1/completions", body, **{"X-Session-ID": "session-8"})  # as AIPerf sends it
    for program in ("job-7", "session-8"):
        wait_until(lambda: f'"{program}"' in server.events_path.read_text())  # noqa: B023


def test_a_short_turn_passes_a_long_prompt_of_which_a_step_computes_few_tokens(
    server: VllmServer,
) -> None:
    """While another turn decodes, a step computes 16 of the 2,400 tokens of the long prompt, which
    takes 150 steps, and all of the short one. Without --long-prefill the long one takes 2."""

    def events(event: str) -> list[str]:
        lines = read_lines(server.events_path)
        return [line["program_id"] for line in lines if line["event"] == event]

    def send(program: str, tokens: int, answer: int) -> None:
        named = {"program_id": program, "turn": 0, "is_last": 1}
        complete(server, [len(program)] * tokens, max_tokens=answer, vllm_xargs=named)

    with ThreadPoolExecutor() as pool:
        turns = [("decodes", 16, 250), ("long", 2400, 1), ("short", 15, 1)]
        sent = []
        for program, tokens, answer in turns:
            sent.append(pool.submit(send, program, tokens, answer))
            wait_until(lambda: program in events("arrival"))  # noqa: B023
        for each in sent:
            each.result()
    assert [each for each in events("finished") if each in {"long", "short"}] == ["short", "long"]


def test_the_libraries_of_agents_are_recorded_and_scheduled_by_program(server: VllmServer) -> None:
    """Two turns each through a gateway, of which the second repeats the first and its answer."""
    tool = {"type": "object", "properties": {"command": {"type": "string"}}}
    asked: list[Any] = [{"role": "user", "content": "list the files of this folder"}]

    async def messages(client: anthropic.AsyncAnthropic) -> None:
        sent = list(asked)
        tools: Any = [{"name": "bash", "input_schema": tool}]
        for _turn in range(2):
            async with client.messages.stream(
                model="tiny", max_tokens=9, messages=sent, tools=tools,
                extra_headers={"X-Claude-Code-Session-Id": "claude-1"},
            ) as stream:  # fmt: skip
                answer = await stream.get_final_message()
            sent += [{"role": "assistant", "content": answer.content}, *asked]

    async def responses(client: openai.AsyncOpenAI) -> None:
        sent = list(asked)
        tools: Any = [{"type": "function", "name": "bash", "parameters": tool}]
        for _turn in range(2):
            events = await client.responses.create(
                model="tiny", max_output_tokens=9, input=sent, tools=tools, stream=True,
                extra_headers={"Session-Id": "codex-1", "Thread-Id": "codex-1"},
            )  # fmt: skip
            last: Any = [event async for event in events][-1]
            sent += [*last.response.output, *asked]

    async def go() -> list[Line]:
        lines: list[Line] = []
        backend = LiveServer(server.base_url, server.events_path, tagged=True)
        async with (
            serve_gateway(Gateway([backend], into(lines))) as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as of_openai,
            anthropic.AsyncAnthropic(base_url=url, api_key="none") as of_anthropic,
        ):
            await messages(of_anthropic)
            await responses(of_openai)
            with pytest.raises(anthropic.NotFoundError, match="no-such"):
                await of_anthropic.messages.create(model="no-such", max_tokens=9, messages=asked)
        return lines

    *turns, refused = asyncio.run(go())
    assert [line["program_id"] for line in turns] == ["claude-1"] * 2 + ["codex-1"] * 2
    assert "no-such" in refused["error"]
    for first, second in (turns[:2], turns[2:]):
        assert (first["output_tokens"], first["error"], second["error"]) == (9, None, None)
        assert second["kept_tokens"] == first["prompt_tokens"] + 9
        assert second["device_hit_tokens"] > 0
        assert f'"{first["program_id"]}"' in server.events_path.read_text()


@pytest.mark.skipif("TURNSTILE_KILLS" not in os.environ, reason="make crash-live runs it")
def test_sweeps_killed_at_random_moments_measure_each_turn_once(
    server: VllmServer, tmp_path: Path
) -> None:
    """Every night. On each push `tests/crash/test_live_kills.py` does so beside another server."""
    with trials.warm() as warm:
        survives(int(os.environ["TURNSTILE_KILLS"]), warm, server.base_url, tmp_path)


def test_a_flag_that_vllm_rejects_is_reported_with_its_message(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match=r"exited with code 2: .*unrecognized arguments: --no-s"):
        launch(ServerConfig(flags=("--no-such-flag",)), tmp_path, ready_within_s=READY_WITHIN_S)


def test_a_context_longer_than_the_pool_is_reported_with_vllms_message(tmp_path: Path) -> None:
    config = ServerConfig(kv_blocks=10, max_model_len=4096)
    message = r"exited with code 1: .*max seq len \(4096\)"
    with forked(), pytest.raises(ServerFailed, match=message):
        launch(config, tmp_path, ready_within_s=READY_WITHIN_S)


def test_bench_serve_runs_vllm_with_the_given_flags_until_it_is_killed(tmp_path: Path) -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    command = [str(Path(sys.executable).parent / "bench"), "serve", "--out", str(tmp_path)]
    command += ["--", "--speculative-config", json.dumps(ngram)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as bench:
        assert bench.stdout is not None
        url = bench.stdout.readline().split()[0]
        assert url.startswith("http://127.0.0.1:")
        example = bench.stdout.readline()
        answer = subprocess.run(example, shell=True, capture_output=True, check=True)  # noqa: S602
        assert json.loads(answer.stdout)["usage"]["completion_tokens"] == 16
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            greedy = client.completions.create(
                model="tiny", prompt=[7, 8] * 32, max_tokens=64, temperature=0,
                extra_body={"ignore_eos": True, "allowed_token_ids": [65]},
            )  # fmt: skip
        page = urllib.request.urlopen(f"{url}/metrics").read().decode()  # noqa: S310
        children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children").read_text().split()
        (supervisor,) = [int(child) for child in children if os.getpgid(int(child)) == int(child)]
        assert len(group_of(supervisor)) >= 3  # supervisor, API server, engine
        bench.send_signal(signal.SIGKILL)
        wait_until_none(partial(group_of, supervisor))
    assert greedy.usage is not None
    assert greedy.usage.completion_tokens == 64
    [drafted] = samples(page, "vllm:spec_decode_num_draft_tokens_total")
    [accepted] = samples(page, "vllm:spec_decode_num_accepted_tokens_total")
    # Of the only token that is allowed, each draft is right.
    assert 32 < accepted.value <= drafted.value


def test_ctrl_c_during_a_start_leaves_no_process_and_prints_how_to_resume(tmp_path: Path) -> None:
    sweep = begin(tmp_path, "--jps", "4", "--policies", "fcfs")
    wait_until((tmp_path / "o/fcfs_jps4_seed1/server/server.log").exists, START_S, sweep)
    time.sleep(3)
    processes = descendants(sweep.pid)
    sweep.send_signal(signal.SIGINT)
    _, complaints = sweep.communicate(timeout=300)
    assert sweep.returncode == 130
    assert mentions(complaints, "stopped", "resume with: bench sweep")
    wait_until_gone(processes)
