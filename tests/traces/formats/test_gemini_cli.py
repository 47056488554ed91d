"""Gemini CLI: what a session's messages say of its calls and gaps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servers.basics.errors import TraceRejected
from tests.growth import FACTOR, LINEAR, growth
from tests.sentences import each_mentions, mentions
from tests.traces.claude_code import START_S, iso
from tests.traces.sample import Sample, json_lines
from traces import Fork, Program, Provenance, read_traces
from traces.check import check
from traces.formats.gemini_cli import load, sniff
from traces.lenient import Repairs


def sample() -> Sample:
    def session(id: str, *messages: dict[str, Any]) -> bytes:
        head = {"sessionId": id, "projectHash": "0" * 8, "startTime": "2026-01-01T00:00:00Z"}
        user = {"id": "u", "timestamp": "2026-01-01T00:00:01Z", "type": "user", "content": "fix it"}
        patch = {"$set": {"lastUpdated": "2026-01-01T00:00:01Z"}}
        return json_lines(head, user, patch, *messages)

    def answer(n: int, second: int, *calls: dict[str, Any]) -> dict[str, Any]:
        counts = {"input": 100 + 50 * n, "output": 20, "cached": 64, "thoughts": 0, "tool": 0}
        return {"id": f"g{n}", "timestamp": f"2026-01-01T00:00:0{second}Z", "type": "gemini",
                "content": "on", "model": "gemini-x", "tokens": counts,
                "toolCalls": list(calls)}  # fmt: skip

    call = {"name": "run_shell_command", "args": {"command": "ls"},
            "timestamp": "2026-01-01T00:00:05.500Z"}  # fmt: skip
    return Sample(
        {
            "session-a.jsonl": session("a", answer(0, 4, call), answer(1, 9)),
            "session-b.jsonl": session("b", answer(0, 4)),
        },
        (Provenance.MEASURED_WITH_PERMISSION,),
    )


SAMPLE = sample()


Message = dict[str, Any]
HEAD: Message = {"sessionId": "s", "projectHash": "0"}


def user(id: str, at_s: float) -> Message:
    return {"id": id, "timestamp": iso(at_s), "type": "user", "content": [{"text": "go"}]}


def answer(id: str, at_s: float, prompt: int, *tools: Message, **counts: int) -> Message:
    tokens = {"input": prompt, "output": 20, "cached": 0, "thoughts": 0, "tool": 0, **counts}
    return {"id": id, "timestamp": iso(at_s), "type": "gemini", "content": "on", "tokens": tokens,
            "toolCalls": list(tools), "model": "gemini-x"}  # fmt: skip


def tool(at_s: float, name: str = "read_file", **given: str) -> Message:
    return {"id": "t", "name": name, "args": given, "timestamp": iso(at_s), "status": "success"}


MESSAGES = [
    user("u", 0),
    answer("a", 4, 100, tool(5), tool(7)),
    answer("b", 9, 150, cached=100, thoughts=30, tool=10),
    user("v", 69),
    answer("c", 75, 300),
]


def read(data: bytes) -> tuple[Program, list[str]]:
    repairs = Repairs()
    (program,) = load(data, "session-1", repairs)
    check([program])
    return program, repairs.reasons()


@pytest.mark.parametrize(
    "data",
    [json.dumps({**HEAD, "messages": MESSAGES}, indent=1).encode(), json_lines(HEAD, *MESSAGES)],
)
def test_both_formats_give_the_same_program(data: bytes) -> None:
    assert sniff(data)
    program, _ = read(data)
    assert program.id == "s"
    counts = [(t.prompt_tokens, t.output_tokens, t.kept_tokens) for t in program.turns]
    # Thoughts are generated, and not repeated in the next prompt.
    assert counts == [(100, 20, 0), (160, 50, 120), (300, 20, 160)]
    gaps = [(turn.tools, turn.tool_gap_s) for turn in program.turns]
    assert gaps == [(("read_file", "read_file"), 3.0), ((), 60.0), ((), 0.0)]
    assert {turn.gap_provenance for turn in program.turns} == {Provenance.MEASURED}


def test_the_last_version_of_a_message_counts_and_patches_change_the_session() -> None:
    first = answer("a", 4, 100, output=1)
    program, repairs = read(
        json_lines(HEAD, user("u", 0), first, {"$set": {"sessionId": "t"}}, MESSAGES[1])
    )
    assert program.id == "t"
    assert [turn.output_tokens for turn in program.turns] == [20]
    assert each_mentions(repairs, "its last version counts")


def test_a_patch_can_add_messages() -> None:
    program, _ = read(json_lines(HEAD, {"$set": {"messages": MESSAGES}}))
    assert len(program.turns) == 3


def test_a_shell_command_counts_as_its_programs() -> None:
    ran = tool(5, "run_shell_command", command="ls /home/ada | wc -l")
    assert read(json_lines(HEAD, answer("a", 4, 100, ran)))[0].turns[0].tools == ("ls", "wc")


def test_an_answer_without_counts_is_left_out() -> None:
    uncounted = {**answer("a", 4, 100), "tokens": None}
    program, repairs = read(json_lines(HEAD, uncounted, *MESSAGES[2:]))
    assert len(program.turns) == 2
    assert mentions(repairs, "without token counts")


def test_a_session_without_counts_is_refused() -> None:
    with pytest.raises(TraceRejected, match=r"no message .* with token counts"):
        read(json_lines(HEAD, user("u", 0)))


def silent(id: str, at_s: float, prompt: int, *tools: Message, **counts: int) -> Message:
    """Return an answer without text, which is written when its tools have ended."""
    return {**answer(id, at_s, prompt, *tools, **counts), "content": ""}


def test_the_time_of_a_tool_that_ended_when_its_answer_was_written_is_not_measured() -> None:
    messages = [user("u", 0), silent("a", 30, 100, tool(30, "replace")), answer("b", 35, 150)]
    program, repairs = read(json_lines(HEAD, *messages))
    assert (program.turns[0].tool_gap_s, program.turns[0].gap_provenance) == (
        0.0,
        Provenance.INFERRED,
    )
    assert mentions(repairs, "before the answer's end", "gap set to 0")


def test_an_answer_without_text_ended_when_the_first_of_its_parallel_tools_began() -> None:
    times = {7.0: 20, 7.5: 37.04}  # beginnings, which their ids have in milliseconds, and ends
    tools = [{**tool(end_s), "id": f"t-{(START_S + begin_s) * 1000:.0f}-1"}
             for begin_s, end_s in times.items()]  # fmt: skip
    program, _ = read(json_lines(HEAD, user("u", 0), silent("a", 38, 100, *tools),
                                 answer("b", 45, 150)))  # fmt: skip
    assert (program.turns[0].tool_gap_s, program.turns[0].gap_provenance) == (
        30.04,
        Provenance.MEASURED,
    )


def test_the_first_version_of_a_message_has_the_time_of_the_answer() -> None:
    first = {**silent("a", 4, 100), "tokens": None}
    written_again = silent("a", 30, 100, tool(30, "replace"))
    program, _ = read(json_lines(HEAD, user("u", 0), first, written_again, answer("b", 35, 150)))
    assert program.turns[0].tool_gap_s == 26.0


def read_folder(folder: Path, **files: list[Message]) -> dict[str, Program]:
    for name, (head, *messages) in files.items():
        document = {**HEAD, **head, "messages": messages}
        (folder / f"session-{name}.json").write_text(json.dumps(document, indent=1))
    loaded = read_traces(folder, keep_names=True)
    assert loaded.rejections == ()
    return {program.id: program for program in loaded.programs}


def test_a_session_that_was_migrated_to_json_lines_is_one_session(tmp_path: Path) -> None:
    (tmp_path / "session-2.jsonl").write_bytes(json_lines(HEAD, *MESSAGES))
    programs = read_folder(tmp_path, old=[{}, *MESSAGES[:3]])
    assert [turn.prompt_tokens for turn in programs["s"].turns] == [100, 160, 300]
    assert len(programs) == 1


def agents_tool(begin_s: float, end_s: float, agent: str) -> Message:
    ms = round((1.77e9 + begin_s) * 1000)
    return {**tool(end_s, "investigator"), "id": f"investigator-{ms}-0", "agentId": agent}


def test_a_sub_agent_with_a_session_id_of_its_own_runs_once_for_each_call(tmp_path: Path) -> None:
    own = {"sessionId": "x", "kind": "subagent"}
    programs = read_folder(
        tmp_path,
        main=[
            {},
            user("u", 0),
            silent("a", 30, 100, agents_tool(4, 30, "x")),
            answer("b", 35, 150, tool(40)),
            silent("c", 70, 200, agents_tool(45, 70, "x")),
            answer("d", 75, 250),
        ],
        sub=[own, user("v", 5), answer("e", 29, 90), user("w", 46), answer("f", 68, 180)],
    )
    first, second = programs["x/agent-1"], programs["x/agent-1@2"]
    assert first.fork == Fork("s", 0, 1.0, 1, Provenance.MEASURED)
    assert second.fork == Fork("s", 2, 1.0, 3, Provenance.MEASURED)
    assert [turn.tool_gap_s for turn in programs["s"].turns] == [1.0, 5.0, 2.0, 0.0]


def test_a_sub_agent_that_no_call_started_is_not_awaited(tmp_path: Path) -> None:
    programs = read_folder(
        tmp_path,
        main=[{}, *MESSAGES],
        sub=[{"kind": "subagent"}, user("x", 20), answer("y", 29, 90)],
    )
    assert programs["s/agent-1"].fork == Fork("s", 1, 11.0, None, Provenance.MEASURED)


def test_files_of_a_session_that_overlap_are_sub_agents_each_of_its_own_call(
    tmp_path: Path,
) -> None:
    """Older versions do not write the kind. Two sub-agents run at once."""
    programs = read_folder(
        tmp_path,
        main=[
            {},
            user("u", 0),
            silent("a", 30, 100, agents_tool(4, 30, "x"), agents_tool(4.5, 28, "y")),
            answer("b", 35, 150),
        ],
        a_sub=[{}, user("v", 4.8), answer("e", 27, 90)],
        b_sub=[{}, user("w", 4.2), answer("f", 29, 80)],
    )
    assert sorted(programs) == ["s", "s/agent-1", "s/agent-2"]
    assert programs["s/agent-1"].turns[0].prompt_tokens == 80
    assert {p.fork for p in programs.values()} == {
        None,
        Fork("s", 0, 0.2, 1, Provenance.MEASURED),
        Fork("s", 0, 0.8, 1, Provenance.MEASURED),
    }
    assert programs["s"].turns[0].tool_gap_s == 1.0


def parts(count: int, kind: str) -> bytes:
    """Return one document: a session whose answers call an agent each, and `count` other files."""
    main = [
        silent(f"a{n}", 10 * n + 9, 100 + n, agents_tool(10 * n + 4, 10 * n + 9, ""))
        for n in range(count)
    ]
    lines = [{"turnstile_file": "main"}, HEAD, user("u", 0), *main]
    for n in range(count):
        at_s = 10 * n + 5 if kind else 10 * (count + n)
        own = {**HEAD, "kind": kind, "agentId": f"agent-{n}"}
        lines += [{"turnstile_file": f"{n}"}, own, user(f"v{n}", at_s)]
        lines += [answer(f"s{n}", at_s + 3, 90 + n)]
    return json_lines(*lines)


FILES = 150


def reader(kind: str) -> Callable[[int], object]:
    """Return a function that reads a session of as many files as it is told, 150 or 1,200."""
    data = {count: parts(count, kind) for count in (FILES, FACTOR * FILES)}
    return lambda count: load(data[count], "session-1", Repairs())


def test_very_many_files_of_a_session_are_read_in_linear_time() -> None:
    """Sorting all messages again for each of 1,500 files takes 30 s."""
    (program,) = load(parts(100, kind=""), "session-1", Repairs())
    assert len(program.turns) == 200
    assert growth(reader(""), FILES) < LINEAR


def test_very_many_sub_agents_are_placed_in_linear_time() -> None:
    """Comparing each of 2,500 sub-agents with all calls takes 8 s."""
    programs = load(parts(100, kind="subagent"), "session-1", Repairs())
    assert len(programs) == 101
    assert [p.fork.after_turn for p in programs[1:] if p.fork] == list(range(100))
    assert growth(reader("subagent"), FILES) < LINEAR
