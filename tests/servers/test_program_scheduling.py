"""`program-scheduling` on replicas of 10,000 tokens. 1000 tokens prefill in 1 s and cost 1.85 s."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from servers.policies.base import Costs
from servers.routers.base import Replica, RoutedTurn
from servers.routers.hash_ring import HashRing
from servers.routers.program_scheduling import ProgramScheduling

SENT, HELD = 0, None


class Front:
    """Calls a router as `Fleet` does, and knows where each program's turn is."""

    def __init__(self, replicas: int = 1, **arguments: Any) -> None:
        costs = Costs(lambda tokens: tokens / 1000, decode_step_s=lambda *_: 0.1)
        self.replicas = [Replica(index, 10_000, costs) for index in range(replicas)]
        defaults = {"binding_strategy": "program_round_robin", "stats_window_size": 2}
        self.router = ProgramScheduling(self.replicas, **{**defaults, **arguments})
        self.turns: dict[str, RoutedTurn] = {}
        self.ids = 0

    def arrives(self, program: str, tokens: int, at: float) -> int | None:
        """Return the replica of the turn; None if it is held back."""
        turn = self.turns[program] = RoutedTurn(self.ids, program, 0, at, tokens, False)
        self.ids += 1
        replica = self.router.route(turn, at)
        turn.replica = -1 if replica is None else replica
        self.passes(at)
        return self.place(program)

    def ends(self, program: str, at: float, output: int = 0, cached: int = 0) -> None:
        turn = self.turns[program]
        turn.output_tokens, turn.cached_tokens = output, cached
        self.router.finished(turn, at)
        self.passes(at)

    def leaves(self, program: str, at: float) -> None:
        """End the program with its turn."""
        self.turns[program].is_last = True
        self.router.finished(self.turns[program], at)
        self.router.program_ended(program, at)
        self.passes(at)

    def passes(self, at: float) -> None:
        for turn, replica in self.router.resumed(at):
            turn.replica = replica

    def reports(self, at: float, *, used: int = 0, running: int = 0, waiting: int = 0) -> None:
        """Let the first replica report, and the others nothing; then the router decides."""
        first = self.replicas[0]
        first.used_tokens, first.running, first.waiting = used, running, waiting
        for turn, replica in self.router.tick(at):
            turn.replica = replica

    def place(self, program: str) -> int | None:
        replica = self.turns[program].replica
        return None if replica < 0 else replica

    def serves(self, program: str, tokens: int, at: float, cached: int = 0) -> None:
        """Run a turn that takes no time and generates nothing."""
        assert self.arrives(program, tokens, at) is not HELD
        self.ends(program, at, cached=cached)


def test_a_program_is_admitted_if_its_prompt_and_100_tokens_fit() -> None:
    front = Front()
    assert front.arrives("a", 4900, 0.0) == SENT  # 5,000
    assert front.arrives("b", 4901, 0.1) is HELD
    assert front.arrives("c", 4900, 0.2) == SENT
    front.leaves("a", 1.0)
    assert front.place("b") is HELD, "the first 5,000 are free, and it needs 5,001"
    front.leaves("c", 2.0)
    assert front.place("b") == SENT


def test_a_program_that_waits_needs_less_once_its_clients_gave_up_longer_prompts() -> None:
    front = Front()
    assert front.arrives("a", 5000, 0.0) == SENT
    for tokens in (8000, 2000, 2000, 2000):
        assert front.arrives("b", tokens, 0.1) is HELD
        if tokens > 2000:
            given_up = front.turns["b"]
    front.router.finished(given_up, 1.0)
    for at in (2.0, 3.0):
        assert front.place("b") is HELD, "a prompt shrinks only after two shorter ones"
        front.ends("b", at)
    assert front.place("b") == SENT


def test_the_low_watermark_limits_admission() -> None:
    front = Front(low_watermark_ratio=0.5, high_watermark_ratio=1.0)
    assert front.arrives("a", 4901, 0.0) is HELD
    assert front.arrives("b", 4900, 0.0) == SENT


def test_no_more_than_the_most_programs_are_active() -> None:
    front = Front(max_active_programs=1)
    assert front.arrives("a", 100, 0.0) == SENT
    assert front.arrives("b", 100, 0.0) is HELD


def test_growth_is_reserved_for_the_rounds_to_come() -> None:
    """Each turn was the first round since a pause, so that R = 2; the second grew by 200 tokens. A
    program needs its tokens, 100 and 400."""
    for tokens, place in ((9500, SENT), (9501, HELD)):
        front = Front(enable_batch_gain_admission=False)
        front.serves("old", 1000, 0.0)
        front.serves("old", 1200, 1.0, cached=1000)
        assert front.arrives("a", tokens, 2.0) == place


def test_a_larger_batch_is_worth_the_reserve_if_its_decodes_gain_more_than_a_prefill_costs() -> (
    None
):
    """A step takes 0.1 s for any batch: with outputs of 0 and n tokens, a second turn gains n / 20
    s. Its prefill costs 7.001 * 1.85 = 12.95 s; 2,100 tokens and 4 rounds of 200 do not fit."""
    for output, place in ((258, HELD), (260, SENT)):
        front = Front()
        front.serves("old", 1000, 0.0)
        front.arrives("old", 1200, 1.0)
        front.ends("old", 1.0, output=output, cached=1000)
        assert front.arrives("d", 2000, 3.0) == SENT
        assert front.arrives("f", 7001, 3.0) == place


def test_the_program_whose_turn_ended_last_resumes_first_and_new_ones_last() -> None:
    for order, expected in (("mru", "late"), ("fcfs", "new")):
        front = Front(resume_order=order, stats_window_size=100)
        front.serves("early", 5000, 1.0)
        front.serves("late", 5000, 2.0)
        front.arrives("a", 9800, 2.5)
        for number, name in enumerate(("new", "early", "late")):
            assert front.arrives(name, 5000, 3.0 + number) is HELD
        front.leaves("a", 9.0)
        assert [n for n in ("new", "early", "late") if front.place(n) == SENT] == [expected]


def test_a_replica_with_a_waiting_turn_at_its_latest_report_admits_nobody() -> None:
    front = Front()
    front.reports(1.0, waiting=1)
    assert front.arrives("a", 100, 1.5) is HELD
    front.reports(2.0, waiting=1)
    assert front.place("a") is HELD
    front.reports(3.0)
    assert front.place("a") == SENT
    open_front = Front(admission_waiting_request_threshold=0)
    open_front.reports(1.0, waiting=1)
    assert open_front.arrives("a", 100, 1.5) == SENT


def test_tokens_in_use_are_those_of_the_report_times_programs_per_running_turn() -> None:
    """One of two turns runs and uses 4,000 tokens, so that both count as 8,000."""
    for tokens, place in ((1900, SENT), (1901, HELD)):
        front = Front()
        front.arrives("a", 100, 0.0)
        front.arrives("b", 100, 0.0)
        front.reports(1.0, used=4000, running=1)
        assert front.arrives("c", tokens, 1.5) == place


def test_a_program_keeps_its_place_for_the_ttl() -> None:
    """Two gaps of 2 s: any TTL above is best while 3 * 1.85 s exceed them, so it is 5.55 s."""
    front = Front()
    for at in (0.0, 2.0, 4.0):
        front.serves("p", 3000, at)
    assert front.arrives("a", 8000, 5.0) is HELD
    front.passes(9.5)
    assert front.place("a") is HELD
    front.passes(9.6)
    assert front.place("a") == SENT


def test_a_program_that_leaves_no_room_is_paused_at_the_end_of_its_turn() -> None:
    """Two programs of which one runs, with 6,000 tokens: both count as 12,000. The one whose
    segment began first leaves 8,900 behind, where it would have kept its place for a TTL."""
    front = Front()
    for at in (0.0, 2.0):
        front.serves("p", 3000, at)
    front.arrives("p", 3000, 4.0)
    front.arrives("b", 4000, 4.0)
    front.reports(4.5, used=6000, running=1)
    assert front.arrives("c", 900, 5.0) is HELD
    front.ends("p", 5.0)
    assert front.place("c") == SENT


def test_after_the_most_rounds_a_program_makes_way_and_goes_last_once() -> None:
    front = Front(max_segment_rounds=1)
    for at in (0.0, 2.0):
        front.serves("long", 3000, at)
    front.arrives("long", 3000, 4.0)
    assert front.arrives("first", 9000, 5.0) is HELD
    assert front.arrives("second", 9000, 5.1) is HELD
    front.ends("long", 6.0, cached=3000)
    assert front.place("first") == SENT, "although the TTL is 5.55 s"
    assert front.arrives("long", 3000, 7.0) is HELD
    front.leaves("first", 8.0)
    assert (front.place("second"), front.place("long")) == (SENT, HELD)


def test_a_turn_that_has_waited_for_300_s_is_sent_even_if_it_does_not_fit() -> None:
    front = Front()
    front.arrives("a", 9800, 0.0)
    assert front.arrives("new", 5000, 1.0) is HELD
    assert front.router.wake_s(2.0) == 301.0
    front.passes(300.9)
    assert front.place("new") is HELD
    front.passes(301.0)
    assert front.place("new") == SENT
    assert front.router.wake_s(301.0) is None


def test_the_wait_is_three_times_that_of_the_rounds_ahead() -> None:
    """Turns end every 40 s, and 2 rounds of the active program are ahead: 3 * 2 * 40 = 240 s."""
    front = Front()
    front.serves("old", 1000, 0.0)
    front.serves("old", 1000, 40.0, cached=1000)
    front.arrives("a", 9800, 50.0)
    assert front.arrives("b", 5000, 100.0) is HELD
    assert front.router.wake_s(100.0) == pytest.approx(340.0)


def test_new_programs_go_to_the_replica_that_the_strategy_names() -> None:
    def bound(strategy: str) -> list[int | None]:
        """Bind a program of 100 tokens after those of 5,000, 200 and 300 tokens."""
        front = Front(3, binding_strategy=strategy)
        sizes = {"p0": 5000, "p1": 200, "p2": 300, "p3": 100}
        return [front.arrives(name, tokens, 0.0) for name, tokens in sizes.items()]

    assert bound("program_round_robin") == [0, 1, 2, 0]
    assert bound("least_program_count") == [0, 1, 2, 0]
    assert bound("reasoning_token_balance") == [0, 1, 2, 1]
    ring = HashRing(3)
    assert bound("consistent_hash") == [ring.replica(f"p{number}") for number in range(4)]


def test_the_consistent_hash_is_even_and_moves_few_keys_for_a_new_replica() -> None:
    keys = [f"program {number}" for number in range(3000)]
    before, after = HashRing(3), HashRing(4)
    assert all(800 < count < 1200 for count in Counter(map(before.replica, keys)).values())
    moved = [key for key in keys if before.replica(key) != after.replica(key)]
    assert {after.replica(key) for key in moved} == {3}


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"global_queue": True}, 1),
        ({"global_queue": False}, HELD),
        # Replica 0 has 200 tokens left and replica 1 has 10,000, but 200 + 9.9 * 1000 are asked.
        ({"global_queue": True, "cross_rank_headroom_ratio": 9.9}, HELD),
    ],
)
def test_a_program_whose_replica_is_full_moves_to_one_with_more_room(
    arguments: dict[str, Any], place: int | None
) -> None:
    front = Front(2, **arguments)
    for at in (0.0, 1.0):
        front.serves("p0", 1000, at)
        front.serves("p1", 1000, at)
    assert front.arrives("large", 9700, 2.0) == 0
    assert front.arrives("p0", 1000, 3.0) is HELD
    front.reports(3.5, used=9800, running=1, waiting=1)
    assert front.place("p0") is HELD, "it has waited for less than a second"
    front.reports(4.0, used=9800, running=1, waiting=1)
    assert front.place("p0") == place


def test_a_program_that_was_paused_for_30_minutes_is_bound_again() -> None:
    for pause_s, place in ((1799.0, 0), (1800.0, 1)):
        front = Front(2)
        front.serves("p", 1000, 0.0)
        front.passes(pause_s)
        assert front.arrives("p", 1000, pause_s) == place
