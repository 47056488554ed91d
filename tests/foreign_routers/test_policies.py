"""What the policies of vllm-router do with our programs, in front of servers that log arrivals."""

from __future__ import annotations

from pathlib import Path

from tests.foreign_routers.replaying import replayed
from tests.live.replaying import program


def test_round_robin_alternates_and_our_records_know_which_server_it_chose(tmp_path: Path) -> None:
    done = replayed("round_robin", [program("a", 4)], tmp_path)
    first, last = done.served("a")[:2]
    assert {first, last} == {0, 1}
    assert done.served("a") == [first, last, first, last]
    assert [line["replica"] for line in done.lines] == [first, last, first, last]
    assert [line["error"] for line in done.lines] == [None] * 4
    for line in done.lines:
        assert 0.0 < line["held_s"] < line["finished_at_s"] - line["sent_at_s"]
    # The server of the last turn knows from that turn that the program has ended.
    assert done.servers[first].ended == ["a"]
    assert done.servers[last].ended == []


def test_consistent_hash_keeps_each_program_on_one_server(tmp_path: Path) -> None:
    """The chance that all of 24 programs have one server is below 1 in a million."""
    names = [f"p{k}" for k in range(24)]
    done = replayed("consistent_hash", [program(name, 3) for name in names], tmp_path)
    servers = {name: set(done.served(name)) for name in names}
    assert {len(found) for found in servers.values()} == {1}
    assert set().union(*servers.values()) == {0, 1}


def test_cache_aware_returns_to_the_server_that_has_the_prompt(tmp_path: Path) -> None:
    """The second program begins while the first runs, so it gets the other server. After that
    both servers are idle when a turn comes, and all turns repeat most of their prompt."""
    programs = [program("a", 3, gap_s=1.6), program("b", 3, gap_s=1.6)]
    done = replayed("cache_aware", programs, tmp_path, starts_s=[0.0, 0.8], think_s=1.6)
    assert sorted([done.served("a"), done.served("b")]) == [[0, 0, 0], [1, 1, 1]]


def test_program_scheduling_knows_our_programs_and_the_memory_of_the_servers(
    tmp_path: Path,
) -> None:
    done = replayed("program_scheduling", [program("a", 2), program("b", 2)], tmp_path)
    ranks = done.diagnostics["ranks"]
    assert [rank["configured_token_capacity"] for rank in ranks] == [4096, 4096]
    known = {each["session_id"]: each for rank in ranks for each in rank["programs"]}
    assert known.keys() == {"a", "b"}
    assert {len(set(done.served(name))) for name in known} == {1}
    assert {each["step_id"] for each in known.values()} == {1}  # two turns, from 0


def test_program_scheduling_holds_a_program_back_that_does_not_fit(tmp_path: Path) -> None:
    """It books 100 tokens for an answer: 10 + 100 for each program, of which only one fits."""
    programs = [program("a", 1), program("b", 1)]
    done = replayed(
        "program_scheduling", programs, tmp_path, replicas=1, kv_tokens=150, think_s=2.0
    )
    assert done.servers[0].max_open == 1
    first, second = done.lines
    assert second["held_s"] - first["held_s"] > 1.0  # of the 2 s of the first program's turn
    assert (first["error"], second["error"]) == (None, None)
