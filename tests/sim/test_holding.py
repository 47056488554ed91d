"""Turns that a policy holds back, and pins that it refuses to release. A block holds 16 tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from servers.policies.base import Admit, Pin, Policy, Request, Retention, pin
from servers.sim import Limits, Segment, Sequence
from tests.sim.test_engine import S, engine, turn


class RunsOneProgram(Policy):
    """Admits no turn beside another one."""

    name = "runs-one-program"

    def admit(self, request: Request, free_tokens: int, now_s: float) -> Admit:
        return "stop"


class SkipsLongPrompts(Policy):
    name = "skips-long-prompts"

    def admit(self, request: Request, free_tokens: int, now_s: float) -> Admit:
        return "skip" if request.prompt_tokens > 64 else "run"


class KeepsPins(Policy):
    """Pins for 2 s, and gives no pin up. `lost` holds the programs whose pins ended, with times."""

    name = "keeps-pins"
    reclaim_when = "pressure"
    lost: list[tuple[str, float]]

    def finished(self, request: Request, now_s: float) -> Retention:
        return pin(2.0)

    def pinned(self, pin: Pin, now_s: float) -> None:
        self.lost = getattr(self, "lost", [])

    def unpinned(self, pin: Pin, now_s: float) -> None:
        self.lost.append((pin.program_id, now_s))

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        return ()


def order(ended: list[Sequence]) -> list[str]:
    return [sequence.view.program_id for sequence in ended]


def test_a_turn_that_would_run_alone_is_never_held_back() -> None:
    made, ended, events = engine(RunsOneProgram)
    for program in "abc":
        made.submit(turn(program, 16, 10), 0)
    made.run()
    starts = [e["t"] for e in events if e["event"] == "waiting_to_running"]
    ends = [e["t"] for e in events if e["event"] == "finished"]
    assert order(ended) == ["a", "b", "c"]
    assert starts[1:] == ends[:2]


def test_a_skipped_turn_lets_later_ones_pass_and_runs_when_it_would_run_alone() -> None:
    made, ended, _ = engine(SkipsLongPrompts)
    made.submit(turn("first", 16, 50), 0)
    made.submit(turn("long", 80, 1), 0)
    made.submit(turn("short", 16, 1), 0)
    made.run()
    assert order(ended) == ["short", "first", "long"]


def test_a_policy_is_asked_with_the_memory_that_no_turn_and_no_pin_holds() -> None:
    seen: list[tuple[str, int]] = []

    class Asks(Policy):
        name = "asks"

        def admit(self, request: Request, free_tokens: int, now_s: float) -> Admit:
            seen.append((request.program_id, free_tokens))
            return "run"

    made, _, _ = engine(Asks, kv_blocks=10)
    made.submit(turn("a", 40, 20), 0)  # 3 blocks
    made.submit(turn("b", 20, 20), 0)  # 2 blocks
    made.submit(turn("c", 20, 20), 0)
    made.run()
    assert seen == [("b", 7 * 16), ("c", 5 * 16)]


def test_pins_that_a_policy_keeps_make_a_turn_wait_while_another_one_runs() -> None:
    made, ended, _ = engine(KeepsPins, kv_blocks=10, limits=Limits(4, 200))
    segment = Segment(0)
    made.submit(turn("a", 80, 2, segment=segment, is_last=False), 0)  # pins 5 blocks until 2 s
    made.submit(turn("b", 16, 47), S)  # 4 blocks, of which it needs one at first
    made.submit(turn("c", 96, 1), S + S // 100)  # 6 blocks, and at most 4 are free
    made.run()
    policy = made.scheduler.runner.policy
    assert isinstance(policy, KeepsPins)
    ((program, lost_s),) = policy.lost
    # While b runs the pin stays. Then c is alone, and the pin is released although it is not due.
    assert (program, order(ended)) == ("a", ["a", "b", "c"])
    assert lost_s == (ended[1].finished_ps or 0) / S < 2


def test_the_policy_hears_that_a_pin_ended_because_its_program_came_back() -> None:
    made, _, _ = engine(KeepsPins)
    segment = Segment(0)
    made.submit(turn("a", 80, 2, segment=segment, is_last=False), 0)
    made.submit(turn("a", 112, 2, segment=segment), S)
    made.run()
    policy = made.scheduler.runner.policy
    assert isinstance(policy, KeepsPins)
    assert policy.lost == [("a", 1.0)]
