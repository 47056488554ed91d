"""Codex: what a rollout's lines say of its calls, gaps, forks and sub-agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servers.basics.errors import TraceRejected
from tests.sentences import each_mentions, mentions
from tests.traces.claude_code import iso
from tests.traces.sample import Sample, json_lines
from traces import Fork, Program, Provenance, read_traces
from traces.check import check
from traces.formats.codex import load
from traces.lenient import Repairs


def sample() -> Sample:
    def line(kind: str, second: float, **payload: Any) -> dict[str, Any]:
        return {"timestamp": f"2026-01-01T00:00:{second:06.3f}Z", "type": kind, "payload": payload}

    def counted(second: float, calls: int) -> dict[str, Any]:
        last = {"input_tokens": 50 + 50 * calls, "cached_input_tokens": 64, "output_tokens": 20}
        info = {"total_token_usage": {"input_tokens": 125 * calls}, "last_token_usage": last}
        return line("event_msg", second, type="token_count", info=info)

    def rollout(id: str, *lines: dict[str, Any]) -> bytes:
        opening = [
            line("session_meta", 0, id=id, cli_version="0.100.0"),
            line("turn_context", 0, model="gpt-x"),
            line("response_item", 1, type="message", role="user", content=[{"text": "fix it"}]),
        ]
        return json_lines(*opening, *lines)

    call = line("response_item", 4, type="function_call", name="exec_command", call_id="c",
                arguments=json.dumps({"cmd": "ls"}))  # fmt: skip
    output = line("response_item", 5.5, type="function_call_output", call_id="c", output="x")
    done = line("response_item", 9, type="message", role="assistant", content=[{"text": "done"}])
    return Sample(
        {
            "rollout-a.jsonl": rollout("a", call, counted(4, 1), output, done, counted(9, 2)),
            "rollout-b.jsonl": rollout("b", done, counted(9, 1)),
        },
        (Provenance.MEASURED_WITH_PERMISSION,),
    )


SAMPLE = sample()


Line = dict[str, Any]


def line(kind: str, at_s: float, **payload: Any) -> Line:
    return {"timestamp": iso(at_s), "type": kind, "payload": payload}


def meta(id: str, at_s: float = 0, **fields: Any) -> Line:
    return line("session_meta", at_s, id=id, timestamp=iso(at_s), cli_version="0.1", **fields)


def item(kind: str, at_s: float, **fields: Any) -> Line:
    return line("response_item", at_s, type=kind, **fields)


def asked(at_s: float, content: str = "go") -> Line:
    return item("message", at_s, role="user", content=[{"type": "input_text", "text": content}])


def said(at_s: float) -> Line:
    return item("message", at_s, role="assistant", content=[{"type": "output_text", "text": "on"}])


def called(at_s: float, id: str, name: str = "apply_patch", **arguments: Any) -> Line:
    given = json.dumps(arguments)
    return item("function_call", at_s, name=name, call_id=id, arguments=given)


def output(at_s: float, id: str, written: str = "x") -> Line:
    return item("function_call_output", at_s, call_id=id, output=written)


class Counter:
    """Makes token_count events with cumulative totals."""

    def __init__(self) -> None:
        self.total = [0, 0, 0, 0]

    def __call__(
        self, at_s: float, prompt: int, output: int = 20, cached: int = 0, reasoning: int = 0
    ) -> Line:
        names = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")
        last = [prompt, cached, output, reasoning]
        self.total = [a + b for a, b in zip(self.total, last, strict=True)]
        info = {
            "total_token_usage": dict(zip(names, self.total, strict=True)),
            "last_token_usage": dict(zip(names, last, strict=True)),
        }
        return line("event_msg", at_s, type="token_count", info=info)


def read(*lines: Line) -> tuple[list[Program], list[str]]:
    repairs = Repairs()
    programs = load(json_lines(*lines), "rollout", repairs)
    check(programs)
    return programs, repairs.reasons()


def only(*lines: Line) -> Program:
    (program,) = read(*lines)[0]
    return program


def test_each_token_count_is_a_call_and_its_input_includes_what_was_cached() -> None:
    count = Counter()
    first, second = only(
        meta("a"),
        asked(1),
        called(4, "c"),
        count(4.1, 100, 20),
        output(6, "c"),
        said(9),
        count(9.1, 150, 30, cached=100),
    ).turns
    assert (first.prompt_tokens, first.output_tokens, first.kept_tokens) == (100, 20, 0)
    assert (second.prompt_tokens, second.output_tokens, second.kept_tokens) == (150, 30, 120)
    assert (first.tools, first.tool_gap_s, first.gap_provenance) == (
        ("apply_patch",),
        2.0,
        Provenance.MEASURED_WITH_PERMISSION,
    )


def test_a_count_after_the_outputs_belongs_to_the_call_before_them() -> None:
    count = Counter()
    before = [meta("a"), asked(1), called(4, "c"), output(6, "c"), count(6.1, 100)]
    assert only(*before, said(9), count(9, 150)).turns[0].tool_gap_s == 2.0


def test_a_count_with_the_same_total_is_no_call() -> None:
    count = Counter()
    counted = count(4, 100)
    none_yet = line("event_msg", 2, type="token_count", info=None)
    (program,), repairs = read(meta("a"), none_yet, asked(1), said(4), counted, counted)
    assert len(program.turns) == 1
    assert each_mentions(repairs, "repeats the one before: skipped")


@pytest.mark.parametrize(
    ("extra", "written"),
    [
        ([line("event_msg", 9, type="exec_command_end", call_id="c",
               duration={"secs": 1, "nanos": 500_000_000})], "x"),
        ([line("event_msg", 9, type="mcp_tool_call_end", call_id="c",
               duration={"secs": 1, "nanos": 500_000_000})], "Wall time: 7 seconds"),
        ([], "Chunk ID: 1\nWall time: 1.5000 seconds\nOutput:\n"),
        ([], '{"output":"x","metadata":{"exit_code":0,"duration_seconds":1.5}}'),
    ],
)  # fmt: skip
def test_a_recorded_duration_excludes_the_wait_for_approval(
    extra: list[Line], written: str
) -> None:
    count = Counter()
    program = only(meta("a"), asked(1), called(4, "c"), count(4, 100), *extra,
                   output(9, "c", written), said(12), count(12, 150))  # fmt: skip
    assert program.turns[0].tool_gap_s == 1.5


@pytest.mark.parametrize(
    ("name", "arguments", "names"),
    [
        ("exec_command", {"cmd": "cd /home/ada && pytest -q secret"}, ("cd", "pytest")),
        ("shell", {"command": ["bash", "-lc", "rg secret | wc"]}, ("rg", "wc")),
        ("shell", {"command": ["git", "push", "secret"]}, ("git",)),
        ("write_stdin", {"chars": "secret"}, ("write_stdin",)),
        ("shell_command", {"command": "./secret.sh"}, ("shell_command",)),
    ],
)
def test_a_shell_command_counts_as_its_programs(
    name: str, arguments: dict[str, Any], names: tuple[str, ...]
) -> None:
    program = only(meta("a"), called(4, "c", name, **arguments), Counter()(4, 100))
    assert program.turns[0].tools == names
    assert program.turns[0].command is None


def test_reasoning_is_not_repeated_in_the_next_prompt() -> None:
    count = Counter()
    program = only(meta("a"), said(4), count(4, 100, 60, reasoning=40), asked(9), said(12),
                   count(12, 400))  # fmt: skip
    assert (program.turns[0].output_tokens, program.turns[1].kept_tokens) == (60, 100)
    assert (program.turns[0].tools, program.turns[0].tool_gap_s) == ((), 5.0)


def test_after_a_compaction_only_what_the_provider_had_cached_is_kept() -> None:
    count = Counter()
    replaced = {"type": "message", "role": "user", "content": "x"}
    (program,), repairs = read(
        meta("a"), asked(1), said(4), count(4, 5000),
        line("compacted", 60, message="", replacement_history=[replaced, replaced]),
        line("turn_context", 60, model="m"),
        count(60, 0, 0), said(64), count(64, 900, cached=300),
    )  # fmt: skip
    assert [(t.prompt_tokens, t.kept_tokens) for t in program.turns] == [(5000, 0), (900, 300)]
    assert mentions(repairs, "history rewritten")


def history(count: Counter, at_s: float, step_s: float) -> list[Line]:
    """Return two calls, as recorded or as copied with the times of the copy."""
    times = [at_s + step_s * n for n in range(5)]
    return [asked(times[0]), said(times[1]), count(times[2], 100), said(times[3]),
            count(times[4], 200, cached=100)]  # fmt: skip


@pytest.mark.parametrize("with_parent", [True, False])
def test_the_history_that_a_fork_copies_is_not_counted_again(
    tmp_path: Path, with_parent: bool
) -> None:
    count = Counter()
    copy = history(count, 500, 0)
    child = [meta("b", 500, forked_from_id="a"), meta("a"), *copy, asked(510), said(515),
             count(515, 300, cached=200)]  # fmt: skip
    (tmp_path / "b.jsonl").write_bytes(json_lines(*child))
    if with_parent:
        (tmp_path / "z.jsonl").write_bytes(json_lines(meta("a"), *history(Counter(), 1, 9)))
    loaded = read_traces(tmp_path, keep_names=True)
    prompts = {p.id: [turn.prompt_tokens for turn in p.turns] for p in loaded.programs}
    assert prompts == {"b": [300], **({"a": [100, 200]} if with_parent else {})}
    assert all(program.fork is None for program in loaded.programs)
    reasons = [note.reason for note in loaded.repairs]
    assert mentions(reasons, "copied from the rollout")
    assert mentions(reasons, "give the rollout of a") is not with_parent


def test_a_call_in_the_second_after_a_fork_is_no_copy_if_the_parent_lacks_it(
    tmp_path: Path,
) -> None:
    count = Counter()
    copy = history(count, 500, 0)
    child = [meta("b", 500, forked_from_id="a"), meta("a"), *copy, said(500.7), called(500.7, "t"),
             count(500.7, 300, cached=200), output(509, "t"), said(515),
             count(515, 330, cached=300)]  # fmt: skip
    (tmp_path / "a.jsonl").write_bytes(json_lines(meta("a"), *history(Counter(), 0, 10)))
    (tmp_path / "b.jsonl").write_bytes(json_lines(*child))
    programs = read_traces(tmp_path, keep_names=True).programs
    assert [[turn.prompt_tokens for turn in p.turns] for p in programs] == [[100, 200], [300, 330]]
    assert programs[1].turns[0].tool_gap_s == pytest.approx(8.3)


def test_a_call_without_counts_after_a_total_began_anew_is_the_new_total() -> None:
    count, fresh = Counter(), Counter()
    counts = count(4, 5000), fresh(9, 700), fresh(15, 900)  # the totals are 5000, 700 and 1600
    for each in counts[1:]:
        del each["payload"]["info"]["last_token_usage"]
    lines = [line for each, at_s in zip(counts, (4, 9, 15), strict=True)
             for line in (said(at_s), each, asked(at_s + 2))]  # fmt: skip
    (program,), repairs = read(meta("a"), asked(1), *lines)
    assert [turn.prompt_tokens for turn in program.turns] == [5000, 700, 900]
    assert mentions(repairs, "without its own counts", "(2 times)")


def read_folder(folder: Path, *rollouts: list[Line]) -> dict[str, Program]:
    for number, lines in enumerate(rollouts):
        (folder / f"rollout-{number}.jsonl").write_bytes(json_lines(*lines))
    return {program.id: program for program in read_traces(folder, keep_names=True).programs}


def test_a_sub_agent_that_copies_lines_with_their_times_is_known_by_its_parents_field(
    tmp_path: Path,
) -> None:
    count = Counter()
    copy = history(count, 1, 9)
    child = [meta("b", 60, parent_thread_id="a", thread_source="subagent"), *copy, asked(61),
             said(65), count(65, 300)]  # fmt: skip
    programs = read_folder(tmp_path, [meta("a"), *history(Counter(), 1, 9)], child)
    assert {id: [turn.prompt_tokens for turn in p.turns] for id, p in programs.items()} == {
        "a": [100, 200],
        "b": [300],
    }
    # The parent's last answer before it came at 28 s.
    assert programs["b"].fork == Fork("a", 1, 33.0, None, Provenance.MEASURED)


def test_a_fork_may_copy_only_the_end_of_its_parents_history(tmp_path: Path) -> None:
    count = Counter()
    parent = [meta("a"), *history(count, 1, 9), asked(40), said(45), last := count(45, 300)]
    copy = [{**each, "timestamp": iso(500)} for each in (asked(40), said(45), last)]
    child = [meta("b", 500, forked_from_id="a"), meta("a"), *copy, asked(510), said(515),
             count(515, 400, cached=300)]  # fmt: skip
    programs = read_folder(tmp_path, parent, child)
    assert [turn.prompt_tokens for turn in programs["a"].turns] == [100, 200, 300]
    assert [turn.prompt_tokens for turn in programs["b"].turns] == [400]


@pytest.mark.parametrize("waits", [True, False])
def test_a_sub_agents_rollout_is_a_fork_of_its_parents(tmp_path: Path, waits: bool) -> None:
    count = Counter()
    spawned = line("event_msg", 5, type="collab_agent_spawn_end", call_id="c", new_thread_id="b")
    parent = [
        meta("a"), asked(1), called(4, "c", "spawn_agent"), count(4, 100), spawned, output(5, "c"),
        *([called(9, "w", "wait", ids=["b"])] if waits else [called(9, "w", "apply_patch")]),
        count(9, 200), output(40, "w"), said(50), count(50, 300),
    ]  # fmt: skip
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "a", "depth": 1}}}
    child = [meta("b", 6, source=source), asked(6), said(30), Counter()(30, 100)]
    (tmp_path / "1.jsonl").write_bytes(json_lines(*parent))
    (tmp_path / "2.jsonl").write_bytes(json_lines(*child))
    programs = {program.id: program for program in read_traces(tmp_path, keep_names=True).programs}
    assert programs["b"].fork == Fork("a", 0, 2.0, 2 if waits else None, Provenance.MEASURED)
    # The wait ends at 40: 10 s after the sub-agent, or 31 s after the call.
    assert programs["a"].turns[1].tool_gap_s == (10.0 if waits else 31.0)


def test_a_sub_agent_without_its_parent_is_a_program_of_its_own() -> None:
    program = only(meta("b", source={"subagent": "review"}), asked(1), said(9), Counter()(9, 100))
    assert (program.id, program.fork) == ("b", None)


def test_an_answer_without_a_count_is_left_out() -> None:
    (program,), repairs = read(meta("a"), asked(1), said(4), Counter()(4, 100), asked(5), said(9))
    assert len(program.turns) == 1
    assert each_mentions(repairs, "without token counts")


def gaps(program: Program) -> list[tuple[tuple[str, ...], float, Provenance]]:
    return [(turn.tools, turn.tool_gap_s, turn.gap_provenance) for turn in program.turns[:-1]]


def test_a_call_written_when_its_tool_had_ended_ended_with_its_counts() -> None:
    count = Counter()
    program = only(
        meta("a"), asked(1), count(5, 100), said(15), called(15, "c"), output(15, "c"),
        count(20, 150), said(20),
    )  # fmt: skip
    permission = Provenance.MEASURED_WITH_PERMISSION
    assert gaps(program) == [(("apply_patch",), 10.0, permission)]


def test_the_time_of_a_tool_that_only_its_late_lines_have_is_not_measured() -> None:
    count = Counter()
    (program,), repairs = read(
        meta("a"), asked(1), count(15, 100), called(15, "c"), output(15, "c"),
        count(20, 150, cached=100), said(20),
    )  # fmt: skip
    assert gaps(program) == [(("apply_patch",), 0.0, Provenance.INFERRED)]
    assert each_mentions(repairs, "before the answer's end: gap set to 0")


def test_a_resumed_rollout_may_write_counts_after_items_where_it_wrote_them_before() -> None:
    count = Counter()
    program = only(
        meta("a"), asked(1), count(5, 100), called(5, "c"), output(9, "c"), count(12, 150),
        said(12), asked(100), called(104, "d", "update_plan"), output(106, "d"), count(106, 200),
        said(110), count(110, 250),
    )  # fmt: skip
    permission = Provenance.MEASURED_WITH_PERMISSION
    assert gaps(program) == [
        (("apply_patch",), 4.0, permission),
        ((), 88.0, Provenance.MEASURED),
        (("update_plan",), 2.0, Provenance.MEASURED),
    ]


def test_an_output_before_its_call_belongs_to_it() -> None:
    count = Counter()
    lines = [meta("a"), asked(1), said(4), output(9, "c"), called(4, "c"), count(9, 100), said(12)]
    permission = Provenance.MEASURED_WITH_PERMISSION
    assert gaps(only(*lines, count(12, 150))) == [(("apply_patch",), 5.0, permission)]


def test_an_item_or_a_history_that_is_written_again_is_read_once() -> None:
    count = Counter()
    once = [asked(1), called(4, "c"), output(6, "c"), count(6, 100), said(9), count(9, 150)]
    again = [{**line, "timestamp": iso(60)} for line in once]
    (program,), repairs = read(meta("a"), *once, *again, asked(70), said(75), count(75, 200))
    assert [turn.prompt_tokens for turn in program.turns] == [100, 150, 200]
    assert program.turns[0].tool_gap_s == 2.0
    assert [turn.tools for turn in program.turns] == [("apply_patch",), (), ()]
    assert mentions(repairs, "written again: counted once")


def test_answers_may_number_their_tool_calls_each_from_the_first() -> None:
    count = Counter()
    program = only(
        meta("a"), asked(1), called(4, "call_0", path="x"), output(6, "call_0"), count(6, 100),
        called(9, "call_0", path="y"), output(12, "call_0"), count(12, 150), said(15),
        count(15, 200),
    )  # fmt: skip
    assert [(tools, gap_s) for tools, gap_s, _ in gaps(program)] == [
        (("apply_patch",), 2.0),
        (("apply_patch",), 3.0),
    ]


@pytest.mark.parametrize("counts_after_output", [True, False])
def test_equal_calls_that_answers_number_from_the_first_are_all_read(
    counts_after_output: bool,
) -> None:
    count, lines = Counter(), [meta("a"), asked(1)]
    for at_s, prompt in ((4, 100), (9, 150)):
        after = [output(at_s + 2, "call_0"), count(at_s + 2, prompt)]
        call = called(at_s, "call_0", "exec_command", cmd="git status")
        lines += [call, call, *(after if counts_after_output else after[::-1])]  # written again
    program = only(*lines, said(15), count(15, 200))
    assert [(tools, gap_s) for tools, gap_s, _ in gaps(program)] == [(("git",), 2.0)] * 2


def test_a_message_after_an_answer_without_counts_shows_that_it_was_interrupted() -> None:
    count = Counter()
    (program,), repairs = read(
        meta("a"), asked(1), said(4), count(4, 100), asked(10), called(12, "c"), asked(60),
        said(65), count(65, 150, cached=100),
    )  # fmt: skip
    assert gaps(program) == [((), 56.0, Provenance.MEASURED)]  # from 4 to the message at 60
    assert each_mentions(repairs, "without token counts")


def test_an_interrupted_answer_with_counts_is_a_call() -> None:
    count = Counter()
    aborted = line("event_msg", 6, type="turn_aborted", reason="interrupted")
    program = only(
        meta("a"), asked(1), called(4, "c"), aborted, output(6, "c"), count(6, 100), asked(60),
        said(65), count(65, 150),
    )  # fmt: skip
    assert gaps(program) == [((), 56.0, Provenance.MEASURED)]


def test_what_a_total_grew_by_over_a_compaction_is_the_compacting_call() -> None:
    count = Counter()
    first = count(4, 5000, 50)
    count(30, 5100, 400)  # is not written
    program = only(
        meta("a"), asked(1), said(4), first, line("compacted", 30, message=""),
        said(40), count(40, 900, cached=300),
    )  # fmt: skip
    assert [(t.prompt_tokens, t.output_tokens, t.kept_tokens) for t in program.turns] == [
        (5000, 50, 0),
        (5100, 400, 5050),
        (900, 20, 300),
    ]


def test_a_total_that_grew_by_more_than_the_calls_is_reported_with_numbers() -> None:
    count = Counter()
    first = count(4, 5000)
    count(30, 6000)  # is not written
    (program,), repairs = read(
        meta("a"), asked(1), said(4), first, asked(20), said(40), count(40, 6500, cached=5000)
    )
    assert [turn.prompt_tokens for turn in program.turns] == [5000, 6500]
    (sums,) = repairs
    assert mentions(sums, "11,500 tokens", "17,500")


def record(at_s: float, id: str, prompt: int, thread: str = "a") -> Line:
    usage = {"input_tokens": prompt, "cached_input_tokens": 0, "output_tokens": 20}
    return line("token_usage_record", at_s, thread_id=thread, response_id=id, usage=usage)


@pytest.mark.parametrize("record_first", [True, False])
def test_a_call_that_is_counted_twice_is_one_call(record_first: bool) -> None:
    count = Counter()
    lines = [meta("a"), asked(1)]
    for number, at_s in enumerate((4, 9)):
        counted = [record(at_s, f"r{number}", 100), count(at_s, 100)]
        lines += [said(at_s), *(counted if record_first else counted[::-1])]
    assert [turn.prompt_tokens for turn in only(*lines).turns] == [100, 100]


def test_records_alone_are_calls_each_id_once_and_those_of_other_threads_are_copies() -> None:
    program = only(meta("a"), record(2, "r0", 70, "b"), asked(3), said(4), record(4, "r1", 100),
                   record(5, "r1", 100), said(9), record(9, "r2", 150))  # fmt: skip
    assert [turn.prompt_tokens for turn in program.turns] == [100, 150]


def test_cached_tokens_above_the_input_are_not_part_of_it() -> None:
    (program,), repairs = read(meta("a"), asked(1), said(4), Counter()(4, 100, cached=900))
    assert program.turns[0].prompt_tokens == 1000
    assert each_mentions(repairs, "without the cached ones")


def test_a_sub_agent_that_gets_a_second_task_runs_twice(tmp_path: Path) -> None:
    count = Counter()
    spawned = line("event_msg", 5, type="collab_agent_spawn_end", call_id="c", new_thread_id="b")
    parent = [
        meta("a"), asked(1), called(4, "c", "spawn_agent"), spawned, output(5, "c"), count(5, 100),
        called(9, "w", "wait", ids=["b"]), output(31, "w"), count(31, 200),
        called(40, "i", "send_input", target="b"), output(40, "i"), count(40, 300),
        called(45, "x", "wait", ids=["b"]), output(61, "x"), count(61, 400),
        said(65), count(65, 500),
    ]  # fmt: skip
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "a", "depth": 1}}}
    count = Counter()
    child = [meta("b", 5, source=source), asked(5), said(30), count(30, 100), asked(41), said(60),
             count(60, 200)]  # fmt: skip
    (tmp_path / "1.jsonl").write_bytes(json_lines(*parent))
    (tmp_path / "2.jsonl").write_bytes(json_lines(*child))
    programs = {program.id: program for program in read_traces(tmp_path, keep_names=True).programs}
    assert programs["b"].fork == Fork("a", 0, 1.0, 2, Provenance.MEASURED)
    assert programs["b@2"].fork == Fork("a", 2, 1.0, 4, Provenance.MEASURED)
    assert [turn.tool_gap_s for turn in programs["a"].turns] == [1.0, 1.0, 0.0, 1.0, 0.0]


def test_of_two_files_of_a_rollout_the_longer_one_is_read(tmp_path: Path) -> None:
    count = Counter()
    lines = [meta("a"), asked(1), said(4), count(4, 100), said(9), count(9, 150)]
    (tmp_path / "1.jsonl").write_bytes(json_lines(*lines[:4]))
    (tmp_path / "2.jsonl").write_bytes(json_lines(*lines))
    (program,) = read_traces(tmp_path).programs
    assert [turn.prompt_tokens for turn in program.turns] == [100, 150]


@pytest.mark.parametrize(
    "lines", [[meta("a"), said(1)], [{"record_type": "state"}, {"type": "message"}]]
)
def test_a_rollout_without_counts_is_refused(lines: list[Line]) -> None:
    with pytest.raises(TraceRejected, match="no token_count event"):
        read(*lines)
