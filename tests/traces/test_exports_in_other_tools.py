"""AIPerf and Dynamo read what `bench traces convert --to` writes, in environments of their own.

`make aiperf routers` installs them; without one its tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from traces import Fork, Program, Provenance, SharedPrefix, Turn, read_traces
from traces.exports.registry import write_export

ROOT = Path(__file__).parents[2]
QUIET = {"DYN_LOG": "error", "HF_HUB_DISABLE_TELEMETRY": "1"}
SYSTEM = SharedPrefix("system", 640)
PROGRAMS = (
    Program(
        "a",
        (
            Turn(1500, 40, 0, ("ls",), None, 2.0, Provenance.MEASURED),
            Turn(1700, 50, 1540, ("task",), None, 3.5, Provenance.MEASURED),
            Turn(2300, 60, 1750, ("cat",), None, 0.25, Provenance.MEASURED),
            Turn(2500, 20, 2360),
        ),
        SYSTEM,
        recorded_start_s=0.0,
    ),
    Program(
        "a/sub",
        (Turn(900, 30, 0, ("cat",), None, 1.0, Provenance.MEASURED), Turn(1000, 6, 930)),
        SYSTEM,
        Fork("a", 1, 0.5, 2, Provenance.MEASURED),
    ),
    Program("b", (Turn(700, 20), Turn(650, 25, 640)), SYSTEM, recorded_start_s=4.0),
)
REQUESTS = 8
PROMPT_TOKENS = 1500 + 1700 + 2300 + 2500 + 900 + 1000 + 700 + 650
OUTPUT_TOKENS = 40 + 50 + 60 + 20 + 30 + 6 + 20 + 25


def python_of(environment: str) -> Path:
    python = ROOT / environment / "bin/python"
    if not python.exists():
        pytest.skip(f"{environment} is not installed (make aiperf routers)")
    return python


def run(environment: str, script: str, *arguments: str | Path) -> Any:
    """Return the JSON that the script prints on its last line."""
    command = [python_of(environment), Path(__file__).with_name(script), *arguments]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | QUIET, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def exported(format: str, folder: Path, programs: Sequence[Program] = PROGRAMS) -> Path:
    out = folder / (format if format == "weka" else f"{format}.jsonl")
    write_export(format, out, programs)
    return out


Requests = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def in_aiperf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Requests]:
    """What AIPerf reads, by format and conversation; one process reads all, as it starts slowly."""
    folder = tmp_path_factory.mktemp("aiperf")
    pairs = [(name, exported(name, folder)) for name in ("mooncake", "aiperf-dag", "weka")]
    return dict(run(".venv-aiperf", "reading_with_aiperf.py", *chain.from_iterable(pairs)))


@pytest.mark.parametrize("format", ["mooncake", "aiperf-dag", "weka"])
def test_aiperf_reads_the_same_requests_and_tokens(
    format: str, in_aiperf: dict[str, Requests]
) -> None:
    requests = list(chain.from_iterable(in_aiperf[format].values()))
    assert len(requests) == REQUESTS
    assert sum(request["prompt_tokens"] for request in requests) == PROMPT_TOKENS
    assert sum(request["output_tokens"] for request in requests) == OUTPUT_TOKENS


def test_aiperf_reads_mooncake_requests_at_their_times(in_aiperf: dict[str, Requests]) -> None:
    starts_ms = [requests[0]["timestamp_ms"] for requests in in_aiperf["mooncake"].values()]
    assert starts_ms == sorted(starts_ms)
    assert starts_ms[0] == 0
    assert 4000 in starts_ms


def test_aiperf_reads_conversations_with_delays_and_joins(in_aiperf: dict[str, Requests]) -> None:
    found = in_aiperf["aiperf-dag"]
    # The second prompt of b is shorter than the context before, so it is a conversation.
    assert set(found) == {"a", "a/sub", "b", "b~1"}
    assert [request["delay_ms"] for request in found["a"]] == [0, 2000, 3500, 250]
    assert [request["waits_for"] for request in found["a"]] == [0, 0, 1, 0]
    assert [request["prompt_tokens"] for request in found["a"]] == [1500, 1700, 2300, 2500]


def test_aiperf_reads_weka_sessions_with_measured_gaps(in_aiperf: dict[str, Requests]) -> None:
    delays_ms = [request["delay_ms"] for request in in_aiperf["weka"]["a"]]
    assert delays_ms[1] == pytest.approx(2000, abs=0.01)
    assert delays_ms[3] == pytest.approx(250, abs=0.01)


@pytest.mark.parametrize("format", ["mooncake", "agentic-mooncake", "weka"])
def test_dynamo_replays_the_same_requests_and_tokens(format: str, tmp_path: Path) -> None:
    path = exported(format, tmp_path)
    summary = run(".venv-dynamo", "reading_with_dynamo.py", format, path)
    assert summary["completed_requests"] == REQUESTS
    assert summary["total_input_tokens"] == PROMPT_TOKENS
    assert summary["total_output_tokens"] == OUTPUT_TOKENS
    assert summary["prefix_cache_reused_ratio"] > 0.3
    if format != "mooncake":
        assert summary["total_trajectories"] == 2


@pytest.mark.parametrize("format", ["mooncake", "agentic-mooncake", "weka"])
def test_dynamo_replays_recorded_sessions(format: str, tmp_path: Path) -> None:
    """Three sessions of Weka's set, with sub-agents."""
    folder = ROOT.parent / "shared/data/weka"
    if not folder.is_dir():
        pytest.skip("the recorded sessions are not here")
    programs = read_traces(sorted(folder.glob("*.json"))[:3]).programs
    turns = [turn for program in programs for turn in program.turns]
    path = exported(format, tmp_path, programs)
    summary = run(".venv-dynamo", "reading_with_dynamo.py", format, path)
    assert summary["completed_requests"] == len(turns)
    assert summary["total_input_tokens"] == sum(turn.prompt_tokens for turn in turns)
    assert summary["total_output_tokens"] == sum(turn.output_tokens for turn in turns)
