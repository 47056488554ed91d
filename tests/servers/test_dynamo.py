"""The command lines of Dynamo, the step times of its mocker, and what is refused before they start.

`tests/foreign_routers` runs the real processes.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET

from harness.engines.base import resolve_engine
from harness.load.settings import Machine, Server, SweepSettings
from harness.replay.completion import PartialAnswer, completion_body
from harness.replay.dynamo import Frontend
from harness.replay.prompts import TokenPrompts
from servers.basics.errors import InvalidInput, check_flags
from servers.foreign_routers import dynamo
from servers.foreign_routers.dynamo import DynamoDeployment, Worker, worker_ids
from servers.foreign_routers.dynamo_process import write_step_times
from servers.processes.server import last_error
from servers.profiles import Profile, analytic_profile
from servers.records.settings import ServerRecord
from servers.records.turns import TurnRecord
from tests.harness import in_process
from tests.sentences import mentions
from traces import Program, Turn

PLAIN = replace(
    analytic_profile("a100-80g", "llama-3.1-8b", kv_blocks=10_000, block_tokens=16),
    base_ps=2 * 10**9,
    weights_ps=0,
    token_ps=10**6,
    sequence_ps=0,
    context_ps=10**4,
    graph_tokens=0,
    pair_ps=10,
)
"""2 ms per step, 1 µs per token, 10 ns per token of context, and 10 ps per pair of tokens."""
SHARED = Path("/shared")


def deployment(prefill: int = 0, others: int = 2) -> DynamoDeployment:
    return DynamoDeployment("m", PLAIN, 256, 8192, prefill, others, 300.0, ("--speedup-ratio", "2"))


def flags(command: list[str]) -> dict[str, str]:
    return dict(pairwise(command))


def test_a_worker_gets_the_memory_and_the_limits_of_our_machine() -> None:
    worker = Worker("worker-0", "backend", 5000, None)
    command = dynamo.worker_command("python", deployment(), worker, "kv", SHARED)
    assert command[:3] == ["python", "-m", "dynamo.mocker"]
    given = flags(command)
    assert (given["--num-gpu-blocks-override"], given["--block-size"]) == ("10000", "16")
    assert (given["--max-num-seqs"], given["--max-num-batched-tokens"]) == ("256", "8192")
    assert given["--max-model-len"] == "131072"
    assert (given["--model-name"], given["--disaggregation-mode"]) == ("m", "agg")
    assert given["--planner-profile-data"] == "/shared/step-times.npz"
    assert "--kv-transfer-bandwidth" not in given
    assert command[-2:] == ["--speedup-ratio", "2"]


def test_prefill_workers_offer_the_kv_that_decode_workers_fetch() -> None:
    both = deployment(prefill=1, others=2)
    assert both.names() == ["prefill-0", "decode-0", "decode-1"]
    prefill, decode = (
        flags(dynamo.worker_command("python", both, worker, "kv", SHARED))
        for worker in (Worker("prefill-0", "prefill", 1, 7), Worker("decode-0", "backend", 2, None))
    )
    assert (prefill["--disaggregation-mode"], decode["--disaggregation-mode"]) == (
        "prefill", "decode",
    )  # fmt: skip
    assert (prefill["--bootstrap-ports"], "--bootstrap-ports" in decode) == ("7", False)
    assert prefill["--kv-transfer-bandwidth"] == decode["--kv-transfer-bandwidth"] == "300.0"
    assert prefill["--planner-profile-data"] == "/shared/prefill-times.npz"


def test_thunderagent_stands_between_the_frontend_and_the_workers() -> None:
    """It serves the model of clients, and the workers serve it under another name."""
    worker = Worker("worker-0", "backend", 5000, None)
    workers = flags(dynamo.worker_command("python", deployment(), worker, "thunderagent", SHARED))
    router = flags(dynamo.thunderagent_command("python", deployment(), SHARED))
    frontend = flags(dynamo.frontend_command("python", deployment(), "thunderagent", 8000))
    assert (router["--model-name"], workers["--model-name"]) == ("m", "m-workers")
    assert workers["--endpoint"] == f"dyn://{router['--endpoint']}"
    assert router["--router-block-size"] == "16"
    assert frontend["--router-mode"] == "round-robin"
    kv = flags(dynamo.frontend_command("python", deployment(), "kv", 8000))
    assert (kv["--router-mode"], kv["--router-min-initial-workers"]) == ("kv", "2")


def test_variables_of_the_user_do_not_change_the_routers() -> None:
    inherited = {
        "PATH": "/bin", "DYN_ROUTER_TEMPERATURE": "9", "ETCD_ENDPOINTS": "x", "NATS_SERVER": "x",
        "http_proxy": "http://127.0.0.1:9", "DYN_LOG": "debug", "HOME": "/home/me",
    }  # fmt: skip
    env = dynamo.environment(inherited, SHARED, 5000)
    assert not env.keys() & {"DYN_ROUTER_TEMPERATURE", "ETCD_ENDPOINTS", "NATS_SERVER"}
    assert "http_proxy" not in env
    assert (env["PATH"], env["DYN_LOG"], env["DYN_TCP_RPC_PORT"]) == ("/bin", "debug", "5000")
    assert env["HOME"] == env["TMPDIR"] == "/shared"  # nothing is left in those of the user


@pytest.mark.parametrize(
    ("flag", "option"),
    [("--num-workers", "--replicas"), ("--num-gpu-blocks-override", "--kv-blocks")],
)
def test_a_flag_that_a_setting_determines_is_refused(flag: str, option: str) -> None:
    with pytest.raises(InvalidInput, match=f"{flag}: is set by the harness; use {option} instead"):
        check_flags(["--speedup-ratio", "2", f"{flag}=9"], dynamo.REFUSED_FLAGS)


def test_workers_are_found_by_their_ports_in_what_the_frontend_reports() -> None:
    def instance(id: int, endpoint: str, port: int) -> dict[str, Any]:
        address = f"127.0.0.1:{port}/{id:x}/turnstile/backend/{endpoint}"
        return {"instance_id": id, "endpoint": endpoint, "transport": {"tcp": address}}

    workers = [Worker("worker-0", "backend", 5000, None), Worker("worker-1", "backend", 5001, None)]
    reported = [
        instance(77, "generate", 5001),
        instance(77, "worker_kv_query", 5001),
        instance(88, "generate", 9),
    ]
    assert worker_ids({"instances": reported}, workers) == {77: 1}
    assert worker_ids({}, workers) == {}


def test_the_cause_of_a_failure_is_the_last_error_of_the_log() -> None:
    lines = [
        "2026-11-24T06:18:43.354625Z  INFO dynamo_llm: ready",
        "ModuleNotFoundError: No module named 'numpy'",
        "2026-11-24T06:18:44.000000Z  INFO dynamo_llm: bye",
    ]
    assert (
        last_error(lines, dynamo.ERROR, dynamo.PREFIX)
        == "ModuleNotFoundError: No module named 'numpy'"
    )
    assert last_error(lines[:1], dynamo.ERROR, dynamo.PREFIX) == "ready"
    assert last_error([], dynamo.ERROR, dynamo.PREFIX) == "its log has no message"


def tables(profile: Profile, folder: Path, *, prefill_only: bool) -> dict[str, Any]:
    path = folder / "steps.npz"
    write_step_times(profile, path, prefill_only=prefill_only)
    return dict(np.load(path))


def test_a_prefill_takes_the_fixed_time_only_where_no_decode_has_it(tmp_path: Path) -> None:
    """1 token: 1 µs and one pair. 131,072 tokens: 131 ms, and 8.6e9 pairs of 10 ps."""
    both, alone = (tables(PLAIN, tmp_path, prefill_only=only) for only in (False, True))
    assert both["prefill_isl"][[0, -1]].tolist() == [1, 131072]
    pairs_ms = 131072 * 131073 / 2 * 1e-8
    assert both["prefill_ttft_ms"][-1] == pytest.approx(131.072 - 0.001 + pairs_ms, rel=1e-6)
    assert alone["prefill_ttft_ms"][-1] == pytest.approx(2 + 131.072 + pairs_ms, rel=1e-6)
    assert alone["prefill_ttft_ms"][0] == pytest.approx(2.001, rel=1e-4)


def test_a_decode_step_takes_the_time_of_its_turns_and_their_context(tmp_path: Path) -> None:
    """160,000 tokens of context take 1.6 ms, however many turns share them; n turns take n µs."""
    table = tables(PLAIN, tmp_path, prefill_only=False)
    total, means = table["decode_active_kv_tokens"][-1], table["decode_context_length"]
    assert total == 160_000
    turns = np.maximum(1, total / means)
    assert table["decode_itl"][-1] == pytest.approx(2 + 0.001 * turns + 1.6, rel=1e-6)


def test_a_request_asks_dynamo_for_token_ids_and_worker_but_not_in_fields_of_vllm() -> None:
    turn = Turn(20, 6, 0)
    prompt = TokenPrompts(range(256), 0).conversation(Program("p", (turn,))).prompt(turn)
    body = completion_body("m", prompt, turn, "p", 0, True, is_dynamo=True).decode()
    assert '"completion_token_ids","worker_id"' in body
    assert '"max_tokens":6,"min_tokens":6,"ignore_eos":true' in body
    assert "vllm_xargs" not in body
    assert "return_token_ids" not in body


def answered(*nvext: str) -> PartialAnswer:
    answer = PartialAnswer(0.0)
    for each in nvext:
        event = '{"choices":[{"text":"","index":0}],"nvext":' + each + "}"
        answer.take(f"data: {event}\n\n".encode(), 1.0)
    return answer


def record() -> TurnRecord:
    return TurnRecord(
        program_id="p", turn=0, job_id="p", scheduled_at_s=0.0, sent_at_s=0.0, prompt_tokens=40
    )


def test_an_answer_names_its_worker_and_the_share_of_the_prompt_that_was_cached() -> None:
    """A third of 3 blocks of 16 tokens is 1 block. The decode worker itself caches nothing."""
    answer = answered(
        '{"completion_token_ids":[5],"worker_id":{"prefill_worker_id":8,"decode_worker_id":9}}',
        '{"completion_token_ids":[6],"timing":{"kv_hit_rate":0.3333}}',
    )
    assert answer.ids == [5, 6]
    turn = record()
    Frontend({9: 1}, disaggregated=True, block_tokens=16).complete(turn, answer.nvext)
    assert (turn.replica, turn.held_s, turn.device_hit_tokens) == (1, 0.0, 16)


def test_behind_thunderagent_the_worker_is_the_one_that_it_chose() -> None:
    program = '{"thunderagent":{"assigned_worker_hint":9,"waited_seconds":1.5}}'
    answer = answered('{"worker_id":{"decode_worker_id":3},"engine_data":' + program + "}")
    turn = record()
    Frontend({9: 0}).complete(turn, answer.nvext)
    assert (turn.replica, turn.held_s) == (0, 1.5)


@pytest.mark.parametrize(
    "nvext", ['{"worker_id":[]}', '{"worker_id":{"decode_worker_id":"9"}}', '{"engine_data":7}']
)
def test_an_answer_without_a_known_worker_has_no_replica(nvext: str) -> None:
    turn = record()
    Frontend({9: 0}).complete(turn, answered(nvext).nvext)
    assert turn.replica is UNSET


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--policies continuum", "schedule as stock vLLM does, and run no other policy; use fcfs"),
        ("--router dynamo:fastest", "dynamo is offered with other policies: dynamo:kv, dynamo:thu"),
        ("--router sticky", "--router sticky: --engine dynamo-mocker runs the routers of Dynamo"),
        ("--router vllm-router:round_robin", "runs the routers of Dynamo only: dynamo:kv, "),
        ("--disaggregate 1D1P", "write the numbers of prefill and of decode engines, both at"),
        ("--disaggregate 0P1D", "write the numbers of prefill and of decode engines"),
        ("--disaggregate 1P1D --replicas 2", "--disaggregate 1P1D says how many engines there are"),
        ("--disaggregate 1P1D --router dynamo:thunderagent", "sends turns to one kind of workers"),
        ("--prompts text", "--prompts: not supported by --engine dynamo-mocker; remove it"),
        ("--model gemma-3-27b", "has layers with a sliding window, chunks or a state, which"),
        ("--long-prefill 512", "whose scheduler is not vLLM's and has no such setting; remove it"),
        ("--admission first-chunk", "whose workers have a rule of their own; remove it"),
        ("--agent mini-swe-agent", "only replays traces; remove --agent mini-swe-agent"),
        ("-- --num-workers 3", "--num-workers: is set by the harness; use --replicas instead"),
    ],
)
def test_what_dynamo_cannot_run_is_refused_with_the_remedy(
    options: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_DYNAMO_PYTHON", substitute(tmp_path))
    out = str(tmp_path / "run")
    code, _, stderr = in_process.bench(
        *("sweep", "--engine", "dynamo-mocker", "--jps", "1", "--out", out), *options.split()
    )
    assert code == 2, stderr
    assert len(stderr.splitlines()) == 1
    assert message in stderr
    assert not (tmp_path / "run").exists()


def test_dynamo_that_is_not_installed_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python of these tests has no Dynamo."""
    monkeypatch.setenv("TURNSTILE_DYNAMO_PYTHON", sys.executable)
    out = str(tmp_path / "run")
    code, _, stderr = in_process.bench(
        "sweep", "--engine", "dynamo-mocker", "--jps", "1", "--out", out
    )
    assert code == 2
    assert f"ai-dynamo is not installed in {sys.executable}; install it with: make routers" in (
        stderr
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("engine", ["sim", "vllm"])
def test_other_engines_name_the_one_that_has_dynamos_routers(engine: str) -> None:
    options = f"--engine {engine} --policies fcfs --replicas 2 --router dynamo:kv --jps 1"
    code, _, stderr = in_process.bench("sweep", *options.split())
    assert code == 2
    if "vLLM" not in stderr:  # which is not installed everywhere
        assert mentions(stderr, "--router dynamo:kv", "--engine dynamo-mocker")


def test_a_run_records_versions_workers_and_bandwidth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPUs of an A100-80 are linked with 300 GB/s."""
    monkeypatch.setenv("TURNSTILE_DYNAMO_PYTHON", substitute(tmp_path))
    server = Server(disaggregate="2P6D", router="dynamo:kv,dynamo:round-robin")
    settings = SweepSettings(machine=Machine(engine="dynamo-mocker", kv_blocks=400), server=server)
    chosen, engine, left_out = resolve_engine(settings)
    assert [each.name for each in chosen] == ["fcfs@dynamo:kv", "fcfs@dynamo:round-robin"]
    assert left_out == ()
    workers = "8 (2 for prefill, 6 for decode)", "llama-3.1-8b on a100-80g", "6,400 KV"
    assert mentions(engine.describe(), "engine dynamo-mocker", "Dynamo 9.8.7", *workers)
    cell = engine.settings(chosen[0])
    assert (cell.engine, cell.gpus, cell.profile.kv_blocks) == ("dynamo-mocker", 8, 400)
    assert cell.server == ServerRecord(
        dynamo="9.8.7", replicas=6, disaggregate="2P6D", kv_gb_per_s=300.0, turn_timeout_s=3600.0
    )
    assert chosen[0].router is not None
    assert chosen[0].router.version == "9.8.7"


def substitute(folder: Path) -> str:
    """Return a Python in which version 9.8.7 seems to be installed."""
    path = folder / "python"
    path.write_text("#!/bin/sh\necho 9.8.7\n")
    path.chmod(0o755)
    return str(path)
