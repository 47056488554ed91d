"""What Dynamo's routers do with our programs, and how its processes start, fail and stop.

That no process, port or file stays behind is checked after each test (`tests.leaks`).
"""

from __future__ import annotations

import os
import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.engines.base import resolve_engine
from harness.load.settings import Machine, SweepSettings
from servers.basics.errors import ServerFailed
from servers.processes import server as server_process
from servers.processes.port import Port
from servers.processes.supervisor import descendants
from tests.foreign_routers.dynamo_replaying import deployment, launched, replayed
from tests.processes import wait_until
from tests.sentences import mentions
from traces import Fork, Program, Turn


def growing(id: str, turns: int, gap_s: float = 0.05, fork: Fork | None = None) -> Program:
    """Return a program whose turns add 64 tokens, of which 4 are the previous answer."""
    all_turns = [Turn(64 * (i + 1), 4, 64 * i + 4 * (i > 0), (), None, gap_s) for i in range(turns)]
    return Program(id, tuple(all_turns), fork=fork)


def test_the_kv_router_returns_to_the_cache_and_a_killed_worker_fails_with_its_log(
    tmp_path: Path,
) -> None:
    """The two programs begin with other tokens, the second while the first one's KV is in use."""
    with launched("kv", deployment(), tmp_path) as cluster:
        # The router learns from events which worker has the KV; gaps are longer than these take.
        programs = [growing("a", 4, gap_s=0.5), growing("b", 4, gap_s=0.5)]
        lines = replayed(cluster, "kv", programs, [0.0, 0.02])
        assert [line["error"] for line in lines] == [None] * 8
        of_a = [line for line in lines if line["program_id"] == "a"]
        assert [(line["prompt_tokens"], line["output_tokens"]) for line in of_a] == [
            (64, 4), (128, 4), (192, 4), (256, 4),
        ]  # fmt: skip
        # Whole blocks of 16 of the previous context, which had 68, 132 and 196 tokens.
        assert [line["device_hit_tokens"] for line in of_a] == [0, 64, 128, 192]
        assert len({line["replica"] for line in of_a}) == 1
        assert {line["held_s"] for line in of_a} == {0.0}
        # A frontend that runs already is recognized at its URL.
        _, engine, _ = resolve_engine(SweepSettings(machine=Machine(engine=cluster.base_url)))
        assert (engine.is_dynamo, engine.is_vllm) == (True, False)

        (worker,) = descendants(cluster.processes["Dynamo's worker-1"].pid)
        os.kill(worker, signal.SIGKILL)
        wait_until(cluster.failure)
        failure = str(cluster.failure())
        assert mentions(failure, "Dynamo's worker-1", "signal 9", str(tmp_path / "worker-1.log"))


def test_thunderagent_sees_our_programs_and_their_ends(tmp_path: Path) -> None:
    """A sub-agent is a program of its own. The last turns are served too, and the end is told by a
    request that no worker gets."""
    programs = [growing("job 0", 3), growing("job 0/1", 2, fork=Fork("job 0", 0))]
    with launched("thunderagent", deployment(), tmp_path) as cluster:
        lines = replayed(cluster, "thunderagent", programs, [0.0])
        log = (tmp_path / "router.log").read_text()
    assert [line["error"] for line in lines] == [None] * 5
    for program in programs:
        of_one = [line for line in lines if line["program_id"] == program.id]
        assert len({line["replica"] for line in of_one}) == 1  # programs stay on one worker
        for line in of_one:
            assert 0.0 <= line["held_s"] < line["finished_at_s"] - line["sent_at_s"]
        assert len(re.findall(f"program created program={program.id} ", log)) == 1
        assert f"path=session_final program={program.id} released=True" in log


def test_prefill_and_decode_workers_are_one_server_even_if_a_port_is_taken_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it was reserved, another process gets the first frontend's port."""
    reserved: list[int] = []
    with ExitStack() as thieves:

        class Reserved(Port):
            def __init__(self, number: int | None = None) -> None:
                super().__init__(number)
                if not reserved:
                    thief = thieves.enter_context(socket.socket())
                    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    thief.bind(("127.0.0.1", self.number))
                    thief.listen()
                reserved.append(self.number)

        monkeypatch.setattr(server_process, "Port", Reserved)
        with launched("kv", deployment(1, 1), tmp_path) as cluster:
            assert cluster.base_url == f"http://127.0.0.1:{reserved[4]}"
            assert list(cluster.processes) == [
                f"Dynamo's {name}" for name in ("prefill-0", "decode-0", "frontend")
            ]
            lines = replayed(cluster, "kv", [growing("a", 3)], [0.0])
    assert len(reserved) == 8  # frontend, prefill, its KV, decode; twice
    assert [line["error"] for line in lines] == [None] * 3
    assert [line["replica"] for line in lines] == [0] * 3  # the only one that generates
    assert [line["device_hit_tokens"] for line in lines] == [0, 64, 128]  # of the prefill worker


def test_a_worker_that_cannot_start_fails_with_the_cause_in_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed) as failed:
        launched("kv", deployment(0, 1, "--engine-type", "nonsense"), tmp_path)
    assert str(failed.value).startswith("Dynamo's worker-0 exited with code 1: ")
    assert "nonsense" in str(failed.value)
