"""`bench sweep --engine sglang`, with a substitute that answers as SGLang's code does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.engines.base import resolve_engine
from harness.load.settings import Machine, Prompts, Server, SweepSettings
from servers.basics.errors import InvalidInput, NotInstalled, Unavailable
from tests.lines import read_lines
from tests.live.replaying import program
from tests.sentences import mentions
from tests.servers.substitute_vllm import living
from tests.sglang.server import FAILING, KV_TOKENS, VERSION
from traces.formats.native import write_programs

ROOT = Path(__file__).parents[2]
BODY = """#!/bin/sh
if [ "$1" = -c ]; then [ {version} ] && echo {version}; exit $?; fi
shift 2
cd {root} && exec {python} -m tests.sglang.server "$@" {folder}
"""


def substitute(folder: Path, version: str = VERSION) -> str:
    path = folder / "python-of-sglang"
    body = BODY.format(version=version, root=ROOT, python=sys.executable, folder=folder)
    path.write_text(body)
    path.chmod(0o755)
    return str(path)


@pytest.mark.acceptance
def test_a_sweep_compares_schedulers_of_sglang_on_several_servers(
    bench: str, tmp_path: Path
) -> None:
    """With the third scheduler, the substitute does not start."""
    write_programs(tmp_path / "t.jsonl", [program("a", 3), program("b", 3)])
    options = ["--engine", "sglang", "--model", "tiny", "--traces", "t.jsonl", "--out", "o"]
    options += ["--policies", f"fcfs,lpm(eviction=slru),{FAILING}", "--replicas", "2"]
    environment = {"TURNSTILE_SGLANG_PYTHON": substitute(tmp_path), "CUDA_VISIBLE_DEVICES": "0,1"}
    done = subprocess.run(
        [bench, "sweep", *options, "--arrivals", "closed:2"],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert f"engine sglang: SGLang {VERSION} on " in done.stdout, done.stderr
    out = tmp_path / "o"
    rows = [row for row in json.loads((out / "cells.json").read_text()) if row["jobs"]]
    assert [row["variant"] for row in rows] == ["fcfs@sticky", "lpm(eviction=slru)@sticky"]
    assert [(row["jobs"], row["failed_turns"]) for row in rows] == [(2, 0)] * 2
    described = json.loads((out / "sweep.json").read_text())
    assert (described["server"]["sglang"], described["gpus"]) == (VERSION, 2)
    assert f"Measured on SGLang {VERSION}" in (out / "report.html").read_text()

    (cell,) = out.glob("lpm*")
    finished = json.loads((cell / "done.json").read_text())
    assert finished["kv_blocks"] * finished["block_tokens"] == KV_TOKENS
    assert finished["turns_per_replica"] == [3, 3]
    lines = read_lines(cell / "turns.jsonl")
    assert sorted(line["device_hit_tokens"] for line in lines) == [0, 0, 15, 15, 31, 31]
    server = json.loads((cell / "server/replica-1/server.json").read_text())
    assert "slru" in server["flags"]

    (failed,) = out.glob("*/failed.json")
    error = json.loads(failed.read_text())["error"]
    assert mentions(error, "SGLang", "code 1", "RuntimeError: Not enough memory")
    assert living(tmp_path) == []


def test_a_missing_or_an_old_sglang_is_refused_with_the_command_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SweepSettings(policies="fcfs", machine=Machine(engine="sglang", model="tiny"))
    monkeypatch.setenv("TURNSTILE_SGLANG_PYTHON", sys.executable)
    with pytest.raises(NotInstalled, match=r"no SGLang; .*/pip install sglang"):
        resolve_engine(settings)
    monkeypatch.setenv("TURNSTILE_SGLANG_PYTHON", str(tmp_path / "python"))
    with pytest.raises(Unavailable, match="No such file"):
        resolve_engine(settings)
    monkeypatch.setenv("TURNSTILE_SGLANG_PYTHON", substitute(tmp_path, "0.4.9"))
    with pytest.raises(Unavailable, match=r"has SGLang 0\.4\.9, but Turnstile needs 0\.5\.23"):
        resolve_engine(settings)


@pytest.mark.parametrize(
    ("server", "error", "message"),
    [
        (Server(image="vllm/vllm-openai"), InvalidInput, "--image: not supported by --engine"),
        (Server(vllm_flags=("--host", "::")), InvalidInput, "use bench gateway --listen"),
        (Server(replicas=3), InvalidInput, "3 GPUs are needed, and this machine has 2"),
        (
            Server(replicas=2, router="vllm-router:round_robin"),
            InvalidInput,
            "is for vLLM; use --engine vllm, or sglang-router",
        ),
        (
            Server(replicas=2, router="sglang-router:manual"),
            InvalidInput,
            "does not pass sessions on with token ids; add --prompts text",
        ),
        (
            Server(replicas=2, router="program-scheduling", prompts=Prompts.TEXT),
            InvalidInput,
            "which SGLang does not report; use --engine vllm, or another router",
        ),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: Server,
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.setenv("TURNSTILE_SGLANG_PYTHON", substitute(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    machine = Machine(engine="sglang", model="tiny")
    with pytest.raises(error, match=message):
        resolve_engine(
            SweepSettings(policies="fcfs(sessions=true)", machine=machine, server=server)
        )
