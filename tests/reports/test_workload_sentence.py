"""The sentences about the workload in a report."""

from __future__ import annotations

import pandas as pd
from msgspec import convert

from reports.answer.workload import compared_with_agents, mostly_gaps, pauses, recorded_agents
from reports.capacity.estimate import Capacity, Kind
from reports.capacity.search import Chain
from reports.capacity.slo import parse_slo
from reports.metrics.cells import Results
from reports.statistics.capacities import capacities
from servers.records.settings import RunSettings, WorkloadRecord
from tests.sentences import mentions

MEANS = {"turns": 10.94, "new_tokens_per_later_turn": 6567.7, "tool_gap_s": 0.93}
REAL = (
    "Recorded agents: mini-swe-agent 40 turns, 321 tokens and 1.8 s; claude-code 48 turns, 2,093"
    " tokens and 48 s."
)
CONSEQUENCE = (
    "With other agents the capacities and the best scheduler may differ: use --traces with your own"
    " recordings."
)


def test_numbers_of_the_workload_and_of_recorded_agents_have_units_and_a_consequence() -> None:
    workload = {
        "name": "swe-bench",
        "recipe": "swe-bench",
        "about": "a reading of a table",
        "means": MEANS,
    }
    sentence = compared_with_agents(convert(workload, WorkloadRecord))
    job = "11 turns", "6,568 tokens", "0.9 s"
    assert mentions(sentence, "a reading of a table", *job, REAL, CONSEQUENCE)


def test_a_workload_like_a_recorded_agent_has_no_consequence() -> None:
    """Each mean is within a factor of two of that of mini-swe-agent."""
    means = {"turns": 40.0, "new_tokens_per_later_turn": 300.0, "tool_gap_s": 2.0}
    sentence = compared_with_agents(
        convert({"recipe": "mini-swe-agent", "means": means}, WorkloadRecord)
    )
    assert sentence.endswith(REAL)


def test_own_traces_are_compared_too_and_need_no_others() -> None:
    sentence = compared_with_agents(convert({"name": "mine", "means": MEANS}, WorkloadRecord))
    assert mentions(sentence, "A job has 11 turns", "6,568 tokens")
    assert sentence.endswith(REAL)


def test_the_means_of_a_job_are_without_its_sub_agents() -> None:
    sentence = compared_with_agents(
        convert({"name": "mine", "means": MEANS, "sub_agents": 3}, WorkloadRecord)
    )
    assert mentions(sentence, "without its sub-agents has 11 turns")


def test_tools_that_take_no_time_are_compared_too() -> None:
    means = MEANS | {"tool_gap_s": 0.0}
    assert "a tool call takes 0.0 s" in compared_with_agents(
        convert({"recipe": "r", "means": means}, WorkloadRecord)
    )


def test_nothing_is_said_of_jobs_that_are_not_known() -> None:
    assert compared_with_agents(convert({"name": "agents", "turns": None}, WorkloadRecord)) == ""
    assert (
        compared_with_agents(convert({"name": "one turn", "means": {"turns": 1.0}}, WorkloadRecord))
        == ""
    )


def test_recorded_agents_are_the_sets_of_the_shipped_recipes() -> None:
    assert list(recorded_agents()) == ["mini-swe-agent", "claude-code"]


def test_the_share_of_pauses_in_the_mean_jct_is_a_caveat() -> None:
    rows = [("fcfs", 50.0, 80.0), ("fcfs", 30.0, 120.0), ("fast", 40.0, 64.0)]
    jobs = pd.DataFrame(
        [{"load": "1 jobs/s", "variant": v, "tool_s": t, "jct_s": j} for v, t, j in rows]
    )
    # 75% of gaps of 40 s on average, which is 30 s of 100 s and of 64 s.
    (caveat,) = pauses(jobs, with_means({"pause_share": 0.75}))
    assert mentions(caveat, "Pauses", "30% to 47%")
    (alike,) = pauses(jobs[:2], with_means({"pause_share": 0.75}))
    assert mentions(alike, "Pauses", "about 30% of")
    assert pauses(jobs, with_means({"pause_share": 0.01})) == []  # 0.4 and 0.6%
    assert pauses(jobs, with_means({})) == []
    assert pauses(jobs[:0], with_means({"pause_share": 0.75})) == []


def with_means(means: dict[str, float]) -> RunSettings:
    return RunSettings(workload=WorkloadRecord(means=means))


def gaps(tool_s: float, slo: str = "mean<=2x") -> list[str]:
    """Return the caveat of a run in which fcfs sustains 0.2 jobs/s, and las 0.1 with one of two
    seeds; the mean JCT is 100 s."""
    rows = [
        {"cell": f"{name}{jps}{seed}", "variant": name, "load": f"{jps} jobs/s", "jps": jps,
         "seed": seed, "ttft_p95_s": ttft_s + seed}
        for name, jps, ttft_s in (("fcfs", 0.1, 1.0), ("fcfs", 0.2, 30.0), ("fcfs", 0.3, 900.0),
                                  ("las", 0.1, 700.0))
        for seed in (0, 2)
    ]  # fmt: skip
    more_s = {"fcfs": 0.0, "las": 9.0}
    jobs = [row | {"jct_s": 100.0, "tool_s": tool_s + more_s[str(row["variant"])]} for row in rows]
    results = Results(pd.DataFrame(rows), pd.DataFrame(jobs), ())
    found = {"fcfs": (0.2, 0.25), "las": (0.1, 0.09)}
    chains = {
        Chain(name, seed): Capacity(Kind.FOUND, most, most, 2 * most)
        for name, rates in found.items()
        for seed, most in zip((0, 2), rates, strict=True)
    }
    of = capacities(chains, dict.fromkeys(found, ""), "fcfs")
    return mostly_gaps(results, of, RunSettings(), parse_slo(slo))


def test_a_capacity_that_is_mostly_tool_gaps_comes_with_the_time_to_first_token() -> None:
    # Means of two seeds, which differ by 2 s: 2 and 31 s.
    (caveat,) = gaps(60.0)
    assert mentions(caveat, "tool gaps", "60% of the mean JCT")
    assert mentions(caveat, "2.00 s (fcfs at 0.1 jobs/s)", "31.0 s (fcfs at 0.2 jobs/s)")
    assert gaps(45.0) == []
    assert gaps(60.0, "mean<=2x,ttft_p95<=5s") == []  # which limits how long a user waits
