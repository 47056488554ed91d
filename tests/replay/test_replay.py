"""Replays in virtual time: gaps, sub-agents and arrival order."""

from __future__ import annotations

from functools import partial

import pytest

from harness.replay.virtual import replay
from servers.policies.base import Costs, Policy, Request
from servers.policies.program_fcfs import ProgramFcfs
from servers.sim import Engine, Limits
from tests.lines import into
from tests.sim.worlds import profile
from traces import Fork, Program, Turn


class DefaultPolicy(Policy):
    name = "stock"


class Forger(Policy):
    """A policy that passes the contract check but then shortens prompts."""

    name = "forger"

    def arrived(self, request: Request, now_s: float) -> None:
        request.prompt_tokens = 1


def lines(
    policy: type[Policy],
    programs: list[Program],
    limits: Limits | None = None,
    **times_ps: int,
) -> list[dict[str, object]]:
    turns: list[dict[str, object]] = []
    starts_s = [0.001 * index for index, p in enumerate(programs) if p.fork is None]
    machine = profile(kv_blocks=1000, **times_ps)
    engine = partial(Engine, policy(Costs(prefill_s=float)), machine, limits or Limits())
    replay(programs, starts_s, None, engine, into(turns))
    return turns


def test_a_policy_that_modifies_a_request_ends_the_cell() -> None:
    with pytest.raises(ValueError, match="the policy changed a request of p;"):
        lines(Forger, [Program("p", (Turn(100, 5),))])


def test_a_turn_is_sent_one_gap_after_the_previous_turn() -> None:
    turns = lines(DefaultPolicy, [Program("p", (Turn(100, 5, tool_gap_s=2.5), Turn(150, 5, 105)))])
    first, second = turns
    assert second["sent_at_s"] == pytest.approx(float(str(first["finished_at_s"])) + 2.5)
    assert (second["gap_s"], second["wait_s"], second["device_hit_tokens"]) == (2.5, 0.0, 96)


def test_a_parent_waits_only_for_the_sub_agents_that_join() -> None:
    parent = Program("p", (Turn(100, 5, tool_gap_s=1.0), Turn(150, 5, 105)))
    joined = Program("p/a", (Turn(50, 400),), fork=Fork("p", 0, 0.5, joined_before_turn=1))
    not_joined = Program("p/b", (Turn(50, 4000),), fork=Fork("p", 0, 0.0))
    turns = lines(DefaultPolicy, [parent, joined, not_joined])
    by_name = {(t["program_id"], t["turn"]): t for t in turns}
    start, end = by_name["p", 0], by_name["p", 1]
    agent, other = by_name["p/a", 0], by_name["p/b", 0]
    assert agent["sent_at_s"] == pytest.approx(float(str(start["finished_at_s"])) + 0.5)
    assert end["sent_at_s"] == pytest.approx(float(str(agent["finished_at_s"])) + 1.0)
    assert float(str(other["finished_at_s"])) > float(str(end["finished_at_s"]))
    assert end["wait_s"] == pytest.approx(
        float(str(agent["finished_at_s"])) - float(str(start["finished_at_s"]))
    )
    assert {t["job_id"] for t in turns} == {"p"}


def test_request_overhead_delays_the_next_turn_even_without_a_gap() -> None:
    """The engine runs one turn at a time; in program order p's second turn precedes q's first."""
    programs = [
        Program("p", (Turn(100, 5, tool_gap_s=0.0), Turn(150, 5, 105))),
        Program("q", (Turn(100, 5),)),
    ]
    single = Limits(max_num_seqs=1)
    at_once = lines(ProgramFcfs, programs, single)
    assert [t["program_id"] for t in at_once] == ["p", "p", "q"]
    later = lines(ProgramFcfs, programs, single, request_ps=3_000_000_000)
    assert [t["program_id"] for t in later] == ["p", "q", "p"]
    for turn in later:
        parts = ("queue_s", "prefill_s", "decode_s")
        total = sum(float(str(turn[part])) for part in parts)
        assert total == pytest.approx(
            float(str(turn["finished_at_s"])) - float(str(turn["sent_at_s"]))
        )
    # 3 ms of overhead, then the same times.
    assert later[0]["finished_at_s"] == pytest.approx(
        0.003 + float(str(at_once[0]["finished_at_s"]))
    )


def test_the_api_server_processes_one_prompt_after_the_other() -> None:
    """At 0.1 ms per token: the 100 tokens of p take until 10 ms, the 200 of q, sent at 1 ms, until
    30 ms, and the 10 of r, sent at 2 ms, until 31 ms."""
    programs = [Program(name, (Turn(n, 5),)) for name, n in (("p", 100), ("q", 200), ("r", 10))]
    at_once = {t["program_id"]: t for t in lines(ProgramFcfs, programs)}
    later = {t["program_id"]: t for t in lines(ProgramFcfs, programs, request_token_ps=10**8)}
    assert {name: turn["sent_at_s"] for name, turn in later.items()} == {
        name: turn["sent_at_s"] for name, turn in at_once.items()
    }
    prefill_s = 0.010 + 100 * 101 / 2 * 3e-9  # One step.
    assert later["p"]["prefill_s"] == pytest.approx(0.010 + prefill_s)
    assert later["p"]["queue_s"] == 0
    for name, in_server_s in (("p", 0.010), ("q", 0.029), ("r", 0.029)):
        turn = later[name]
        spent_s = sum(float(str(turn[part])) for part in ("queue_s", "prefill_s", "decode_s"))
        assert spent_s == pytest.approx(
            float(str(turn["finished_at_s"])) - float(str(turn["sent_at_s"]))
        )
        assert float(str(turn["prefill_s"])) > in_server_s


def test_starts_may_be_in_any_order_and_new_programs_precede_turns_due_at_the_same_time() -> None:
    """The third program starts before the second, which starts exactly when the second turn of the
    first program is due, and precedes it."""
    arrivals: list[tuple[str, int]] = []

    class RecordingPolicy(Policy):
        name = "notes"

        def arrived(self, request: Request, now_s: float) -> None:
            arrivals.append((request.program_id, request.index))

    # A first run gives the time at which the second turn is due.
    machine = profile(kv_blocks=1000)
    engine = partial(Engine, RecordingPolicy(Costs(prefill_s=float)), machine, Limits())
    turns: list[dict[str, object]] = []
    one = Program("one", (Turn(8, 2, 0, (), None, 0.5), Turn(16, 1, 10)))
    replay([one], [1.0], None, engine, into(turns))
    due_s = turns[1]["scheduled_at_s"]
    assert isinstance(due_s, float)
    arrivals.clear()
    others = [Program(name, (Turn(8, 1),)) for name in ("two", "three")]
    engine = partial(Engine, RecordingPolicy(Costs(prefill_s=float)), machine, Limits())
    replay([one, *others], [1.0, due_s, 1.25], None, engine, into(turns))
    assert arrivals == [("one", 0), ("three", 0), ("two", 0), ("one", 1)]
