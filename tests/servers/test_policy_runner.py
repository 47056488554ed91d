"""What every policy shares: the waiting queue, the pins, and when pins are released."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.basics.clock import PS_PER_S
from servers.policies.base import Admit, Costs, Pin, Policy, Rank, Request, Retention, pin
from servers.policies.pin_table import ActivePin, PinTable
from servers.policies.ranked_queue import MIN_COMPACTED, RankedQueue
from servers.policies.runner import EngineTurn, PolicyRunner
from servers.programs import PromptStart


@given(
    st.lists(
        st.tuples(st.sampled_from(["push", "remove"]), st.integers(0, 9), st.integers(-5, 5)),
        max_size=60,
    )
)
def test_the_head_of_the_queue_is_always_the_item_with_the_smallest_current_rank(
    moves: list[tuple[str, int, int]],
) -> None:
    queue: RankedQueue[int] = RankedQueue()
    ranks: dict[int, int] = {}
    for move, key, rank in moves:
        if move == "push":
            queue.push(key, (rank, key), key)
            ranks[key] = rank
        else:
            queue.remove(key)
            ranks.pop(key, None)
        assert len(queue) == len(ranks)
        assert set(queue.items()) == set(ranks)
        if ranks:
            assert queue.peek() == min(ranks, key=lambda k: (ranks[k], k))


def active(program_id: str, expires_ps: int | None, blocks: int = 3) -> ActivePin[str, str]:
    request = Request(1, program_id, 0, 0.0, 0.0, 10)
    pin = Pin(request, 10, 0.0, 0.0)
    return ActivePin(pin, f"turn of {program_id}", f"kv of {program_id}", blocks, expires_ps)


def expired(pins: PinTable[str, str], now_ps: int) -> list[str]:
    removed = []
    for program_id in pins.expired(now_ps):
        assert pins.pop(program_id) is not None
        removed.append(program_id)
    return removed


def test_pins_expire_in_order_of_time_and_pins_without_ttl_never() -> None:
    pins: PinTable[str, str] = PinTable()
    for program_id, expires_ps in (("late", 30), ("early", 10), ("never", None)):
        pins.add(active(program_id, expires_ps))
    assert pins.blocks == 9
    assert pins.next_expiry_ps() == 10
    assert expired(pins, 9) == []
    assert expired(pins, 30) == ["early", "late"]
    assert pins.next_expiry_ps() is None
    assert "never" in pins
    assert pins.blocks == 3


def test_a_pin_does_not_expire_while_a_turn_of_its_program_is_queued() -> None:
    pins: PinTable[str, str] = PinTable()
    pins.add(active("a", 10))
    pins.turn_queued("a")
    pins.turn_queued("a")
    assert pins.next_expiry_ps() is None
    assert expired(pins, 99) == []
    pins.turn_dequeued("a")
    assert expired(pins, 99) == []
    pins.turn_dequeued("a")
    assert expired(pins, 99) == ["a"]


def test_a_pin_created_while_a_turn_of_its_program_is_queued_does_not_expire_either() -> None:
    pins: PinTable[str, str] = PinTable()
    pins.turn_queued("a")
    pins.add(active("a", 10))
    assert expired(pins, 99) == []
    pins.turn_dequeued("a")
    assert expired(pins, 99) == ["a"]


def test_a_second_pin_of_a_program_is_a_bug_of_the_adapter() -> None:
    pins: PinTable[str, str] = PinTable()
    pins.add(active("a", 10))
    with pytest.raises(ValueError, match="program a is pinned already"):
        pins.add(active("a", 20))


class Pinning(Policy):
    name = "pinning"

    def finished(self, request: Request, now_s: float) -> Retention:
        return pin(10.0)


class Turn(EngineTurn):
    """A turn of an engine in which each turn has three blocks."""

    def __init__(self, number: int, program_id: str, is_internal: bool = False) -> None:
        view = Request(number, program_id, 0, 0.0, 0.0, 48)
        super().__init__(view, has_program=True, is_internal=is_internal)

    def repeats(self, start: PromptStart) -> bool:
        """Return whether the text of the prompt begins with that of an earlier one."""
        return self.prompt is not None and str(self.prompt.content).startswith(start.content)


def unmarked(number: int, program_id: str, prompt: str) -> Turn:
    """Return a turn of a client that does not mark last turns; a letter is a block."""
    turn = Turn(number, program_id)
    turn.prompt = PromptStart(len(prompt), prompt)
    return turn


class RecordingRunner:
    """A runner with records of the programs whose blocks it released and of its events."""

    def __init__(
        self, policy: Policy | None = None, max_programs: int = 100, idle_s: float = math.inf
    ) -> None:
        self.released: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.runner: PolicyRunner[Turn, str] = PolicyRunner(
            policy or Pinning(Costs(prefill_s=float)),
            retain_blocks=self._retain_blocks,
            release_blocks=self.released.append,
            emit=self._emit,
            max_programs=max_programs,
            idle_s=idle_s,
        )

    def _retain_blocks(self, turn: Turn, whole_request: bool) -> tuple[str, int]:
        return turn.view.program_id, 3

    def _emit(self, t_s: float, event: str, turn: Turn, fields: dict[str, Any]) -> None:
        self.events.append((event, turn.view.program_id))

    def serve(self, turn: Turn) -> None:
        self.runner.arrived(turn)
        self.runner.push(turn)
        self.runner.waiting.remove(turn.view.id)
        self.runner.admitted(turn, 48, 0)
        self.runner.finished(turn, 48)


@pytest.mark.parametrize(
    ("reclaim_when", "other_turns", "may_reclaim"),
    [("stuck", 0, True), ("stuck", 1, False), ("pressure", 0, True), ("pressure", 1, True)],
)
def test_pins_may_be_reclaimed_always_or_only_if_no_other_turn_can_free_blocks(
    reclaim_when: Literal["stuck", "pressure"], other_turns: int, may_reclaim: bool
) -> None:
    recording = RecordingRunner()
    recording.runner.policy.reclaim_when = reclaim_when
    assert recording.runner.may_reclaim(other_turns) == may_reclaim


def test_reclaim_when_stuck_releases_pins_for_a_running_turn_only_if_it_runs_alone() -> None:
    recording, running = RecordingRunner(), Turn(2, "b")
    recording.serve(Turn(1, "a"))
    assert not recording.runner.reclaim_for_running(running, 2, lambda: 1)
    assert recording.released == []
    assert recording.runner.reclaim_for_running(running, 1, lambda: 1)
    assert recording.released == ["a"]


def test_the_pin_of_the_head_of_the_queue_is_released_last() -> None:
    recording = RecordingRunner()
    for number, program_id in enumerate(("a", "b")):
        recording.serve(Turn(number, program_id))
    head = Turn(2, "a")
    recording.runner.arrived(head)
    missing = 1

    def lacks() -> int:
        return missing - 3 * recording.released.count("b")

    assert not recording.runner.may_reclaim(1)
    assert recording.runner.reclaim_for_head(head, 0, lacks)
    assert recording.released == ["b"]
    assert not recording.runner.needs_rerank(head)
    missing = 9
    assert recording.runner.reclaim_for_head(head, 0, lacks)
    assert recording.released == ["b", "a"]
    assert recording.runner.needs_rerank(head)


def test_a_pin_is_released_once_its_programs_next_turn_has_its_blocks() -> None:
    recording = RecordingRunner()
    recording.serve(Turn(1, "a"))
    recording.serve(Turn(2, "a"))
    assert recording.released == ["a"]
    assert [event for event, _ in recording.events] == [
        *("arrival", "waiting_to_running", "finished", "pinned"),
        *("arrival", "waiting_to_running", "unpinned", "finished", "pinned"),
    ]


def test_a_request_with_another_prompt_leaves_its_programs_pin_and_is_a_program_of_its_own() -> (
    None
):
    recording = RecordingRunner()
    recording.serve(unmarked(1, "a", "xy"))
    recording.serve(title := unmarked(2, "a", "t"))
    assert recording.released == []
    assert (title.view.program_id, title.view.index, title.pinned_hit) == ("a#2", 0, False)
    recording.serve(after := unmarked(3, "a", "xyz"))
    assert recording.released == ["a"]
    assert (after.view.program_id, after.view.index, after.pinned_hit) == ("a", 1, True)
    recording.runner.end_program("a")
    assert sorted(recording.released) == ["a", "a", "a#2"]


def test_a_rewritten_history_goes_on_as_a_conversation_with_pins_of_its_own() -> None:
    recording = RecordingRunner()
    turns = [unmarked(n, "a", prompt) for n, prompt in enumerate(("xyz", "xc", "xcd", "xyzw"))]
    for turn in turns:
        recording.serve(turn)
    assert [turn.view.program_id for turn in turns] == ["a", "a#2", "a#2", "a"]
    assert [turn.pinned_hit for turn in turns] == [False, False, True, True]


def test_turns_of_a_client_that_marks_them_are_one_conversation() -> None:
    recording = RecordingRunner()
    turns = [Turn(1, "a"), Turn(2, "a")]
    for turn in turns:
        recording.serve(turn)
    assert [turn.view.program_id for turn in turns] == ["a", "a"]
    assert turns[1].pinned_hit


def test_beyond_the_limit_the_program_that_is_idle_for_longest_is_ended_with_its_pin() -> None:
    recording = RecordingRunner(max_programs=2)
    active = Turn(0, "active")
    recording.runner.arrived(active)
    recording.serve(Turn(1, "a"))
    assert recording.released == []
    recording.serve(Turn(2, "b"))
    assert recording.released == ["a"]
    recording.serve(again := Turn(3, "b"))
    assert (again.view.index, again.pinned_hit) == (1, True)


def test_a_program_that_has_been_idle_for_too_long_ends_when_another_turn_arrives() -> None:
    recording = RecordingRunner(idle_s=60.0)
    recording.runner.arrived(Turn(0, "active"))
    recording.serve(Turn(1, "a"))
    recording.runner.now_ps = 60 * PS_PER_S
    recording.serve(Turn(2, "b"))
    assert recording.released == []
    recording.runner.now_ps = 61 * PS_PER_S
    recording.serve(again := Turn(3, "active"))
    assert recording.released == ["a"]
    assert again.view.index == 1


def test_of_programs_that_never_end_only_the_latest_and_their_pins_remain() -> None:
    runner = PolicyRunner[Turn, None](
        Pinning(Costs(prefill_s=float)),
        retain_blocks=lambda *_: (None, 3),
        release_blocks=lambda _: None,
        emit=None,
        max_programs=1_000,
    )
    for number in range(1_500):
        turn = Turn(number, str(number))
        runner.arrived(turn)
        runner.finished(turn, 48)
    assert len(runner.pins) == 1_000
    assert "500" in runner.pins
    assert "499" not in runner.pins


def test_pins_that_are_replaced_long_before_they_expire_take_no_more_memory() -> None:
    recording = RecordingRunner()
    for number in range(1000):
        recording.serve(Turn(number, "a"))
        recording.runner.arrived(cancelled := Turn(1000 + number, "a"))
        recording.runner.aborted(cancelled)
        assert len(recording.runner.pins._expiry) <= MIN_COMPACTED + 1
    recording.runner.now_ps = 11 * PS_PER_S
    recording.runner.start_step(lambda: 0)
    assert len(recording.runner.pins) == 0


def test_steps_are_steady_until_an_event_a_queued_turn_the_end_of_a_program_or_of_a_pin() -> None:
    recording = RecordingRunner()
    runner, turn = recording.runner, Turn(2, "b")

    def is_steady(at_s: float) -> bool:
        runner.now_ps = round(at_s * PS_PER_S)
        return runner.now_ps < runner.steady_until_ps

    happens: list[Callable[[], object]] = [
        lambda: recording.serve(Turn(1, "a")),  # leaves a pin for 10 s
        runner.rerank_all,
        lambda: runner.arrived(turn),
        lambda: runner.push(turn),
        lambda: runner.end_program("b"),
    ]
    for each in happens:
        each()
        assert not is_steady(0)
        runner.start_step(lambda: 0)
        assert is_steady(0)
        assert is_steady(9.99)
        assert not is_steady(10)


def test_a_step_after_one_in_which_pins_expired_is_not_steady() -> None:
    recording = RecordingRunner()
    recording.serve(Turn(1, "a"))
    recording.runner.now_ps = 10 * PS_PER_S
    recording.runner.start_step(lambda: 0)
    assert recording.released == ["a"]
    assert recording.runner.steady_until_ps == 0


MOVES = st.tuples(
    st.sampled_from(["arrive", "finish", "abort", "end"]),
    st.sampled_from("abcd"),
    st.text("xy", max_size=4),
)


@given(st.lists(MOVES, max_size=80))
def test_no_pin_outlives_its_program_whatever_requests_programs_send(
    moves: list[tuple[str, str, str]],
) -> None:
    recording = RecordingRunner(max_programs=2)
    runner, running = recording.runner, []
    for number, (move, program_id, prompt) in enumerate(moves):
        if move == "arrive":
            running.append(turn := unmarked(number, program_id, prompt))
            runner.arrived(turn)
            runner.admitted(turn, 48, 0)
        elif move == "end":
            runner.end_program(program_id)
        elif running:
            turn = running.pop(0)
            if move == "abort":
                runner.aborted(turn)
            else:
                runner.finished(turn, 48)
        programs = {active.turn.program_id for active in runner.pins}
        assert runner.pins.blocks == 3 * len(runner.pins)
        assert len(programs - {turn.program_id for turn in running}) <= 2
    for program_id in "abcd":
        runner.end_program(program_id)
    for turn in running:
        runner.finished(turn, 48)
    assert len(runner.pins) == 0
    pinned = [name for event, name in recording.events if event == "pinned"]
    assert sorted(recording.released) == sorted(pinned)


def test_internal_turns_reach_neither_the_policy_nor_the_events() -> None:
    recording = RecordingRunner()
    recording.serve(Turn(1, "warm-up", is_internal=True))
    assert recording.events == []
    assert len(recording.runner.pins) == 0


def test_a_policy_that_returns_no_retention_is_refused() -> None:
    class Wrong(Policy):
        name = "wrong"

        def finished(self, request: Request, now_s: float) -> Retention:
            return None  # type: ignore[return-value]

    recording = RecordingRunner(Wrong(Costs(prefill_s=float)))
    with pytest.raises(TypeError, match=r"policy wrong: finished\(\) returned None"):
        recording.serve(Turn(1, "a"))


class Skips(Policy):
    """Skips all turns but those in `runs`, and records those that it is asked about."""

    name = "skips"
    runs = ""

    def __init__(self) -> None:
        super().__init__(Costs(prefill_s=float))
        self.asked: list[str] = []

    def admit(self, request: Request, free_tokens: int, now_s: float) -> Admit:
        self.asked.append(request.program_id)
        return "run" if request.program_id in self.runs else "skip"


def waiting(policy: Policy, programs: str) -> PolicyRunner[Turn, str]:
    runner = RecordingRunner(policy).runner
    for number, program_id in enumerate(programs):
        runner.arrived(turn := Turn(number, program_id))
        runner.push(turn)
    return runner


def ask(runner: PolicyRunner[Turn, str], other_turns: int, free_tokens: int) -> str | None:
    found = runner.candidate(other_turns, free_tokens)
    runner.requeue_skipped()
    return found and found.view.program_id


def test_a_policy_that_held_back_all_turns_is_not_asked_again_while_memory_only_shrinks() -> None:
    runner = waiting(policy := Skips(), "ab")
    assert ask(runner, 1, 100) is None
    assert ask(runner, 1, 100) is None
    assert ask(runner, 1, 99) is None
    assert policy.asked == ["a", "b"]
    assert ask(runner, 1, 101) is None
    assert policy.asked == ["a", "b", "a", "b"]


def test_a_policy_that_held_back_all_turns_is_asked_again_after_an_event() -> None:
    runner = waiting(policy := Skips(), "ab")
    assert ask(runner, 1, 100) is None
    policy.runs = "b"
    runner.arrived(Turn(9, "c"))
    assert ask(runner, 1, 100) == "b"


def test_a_policy_that_held_back_all_turns_is_asked_again_after_a_program_without_a_pin_ended() -> (
    None
):
    runner = waiting(policy := Skips(), "ab")
    assert ask(runner, 1, 100) is None
    policy.runs = "b"
    runner.end_program("a")
    assert ask(runner, 1, 100) == "b"


def test_a_turn_that_was_skipped_before_an_admission_is_considered_again_in_the_next_step() -> None:
    runner = waiting(policy := Skips(), "ab")
    policy.runs = "b"
    admitted = runner.candidate(1, 100)
    assert admitted is not None
    runner.waiting.remove(admitted.view.id)
    runner.admitted(admitted, 48, 0)
    policy.runs = "a"
    assert runner.candidate(2, 100) is None
    runner.requeue_skipped()
    assert ask(runner, 2, 100) == "a"


def test_turns_that_were_held_back_are_admitted_once_no_other_turn_runs() -> None:
    runner = waiting(Skips(), "ab")
    assert ask(runner, 1, 100) is None
    assert ask(runner, 0, 100) == "a"


class LeastAdmittedFirst(Policy):
    """Ranks programs by the number of their admissions."""

    name = "least-admitted-first"
    reranks = True

    def __init__(self) -> None:
        super().__init__(Costs(prefill_s=float))
        self.admissions: dict[str, int] = {}

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        self.admissions[request.program_id] = self.admissions.get(request.program_id, 0) + 1

    def woke(self, now_s: float) -> None:
        return None

    def rank(self, request: Request, now_s: float) -> Rank:
        return (self.admissions.get(request.program_id, 0), request.id)


def test_a_policy_whose_ranks_depend_on_other_turns_ranks_them_again_before_each_admission() -> (
    None
):
    runner = waiting(LeastAdmittedFirst(), "aab")
    first = runner.head()
    runner.waiting.remove(first.view.id)
    runner.admitted(first, 48, 0)
    assert (first.view.program_id, runner.head().view.program_id) == ("a", "b")
