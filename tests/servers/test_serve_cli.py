"""`bench serve` and `bench doctor`, with an executable in place of vLLM."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from servers.processes.port import Port
from tests.harness.in_process import bench as bench_here
from tests.sentences import mentions
from tests.servers.substitute_vllm import living, substitute_vllm


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_bench_serve_runs_until_ctrl_c_and_leaves_no_process(bench: str, tmp_path: Path) -> None:
    python = substitute_vllm(tmp_path, "healthy")
    with subprocess.Popen(
        [bench, "serve", "--policy", "fcfs", "--vllm-python", python, "--out", "here"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        url, example = process.stdout.readline().strip(), process.stdout.readline()
        assert url.startswith("http://127.0.0.1:")
        assert example.startswith(f"curl {url}/v1/completions ")
        assert '"program_id": "job-1"' in example
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert errors.splitlines()[0] == "log: here/server.log"
    assert mentions(errors, "costs are constants", "tiny")
    assert errors.splitlines()[-1] == "bench: stopped"
    left = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert left == ["options.json", "server.json", "server.log"]
    assert [line for line in living(tmp_path) if str(process.pid) not in line] == []


def test_the_url_of_each_replica_is_printed_and_no_process_is_left(
    bench: str, tmp_path: Path
) -> None:
    python = substitute_vllm(tmp_path, "healthy")
    code, out, err = bench_here("serve", "--replicas", "2", "--port", "8000")
    assert (code, out) == (2, "")
    assert mentions(err, "--port 8000", "2 replicas", "remove --port")
    with subprocess.Popen(
        [bench, "serve", "--replicas", "2", "--vllm-python", python, "--out", "here"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        urls = {process.stdout.readline() for _ in range(2)}
        assert len(urls) == 2
        assert all(url.startswith("http://127.0.0.1:") for url in urls)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    assert {path.name for path in (tmp_path / "here").iterdir()} == {"replica-0", "replica-1"}
    assert [line for line in living(tmp_path) if str(process.pid) not in line] == []


def test_a_router_gives_all_replicas_one_url_on_the_given_port(bench: str, tmp_path: Path) -> None:
    python = substitute_vllm(tmp_path, "healthy")
    options = ["--replicas", "2", "--router", "thunderagent", "--out", "here"]
    port = Port()
    options += ["--vllm-python", python, "--port", str(port.number)]
    with (
        closing(port),
        subprocess.Popen(
            [bench, "serve", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url == f"http://127.0.0.1:{port.number}"
        with urllib.request.urlopen(f"{url}/v1/models") as answer:  # noqa: S310
            assert json.load(answer)["data"][0]["id"] == "tiny"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=300)
    assert (process.returncode, rest) == (130, "")
    assert mentions(errors, "router thunderagent", "here/gateway/turns.jsonl")
    left = {path.name for path in (tmp_path / "here").iterdir()}
    assert left == {"gateway", "replica-0", "replica-1"}
    assert [line for line in living(tmp_path) if str(process.pid) not in line] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--router", "sticky"), "--router sticky: distributes turns over several replicas; add"),
        (("--replicas", "2", "--router", "stiky"), "no router is called 'stiky'; did you mean"),
        (("--replicas", "2", "--router", "sticky,sticky"), ": a gateway has one router; give one"),
    ],
)
def test_a_router_that_cannot_be_used_is_refused_before_a_server_starts(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    code, out, err = bench_here("serve", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_dies_gives_exit_code_1_and_the_end_of_its_log(tmp_path: Path) -> None:
    code, out, err = bench_here("serve", "--vllm-python", substitute_vllm(tmp_path, "exits"))
    assert (code, out) == (1, "")
    assert "  nothing to add\n" in err
    last = err.splitlines()[-1]
    assert mentions(last, "vLLM exited with code 1", "ValueError: the KV cache")
    assert "Traceback" not in err


def test_invalid_input_gives_exit_code_2_and_one_line(tmp_path: Path) -> None:
    python = substitute_vllm(tmp_path, "healthy")
    code, out, err = bench_here("serve", "--policy", "clairvoyant", "--vllm-python", python)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert mentions(err, "--policy clairvoyant", "virtual time only")


def test_doctor_finds_the_given_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = substitute_vllm(tmp_path, "healthy")
    monkeypatch.setenv("TURNSTILE_VLLM_PYTHON", python)
    assert f"ok\tengine vllm\t0.32.0 for CPUs at {python}" in bench_here("doctor")[1]
    monkeypatch.setenv("TURNSTILE_VLLM_PYTHON", "/bin/true")
    code, _, err = bench_here("doctor")
    assert code == 1
    assert mentions(err, "engine vllm", "--vllm-python /bin/true")
