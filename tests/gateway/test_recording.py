"""A recording replays with the same turns, tokens and tool gaps."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from harness.cells.folder import Lines
from harness.gateway import Gateway, serve_gateway
from harness.gateway.recording import recording
from harness.replay.live_server import LiveServer
from servers.basics.errors import InvalidTrace
from servers.records.turns import TurnRecord
from tests.gateway.test_proxy import ASK, next_ask, post
from tests.gateway.upstream import Upstream, serving
from tests.harness import in_process
from tests.lines import read_lines
from tests.sentences import mentions
from tests.threaded import threaded
from tests.traces.test_token_counts import words as tokenizer_of_words
from traces import read_traces
from traces.formats.native import write_programs

DEAD_PROXY = dict.fromkeys(["HTTP_PROXY", "http_proxy"], "http://127.0.0.1:9")
"""Nothing listens on port 9, so no request may go through this proxy."""
AGENT = """
import json, os, sys, time, urllib.request
messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "list it"}]
for turn in range(3):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "m", "messages": messages}).encode())
    answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    time.sleep(0.05)
    messages += [answer, {"role": "user", "content": f"observation {turn}"}]
sys.exit(int(sys.argv[1]))
"""


def recorded(folder: Path) -> None:
    """Record two programs of two turns, one after the other."""

    async def go() -> None:
        async with serving(Upstream()) as server:
            async with recording([LiveServer(server, tagged=True)], folder) as running:
                for name in ("a", "b"):
                    url = f"{running.base_url}/programs/{name}/v1/chat/completions"
                    await post(url, ASK)
                    await asyncio.sleep(0.05)
                    await post(url, next_ask("all done here", "and so on"))
            assert running.write_trace() is not None

    asyncio.run(go())


def test_a_recording_is_a_trace_with_its_measured_gaps(tmp_path: Path) -> None:
    recorded(tmp_path / "o")
    lines = read_lines(tmp_path / "o/turns.jsonl")
    programs = read_traces(tmp_path / "o/trace.jsonl").programs
    assert [program.id for program in programs] == ["a", "b"]
    assert programs[0].recorded_start_s == 0
    assert programs[1].recorded_start_s > 0.05
    for program in programs:
        own = [line for line in lines if line["program_id"] == program.id]
        for field in ("prompt_tokens", "output_tokens", "kept_tokens"):
            assert [getattr(turn, field) for turn in program.turns] == [
                record[field] for record in own
            ]
        assert program.turns[0].tool_gap_s == own[1]["gap_s"]
        assert program.turns[0].gap_provenance == "measured"


def test_the_records_of_a_killed_recording_are_the_same_trace(tmp_path: Path) -> None:
    recorded(tmp_path / "o")
    lines = tmp_path / "o/turns.jsonl"
    with lines.open("ab") as file:
        file.write(b'{"program_id": "c", "turn"')
    loaded = read_traces(lines)
    assert [note.reason for note in loaded.repairs] == ["an incomplete line: left out"]
    write_programs(tmp_path / "again.jsonl", loaded.programs)
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "o/trace.jsonl").read_bytes()


def test_failed_turns_are_left_out_and_a_file_without_others_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    lines = Lines(path)
    failed = TurnRecord(
        program_id="a", turn=0, job_id="a", scheduled_at_s=0.0, sent_at_s=0.0, error="refused"
    )
    lines.append(failed)
    lines.close()
    with pytest.raises(InvalidTrace, match="no turn has succeeded"):
        read_traces(path)


@pytest.fixture
def upstream() -> Iterator[str]:
    with threaded(serving(Upstream())) as url:
        yield url


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of `bench` in this process run in the test's folder and do not tune its collector."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.gateway.serving.tune_garbage_collector", lambda: None)


@pytest.mark.parametrize(("code", "named"), [(0, True), (3, False)])
def test_bench_record_records_an_agent_and_exits_with_its_exit_code(
    bench: str, upstream: str, tmp_path: Path, code: int, named: bool
) -> None:
    """Half of the time the server is on the command line, else in the environment. The agent has a
    proxy, but not for the gateway."""
    (tmp_path / "agent.py").write_text(AGENT)
    command = ("--", sys.executable, "agent.py", str(code))
    done = subprocess.run(
        [bench, "record", *([upstream] if named else []), "--out", "o", *command],
        cwd=tmp_path,
        env=os.environ | {"OPENAI_BASE_URL": f"{upstream}/v1", **DEAD_PROXY},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stderr
    assert "1 program, 3 turns" in done.stdout
    assert "replay it: bench sweep --traces o/trace.jsonl" in done.stdout
    (program,) = read_traces(tmp_path / "o/trace.jsonl").programs
    assert program.id.startswith("python")
    assert program.prefix is not None
    assert all(turn.tool_gap_s >= 0.05 for turn in program.turns[:-1])


@pytest.mark.parametrize(
    ("script", "code", "ended"),
    [
        ("exit 7", 7, "bench: the command exited with 7\n"),
        ("kill -9 $$", 137, "bench: the command exited with 137\n"),
        ("true", 1, ""),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_command_without_requests_still_gives_its_exit_code(
    upstream: str, script: str, code: int, ended: str
) -> None:
    done = in_process.bench("record", upstream, "--out", "o", "--", "sh", "-c", script)
    assert done[:2] == (code, "")
    assert done[2].endswith(f"\n{ended}")
    assert mentions(done[2], "no turn", "0 recorded in o/turns.jsonl")


@pytest.mark.usefixtures("here")
def test_claude_code_and_codex_get_the_gateway_and_the_model_and_are_recorded() -> None:
    """Scripts in their place request what they would. Claude Code adds /v1 to its URL."""
    claude = f"""#!{sys.executable}
import os, urllib.request
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
body = '{{"model": "%s", "messages": []}}' % os.environ["ANTHROPIC_DEFAULT_SONNET_MODEL"]
assert os.environ["ANTHROPIC_AUTH_TOKEN"] == "none"
urllib.request.urlopen(urllib.request.Request(url, body.encode()))
"""
    codex = f"""#!{sys.executable}
import sys, tomllib, urllib.request
settings = tomllib.loads("\\n".join(sys.argv[2:8:2]))
provider = settings["model_providers"][settings["model_provider"]]
assert (provider["wire_api"], sys.argv[7:]) == ("responses", ["exec", "x"])
body = '{{"model": "%s", "input": "hi"}}' % settings["model"]
urllib.request.urlopen(urllib.request.Request(provider["base_url"] + "/responses", body.encode()))
"""
    for name, script in (("claude", claude), ("codex", codex)):
        Path(name).write_text(script)
        Path(name).chmod(0o700)
        arguments = ("-p", "x") if name == "claude" else ("exec", "x")
        upstream = Upstream()
        with threaded(serving(upstream)) as url:
            in_process.bench("record", url, "--out", name + ".d", "--", f"./{name}", *arguments)
        assert {body["model"] for body in upstream.bodies} == {"m"}, "the first of /v1/models"
        (line,) = read_lines(Path(name + ".d/turns.jsonl"))
        assert line["program_id"] == name


@pytest.mark.usefixtures("here")
def test_turns_of_a_server_that_sends_no_usage_are_said_to_lack_it() -> None:
    Path("agent.py").write_text(AGENT)
    with threaded(serving(Upstream(fault="no usage"))) as url:
        done = in_process.bench("record", url, "--out", "o", "--", sys.executable, "agent.py", "0")
    code, out, err = done
    assert (code, out, len(err.splitlines())) == (1, "", 2)
    remedy = "--tokenizer FILE", "stream_options.include_usage", "3 recorded in o/turns.jsonl"
    assert mentions(err, "3 turns", "no usage", *remedy)


@pytest.mark.usefixtures("here")
def test_turns_without_usage_are_counted_with_a_tokenizer_and_marked_as_inferred() -> None:
    Path("agent.py").write_text(AGENT)
    agent = sys.executable, "agent.py", "0"
    options = "--out", "o", "--tokenizer", str(tokenizer_of_words(Path()))
    with threaded(serving(Upstream(fault="no usage", words="it is done"))) as url:
        code, out, err = in_process.bench("record", url, *options, "--", *agent)
    assert (code, out.splitlines()[0]) == (0, "1 program, 3 turns")
    assert mentions(err, "3 turns", "--tokenizer", "no usage")
    (program,) = read_traces("o/trace.jsonl").programs
    # "be brief" and "list it", then with each turn the answer and "observation N"
    assert [turn.prompt_tokens for turn in program.turns] == [4, 9, 14]
    assert [turn.output_tokens for turn in program.turns] == [3, 3, 3]
    assert program.inferred_tokens


@pytest.mark.usefixtures("here")
def test_a_file_that_is_no_tokenizer_is_refused_before_the_recording() -> None:
    Path("t.json").write_text("{}")
    code, _, err = in_process.bench(
        "record", "http://127.0.0.1:9", "--tokenizer", "t.json", "--", "x"
    )
    assert code == 2
    assert mentions(err, "--tokenizer t.json", "not a tokenizers file")


@pytest.mark.usefixtures("here")
def test_a_recording_into_the_folder_of_a_sweep_is_refused(upstream: str) -> None:
    Path("o").mkdir()
    Path("o/sweep.json").touch()
    code, out, err = in_process.bench("record", upstream, "--out", "o", "--", "true")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert mentions(err, "--out o", "sweep.json")
    assert [path.name for path in Path("o").iterdir()] == ["sweep.json"]


def test_a_taken_port_is_reported_with_its_option() -> None:
    async def go() -> None:
        async with serving(Upstream()) as taken:
            port = int(taken.rpartition(":")[2])
            with pytest.raises(OSError, match=f"--port {port}: address already in use; give"):
                async with serve_gateway(Gateway([], print), port=port):
                    raise AssertionError("it should not listen there")

    asyncio.run(go())


@pytest.mark.usefixtures("here", "forked_workers")
def test_a_recording_can_be_swept() -> None:
    recorded(Path("o"))
    options = ("--traces", "o/turns.jsonl", "--once", "--jps", "1", "--policies", "fcfs,continuum")
    code, _, err = in_process.bench("sweep", *options)
    assert code == 0, err


@pytest.mark.usefixtures("here")
def test_a_missing_command_and_an_unreachable_server_are_refused(upstream: str) -> None:
    code, out, err = in_process.bench("record", upstream, "--out", "o", "--", "/no/such/agent")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert mentions(err, "/no/such/agent", "no such file")
    code, _, err = in_process.bench("record", "http://127.0.0.1:9", "--", "true")
    assert code == 2
    assert "no OpenAI-compatible server responds" in err


def test_ctrl_c_ends_a_gateway_and_writes_its_trace(bench: str, tmp_path: Path) -> None:
    async def go() -> None:
        async with serving(Upstream(words="w " * 500, chunk_s=0.01)) as server:
            gateway = await asyncio.create_subprocess_exec(
                *(bench, "gateway", server, "--out", str(tmp_path / "o")),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            assert gateway.stdout is not None
            url = (await gateway.stdout.readline()).decode().strip()
            await post(f"{url}/chat/completions", ASK)
            with suppress(TimeoutError):
                timeout = aiohttp.ClientTimeout(0.1)
                await post(f"{url}/chat/completions", {**ASK, "stream": True}, timeout=timeout)
            gateway.send_signal(signal.SIGINT)
            output, complaints = await asyncio.wait_for(gateway.communicate(), 300)
            assert gateway.returncode == 0, complaints
            assert b"1 program, 1 turn, 1 aborted by clients\n" in output

    asyncio.run(go())
    assert len(read_traces(tmp_path / "o/trace.jsonl").programs) == 1


def test_sigkill_loses_no_finished_turn(bench: str, tmp_path: Path) -> None:
    async def go() -> None:
        async with serving(Upstream()) as server:
            gateway = await asyncio.create_subprocess_exec(
                *(bench, "gateway", server, "--out", str(tmp_path / "o")),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert gateway.stdout is not None
            url = (await gateway.stdout.readline()).decode().strip()
            await post(f"{url}/chat/completions", ASK)
            os.kill(gateway.pid, signal.SIGKILL)
            await gateway.communicate()

    asyncio.run(go())
    time.sleep(0.1)
    assert len(read_traces(tmp_path / "o/turns.jsonl").programs) == 1


@pytest.mark.usefixtures("here")
def test_a_recording_needs_a_server_and_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OPENAI_")]:
        monkeypatch.delenv(name)
    for words, complaint in (
        (["--", "true"], "no server: use bench record URL -- true"),
        (["http://127.0.0.1:9"], "no command: use bench record http://127.0.0.1:9 -- COMMAND"),
    ):
        code, _, err = in_process.bench("record", *words)
        assert code == 2
        assert complaint in err
