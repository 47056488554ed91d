"""Claude Code: sub-agents in the session's file and in files of their own, and resumed sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sentences import mentions
from tests.traces.claude_code import Line, answer, result, session, tool, user
from traces import Fork, Program, Provenance, TraceSet, read_traces

TASK = "find the bug"


def main(**outcome: Any) -> list[Line]:
    """Return a session that starts an agent at 4 and has its answer at 30."""
    return [
        user("u", None, 0),
        answer("a", "u", 4, "m1", tool("t", "Task", prompt=TASK, subagent_type="Explore")),
        result("r", "a", 30, "t", toolUseResult=outcome),
        answer("b", "r", 40, "m2", new=200),
    ]


def agent(id: str | None = "x1", begin_s: float = 5, session: str = "s") -> list[Line]:
    """Return the lines of a sub-agent that ends 15 s after it begins."""
    own: dict[str, Any] = {"isSidechain": True, "sessionId": session}
    if id is not None:
        own["agentId"] = id
    name = id or f"side{begin_s}"
    return [
        user(f"{name}-u", None, begin_s, TASK, **own),
        answer(f"{name}-a", f"{name}-u", begin_s + 5, f"{name}-1", tool(f"{name}-t"), **own),
        result(f"{name}-r", f"{name}-a", begin_s + 6, f"{name}-t", **own),
        answer(f"{name}-b", f"{name}-r", begin_s + 15, f"{name}-2", new=200, **own),
    ]


def read(folder: Path, **files: list[Line]) -> TraceSet:
    for name, lines in files.items():
        path = folder / f"{name.replace('__', '/').replace('_', '-')}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(session(*lines))
    return read_traces(folder, keep_names=True)


def by_id(loaded: TraceSet) -> dict[str, Program]:
    assert loaded.rejections == ()
    return {program.id: program for program in loaded.programs}


JOINED = Fork("s", 0, 1.0, 1, Provenance.MEASURED)


def test_side_lines_in_the_sessions_file_are_an_agent_that_the_session_awaits(
    tmp_path: Path,
) -> None:
    first, *others = main()
    programs = by_id(read(tmp_path, s=[first, *agent(None), *others]))
    assert list(programs) == ["s", "s/agent-1"]
    assert programs["s/agent-1"].fork == JOINED
    assert [turn.tool_gap_s for turn in programs["s/agent-1"].turns] == [1.0, 0.0]
    # From the end of the agent at 20 to its result at 30; the answer ended at 4.
    assert programs["s"].turns[0].tool_gap_s == 10.0
    assert programs["s"].turns[0].tools == ("Task",)


def test_parallel_side_lines_are_told_apart_by_their_chains(tmp_path: Path) -> None:
    a, b = agent(None, 5), agent(None, 7)
    mixed = [line for pair in zip(a, b, strict=True) for line in pair]
    calls = answer("a", "u", 4, "m1", *(tool(t, "Task", prompt=TASK) for t in ("t", "t2")))
    lines = [user("u", None, 0), calls, *mixed, result("r", "a", 22, "t"),
             result("r2", "a", 23, "t2"), answer("b", "r2", 40, "m2", new=200)]  # fmt: skip
    programs = by_id(read(tmp_path, s=lines))
    assert [(p.id, len(p.turns)) for p in programs.values()] == [
        ("s", 2), ("s/agent-1", 2), ("s/agent-2", 2)]  # fmt: skip
    assert programs["s/agent-2"].fork == Fork("s", 0, 3.0, 1, Provenance.MEASURED)
    assert programs["s"].turns[0].tool_gap_s == 1.0  # from 22, when the later agent ends


@pytest.mark.parametrize("name", ["agent_x1", "s__subagents__agent_x1"])
def test_an_agent_in_a_file_of_its_own_is_part_of_its_session(tmp_path: Path, name: str) -> None:
    loaded = read(tmp_path, s=main(agentId="x1"), **{name: agent()})
    programs = by_id(loaded)
    assert list(programs) == ["s", "s/agent-x1"]
    assert programs["s/agent-x1"].fork == JOINED
    assert list(loaded.formats) == ["s.jsonl"]
    assert read_traces(tmp_path / "s.jsonl", keep_names=True).programs == loaded.programs


def test_the_folder_of_sub_agents_names_their_session(tmp_path: Path) -> None:
    lines = agent(session="agent-x1")
    programs = by_id(read(tmp_path, s=main(agentId="x1"), s__subagents__agent_x1=lines))
    assert programs["s/agent-x1"].fork == JOINED


@pytest.mark.parametrize("outcome", [{"status": "async_launched"}, {"isAsync": True}])
def test_an_agent_in_the_background_is_not_awaited(tmp_path: Path, outcome: dict[str, Any]) -> None:
    programs = by_id(read(tmp_path, s=main(agentId="x1", **outcome), agent_x1=agent()))
    assert programs["s/agent-x1"].fork == Fork("s", 0, 1.0, None, Provenance.MEASURED)
    assert programs["s"].turns[0].tool_gap_s == 26.0  # from 4 to 30


def test_an_agent_whose_start_is_not_recorded_begins_after_the_call_before_it(
    tmp_path: Path,
) -> None:
    lines = [user("u", None, 0), answer("a", "u", 4, "m1"), user("v", "a", 9),
             answer("b", "v", 12, "m2", new=200)]  # fmt: skip
    loaded = read(tmp_path, s=lines, agent_x1=agent(begin_s=13))
    assert by_id(loaded)["s/agent-x1"].fork == Fork("s", 1, 1.0, None, Provenance.MEASURED)
    started = "a sub-agent whose start is not recorded: after the last call before it, not awaited"
    assert started in [note.reason for note in loaded.repairs]


def test_an_agent_can_start_agents(tmp_path: Path) -> None:
    outer = agent("x1", 5)
    outer[1]["message"]["content"][0] = tool("x1-t", "Agent", prompt="deeper")
    outer[2]["toolUseResult"] = {"agentId": "y2"}
    programs = by_id(read(tmp_path, s=main(agentId="x1"), agent_x1=outer, agent_y2=agent("y2", 8)))
    assert programs["s/agent-y2"].fork == Fork("s/agent-x1", 0, 0.0, 1, Provenance.MEASURED)


def test_an_agent_without_its_session_is_a_program_of_its_own(tmp_path: Path) -> None:
    (program,) = by_id(read(tmp_path, agent_x1=agent())).values()
    assert (program.id, program.fork, len(program.turns)) == ("agent-x1", None, 2)


def test_agents_of_one_kind_share_their_system_prompt_but_not_that_of_the_session(
    tmp_path: Path,
) -> None:
    lines = main(agentId="x1")
    for each in (lines, other := agent()):
        for line in each:
            if line["type"] == "assistant":
                line["message"]["usage"]["cache_read_input_tokens"] = 30
    programs = by_id(read(tmp_path, s=lines, agent_x1=other))
    prefixes = [programs[id].prefix for id in ("s", "s/agent-x1")]
    assert None not in prefixes
    assert prefixes[0] != prefixes[1]


def test_the_lines_that_a_resumed_session_copies_count_once(tmp_path: Path) -> None:
    old = [user("u", None, 0), answer("a", "u", 4, "msg_1"), user("v", "a", 9),
           answer("b", "v", 12, "msg_2", new=200)]  # fmt: skip
    resumed = [*old, user("w", "b", 5000, sessionId="r"),
               answer("c", "w", 5010, "msg_3", cached=180, new=120, sessionId="r")]  # fmt: skip
    loaded = read(tmp_path, a_resumed=resumed, s=old)
    prompts = {id: [t.prompt_tokens for t in p.turns] for id, p in by_id(loaded).items()}
    assert prompts == {"s": [100, 200], "a-resumed": [300]}
    copied = "a line of a call that another file or agent has: counted once (2 times)"
    assert copied in [note.reason for note in loaded.repairs]
    assert all(program.prefix is None for program in loaded.programs)


def test_a_copied_session_counts_once_even_if_the_copy_has_ids_of_its_own(tmp_path: Path) -> None:
    lines = [user("u", None, 0), answer("a", "u", 4, "msg_1")]
    copies = [{**line, "uuid": f"new-{line['uuid']}", "sessionId": "r"} for line in lines]
    loaded = read(tmp_path, s=lines, r=copies)
    assert len(loaded.programs) == 1


def test_two_sessions_whose_files_have_one_name_are_two_programs(tmp_path: Path) -> None:
    for number, folder in enumerate("ab"):
        own = {"sessionId": folder}
        lines = [user(f"{folder}u", None, 0, **own),
                 answer(f"{folder}a", f"{folder}u", 4, f"msg_{number}", **own)]  # fmt: skip
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "log.jsonl").write_bytes(session(*lines))
    loaded = read_traces(tmp_path, keep_names=True)
    assert [(p.id, len(p.turns)) for p in loaded.programs] == [("log", 1), ("log#2", 1)]
    assert str(tmp_path) not in repr(loaded)


def test_a_copy_of_a_file_adds_nothing(tmp_path: Path) -> None:
    read(tmp_path, s=main())
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/s.jsonl").write_bytes((tmp_path / "s.jsonl").read_bytes())
    assert [(p.id, len(p.turns)) for p in read_traces(tmp_path, keep_names=True).programs] == [
        ("s", 2)
    ]


def test_a_part_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    read(tmp_path, s=main(agentId="x1"), s__subagents__agent_x1=agent())
    (tmp_path / "s/subagents/agent-x1.jsonl").rename(tmp_path / "s/subagents/agent-x1.jsonl.gz")
    loaded = read_traces(tmp_path, keep_names=True)
    (note,) = loaded.rejections
    assert note.file == "agent-x1.jsonl.gz"
    assert mentions(note.reason, "not a complete gzip file")
    assert [program.id for program in loaded.programs] == ["s"]


def test_a_message_to_a_finished_agent_is_a_further_run_that_is_not_awaited(
    tmp_path: Path,
) -> None:
    lines = [
        *main(agentId="x1"),
        user("v", "b", 60),
        answer("c", "v", 64, "m3", tool("w", "SendMessage", to="x1", message="again"), new=300),
        result("q", "c", 65, "w"),
        answer("d", "q", 90, "m4", new=400),
    ]
    own: dict[str, Any] = {"isSidechain": True, "agentId": "x1"}
    again = [
        user("x1-v", "x1-b", 66, "again", **own),
        answer("x1-c", "x1-v", 80, "x1-3", new=300, **own),
    ]
    programs = by_id(read(tmp_path, s=lines, s__subagents__agent_x1=[*agent(), *again]))
    assert programs["s/agent-x1"].fork == JOINED
    assert programs["s/agent-x1@2"].fork == Fork("s", 2, 2.0, None, Provenance.MEASURED)


def test_an_agent_whose_first_start_has_no_id_is_found_by_its_prompt_if_it_is_resumed(
    tmp_path: Path,
) -> None:
    lines = [
        *main(),
        answer("c", "b", 64, "m3", tool("w", "Task", prompt="again", resume="x1"), new=300),
        result("q", "c", 90, "w", toolUseResult={"agentId": "x1"}),
        answer("d", "q", 95, "m4", new=400),
    ]
    own: dict[str, Any] = {"isSidechain": True, "agentId": "x1"}
    again = [
        user("x1-v", "x1-b", 66, "again", **own),
        answer("x1-c", "x1-v", 80, "x1-3", new=300, **own),
    ]
    programs = by_id(read(tmp_path, s=lines, s__subagents__agent_x1=[*agent(), *again]))
    assert programs["s/agent-x1"].fork == JOINED
    assert programs["s/agent-x1@2"].fork == Fork("s", 2, 2.0, 3, Provenance.MEASURED)
