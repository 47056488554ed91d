"""The sentence about the workload in a report."""

from __future__ import annotations

from reports.answer.workload import compared_with_agents, recorded_agents

MEANS = {"turns": 10.94, "new_tokens_per_later_turn": 6567.7, "tool_gap_s": 0.93}
REAL = "recorded agents: mini-swe-agent 40, 321 and 1.8 s; claude-code 48, 2,093 and 48 s."


def test_a_pack_is_described_and_compared_with_recorded_agents() -> None:
    workload = {"name": "swe-bench", "about": "a reading of a table", "means": MEANS}
    assert compared_with_agents(workload) == (
        "The workload is a reading of a table: jobs have 11 turns on average, later turns add "
        f"6,568 tokens, and tools take 0.9 s; {REAL}"
    )


def test_own_traces_are_compared_too() -> None:
    sentence = compared_with_agents({"name": "mine", "means": MEANS})
    assert sentence.startswith("Jobs have 11 turns on average, later turns add 6,568 tokens, and")


def test_nothing_is_said_of_jobs_that_are_not_known() -> None:
    assert compared_with_agents({"name": "agents", "turns": None}) == ""
    assert compared_with_agents({"name": "one turn", "means": {"turns": 1.0}}) == ""


def test_recorded_agents_are_the_sets_of_the_shipped_recipes() -> None:
    assert list(recorded_agents()) == ["mini-swe-agent", "claude-code"]
