"""llm-d's least attained service, and its formula on random queues."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import settings
from policy_turns import COSTS, order, run, turn

from servers.policies.base import Policy, Request
from servers.policies.las import Las
from servers.policies.ranked_queue import RankedQueue


def served(policy: Policy, program: str, prompt: int, output: int, end: float) -> None:
    request = turn(program, at=end - 1, tokens=prompt)
    request.output_tokens = output
    run(policy, request, start=end - 1, end=end)


def waits(policy: Policy, program: str, at: float, **kinds: bool) -> Request:
    request = turn(program, index=1, at=at, **kinds)
    policy.arrived(request, at)
    return request


def llm_d_scores(
    programs: dict[str, tuple[list[tuple[float, int, int]], float]],
    now: float,
    half_life: float,
    weights: tuple[float, float],
) -> dict[str, float]:
    """Return the score of each program that waits, from (end, prompt, output) of its finished turns
    and the arrival of its head."""
    services, waits = {}, {}
    for program, (turns, head) in programs.items():
        service, at = 0.0, 0.0
        for end, prompt, output in turns:
            service = service * 2 ** (-(end - at) / half_life) + prompt + 2 * output
            at = end
        services[program] = service * 2 ** (-(now - at) / half_life)
        waits[program] = now - head

    def norm(values: dict[str, float], program: str) -> float:
        low, high = min(values.values()), max(values.values())
        return 0.5 if low == high else (values[program] - low) / (high - low)

    by_service, by_wait = weights
    return {p: by_service * (1 - norm(services, p)) + by_wait * norm(waits, p) for p in programs}


def test_programs_with_less_service_go_first_and_output_tokens_count_twice() -> None:
    policy = Las(COSTS)
    served(policy, "fewer", 1900, 0, 10.0)
    served(policy, "outputs", 0, 1000, 10.0)
    served(policy, "more", 2100, 0, 10.0)
    waiting = [waits(policy, p, 20.0) for p in ("more", "outputs", "new", "fewer")]
    admitted = []
    while waiting:
        head = min(waiting, key=lambda r: policy.rank(r, 21.0))
        waiting.remove(head)
        policy.scheduled(head, 21.0, 0)
        admitted.append(head.program_id)
    # 2100, 2000, 0 and 1900 weighted tokens.
    assert admitted == ["new", "fewer", "outputs", "more"]


def test_scores_are_normalised_over_the_programs_that_wait() -> None:
    policy = Las(COSTS)
    served(policy, "a", 1000, 0, 10.0)
    served(policy, "b", 4000, 0, 10.0)
    a, b, c = waits(policy, "a", 30.0), waits(policy, "b", 20.0), waits(policy, "c", 40.0)
    # Service 1000, 4000, 0 (the decay cancels out), wait 20, 30 and 10 s at 50 s.
    assert policy.score(a, 50.0) == pytest.approx(0.8 * 0.75 + 0.2 * 0.5)
    assert policy.score(b, 50.0) == pytest.approx(0.8 * 0.00 + 0.2 * 1.0)
    assert policy.score(c, 50.0) == pytest.approx(0.8 * 1.00 + 0.2 * 0.0)


def test_service_halves_every_half_life() -> None:
    policy = Las(COSTS, half_life_s=10.0)
    served(policy, "early", 4000, 0, 10.0)
    served(policy, "late", 1200, 0, 30.0)
    waiting = [waits(policy, p, 30.0) for p in ("late", "early")]
    # 4000 tokens are 1000 after two half-lives.
    assert order(policy, waiting, 31.0) == ["early", "late"]
    without = Las(COSTS, half_life_s=0.0)
    served(without, "early", 4000, 0, 10.0)
    served(without, "late", 1200, 0, 30.0)
    assert order(without, [waits(without, p, 30.0) for p in ("late", "early")], 31.0) == [
        "late", "early",
    ]  # fmt: skip


def test_only_the_head_of_a_program_counts_in_the_range_of_waits() -> None:
    policy = Las(COSTS)
    served(policy, "a", 1000, 0, 5.0)
    first, second = waits(policy, "a", 10.0), waits(policy, "a", 40.0)
    other = waits(policy, "b", 20.0)
    # Heads arrived at 10 and 20 s; the second turn of `a` is behind both.
    assert policy.score(other, 50.0) == pytest.approx(0.8)
    assert policy.score(first, 50.0) == pytest.approx(0.2)
    assert order(policy, [second, other, first], 50.0) == ["b", "a", "a"]
    assert policy.rank(first, 50.0) < policy.rank(second, 50.0)


def test_new_ranges_are_used_from_the_next_whole_second_on() -> None:
    policy = Las(COSTS)
    served(policy, "heavy", 4000, 0, 5.0)
    served(policy, "light", 1000, 0, 5.0)
    light, heavy = waits(policy, "light", 10.0), waits(policy, "heavy", 10.2)
    assert policy.score(light, 10.3) == pytest.approx(0.8 + 0.2)
    assert policy.wake_s(10.3) is None
    waits(policy, "new", 10.4)
    assert policy.wake_s(10.4) == 11.0
    assert policy.score(light, 10.9) == pytest.approx(0.8 + 0.2)
    # Services 0, 1000 and 4000 (all decayed alike); arrivals at 10.0, 10.2 and 10.4 s.
    assert policy.score(light, 11.0) == pytest.approx(0.8 * 0.75 + 0.2)
    assert policy.score(heavy, 11.0) == pytest.approx(0.8 * 0.0 + 0.2 * 0.5)
    assert policy.wake_s(11.0) is None


def test_turns_that_arrive_at_a_quiet_time_are_ranked_beside_each_other() -> None:
    policy = Las(COSTS)
    for program, prompt in (("least", 1000), ("most", 5000), ("middle", 1100)):
        served(policy, program, prompt, 0, 5.0)
    queue: RankedQueue[str] = RankedQueue()
    waiting = {}
    for program, at in (("least", 10.3), ("most", 10.4), ("middle", 10.5)):
        request = waiting[program] = turn(program, index=1, at=at)
        policy.arrived(request, 11.2)
        queue.push(request.id, policy.rank(request, 11.2), program)
    changed = policy.woke(11.2)
    for request in waiting.values():
        if changed is None or request.id in changed:
            queue.push(request.id, policy.rank(request, 11.2), request.program_id)
    # `least` was ranked at first while it waited alone, as 0.5: less than the 0.58 of `middle` in
    # the ranges of the first two.
    assert queue.peek() == "least"


def test_a_preempted_turn_goes_first_and_does_not_count_in_the_ranges() -> None:
    policy = Las(COSTS)
    served(policy, "heavy", 9000, 0, 5.0)
    resumed = waits(policy, "heavy", 10.0)
    policy.scheduled(resumed, 10.0, 0)
    resumed.preempted = True
    policy.preempted(resumed, 12.0)
    new = waits(policy, "new", 12.0)
    assert policy.score(new, 13.0) == pytest.approx(0.5)
    assert order(policy, [new, resumed], 13.0) == ["heavy", "new"]


def test_a_quiet_day_neither_overflows_nor_keeps_old_service() -> None:
    policy = Las(COSTS)
    served(policy, "a", 1000, 0, 5.0)
    served(policy, "b", 500, 0, 100_000.0)
    waiting = [waits(policy, p, 100_000.5) for p in ("b", "a")]
    assert order(policy, waiting, 100_000.6) == ["a", "b"]
    assert order(policy, waiting, 100_001.0) == ["a", "b"]


def test_the_contenders_are_the_turns_before_which_all_others_have_been_served_more() -> None:
    for seed in range(3):
        draw = random.Random(seed)
        policy, waiting, now = Las(COSTS), dict[int, Request](), 0.0
        for change in range(400):
            now += draw.random()
            if waiting and draw.random() < (0.2 if change < 250 else 0.9):
                known = [*waiting, *policy._contenders]
                policy.scheduled(waiting.pop(draw.choice(known)), now, 0)
            elif draw.random() < 0.5:
                served(policy, f"p{draw.randrange(60)}", draw.choice([500, 501, 3000]), 0, now)
            else:
                request = turn(f"p{draw.randrange(60)}", index=1, at=now - draw.randrange(9))
                policy.arrived(request, now)
                waiting[request.id] = request
            contenders, least = set[int](), math.inf
            for request in sorted(waiting.values(), key=lambda r: (r.arrival_s, r.id)):
                service = policy._service(request.program_id, now)
                if service < least:
                    contenders.add(request.id)
                    least = service
            assert policy._contenders == contenders


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"0 \(no decay\) or at least 1"):
        Las(COSTS, half_life_s=0.5)
    with pytest.raises(ValueError, match="must not be negative"):
        Las(COSTS, weight_wait=-0.1)


def test_the_next_turn_has_the_highest_score_of_llm_ds_formula_on_random_worlds() -> None:
    for seed in range(10 * settings().max_examples):
        draw = random.Random(seed)
        half_life = draw.choice([5.0, 60.0, 600.0])
        weights = draw.choice([(0.8, 0.2), (1.0, 0.0), (0.5, 0.5), (0.2, 2.0)])
        policy = Las(
            COSTS, half_life_s=half_life, weight_service=weights[0], weight_wait=weights[1]
        )
        names = [f"p{n}" for n in range(draw.randint(1, 8))]
        past: dict[str, list[tuple[float, int, int]]] = {name: [] for name in names}
        end = 1.0
        for _ in range(draw.randint(0, 20)):
            end += draw.choice([0.1, 3.0, 90.0]) * draw.random()
            name, prompt, output = draw.choice(names), draw.randint(1, 9000), draw.randint(1, 900)
            past[name].append((end, prompt, output))
            served(policy, name, prompt, output, end)
        heads, waiting, now = {}, [], end
        for name in draw.sample(names, draw.randint(1, len(names))):
            now += draw.choice([0.01, 2.0, 40.0]) * draw.random()
            heads[name] = now
            waiting.append(waits(policy, name, now))
        now += 1.0
        scores = llm_d_scores({p: (past[p], heads[p]) for p in heads}, now, half_life, weights)
        assert scores[order(policy, waiting, now)[0]] == pytest.approx(max(scores.values()))
