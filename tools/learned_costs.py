"""Compares costs that are learned in service with those of the machine's profile.

In: nothing. Out: the table that docs/design/vllm-plugin.md, "Learned costs", sums up (5 minutes).

    python -m tools.learned_costs

The same jobs run in virtual time under each policy with the profile's costs, and with those that
`LearnedCosts` learns from the steps of the run. It begins with a guess of three times the costs. A
step that is learned from takes up to 10% more or less than in the profile, at random, and one in a
hundred takes a second longer.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

from harness.load.arrivals import parse_arrivals
from harness.replay.virtual import replay
from servers.basics.clock import seconds
from servers.policies.base import Costs
from servers.profiles import Profile, costs
from servers.profiles.files import profile_for
from servers.records.turns import TurnRecord
from servers.sim import Engine, Limits
from servers.variants import make_policy, variant
from servers.vllm.plugin.learned_costs import LearnedCosts
from traces.synthesis.synthesize import synthesize

MACHINES = {"a100-80g": 0.04, "h100": 0.08, "l40s": 0.015}
"""Jobs per second."""
POLICIES = ("continuum", "infercept", "turnstile")
MODEL, RECIPE, PROGRAMS, SEEDS = "llama-3.1-8b", "mini-swe-agent", 60, (1, 2, 3)
STEP_TOKENS = 2048
GUESSED_TIMES = 3.0
NOISE, STALL_S, STALLS = 0.1, 1.0, 0.01


class LearningEngine(Engine):
    """Lets `learned` observe the first step of each batch."""

    def __init__(self, *args: Any, learned: LearnedCosts | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._learned, self._random = learned, random.Random(0)  # noqa: S311

    def finish_batch(self) -> None:
        if self._learned is not None and self._batch is not None:
            chunks, noise = self._batch.chunks, self._random.uniform(1 - NOISE, 1 + NOISE)
            self._learned.observe(
                sum(n for _, n in chunks),
                sum(n * s.computed + n * (n + 1) // 2 for s, n in chunks),
                self._decodes.count,
                self._decodes.context,
                seconds(self._first_ps) * noise + STALL_S * (self._random.random() < STALLS),
            )
        super().finish_batch()


class CostOutcome(NamedTuple):
    jct_s: float
    pins: int
    reused: int


def run(
    machine: Profile, policy: str, jps: float, seed: int, given: Costs, learned: LearnedCosts | None
) -> CostOutcome:
    programs = synthesize(RECIPE, PROGRAMS, seed)
    starts_s, _ = parse_arrivals("poisson").draw(programs, jps, seed)
    events: Counter[str] = Counter()
    ends_s: dict[str, float] = {}

    def on_turn(turn: TurnRecord) -> None:
        ends_s[turn.program_id] = turn.finished_at_s or 0.0

    def engine(**options: Any) -> Engine:
        return LearningEngine(
            make_policy(variant(policy), given if learned is None else learned.costs),
            machine,
            Limits(256, STEP_TOKENS),
            on_event=lambda event: events.update([f"{event.event} {event.reason or ''}".strip()]),
            learned=learned,
            **options,
        )

    replay(programs, starts_s, None, engine, on_turn)
    jct_s = [ends_s[p.id] - at for p, at in zip(programs, starts_s, strict=True)]
    return CostOutcome(statistics.mean(jct_s), events["pinned"], events["unpinned reused"])


def errors(learned: Costs, exact: Costs) -> str:
    """Return the errors of prefills of 1000, 8000 and 30,000 tokens, and of decode steps of 1, 16
    and 64 turns with 8000 tokens each, in percent."""
    ratios = [learned.prefill_s(n) / exact.prefill_s(n) for n in (1000, 8000, 30_000)]
    ratios += [learned.decode_s(n, 8000 * n) / exact.decode_s(n, 8000 * n) for n in (1, 16, 64)]
    return ", ".join(f"{100 * (ratio - 1):+.0f}" for ratio in ratios)


def main() -> None:
    print("| machine, jobs/s | policy | mean JCT, s | pins | reused | errors of the costs, % |")
    print("|---|---|---:|---:|---:|---|")
    for name, jps in MACHINES.items():
        machine = profile_for(name, MODEL)
        exact = costs(machine, step_tokens=STEP_TOKENS, offload=False)
        for policy in POLICIES:
            given: list[CostOutcome] = []
            found: list[CostOutcome] = []
            for seed in SEEDS:
                learned = LearnedCosts(_guess(exact))
                given.append(run(machine, policy, jps, seed, exact, None))
                found.append(run(machine, policy, jps, seed, exact, learned))
            pairs = [
                f"{statistics.mean(one):.0f} / {statistics.mean(other):.0f}"
                for one, other in zip(
                    zip(*given, strict=True), zip(*found, strict=True), strict=True
                )
            ]
            print("|", f"{name}, {jps}", "|", policy, "|", " | ".join(pairs), "|", end=" ")
            print(errors(learned.costs, exact), "|", flush=True)


def _guess(exact: Costs) -> Costs:
    return replace(
        exact,
        prefill_s=lambda tokens: GUESSED_TIMES * exact.prefill_s(tokens),
        decode_step_s=lambda turns, context: GUESSED_TIMES * exact.decode_s(turns, context),
    )


if __name__ == "__main__":
    main()
