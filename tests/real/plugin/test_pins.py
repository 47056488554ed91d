"""Pins keep the right blocks and release all of them.

The tests run single steps, with a model that samples immediately and a clock that they set.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from servers.basics.clock import PS_PER_S
from servers.policies.base import Costs, Pin, Policy, Request, Retention, pin
from servers.policies.continuum_preview import ContinuumPreview
from servers.variants import make_policy, variant
from servers.vllm.virtual_time.stepping import build_plugged, compute, free_blocks, request, step
from tests.lines import read_lines

EXPENSIVE = Costs(prefill_s=float)
BLOCKS = 1000
LENGTHS = [(66, 7), (131, 9), (279, 12), (397, 8), (503, 7)]
"""Prompt and output tokens of each turn in the table of the execution note (§4.2). The last sampled
token has no KV, so 72, 139, 290 and 404 tokens stay pinned through the tool gaps."""


class Hold(Policy):
    name = "hold"
    ttl_s = 10.0

    def __init__(self) -> None:
        super().__init__(EXPENSIVE)
        self.calls: list[tuple[str, str, int]] = []

    def finished(self, request: Request, now_s: float) -> Retention:
        self.calls.append(("finished", request.program_id, request.output_tokens))
        return pin(self.ttl_s)

    def aborted(self, request: Request, now_s: float) -> None:
        self.calls.append(("aborted", request.program_id, request.output_tokens))

    def program_ended(self, program_id: str, now_s: float) -> None:
        self.calls.append(("ended", program_id, 0))


class Server:
    """The plug-in, which the tests run step by step."""

    def __init__(self, policy: Policy, blocks: int = BLOCKS, events: Path | None = None) -> None:
        self.policy = policy
        self.vllm: Any = build_plugged(policy, events, blocks, 16, 8192)
        self.now_s = 100.0
        self.vllm.clock_ps = lambda: round(self.now_s * PS_PER_S)
        self.vllm.wall_clock_s = lambda: self.now_s
        self.blocks = blocks
        self.context: dict[str, list[int]] = {}
        self._keys = itertools.count()
        self._new_tokens = itertools.count(10)

    def send(self, program: str | None, prompt: int, output: int, **xargs: Any) -> Any:
        """Send a turn whose prompt begins with the program's context."""
        context = self.context.get(program or "", [])[:prompt]
        tokens = context + list(itertools.islice(self._new_tokens, prompt - len(context)))
        if program is not None:
            xargs["program_id"] = program
        sent = request(f"r{next(self._keys)}", tokens, output, self.now_s, **xargs)
        self.vllm.add_request(sent)
        self.context[program or ""] = tokens + [7] * output
        return sent

    def drain(self) -> None:
        while self.vllm.has_unfinished_requests():
            step(self.vllm)
            self.now_s += 0.01

    def idle_step(self) -> None:
        step(self.vllm)

    @property
    def held(self) -> int:
        return self.blocks - free_blocks(self.vllm)

    @property
    def pinned(self) -> int:
        return len(self.vllm.runner.pins)


@pytest.mark.parametrize(
    ("policy", "blocks"), [(Hold(), [4, 8, 18, 25]), (ContinuumPreview(EXPENSIVE), [5, 9, 19, 26])]
)
def test_the_table_of_the_execution_note_holds_to_the_block(
    policy: Policy, blocks: list[int]
) -> None:
    server = Server(policy)
    held = []
    for prompt, output in LENGTHS[:-1]:
        server.send("job", prompt, output, is_last=0, tools="ls")
        server.drain()
        held.append(server.held)
        server.now_s += 1.0
        server.idle_step()
        assert server.held == held[-1], "still held at the end of the gap"
    server.send("job", *LENGTHS[-1], is_last=1, tools="")
    server.drain()
    assert held == blocks
    assert server.held == 0


def test_a_pin_ends_when_its_ttl_expires() -> None:
    server = Server(Hold())
    server.send("a", 66, 7, is_last=0)
    server.drain()
    pinned_at_s = server.now_s - 0.01
    server.now_s = pinned_at_s + 9.99
    server.idle_step()
    assert server.held == 4
    server.now_s = pinned_at_s + 10.02
    server.idle_step()
    assert (server.held, server.pinned) == (0, 0)


def test_a_pin_does_not_expire_while_its_next_turn_waits() -> None:
    server = Server(Hold())
    server.send("a", 66, 7, is_last=0)
    server.drain()
    server.vllm.max_num_running_reqs = server.vllm.max_num_active_reqs = 0
    server.send("a", 100, 7, is_last=1)
    server.now_s += 1000
    server.idle_step()
    assert server.pinned == 1
    server.vllm.max_num_running_reqs = server.vllm.max_num_active_reqs = 16
    server.drain()
    assert (server.held, server.pinned) == (0, 0)


def test_the_next_turn_hits_the_pinned_blocks_and_reports_it() -> None:
    server = Server(Hold())
    server.send("a", 66, 7, is_last=0)
    server.drain()
    server.send("a", 100, 1, is_last=1)
    output = server.vllm.schedule()
    assert sum(output.num_scheduled_tokens.values()) == 100 - 64
    assert server.pinned == 0


def test_a_side_request_leaves_the_pin_of_its_program_to_the_turn_that_continues_it() -> None:
    policy = Hold()
    server = Server(policy)
    server.send("a", 66, 7)
    server.drain()
    conversation = server.context.pop("a")
    server.send("a", 40, 3)  # a title: 42 tokens with KV are 2 full blocks
    server.drain()
    assert (server.pinned, server.held) == (2, 4 + 2)
    server.context["a"] = conversation
    server.send("a", 100, 1)
    output = server.vllm.schedule()
    assert sum(output.num_scheduled_tokens.values()) == 100 - 64
    assert (server.pinned, [name for _, name, _ in policy.calls]) == (1, ["a", "a#2"])


@pytest.mark.parametrize("named", [{"program_id": "a"}, {}])
def test_a_client_that_names_the_program_of_another_takes_its_pin_but_reads_no_kv(
    named: dict[str, str],
) -> None:
    server = Server(Hold())
    server.send("a", 66, 7, is_last=0)
    server.drain()
    assert (server.pinned, server.held) == (1, 4)
    other = request("other", list(range(500, 540)), 3, server.now_s, is_last=0, **named)
    other.session_id = None if named else "a"  # as vLLM sets it from a header or the body
    server.vllm.add_request(other)
    output = server.vllm.schedule()
    assert sum(output.num_scheduled_tokens.values()) == 40
    assert server.pinned == 0
    compute(server.vllm, output, lambda _: 7)
    server.drain()
    assert (server.pinned, server.held) == (1, 2)
    server.send(None, 16, 1, ended="a")
    assert server.pinned == 0


def test_warm_up_turns_reach_neither_the_policy_nor_the_events(
    tmp_path: Path,
) -> None:
    policy = Hold()
    server = Server(policy, events=tmp_path / "e.jsonl")
    for _ in range(20):  # more than can run at once, so that some wait
        server.send(None, 40, 3, warm_up=1)
    server.drain()
    assert (policy.calls, server.held, server.pinned) == ([], 0, 0)
    server.send("a", 66, 7, is_last=0)
    server.drain()
    assert policy.calls == [("finished", "a", 7)]
    events = read_lines(tmp_path / "e.jsonl")
    assert {event["program_id"] for event in events} == {"a"}


def test_a_notice_that_a_program_ended_releases_its_pin_and_is_no_turn(tmp_path: Path) -> None:
    policy = Hold()
    server = Server(policy, events=tmp_path / "e.jsonl")
    for name in ("a", "b"):
        server.send(name, 66, 7, is_last=0)
    server.drain()
    assert server.pinned == 2
    server.send(None, 1, 1, ended="a")
    server.drain()
    assert server.pinned == 1
    assert policy.calls == [("finished", "a", 7), ("finished", "b", 7), ("ended", "a", 0)]
    last = json.loads((tmp_path / "e.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["program_id"], last["reason"]) == ("unpinned", "a", "ended")


@pytest.mark.parametrize("name", ["autellix", "infercept", "continuum", "context-serve"])
def test_under_every_policy_warm_up_turns_may_exceed_the_memory(name: str) -> None:
    server = Server(make_policy(variant(name), EXPENSIVE), blocks=12)
    for _ in range(20):
        server.send(None, 60, 3, warm_up=1)
    server.drain()
    server.send("a", 66, 7, is_last=1)
    server.drain()
    assert (server.held, server.pinned) == (0, 0)


def test_an_abort_leaves_no_pin_wherever_the_turn_is() -> None:
    server = Server(Hold())
    server.vllm.max_num_running_reqs = server.vllm.max_num_active_reqs = 1
    running, waiting = server.send("a", 66, 50), server.send("b", 66, 50)
    step(server.vllm)
    step(server.vllm)
    keys = [running.request_id, waiting.request_id, "unknown"]
    server.vllm.finish_requests(keys, RequestStatus.FINISHED_ABORTED)
    assert (server.held, server.pinned) == (0, 0)
    assert sorted(server.policy.calls) == [("aborted", "a", 2), ("aborted", "b", 0)]
    assert not server.vllm.waiting
    assert not server.vllm.runner.queued


def test_after_an_aborted_turn_the_pin_of_the_previous_turn_lasts_for_its_ttl() -> None:
    server = Server(Hold())
    server.send("a", 66, 7, is_last=0)
    server.drain()
    server.vllm.max_num_running_reqs = server.vllm.max_num_active_reqs = 0
    waiting = server.send("a", 100, 7, is_last=0)
    server.vllm.finish_requests(waiting.request_id, RequestStatus.FINISHED_ABORTED)
    server.idle_step()
    assert server.held == 4
    server.now_s += 11
    server.idle_step()
    assert server.held == 0


def test_each_turn_without_a_program_id_is_a_separate_program_without_pins() -> None:
    server = Server(Hold())
    first, second = server.send(None, 66, 7), server.send(None, 66, 7)
    views = [server.vllm.turns[r.request_id].view for r in (first, second)]
    assert views[0].program_id != views[1].program_id
    server.drain()
    assert (server.held, server.pinned) == (0, 0)
    assert ("ended", views[0].program_id, 0) in server.policy.calls


def test_the_session_of_a_request_is_its_program_unless_it_names_one() -> None:
    server = Server(Hold())
    for session, xargs, program in (
        ("s", {}, "s"),
        ("s", {"program_id": "a"}, "a"),
        (None, {"program_id": "a"}, "a"),
        ("", {}, "turn 4"),
    ):
        sent = request(f"{session} {program}", [1, 2, 3], 3, server.now_s, **xargs)
        sent.session_id = session
        server.vllm.add_request(sent)
        assert server.vllm.turns[sent.request_id].view.program_id == program
    server.drain()


def test_concurrent_turns_of_one_program_leave_one_pin_and_leak_nothing() -> None:
    server = Server(Hold())
    for _ in range(3):
        server.context.clear()
        server.send("a", 66, 7, is_last=0)
    server.drain()
    assert server.pinned == 1
    assert server.held == 4
    server.send("a", 80, 7, is_last=1)
    server.drain()
    assert (server.held, server.pinned) == (0, 0)


@pytest.mark.parametrize(
    "xargs",
    [
        {"program_id": 17, "is_last": "no", "tools": ["ls"], "turn": "x"},
        {"program_id": "", "is_last": 7},
        {"program_id": 1.5, "turn": -3, "tools": ", ,"},
        {"program_id": "a", "is_last": True, "turn": "2"},
    ],
)
def test_invalid_metadata_is_ignored(xargs: dict[str, Any]) -> None:
    server = Server(Hold())
    server.vllm.add_request(request("odd", [1, 2, 3], 3, server.now_s, **xargs))
    server.drain()
    server.now_s += 100
    server.idle_step()
    assert (server.held, server.pinned) == (0, 0)


def test_a_stuck_head_of_the_queue_releases_the_oldest_pins_first() -> None:
    server = Server(Hold(), blocks=20)
    server.policy.ttl_s = math.inf
    for name in ("old", "mid", "new"):
        server.send(name, 66, 7, is_last=0)
        server.drain()
    assert server.held == 12
    server.send("big", 12 * 16, 1, is_last=1)  # 12 blocks, and 8 are free
    server.drain()
    assert [active.pin.program_id for active in server.vllm.runner.pins] == ["mid", "new"]
    assert server.held == 8


class Worst(Hold):
    """Preempts the longest prompt."""

    def victim(self, running: Any, now_s: float) -> Request:
        return max(running, key=lambda r: r.prompt_tokens)

    def finished(self, request: Request, now_s: float) -> Retention:
        return Retention()


def test_a_victim_preempted_within_a_step_leaves_no_hash_of_uncomputed_blocks() -> None:
    server = Server(Worst(), blocks=10)
    long = server.send("long", 95, 40)
    server.send("short", 31, 40)
    pool = server.vllm.kv_cache_manager.block_pool
    while not long.num_preemptions:
        step(server.vllm)
    # 96 tokens are in blocks when the seventh block is needed; 6 blocks are full and computed.
    hits = [pool.get_cached_block(h, [0]) for h in long.block_hashes]
    computed = [hit is not None for hit in hits]
    assert computed == sorted(computed, reverse=True)
    server.drain()
    assert server.held == 0


def test_resetting_the_prefix_cache_releases_pins_first() -> None:
    server = Server(Hold())
    server.send("a", 66, 7, is_last=0)
    server.drain()
    assert server.vllm.reset_prefix_cache()
    assert (server.held, server.pinned) == (0, 0)


def test_a_turn_stopped_by_a_stop_string_of_the_front_end_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(Hold())
    text = "```bash\ncd x && pytest -q\n```\nSTOP"
    tokenizer = SimpleNamespace(decode=lambda _, **_options: text)
    manager = server.vllm.structured_output_manager
    monkeypatch.setattr(manager, "tokenizer", tokenizer, raising=False)
    sent = server.send("a", 66, 50)
    sent.sampling_params.stop = ["STOP"]
    for _ in range(7):
        step(server.vllm)
    view = server.vllm.turns[sent.request_id].view
    server.vllm.finish_requests(sent.request_id, RequestStatus.FINISHED_ABORTED)
    assert server.policy.calls == [("finished", "a", 7)]
    assert view.tools == ("cd", "pytest")
    assert server.held == 4


def test_events_have_their_documented_names_and_order(tmp_path: Path) -> None:
    log = tmp_path / "engine.jsonl"
    server = Server(Hold(), events=log)
    server.send("a", 66, 7, is_last=0, turn=5)
    server.drain()
    server.send("a", 80, 2, is_last=1, turn=6)
    server.drain()
    server.vllm.shutdown()
    lines = read_lines(log)
    assert [(e["event"], e["turn"]) for e in lines] == [
        ("arrival", 5),
        ("waiting_to_running", 5),
        ("finished", 5),
        ("pinned", 5),
        ("arrival", 6),
        ("waiting_to_running", 6),
        ("unpinned", 5),
        ("finished", 6),
    ]
    admitted, pinned, unpinned = lines[5], lines[3], lines[6]
    assert (admitted["prompt_length"], admitted["hit_length"]) == (80, 64)
    assert (pinned["ttl_s"], pinned["blocks"], pinned["why"]) == (10.0, 4, {})
    assert unpinned["reason"] == "reused"
    assert lines[0]["t"] == 100.0


def test_at_debug_level_each_event_is_a_line_of_the_log_with_its_inputs(
    log: list[logging.LogRecord], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "vllm.turnstile")
    server = Server(Hold())
    server.send("a", 66, 7, is_last=0, turn=5)
    server.drain()
    assert [line.getMessage() for line in log] == [
        "hold: a turn 5: arrival {}",
        "hold: a turn 5: waiting_to_running {'prompt_length': 66, 'hit_length': 0}",
        "hold: a turn 5: finished {}",
        "hold: a turn 5: pinned {'ttl_s': 10.0, 'blocks': 4, 'why': {}}",
    ]


def test_arrival_times_are_converted_to_the_policys_clock() -> None:
    """vLLM's arrival times are wall-clock times; 2 s ago stays 2 s ago on the other clock."""
    server = Server(Hold())
    server.vllm.wall_clock_s = lambda: 5000.0
    server.vllm.add_request(request("r", [1, 2, 3], 3, 4998.0, program_id="a"))
    view = server.vllm.turns["r"].view
    assert (view.arrival_s, view.program_arrival_s) == (98.0, 98.0)


def test_the_policy_gets_pins_from_the_oldest_to_the_newest() -> None:
    seen: list[list[str]] = []

    class Recording(Hold):
        def reclaim(self, pins: Any, request: Any, now_s: float) -> Any:
            held: list[Pin] = list(pins)
            seen.append([p.program_id for p in held])
            return reversed(held)

    server = Server(Recording(), blocks=12)
    server.policy.ttl_s = math.inf
    for name in ("a", "b"):
        server.send(name, 66, 7, is_last=0)
        server.drain()
    server.send("c", 8 * 16, 1, is_last=1)
    server.drain()
    assert seen == [["a", "b"]]
    assert server.held == 4
