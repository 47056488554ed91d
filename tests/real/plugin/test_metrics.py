"""The metrics of the plug-in equal what its scheduler did. A block holds 16 tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from vllm.v1.request import RequestStatus

from servers.vllm.plugin import metrics
from servers.vllm.virtual_time.stepping import step
from tests.lines import read_lines
from tests.real.plugin.test_holding import Answers, Displaces
from tests.real.plugin.test_pins import Hold, Server

Value = Callable[..., float | None]


@pytest.fixture
def value(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Value:
    """Return a function for the value of a metric of `metered` servers of this test."""
    name = request.node.name
    monkeypatch.setattr(metrics, "UPDATE_S", 0.0)

    def value(metric: str, **labels: str) -> float | None:
        labels = {"model_name": name, "engine": "0", **labels}
        return REGISTRY.get_sample_value(f"turnstile:{metric}", labels)

    return value


def metered(server: Server, request: pytest.FixtureRequest) -> Server:
    vllm = server.vllm
    vllm._metrics = metrics.Metrics(
        vllm.runner, vllm.guard, server.blocks, model_name=request.node.name, engine=0
    )
    return server


def test_pins_and_their_ends_are_counted_as_in_the_events(
    value: Value, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    events = tmp_path / "engine.jsonl"
    server = metered(Server(Hold(), 40, events), request)
    for program, prompts in (("reused", (66, 131)), ("expired", (66,)), ("pressure", (279,))):
        for prompt in prompts:
            server.send(program, prompt, 9, is_last=0)
            server.drain()
        server.now_s += 4.0
    assert value("pinned_total") == 4
    server.vllm.make_stats()
    assert (value("pins"), value("pinned_kv_blocks")) == (server.pinned, server.held)
    server.send("large", 35 * 16, 1, is_last=1)
    server.drain()
    server.vllm.runner.end_program("reused")
    server.vllm.shutdown()
    written = read_lines(events)
    ends = Counter(event["reason"] for event in written if event["event"] == "unpinned")
    assert {"reused", "expired", "pressure"} <= ends.keys()
    assert value("pinned_total") == sum(event["event"] == "pinned" for event in written)
    for reason in ("reused", "expired", "pressure", "review", "replaced", "ended", "reset"):
        assert value("unpinned_total", reason=reason) == ends[reason]


@pytest.mark.parametrize("policy", [Answers(held="stop"), Displaces(held="skip")])
def test_a_step_counts_once_if_the_policy_admits_none_of_the_waiting_turns(
    policy: Answers, value: Value, request: pytest.FixtureRequest
) -> None:
    server = metered(Server(policy), request)
    server.send("first", 16, 50)
    step(server.vllm)
    server.send("held", 16, 5)
    for steps in (1, 2):
        step(server.vllm)
        assert value("held_back_steps_total") == steps
    policy.answers = {"last": "skip"}
    server.send("last", 16, 5)
    step(server.vllm)
    assert value("held_back_steps_total") == 2, "held was admitted before last was held back"


def test_failures_of_each_method_of_the_policy_begin_at_zero(
    value: Value, request: pytest.FixtureRequest
) -> None:
    class Fails(Hold):
        def aborted(self, *_: object) -> None:
            raise RuntimeError

    server = metered(Server(Fails()), request)
    assert value("policy_failures_total", method="aborted") == 0
    assert value("policy_failures_total", method="finished") == 0
    assert value("policy_failures_total", method="admit") is None, "Hold does not override it"
    sent = server.send("a", 66, 9)
    step(server.vllm)
    server.vllm.finish_requests(sent.request_id, RequestStatus.FINISHED_ABORTED)
    server.vllm.make_stats()
    assert value("policy_failures_total", method="aborted") == 1


def test_the_time_of_a_program_is_counted_once_it_has_ended(
    value: Value, request: pytest.FixtureRequest
) -> None:
    server = metered(Server(Hold()), request)
    began_s = server.now_s
    server.send("marked", 66, 1, is_last=0)
    server.drain()
    server.now_s += 4.0
    assert value("program_seconds_count") == 0
    sent = server.send("marked", 131, 1, is_last=1)
    while sent.request_id in server.vllm.requests:
        took_s = server.now_s - began_s
        step(server.vllm)
    assert value("program_seconds_count") == 1
    assert value("program_seconds_sum") == pytest.approx(took_s)
    # Its time ends with its last turn, not with the report of its end: three steps, each 0.01 s
    # after the other.
    server.send("reported", 66, 3)
    server.drain()
    server.now_s += 60.0
    server.vllm.runner.end_program("reported")
    assert value("program_seconds_count") == 2
    assert value("program_seconds_sum") == pytest.approx(took_s + 0.02)
    # A request without an id, and too short to be known by its prompt, is no program.
    server.send(None, 20, 1)
    server.drain()
    assert value("program_seconds_count") == 2
