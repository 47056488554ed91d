"""Keys are planted wherever users keep them, servers repeat every key that they receive, and the
tests then search all files and output of a command for keys."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
from aiohttp import web

from harness.cli.run_from_settings import same_command
from harness.replay.completion import PartialAnswer, error_message
from harness.replay.http import failure_reason, known_keys
from servers.basics.errors import TurnFailed
from servers.basics.redact import (
    is_distinctive,
    redact,
    redact_command_line,
    redact_settings,
    server_url,
)
from servers.vllm.launch.container import container_command
from tests.agents.bubblewrap import needs_bubblewrap
from tests.agents.test_runs import AGENT, WITHOUT_SANDBOX
from tests.growth import LINEAR, growth
from tests.harness import in_process
from tests.loopback import on_loopback
from tests.threaded import threaded

ENVIRONMENT = {
    "TURNSTILE_API_KEY": "planted-turnstile-key",
    "OPENAI_API_KEY": "planted-openai-key",
    "HF_TOKEN": "planted-hf-token",
    "AWS_SECRET_ACCESS_KEY": "planted/aws+key/1",
    "TURNSTILE_GATEWAY_TOKEN": "planted-gateway-token",
}
SENT = "planted-header-key"
"""The key that a client of the gateway sends itself."""
PRINT_ALL = "env; cat /proc/1/environ /proc/$PPID/environ"


class Parrot:
    """A chat server whose answers and errors repeat everything that it receives."""

    def __init__(self) -> None:
        self.received: list[str] = []

    async def models(self, request: web.Request) -> web.Response:
        self.received.append(str(dict(request.headers)))
        return web.json_response({"data": [{"id": "m", "max_model_len": 100_000}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        echo = f"{dict(request.headers)} {request.path_qs} {os.environ}"
        self.received.append(echo)
        messages = body.get("messages") or ()
        if any(message["role"] == "tool" for message in messages):
            return answered({"role": "assistant", "content": echo})
        if len(messages) != 1:
            return web.json_response({"error": {"message": echo}}, status=500)
        function = {
            "name": "bash",
            "arguments": json.dumps({"command": PRINT_ALL}),
        }
        answer = {
            "role": "assistant",
            "content": f"```bash\n{echo.split()[-1]} {echo}\n```",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }
        if body.get("stream"):
            event = orjson.dumps({"error": {"message": echo}})
            return web.Response(body=b"data: " + event + b"\n\n", content_type="text/event-stream")
        return answered(answer)


def answered(message: object) -> web.Response:
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return web.json_response({"choices": [{"index": 0, "message": message}], "usage": usage})


@asynccontextmanager
async def repeating(parrot: Parrot) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/v1/models", parrot.models)
    app.router.add_post("/v1/{rest:.*completions}", parrot.complete)
    async with on_loopback(app) as url:
        yield url


@pytest.fixture
def parrot(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Parrot, str]]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    server = Parrot()
    with threaded(repeating(server)) as url:
        yield server, url


def run(folder: Path, *command: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=300, input=input
    )


def leaks(folder: Path, ran: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    """Return, by planted key, the files and streams that contain it verbatim or encoded."""
    contents = {"stdout": ran.stdout.encode(), "stderr": ran.stderr.encode()}
    contents |= {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }
    keys = [*ENVIRONMENT.values(), SENT, "planted-url-key"]
    forms = {key: {key, key.replace("/", "\\/"), base64.b64encode(key.encode())} for key in keys}
    return {
        key: found
        for key in keys
        if (
            found := [
                name
                for name, content in contents.items()
                if any((f if isinstance(f, bytes) else f.encode()) in content for f in forms[key])
            ]
        )
    }


CLIENT = f"""
import json, os, sys, urllib.error, urllib.request
url = os.environ["OPENAI_BASE_URL"]
for n, key in ((1, os.environ["OPENAI_API_KEY"]), (3, "{SENT}"), (5, "{SENT}"), (1, "{SENT}")):
    for stream in (False, True):
        messages = [{{"role": "user", "content": "task " + key}}] * n
        body = json.dumps({{"model": "m", "messages": messages, "stream": stream}}).encode()
        headers = {{"Authorization": "Bearer " + key, "Content-Type": "application/json"}}
        path = "/chat/completions?api_key=" + key
        try: urllib.request.urlopen(urllib.request.Request(url + path, body, headers)).read()
        except urllib.error.HTTPError: pass
"""


@pytest.mark.parametrize(("options", "with_our_key"), [((), False), (("--messages",), True)])
def test_a_recording_contains_no_key(
    bench: str,
    tmp_path: Path,
    parrot: tuple[Parrot, str],
    options: tuple[str, ...],
    with_our_key: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, url = parrot
    if not with_our_key:
        monkeypatch.delenv("TURNSTILE_API_KEY")
    ran = run(tmp_path, bench, "record", url, *options, "--", sys.executable, "-c", CLIENT)
    assert (tmp_path / "runs").is_dir(), ran.stderr
    errors = [
        json.loads(line)["error"]
        for path in tmp_path.rglob("turns.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len(errors) == 8
    assert any(error and "***" in error for error in errors), "the server repeated the key"
    sent = ENVIRONMENT["TURNSTILE_API_KEY"] if with_our_key else SENT
    assert any(sent in received for received in server.received)
    assert leaks(tmp_path, ran) == {}


def test_a_sweep_on_a_server_and_its_report_contain_no_key(
    bench: str, tmp_path: Path, parrot: tuple[Parrot, str]
) -> None:
    server, url = parrot
    command = [bench, "sweep", "--engine", url, "--programs", "3", "--jps", "20", "--out", "o"]
    ran = run(tmp_path, *command)
    assert ran.returncode == 1
    assert any(ENVIRONMENT["TURNSTILE_API_KEY"] in received for received in server.received)
    found = leaks(tmp_path, ran)
    assert "***" in "".join(p.read_text() for p in tmp_path.rglob("turns.jsonl"))
    assert found == {}


@pytest.mark.parametrize(
    "sandbox_options", [pytest.param((), marks=needs_bubblewrap), WITHOUT_SANDBOX]
)
def test_the_files_of_a_run_of_agents_contain_no_key(
    bench: str, tmp_path: Path, parrot: tuple[Parrot, str], sandbox_options: tuple[str, ...]
) -> None:
    """The agents' commands print all variables that they can read. A key in an agent's command line
    reaches the agent, but not the records."""
    _, url = parrot
    (tmp_path.parent / "tasks.jsonl").write_text(json.dumps({"id": "a", "task": "print it"}))
    agent = f"{AGENT} --api-key planted-url-key"
    source = (
        Path(AGENT.split()[1]).read_text().replace("main(*sys.argv[1:])", "main(*sys.argv[1:4])")
    )
    own = tmp_path.parent / f"agent-{len(sandbox_options)}.py"
    own.write_text(source)
    agent = agent.replace(AGENT.split()[1], str(own))
    command = [
        bench,
        "sweep",
        "--one",
        "--engine",
        url,
        "--jps",
        "20",
        "--out",
        "o",
        "--agent-command",
        agent,
    ]
    ran = run(tmp_path, *command, "--tasks", str(tmp_path.parent / "tasks.jsonl"), *sandbox_options)
    (programs,) = tmp_path.rglob("programs.jsonl")
    assert '"exit_status":"finished"' in programs.read_text(), ran.stderr
    (predictions,) = tmp_path.rglob("predictions.jsonl")
    assert "OPENAI_API_KEY=" in predictions.read_text(), "all variables were printed"
    assert "***" in "".join(p.read_text() for p in tmp_path.rglob("sweep.json"))
    assert leaks(tmp_path, ran) == {}


URL = "http://user:planted-url-key@127.0.0.1:9/v1"


@pytest.mark.parametrize(
    "command",
    [
        ("sweep", "--jps", "1", "--programs", "1", "--engine"),
        *(("gateway",), ("record",), ("profile", "--url")),
    ],
)
def test_a_url_with_a_key_is_refused_without_printing_the_key(
    tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = subprocess.CompletedProcess(command, *in_process.bench(*command, URL))
    assert ran.returncode == 2
    assert "remove the part before @ and after ?" in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert leaks(tmp_path, ran) == {}


@pytest.mark.parametrize(
    "url",
    [
        *(URL, "http://planted-url-key@h", "http://h/v1?api_key=planted-url-key"),
        *("http://h?planted-url-key=", "http://h/v1#planted-url-key"),
    ],
)
def test_a_key_in_any_part_of_a_url_is_refused_and_not_printed(url: str) -> None:
    with pytest.raises(ValueError, match="remove the part before @") as refused:
        server_url(url, "--engine")
    assert "planted" not in str(refused.value)


def test_keys_for_a_container_of_vllm_are_neither_in_its_command_nor_in_its_folder(
    tmp_path: Path,
) -> None:
    env = {"HF_TOKEN": "planted-hf-token", "HF_HOME": "/hub", "PATH": "/bin"}
    command = container_command("image", ["python"], env, [], tmp_path, gpus=False)
    assert "planted" not in " ".join(command)
    assert json.loads((tmp_path / "container.json").read_text())["env"] == ["HF_TOKEN", "HF_HOME"]
    assert "planted" not in (tmp_path / "container.json").read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--engine", "http://me:hush@h:1"], ["--engine", "http://***@h:1"]),
        (["--api-key", "hush", "x"], ["--api-key", "***", "x"]),
        (["--api-key=hush", "--jps", "1"], ["--api-key=***", "--jps", "1"]),
        (
            ["--agent-command", "a --token hush-hush {task}"],
            ["--agent-command", "a --token *** {task}"],
        ),
        (["--agent-command", "a password='hu sh'"], ["--agent-command", "a password=***"]),
        (["--agent-command", "a password='hu sh' x"], ["--agent-command", "a password=*** x"]),
        (
            ["--agent-command", "curl -H 'Authorization: Basic aDpw' http://h"],
            ["--agent-command", "curl -H 'Authorization: ***' http://h"],
        ),
        (["--token", "hush-hush", "--token=hush-hush"], ["--token", "***", "--token=***"]),
        (["--traces", "runs/token=3/x"], ["--traces", "runs/token=3/x"]),
        (["--agent-command", "a --sort-key name"], ["--agent-command", "a --sort-key name"]),
        (["--out", "my-key", "--jps", "1"], ["--out", "my-key", "--jps", "1"]),
        (
            ["--max-num-tokens", "5", "--tokenizer", "t"],
            ["--max-num-tokens", "5", "--tokenizer", "t"],
        ),
    ],
)
def test_command_lines_are_recorded_without_keys(words: list[str], expected: list[str]) -> None:
    assert redact_command_line(words) == expected


def test_settings_are_recorded_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "abcdefgh")
    yaml = "model:\n  api_key: sk-1\n  env: {DB_PASSWORD: 'x y', A: abcdefgh}\n  max_tokens: 5\n"
    assert redact_settings(yaml) == (
        "model:\n  api_key: ***\n  env: {DB_PASSWORD: ***, A: ***}\n  max_tokens: 5\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "extra_headers: {Authorization: Bearer sk-1, A: b}",
            "extra_headers: {Authorization: ***, A: b}",
        ),
        ("x: Bearer sk-abcdef", "x: Bearer ***"),
        ("Authorization=Basic aDpw", "Authorization=***"),
        ("GITHUB_PAT: ghp_abcd", "GITHUB_PAT: ***"),
        ("AWS_ACCESS_KEY_ID: AKIAABCD", "AWS_ACCESS_KEY_ID: ***"),
        ("api_key: |\n  sk-1\n  sk-2\nb: c", "api_key: ***\nb: c"),
        ("- api_key: >-\n    sk-1\n  b: c", "- api_key: ***\n  b: c"),
        ("a:\n  hf_token: |\n    hf_abcdefg\n  b: c", "a:\n  hf_token: ***\n  b: c"),
        ("password: two words\n  and more\nb: c", "password: ***\nb: c"),
        ("api_key: a}b,c", "api_key: ***"),
        ('{"api_key": "a\\"b", "n": 1}', '{"api_key": ***, "n": 1}'),
        ("base: http://me:a@b@h/v1", "base: http://***@h/v1"),
    ],
)
def test_keys_in_settings_are_redacted_completely(text: str, expected: str) -> None:
    assert redact_settings(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("eos_token: </s>", "eos_token: <|im_end|>", "pad_token: 0", "token: none", "key: id"),
        *("Sort by key: name of it", "api_key:\nb: c", "key:\n  description: x", "std::token"),
    ],
)
def test_settings_that_are_no_keys_stay_unchanged(text: str) -> None:
    assert redact_settings(text) == text


@pytest.mark.parametrize(
    ("begin", "repeated", "end"),
    [
        *(
            ("", "a", ""),
            ("", "key", ""),
            ("", "-", ""),
            ("", "key:\n", ""),
            ("password:", ",", ""),
        ),
        *(("password:", " ,", "x"), ("password: '", "''", ""), ("", " ", "key: ")),
        *(("", 'password: "', ""), ("", "://", ""), ("", "Bearer ", "")),
    ],
    ids=range(11),
)
def test_long_settings_are_redacted_in_linear_time(begin: str, repeated: str, end: str) -> None:
    """With quadratic code 20,000 times "a" took 25 s."""
    assert growth(lambda n: redact_settings(begin + repeated * n + end), 2_500) < LINEAR


def test_a_resume_command_marks_redacted_secrets() -> None:
    assert same_command(["sweep", "--jps", "1"]) == "bench sweep --jps 1"
    arguments = ["sweep", "--one", "--agent-command", "a --api-key sk-1"]
    command = "bench sweep --one --agent-command 'a --api-key ***'"
    assert same_command(arguments) == f"{command}  (replace *** by your secret)"


def test_in_conversations_only_distinctive_keys_are_redacted() -> None:
    words = ["anything", "postgres", "finished_at_s", "12345678", ',"tools":', "none"]
    assert [key for key in words if is_distinctive(key)] == []
    keys = ["sk-12345", "hf_abcdefghijklmnop", "correct horse battery"]
    assert [key for key in keys if is_distinctive(key)] == keys


@pytest.mark.parametrize("secrets", [("sk-user/key-123",), ("other", "sk-user/key-123")])
@pytest.mark.parametrize(
    "key", ["sk-user/key-123", "\\u0073k-user/key-123", "sk-user\\/key-123", "sk-user%2Fkey-123"]
)
def test_a_key_in_a_servers_error_is_redacted_in_every_encoding(
    key: str, secrets: tuple[str, ...]
) -> None:
    for body in ('{"error":{"message":"for %s"}}', '{"x":"for %s"}', '"for %s"'):
        message = error_message((body % key).encode(), secrets)
        assert "for ***" in message
        assert "key-123" not in message
    assert "key-" not in error_message(f'{{"error":"{"x" * 190}{key}"}}'.encode(), secrets)


def test_errors_of_live_and_guided_turns_contain_no_key_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "planted-hf-token")
    assert {"planted-hf-token", "mine"} <= {*known_keys("mine")}
    answer = PartialAnswer(0.0, secrets=known_keys("mine-mine"))
    event = b'data: {"error": {"message": "planted-hf\\u002dtoken mine-mine"}}\n\n'
    with pytest.raises(TurnFailed, match=r"^the engine failed: \*\*\* \*\*\*$"):
        answer.take(event, 1.0)
    failure = TurnFailed("the server answered mine-mine, not a stream")
    assert failure_reason(failure, "http://h", answer) == "the server answered ***, not a stream"


def test_a_key_is_redacted_in_every_encoding() -> None:
    assert redact('a"b/c a\\"b/c a%22b%2Fc', ['a"b/c']) == "*** *** ***"
    assert redact("a%FFb", ["a\udcffb"]) == "***", "bytes that are not valid text"
    assert redact("abcd ab", ["ab", "abcd"]) == "*** ***", "the longest key first"


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        *((url, url) for url in ("127.0.0.1:8000", "ftp://h", "http://", "http://h:99999")),
        *(("http://[", "http://["), ("planted:url-key@h:1", "h:1")),
        *(("http://u:planted/url-key@h", "h"), ("http://h:99999?planted", "http://h:99999")),
    ],
)
def test_an_invalid_server_url_is_reported(url: str, printed: str) -> None:
    no_url = f"--engine {printed}: not the URL of a server, such as http://127.0.0.1:8000"
    with pytest.raises(ValueError, match=f"^{re.escape(no_url)}$"):
        server_url(url, "--engine")


def test_a_server_url_is_accepted_with_and_without_its_version() -> None:
    for url in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"):
        assert server_url(url, "--engine") == "http://h:1"
    assert server_url("https://h/openai/v1", "--engine") == "https://h/openai"


def test_the_search_for_planted_keys_finds_them() -> None:
    """Otherwise the tests above would pass whatever the files contain."""
    ran = subprocess.CompletedProcess([], 0, "planted-hf-token", json.dumps("planted/aws+key/1"))
    found: Mapping[str, list[str]] = leaks(Path("/nowhere"), ran)
    assert found == {"planted-hf-token": ["stdout"], "planted/aws+key/1": ["stderr"]}
    assert asyncio.iscoroutinefunction(Parrot.complete)
