"""Turns that a policy holds back inside vLLM's scheduler. A block holds 16 tokens."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from servers.policies.base import Admit, Policy, Request
from servers.vllm.virtual_time.stepping import request, step
from tests.real.plugin.test_pins import EXPENSIVE, Server


class Answers(Policy):
    """Admits a turn as `answers` says for its program. `asked` holds the programs and tokens."""

    name = "answers"

    def __init__(self, **answers: Admit) -> None:
        super().__init__(EXPENSIVE)
        self.answers = answers
        self.asked: list[tuple[str, int]] = []

    def admit(self, request: Request, free_tokens: int, now_s: float) -> Admit:
        self.asked.append((request.program_id, free_tokens))
        return self.answers.get(request.program_id, "run")


def programs(server: Server, keys: Any) -> list[str]:
    return [server.vllm.turns[key].view.program_id for key in keys]


def running(server: Server) -> list[str]:
    return programs(server, (r.request_id for r in server.vllm.running))


def waiting(server: Server) -> list[str]:
    return sorted(programs(server, (r.request_id for r in server.vllm.waiting)))


def test_a_skipped_turn_waits_while_later_ones_pass_and_runs_when_it_would_run_alone() -> None:
    server = Server(Answers(long="skip"))
    server.send("first", 16, 5)
    server.send("long", 64, 2)
    server.send("short", 16, 2)
    step(server.vllm)
    assert (running(server), waiting(server)) == (["first", "short"], ["long"])
    server.drain()
    assert [program for program, _ in server.policy.asked[:2]] == ["long", "short"]
    assert server.held == 0


def test_stop_holds_back_the_turns_behind_too_until_the_policy_answers_otherwise() -> None:
    server = Server(Answers(second="stop"))
    for program in ("first", "second", "third"):
        server.send(program, 16, 50)
    step(server.vllm)
    step(server.vllm)
    assert (running(server), waiting(server)) == (["first"], ["second", "third"])
    server.policy.answers = {}
    server.send("fourth", 16, 50)
    step(server.vllm)
    assert running(server) == ["first", "second", "third", "fourth"]


def test_a_policy_is_asked_with_the_tokens_that_no_turn_and_no_pin_holds() -> None:
    server = Server(Answers(), blocks=10)
    for program, prompt in (("a", 40), ("b", 20), ("c", 20)):  # 3, 2 and 2 blocks
        server.send(program, prompt, 20)
    step(server.vllm)
    assert server.policy.asked == [("b", 7 * 16), ("c", 5 * 16)]


def test_turns_that_are_held_back_count_as_waiting() -> None:
    server = Server(Answers(second="stop", third="skip"))
    for program in ("first", "second", "third"):
        server.send(program, 16, 3)
    for _ in range(2):
        step(server.vllm)
        assert server.vllm.get_request_counts() == (1, 2)
        assert server.vllm.get_num_unfinished_requests() == 3
        assert len(server.vllm.waiting) == 2
        assert server.vllm.waiting
    server.drain()
    assert not server.vllm.waiting


@pytest.mark.parametrize("answer", ["skip", "stop"])
def test_a_turn_that_is_held_back_can_be_aborted(answer: Admit) -> None:
    server = Server(Answers(held=answer))
    server.send("first", 16, 5)
    held = server.send("held", 16, 5)
    step(server.vllm)
    server.vllm.finish_requests(held.request_id, RequestStatus.FINISHED_ABORTED)
    assert waiting(server) == []
    server.drain()
    assert [program for program, _ in server.policy.asked] == ["held"]
    assert not server.vllm.runner.queued
    assert server.held == 0


def test_a_turn_that_vllm_skips_is_not_lost_among_those_that_are_held_back() -> None:
    """The grammar of the second turn is not ready, the third is held back, the fourth is not."""
    server = Server(Answers(third="skip"))
    server.send("first", 16, 5)
    blocked = server.send("second", 16, 5)
    blocked.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    server.send("third", 16, 5)
    server.send("fourth", 16, 5)
    step(server.vllm)
    assert (running(server), waiting(server)) == (["first", "fourth"], ["second", "third"])
    blocked.status = RequestStatus.WAITING
    step(server.vllm)
    assert running(server) == ["first", "fourth", "second"]


def test_a_warm_up_turn_is_never_held_back() -> None:
    server = Server(Answers(first="stop"))
    server.send("first", 16, 50)
    step(server.vllm)
    server.vllm.add_request(request("w", [1, 2, 3], 2, server.now_s, warm_up=1))
    step(server.vllm)
    assert len(server.vllm.running) == 2
    assert server.policy.asked == []


class Displaces(Answers):
    """Displaces running turns for any turn that it admits."""

    def displaced(self, head: Request, running: Any, now_s: float) -> Request | None:
        self.displaced_for = head.program_id
        return next((r for r in running if r.program_id == "first"), None)


def test_turns_are_displaced_only_for_the_turn_that_is_admitted_next() -> None:
    server = Server(Displaces(big="skip"), blocks=10)
    server.send("first", 6 * 16, 50)
    step(server.vllm)
    server.send("big", 8 * 16, 5)
    server.send("small", 5 * 16, 5)
    step(server.vllm)
    assert server.policy.displaced_for == "small"
    assert (running(server), waiting(server)) == (["small"], ["big", "first"])


class Declines(Answers):
    """Displaces no turn. `asked_for` are the programs for which it was asked."""

    def __init__(self, **answers: Admit) -> None:
        super().__init__(**answers)
        self.asked_for: list[str] = []

    def displaced(self, head: Request, running: Any, now_s: float) -> Request | None:
        self.asked_for.append(head.program_id)
        return None


def test_a_policy_that_declines_is_asked_again_for_another_head_or_other_running_turns() -> None:
    server = Server(Declines(), blocks=10)
    server.send("first", 6 * 16, 50)
    second = server.send("second", 16, 50)
    step(server.vllm)
    server.send("big", 8 * 16, 5)
    step(server.vllm)
    last = server.send("last", 7 * 16, 5)
    step(server.vllm)
    server.vllm.finish_requests(last.request_id, RequestStatus.FINISHED_ABORTED)
    step(server.vllm)
    assert server.policy.asked_for == ["big"]
    server.policy.answers = {"big": "skip"}
    server.send("other", 9 * 16, 5)
    step(server.vllm)
    assert server.policy.asked_for == ["big", "other"]
    server.vllm.finish_requests(second.request_id, RequestStatus.FINISHED_ABORTED)
    step(server.vllm)
    assert server.policy.asked_for == ["big", "other", "other"]


def test_a_turn_is_displaced_where_max_num_active_seqs_admits_no_other() -> None:
    server = Server(Displaces())
    server.vllm.max_num_active_reqs = 1
    server.send("first", 16, 50)
    step(server.vllm)
    server.send("second", 16, 5)
    step(server.vllm)
    assert (running(server), waiting(server)) == (["second"], ["first"])


def test_an_adaptive_cap_is_a_share_of_max_num_batched_tokens() -> None:
    """A step may compute 100 of 200 tokens, so each of two turns 99, which are 7 blocks; 5 are
    free. A share of the 100 would be 50 tokens, and 4 blocks."""
    server = Server(Displaces(), blocks=12)
    limits, server.vllm.max_num_scheduled_tokens = server.vllm.scheduler_config, 100
    limits.max_num_batched_tokens, limits.long_prefill_token_threshold = 200, 16
    limits.long_prefill_token_threshold_adaptive = True
    server.vllm.adaptive_long_prefill_threshold = True
    server.vllm.scheduler_reserve_full_isl = False
    server.send("first", 96, 50)
    step(server.vllm)
    server.send("second", 120, 5)
    step(server.vllm)
    assert (running(server), waiting(server)) == (["second"], ["first"])


def test_nothing_is_displaced_while_all_waiting_turns_are_held_back() -> None:
    server = Server(Displaces(big="stop"), blocks=10)
    server.send("first", 6 * 16, 3)
    step(server.vllm)
    server.send("big", 8 * 16, 5)
    step(server.vllm)
    assert not server.vllm.may_displace()
    assert running(server) == ["first"]
    server.drain()
    assert server.held == 0
