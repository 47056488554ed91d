"""What a replay does around an engine."""

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


class Stock(Policy):
    name = "stock"


class Forger(Policy):
    """Makes prompts short once it has passed every check."""

    name = "forger"

    def arrived(self, request: Request, now_s: float) -> None:
        request.prompt_tokens = 1


def lines(
    policy: type[Policy],
    programs: list[Program],
    limits: Limits | None = None,
    request_ps: int = 0,
) -> list[dict[str, object]]:
    turns: list[dict[str, object]] = []
    starts_s = [0.001 * place for place, p in enumerate(programs) if p.fork is None]
    machine = profile(kv_blocks=1000, request_ps=request_ps)
    engine = partial(Engine, policy(Costs(prefill_s=float)), machine, limits or Limits())
    replay(programs, starts_s, None, engine, into(turns))
    return turns


def test_a_policy_that_writes_what_it_is_shown_ends_the_cell() -> None:
    with pytest.raises(ValueError, match="the policy changed a request of p; a policy must not"):
        lines(Forger, [Program("p", (Turn(100, 5),))])


def test_a_turn_is_sent_its_gap_after_the_turn_before() -> None:
    turns = lines(Stock, [Program("p", (Turn(100, 5, tool_gap_s=2.5), Turn(150, 5, 105)))])
    first, second = turns
    assert second["sent_at_s"] == pytest.approx(float(str(first["finished_at_s"])) + 2.5)
    assert (second["gap_s"], second["wait_s"], second["device_hit_tokens"]) == (2.5, 0.0, 96)


def test_a_parent_waits_for_the_sub_agents_that_join_and_for_no_others() -> None:
    parent = Program("p", (Turn(100, 5, tool_gap_s=1.0), Turn(150, 5, 105)))
    joined = Program("p/a", (Turn(50, 400),), fork=Fork("p", 0, 0.5, joined_before_turn=1))
    left_alone = Program("p/b", (Turn(50, 4000),), fork=Fork("p", 0, 0.0))
    turns = lines(Stock, [parent, joined, left_alone])
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


def test_a_client_is_too_slow_for_the_step_after_its_last_token_however_short_the_gap() -> None:
    """One turn at a time; p's second would be before q's first in program order."""
    programs = [
        Program("p", (Turn(100, 5, tool_gap_s=0.0), Turn(150, 5, 105))),
        Program("q", (Turn(100, 5),)),
    ]
    one = Limits(max_num_seqs=1)
    at_once = lines(ProgramFcfs, programs, one)
    assert [t["program_id"] for t in at_once] == ["p", "p", "q"]
    later = lines(ProgramFcfs, programs, one, request_ps=3_000_000_000)
    assert [t["program_id"] for t in later] == ["p", "q", "p"]
    for turn in later:
        parts = ("queue_s", "prefill_s", "decode_s")
        total = sum(float(str(turn[part])) for part in parts)
        assert total == pytest.approx(
            float(str(turn["finished_at_s"])) - float(str(turn["sent_at_s"]))
        )
    # 3 ms on the way, then as without
    assert later[0]["finished_at_s"] == pytest.approx(
        0.003 + float(str(at_once[0]["finished_at_s"]))
    )


def test_starts_may_be_in_any_order_and_a_program_goes_before_a_turn_due_at_the_same_time() -> None:
    """Recorded starts are as they are: the third program starts before the second, which starts at
    the very moment at which the first one's second turn is due, and is asked about first."""
    asked: list[tuple[str, int]] = []

    class Notes(Policy):
        name = "notes"

        def arrived(self, request: Request, now_s: float) -> None:
            asked.append((request.program_id, request.index))

    # A step takes what it takes; the first turn's end is looked up in a run of its own.
    machine = profile(kv_blocks=1000)
    engine = partial(Engine, Notes(Costs(prefill_s=float)), machine, Limits())
    turns: list[dict[str, object]] = []
    one = Program("one", (Turn(8, 2, 0, (), None, 0.5), Turn(16, 1, 10)))
    replay([one], [1.0], None, engine, into(turns))
    due_s = turns[1]["scheduled_at_s"]
    assert isinstance(due_s, float)
    asked.clear()
    others = [Program(name, (Turn(8, 1),)) for name in ("two", "three")]
    engine = partial(Engine, Notes(Costs(prefill_s=float)), machine, Limits())
    replay([one, *others], [1.0, due_s, 1.25], None, engine, into(turns))
    assert asked == [("one", 0), ("three", 0), ("two", 0), ("one", 1)]
