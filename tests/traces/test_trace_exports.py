"""The formats that `bench traces convert --to` writes, by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.basics.errors import UnknownName
from tests.sentences import mentions
from tests.traces.exported_worlds import jobs
from tests.traces.hashed_worlds import HashedWorld, hashed_worlds
from traces import Fork, Program, Provenance, SharedPrefix, Turn, read_traces
from traces.block_hashes import share_blocks
from traces.exports.contents import BlockIds
from traces.exports.registry import EXPORTS, Losses, load_export
from traces.exports.timeline import timeline
from traces.formats.shared.timed_calls import estimated_api_s

MEASURED = Provenance.MEASURED
SYSTEM = SharedPrefix("system", 64)
PARENT = Program(
    "p",
    (
        Turn(100, 10, 0, ("ls",), "ls secret", 2.0, MEASURED),
        Turn(150, 20, 110, ("cat", "grep"), None, 3.5, MEASURED),
        Turn(200, 30, 170),
    ),
    SYSTEM,
    recorded_start_s=5.0,
)
CHILD = Program(
    "p/sub",
    (Turn(64, 5, 0, ("ls",), None, 1.0, MEASURED), Turn(80, 6, 69)),
    SYSTEM,
    Fork("p", 0, 0.5, 1, MEASURED),
)
SECONDS_OF = {program.id: [estimated_api_s(t.prompt_tokens, t.output_tokens) for t in program.turns]
              for program in (PARENT, CHILD)}  # fmt: skip


def written(name: str, programs: Sequence[Program]) -> list[Any]:
    return [json.loads(item) for item in load_export(name).write(programs, Losses())]


def losses_of(name: str, *programs: Program) -> str:
    losses = Losses()
    list(load_export(name).write(programs, losses))
    return "\n".join(losses.reasons())


# What prompts share


@given(hashed_worlds())
def test_ids_of_blocks_say_what_prompts_share(world: HashedWorld) -> None:
    """Programs whose sharing came from hashes have the same sharing if it comes from our ids."""
    blocks = BlockIds(world.hash_block, partial=True)
    ids = {program.id: list(blocks.of(program)) for program in world.programs}
    plain = [
        replace(p, turns=tuple(replace(t, kept_tokens=0, prefixes=()) for t in p.turns))
        for p in world.programs
    ]
    for before, after in zip(
        world.programs, share_blocks(plain, ids, world.hash_block), strict=True
    ):
        assert [t.kept_tokens for t in after.turns] == [t.kept_tokens for t in before.turns]
        for x, y in zip(before.turns, after.turns, strict=True):
            assert [p.tokens for p in x.prefixes][-1:] == [p.tokens for p in y.prefixes][-1:]


def test_ids_are_those_of_blocks_of_equal_tokens() -> None:
    """Worked by hand: 40 tokens of system prompt, in blocks of 16."""
    system = SharedPrefix("system", 40)
    a = Program("a", (Turn(50, 10), Turn(80, 10, 60), Turn(70, 5, 33)), system)
    b = Program("b", (Turn(50, 10),), system)
    blocks = BlockIds(16, partial=True)
    # 0 and 1 are in the system prompt; 2 has its end and 8 new tokens; 3 is the rest, not full.
    # The second prompt keeps all of it and the answer: its first block after 48 is full, so new.
    # The third keeps 33 tokens, so two blocks.
    assert list(blocks.of(a)) == [[0, 1, 2, 3], [0, 1, 2, 4, 5], [0, 1, 6, 7, 8]]
    assert list(blocks.of(b)) == [[0, 1, 9, 10]]
    full = BlockIds(16, partial=False)
    assert list(full.of(a)) == [[0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 5, 6]]


# Times


def test_turns_follow_assumed_generations_gaps_and_sub_agents() -> None:
    times = timeline([PARENT, CHILD], Losses())
    first_s, second_s, _ = SECONDS_OF["p"]
    sub_first_s, sub_second_s = SECONDS_OF["p/sub"]
    child_s = 5 + first_s + 0.5
    child_end_s = child_s + sub_first_s + 1.0 + sub_second_s
    assert times["p/sub"][0].start_s == pytest.approx(child_s)
    assert times["p/sub"][1].end_s == pytest.approx(child_end_s)
    # The second turn waits for the sub-agent, and its gap begins at the sub-agent's end.
    starts_s = [time.start_s for time in times["p"]]
    assert starts_s == pytest.approx([5.0, child_end_s + 2.0, child_end_s + 2.0 + second_s + 3.5])


def test_starts_that_are_not_recorded_are_assumed_and_said_to_be() -> None:
    unknown = replace(PARENT, recorded_start_s=None)
    assert timeline([unknown], Losses())["p"][0].start_s == 0
    for name in ("mooncake", "agentic-mooncake", "otel"):
        assert mentions(losses_of(name, unknown), "without a recorded start", "0 s")
        assert "without a recorded start" not in losses_of(name, PARENT)


# Each format, by hand


def test_mooncake_has_a_row_per_request_in_order_of_time() -> None:
    rows = written("mooncake", [PARENT, CHILD])
    assert [(row["input_length"], row["output_length"]) for row in rows] == [
        (100, 10), (64, 5), (80, 6), (150, 20), (200, 30),
    ]  # fmt: skip
    assert [row["timestamp"] for row in rows][:2] == [
        5000, round(1e3 * (5 + SECONDS_OF["p"][0] + 0.5)),
    ]  # fmt: skip
    assert {len(row["hash_ids"]) for row in rows} == {1}  # below 512 tokens
    assert set(rows[0]) == {"timestamp", "input_length", "output_length", "hash_ids"}


def test_mooncake_says_that_it_has_neither_sessions_nor_gaps_nor_sub_agents() -> None:
    losses = losses_of("mooncake", PARENT, CHILD)
    lost = "sessions", "tool gaps", "sub-agents", "tool names (3 times)"
    assert all(mentions(losses, f"mooncake has no {each}") for each in lost)
    assert mentions(losses, "single requests (2")
    assert mentions(losses, "generation took", "1.27 s + 14.9 ms")


def test_agentic_mooncake_has_dependencies_with_gaps() -> None:
    header, *rows = written("agentic-mooncake", [PARENT, CHILD])
    assert header["schema"] == "dynamo.agentic_mooncake"
    assert (header["version"], header["block_size"]) == (2, 64)
    assert rows[1]["request_id"] == "p:1"
    assert [row["play_id"] for row in rows] == ["p"] * 5
    assert rows[1]["dependencies"] == [
        {"request_id": "p:0", "trigger": "completion", "delay_ms": 2000, "relation": "sequence"},
        {"request_id": "p/sub:1", "trigger": "completion", "delay_ms": 2000, "relation": "join"},
    ]
    assert rows[3]["dependencies"] == [
        {"request_id": "p:0", "trigger": "completion", "delay_ms": 500, "relation": "spawn"}
    ]
    assert rows[0]["hash_ids"][0] == rows[3]["hash_ids"][0]  # the system prompt of 64 tokens


@pytest.mark.parametrize("name", ["agentic-mooncake", "aiperf-dag"])
def test_a_pause_that_readers_take_for_a_tool_is_named(name: str) -> None:
    turns = (Turn(100, 10, tool_gap_s=60.0), Turn(200, 10, 110, ("ls",), None, 1.0), Turn(300, 10))
    lost = f"{name} does not tell a pause without a tool from a tool: it is read as a tool"
    assert lost in losses_of(name, Program("a", turns))
    assert lost not in losses_of(name, Program("a", turns[1:]))


def test_aiperf_dag_has_filler_of_the_right_length() -> None:
    parent, child = written("aiperf-dag", [PARENT, CHILD])
    system, task = parent["turns"][0]["messages"]
    assert (system["role"], len(system["content"].split())) == ("system", 64)
    assert (task["role"], len(task["content"].split())) == ("user", 36)
    (results,) = parent["turns"][1]["messages"]
    assert len(results["content"].split()) == 150 - 110
    assert [turn["delay"] for turn in parent["turns"]] == [0, 2000, 3500]
    assert [turn["max_tokens"] for turn in parent["turns"]] == [10, 20, 30]
    assert parent["turns"][0]["spawns"] == [{"children": ["p/sub"], "join_at": 1}]
    assert child["turns"][0]["delay"] == 500
    # AIPerf accepts system messages only in first turns of jobs; a sub-agent has the same text.
    assert child["turns"][0]["messages"][0]["content"].startswith(system["content"])


def test_aiperf_dag_begins_a_new_conversation_where_a_prompt_is_shortened() -> None:
    turns = (Turn(100, 10, tool_gap_s=1.0), Turn(60, 5, 50, tool_gap_s=2.0), Turn(70, 5, 65))
    first, second = written("aiperf-dag", [Program("a", turns)])
    assert first["turns"][0]["spawns"] == [second["session_id"]] == ["a~1"]
    assert [turn["delay"] for turn in second["turns"]] == [1000, 2000]
    before = first["turns"][0]["messages"][0]["content"]
    after = second["turns"][0]["messages"][0]["content"]
    assert len(after.split()) == 60
    assert before.split()[:50] == after.split()[:50]
    losses = losses_of("aiperf-dag", Program("a", turns))
    assert mentions(losses, "conversation of its own")


def test_aiperf_dag_says_where_it_waits_differently() -> None:
    free = replace(CHILD, fork=Fork("p", 0, 0.0, None))
    parent, _ = written("aiperf-dag", [PARENT, free])
    assert parent["turns"][0]["spawns"] == [{"children": ["p/sub"], "join_at": 2}]
    losses = losses_of("aiperf-dag", PARENT, free)
    assert mentions(losses, "waited for before the last turn")


def test_weka_has_a_document_per_job_with_its_sub_agents() -> None:
    other = Program("q", (Turn(130, 5, 0, (), None, 0.0),))
    session, short = written("weka", [PARENT, CHILD, other])
    assert (session["id"], session["block_size"], short["id"]) == ("p", 64, "q")
    first, sub_agent, second, third = session["requests"]
    assert (first["t"], first["in"], first["out"], first["stop"]) == (0.0, 100, 10, "tool_use")
    assert first["api_time"] == pytest.approx(SECONDS_OF["p"][0], abs=1e-6)
    assert second["think_time"] == 2.0
    assert (third["stop"], third["api_time"]) == ("end_turn", None)
    assert (sub_agent["agent_id"], sub_agent["type"]) == ("sub", "subagent")
    assert sub_agent["t"] < second["t"]  # its end
    assert [request["t"] for request in sub_agent["requests"]] == [
        0.0, pytest.approx(SECONDS_OF["p/sub"][0] + 1.0, abs=1e-6),
    ]  # fmt: skip
    assert short["requests"][0]["hash_ids"] == [0, 1]  # full blocks only


def test_otel_has_spans_of_agents_calls_and_tools() -> None:
    (line,) = written("otel", [PARENT, CHILD])
    spans = line["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert sorted(span["name"] for span in spans) == [
        "chat", "chat", "chat", "chat", "chat", "execute_tool cat", "execute_tool grep",
        "execute_tool ls", "execute_tool ls", "invoke_agent agent", "invoke_agent sub",
    ]  # fmt: skip
    by_id = {span["spanId"]: span for span in spans}
    sub_agent = next(span for span in spans if span["name"] == "invoke_agent sub")
    assert by_id[sub_agent["parentSpanId"]]["name"] == "invoke_agent agent"


# What no format may contain


@pytest.mark.parametrize("name", [name for name in EXPORTS if name != "native"])
def test_no_other_format_has_commands(name: str) -> None:
    data = b"".join(load_export(name).write([PARENT, CHILD], Losses()))
    assert b"secret" not in data


def test_an_unknown_format_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UnknownName, match="did you mean mooncake"):
        load_export("moncake")


@given(st.sampled_from(sorted(EXPORTS)), jobs())
def test_equal_programs_give_equal_bytes(name: str, programs: list[Program]) -> None:
    first, again = (list(load_export(name).write(programs, Losses())) for _ in range(2))
    assert first == again


def test_a_file_without_output_tokens_is_repaired_before_it_is_written(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 600, "output_length": 0, "hash_ids": [1, 2]}
    (tmp_path / "zero.jsonl").write_text(json.dumps(row))
    (line,) = written("mooncake", read_traces(tmp_path / "zero.jsonl").programs)
    assert (line["output_length"], line["hash_ids"]) == (1, [0, 1])
