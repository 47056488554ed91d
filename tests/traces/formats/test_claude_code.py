"""Claude Code: what a session's lines say of its calls, gaps and kept tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servers.basics.errors import TraceRejected
from tests.sentences import each_mentions, mentions
from tests.traces.claude_code import Line, answer, iso, line, result, session, tool, user, written
from tests.traces.sample import Sample, json_lines
from traces import Program, Provenance, read_traces
from traces.check import check
from traces.formats.claude_code import load
from traces.formats.native import program_line
from traces.lenient import Repairs


def sample() -> Sample:
    def session(id: str, *lines: dict[str, Any]) -> bytes:
        chain = {"isSidechain": False, "sessionId": id, "version": "2.1.0"}
        parents = [None, *(line["uuid"] for line in lines)]
        records = zip(parents, lines, strict=False)
        return json_lines(*({"parentUuid": parent, **line, **chain} for parent, line in records))

    def prompt(id: str, at: str) -> dict[str, Any]:
        message = {"role": "user", "content": "fix it"}
        return {"type": "user", "uuid": f"{id}-1", "timestamp": at, "message": message}

    def answer(id: str, n: int, at: str, block: dict[str, Any], cached: int) -> dict[str, Any]:
        usage = {"input_tokens": 4, "cache_creation_input_tokens": 100 + 50 * n - 4 - cached,
                 "cache_read_input_tokens": cached, "output_tokens": 20}  # fmt: skip
        message = {"id": f"msg_{id}{n}", "model": "claude-x", "content": [block], "usage": usage,
                   "stop_reason": "end_turn"}  # fmt: skip
        return {"type": "assistant", "uuid": f"{id}-a{n}", "timestamp": at, "message": message}

    called = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
    done = {"type": "text", "text": "done"}
    observed = {"type": "user", "uuid": "a-2", "timestamp": "2026-01-01T00:00:05.500Z",
                "message": {"role": "user", "content": [result]}}  # fmt: skip
    return Sample(
        {
            "a.jsonl": session(
                "a",
                prompt("a", "2026-01-01T00:00:00Z"),
                answer("a", 0, "2026-01-01T00:00:04Z", called, 64),
                observed,
                answer("a", 1, "2026-01-01T00:00:09Z", done, 100),
            ),
            "b.jsonl": session(
                "b",
                prompt("b", "2026-01-01T00:01:00Z"),
                answer("b", 0, "2026-01-01T00:01:04Z", done, 64),
            ),
        },
        (Provenance.MEASURED_WITH_PERMISSION,),
    )


SAMPLE = sample()


def read(*lines: Line) -> tuple[list[Program], list[str]]:
    repairs = Repairs()
    programs = load(session(*lines), "s", repairs)
    check(programs)
    return programs, repairs.reasons()


def only(*lines: Line) -> Program:
    (program,) = read(*lines)[0]
    return program


ASKED = user("u", None, 0)
CALLED = answer("a", "u", 4, "m1", tool("t"), cached=60, new=40)
ANSWERED = result("r", "a", 9, "t")
DONE = answer("b", "r", 12, "m2", written("done"), cached=100, new=50)


def test_a_prompt_is_its_cached_and_its_new_tokens_and_keeps_what_was_before() -> None:
    first, second = only(ASKED, CALLED, ANSWERED, DONE).turns
    assert (first.prompt_tokens, first.output_tokens, first.kept_tokens) == (100, 20, 0)
    assert (second.prompt_tokens, second.output_tokens, second.kept_tokens) == (150, 20, 120)


def test_the_lines_of_one_call_count_once_with_its_last_usage_even_if_they_are_apart() -> None:
    program = only(
        ASKED,
        answer("a", "u", 3, "m1", written("I look"), output=1, stop=None),
        answer("a2", "a", 4, "m1", tool("t1"), output=1, stop=None),
        result("r1", "a2", 5, "t1"),
        answer("a3", "a2", 6, "m1", tool("t2"), output=90),
        result("r2", "a3", 8, "t2"),
        answer("b", "r2", 9, "m2", new=250),
    )
    assert [(t.prompt_tokens, t.output_tokens) for t in program.turns] == [(100, 90), (250, 20)]
    assert program.turns[0].tools == ("Read", "Read")
    assert program.turns[0].tool_gap_s == 2.0  # from the last line of the answer, at 6
    assert program.turns[1].kept_tokens == 190


def test_a_gap_lasts_from_the_answer_to_the_last_result() -> None:
    (turn, _) = only(ASKED, CALLED, ANSWERED, DONE).turns
    assert (turn.tools, turn.tool_gap_s, turn.gap_provenance) == (
        ("Read",),
        5.0,
        Provenance.MEASURED,
    )


@pytest.mark.parametrize(
    ("measured", "gap_s"),
    [
        ({"durationMs": 1500}, 1.5),
        ({"durationSeconds": 2.5}, 2.5),
        ({"totalDurationMs": 2000}, 2.0),
        ({"durationMs": 9999}, 5.0),
        ({"durationMs": -1}, 5.0),
    ],
)
def test_a_measured_duration_excludes_the_wait_for_permission(
    measured: dict[str, float], gap_s: float
) -> None:
    waited = result("r", "a", 9, "t", toolUseResult=measured)
    assert only(ASKED, CALLED, waited, DONE).turns[0].tool_gap_s == gap_s


@pytest.mark.parametrize(
    ("name", "duration", "provenance"),
    [
        ("Write", {}, Provenance.MEASURED_WITH_PERMISSION),
        ("Write", {"durationMs": 1500}, Provenance.MEASURED),
        ("Bash", {}, Provenance.MEASURED_WITH_PERMISSION),
        ("Read", {}, Provenance.MEASURED),
    ],
)
def test_a_gap_that_may_contain_the_wait_for_permission_says_so(
    name: str, duration: dict[str, float], provenance: Provenance
) -> None:
    called = answer("a", "u", 4, "m1", tool("t", name))
    waited = result("r", "a", 9, "t", toolUseResult=duration)
    assert only(ASKED, called, waited, DONE).turns[0].gap_provenance is provenance


def test_the_wait_for_a_person_is_a_pause_without_tools() -> None:
    program = only(
        ASKED,
        answer("a", "u", 4, "m1", written("which one?")),
        user("v", "a", 64, "the first"),
        answer("b", "v", 70, "m2", tool("q", "AskUserQuestion"), new=150),
        result("r", "b", 90, "q"),
        answer("c", "r", 95, "m3", tool("t"), new=200),
        result("r2", "c", 96, "t"),
        user("w", "r2", 126, "stop, do this"),
        answer("d", "w", 130, "m4", tool("t4"), new=250),
        result("r4", "d", 131, "t4"),
        user("x", "r4", 131.5, "and that, which I wrote while you worked"),
        answer("e", "x", 140, "m5", new=300),
    )
    assert [(turn.tools, turn.tool_gap_s) for turn in program.turns] == [
        ((), 60.0),
        ((), 20.0),
        ((), 31.0),
        (("Read",), 1.0),
        ((), 0.0),
    ]


def test_after_an_hour_without_a_person_a_new_program_begins() -> None:
    programs, repairs = read(
        ASKED,
        CALLED,
        ANSWERED,
        DONE,
        user("v", "b", 12 + 3599, "next"),
        answer("c", "v", 3620, "m3", new=200),
        user("w", "c", 3620 + 3600, "and tomorrow"),
        answer("d", "w", 7230, "m4", new=260, cached=60),
    )
    assert [(p.id, len(p.turns)) for p in programs] == [("s", 3), ("s@2", 1)]
    assert programs[0].turns[1].tool_gap_s == 3599.0
    starts = [p.recorded_start_s for p in programs]
    assert None not in starts
    assert starts[1] - starts[0] == 7220.0  # type: ignore[operator]
    assert mentions(repairs, "a pause of an hour or more")


def test_a_tool_that_ran_for_an_hour_by_its_own_clock_does_not_end_a_program() -> None:
    long = result("r", "a", 4004, "t", toolUseResult={"durationMs": 4_000_000})
    assert only(ASKED, CALLED, long, DONE).turns[0].tool_gap_s == 4000.0


def test_a_prompt_that_grew_is_kept_even_if_the_providers_cache_had_expired() -> None:
    expired = answer("b", "r", 12, "m2", cached=0, new=150)
    (program,), repairs = read(ASKED, CALLED, ANSWERED, expired)
    assert program.turns[1].kept_tokens == 120
    (grew,) = repairs
    assert mentions(grew, "only grew", "kept tokens inferred")


def test_after_a_compaction_only_what_the_provider_had_cached_is_kept() -> None:
    (program,), repairs = read(
        ASKED,
        CALLED,
        line("system", "c", None, 10, subtype="compact_boundary", logicalParentUuid="a"),
        user("v", "c", 11, "summary", isCompactSummary=True),
        answer("b", "v", 20, "m2", cached=60, new=300),
    )
    assert [turn.kept_tokens for turn in program.turns] == [0, 60]
    assert mentions(repairs, "history rewritten")


def test_after_a_rewind_the_context_up_to_the_common_call_is_kept() -> None:
    program = only(
        ASKED,
        CALLED,  # context 100 + 20
        ANSWERED,
        DONE,
        user("v", "b", 20, "no"),
        answer("c", "v", 25, "m3", cached=150, new=50),
        user("w", "a", 60, "other way"),
        answer("d", "w", 65, "m4", cached=0, new=400),
    )
    assert [turn.kept_tokens for turn in program.turns] == [0, 120, 170, 120]


def test_thinking_is_not_repeated_after_a_persons_message() -> None:
    thought = answer("a", "u", 4, "m1", {"type": "thinking", "thinking": "hm"}, output=50)
    after_person = only(ASKED, thought, user("v", "a", 9), answer("b", "v", 12, "m2", new=400))
    assert after_person.turns[1].kept_tokens == 100
    calling = {**thought, "message": {**thought["message"], "content": [
        *thought["message"]["content"], tool("t")]}}  # fmt: skip
    after_tool = only(ASKED, calling, ANSWERED, answer("b", "r", 12, "m2", new=400))
    assert after_tool.turns[1].kept_tokens == 150


@pytest.mark.parametrize(
    ("output", "stop", "expected"),
    [(3, None, 100), (60, None, 60), (3, "tool_use", 3), (0, "tool_use", 100)],
)
def test_an_output_count_without_stop_reason_is_a_lower_bound(
    output: int, stop: str | None, expected: int
) -> None:
    text = written("x" * 330)  # at 3.3 characters per token
    (program,), repairs = read(ASKED, answer("a", "u", 4, "m", text, output=output, stop=stop))
    assert program.turns[0].output_tokens == expected
    estimated = "an answer with only an initial output count: estimated from its length"
    assert (estimated in repairs) == (expected == 100)


def test_answers_of_no_model_and_without_counts_are_left_out() -> None:
    error = answer("e", "r", 10, "x", written("overloaded"), model="<synthetic>")
    failed = answer("f", "e", 11, "y", isApiErrorMessage=True)
    uncounted = {**answer("g", "f", 11, "z"), "message": {"id": "z", "content": []}}
    (program,), repairs = read(
        ASKED, CALLED, ANSWERED, error, failed, uncounted, {**DONE, "parentUuid": "g"}
    )
    assert [turn.kept_tokens for turn in program.turns] == [0, 120]
    assert each_mentions(repairs, "no model gave", "without token counts")
    assert repairs[0].endswith("(2 times)")


def test_broken_lines_are_left_out_and_unknown_ones_ignored() -> None:
    data = session(line("brand-new", "n", None, 0), ASKED, CALLED, ANSWERED, DONE)
    repairs = Repairs()
    (program,) = load(b"12\n{oops\n" + data + data.splitlines()[-1][:90], "s", repairs)
    assert len(program.turns) == 2
    assert each_mentions(repairs.reasons(), "not a JSON object", "truncated or not JSON")
    assert repairs.reasons()[1].endswith("(2 times)")


def test_times_that_go_backwards_give_no_negative_gap() -> None:
    (program,), repairs = read(ASKED, CALLED, result("r", "a", 1, "t"), DONE)
    assert program.turns[0].tool_gap_s == 0.0
    assert mentions(repairs, "before the answer's end", "gap set to 0")


def test_a_missing_time_gives_an_inferred_gap() -> None:
    (program,), _ = read(ASKED, CALLED, {**ANSWERED, "timestamp": "soon"}, DONE)
    assert program.turns[0].gap_provenance is Provenance.INFERRED


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([line("summary", "x", None, 0)], "no conversation: the types of its lines are summary"),
        ([ASKED, answer("a", "u", 1, "m", new=2)], None),
        ([ASKED, answer("a", "u", 1, "<s>", model="<synthetic>")], "no answer with token counts"),
    ],
)
def test_a_file_without_calls_is_refused_with_the_reason(
    lines: list[Line], reason: str | None
) -> None:
    if reason is None:
        assert only(*lines).turns[0].prompt_tokens == 2
        return
    with pytest.raises(TraceRejected, match=reason):
        read(*lines)


def test_counts_on_a_later_line_are_those_of_the_whole_call() -> None:
    early = answer("a", "u", 4, "m1", tool("t", "Edit"))
    early["message"]["usage"] = {}
    late = answer("b", "a", 5, "m1", new=100)
    (program,), repairs = read(
        user("u", None, 0), early, late, result("r", "b", 9, "t"),
        answer("c", "r", 12, "m2", cached=100, new=150),
    )  # fmt: skip
    assert [turn.prompt_tokens for turn in program.turns] == [100, 250]
    assert (program.turns[0].tools, program.turns[0].tool_gap_s) == (("Edit",), 4.0)
    assert repairs == []


def test_an_answer_without_counts_leaves_the_message_after_it_to_the_call_before() -> None:
    uncounted = answer("b", "r", 12, "m2")
    uncounted["message"]["usage"] = {}
    (program,), repairs = read(
        user("u", None, 0), answer("a", "u", 4, "m1", tool("t")), result("r", "a", 9, "t"),
        uncounted, user("v", "b", 60), answer("c", "v", 65, "m3", cached=100, new=150),
    )  # fmt: skip
    assert [(turn.tools, turn.tool_gap_s) for turn in program.turns] == [((), 56.0), ((), 0.0)]
    assert [turn.kept_tokens for turn in program.turns] == [0, 120]
    assert each_mentions(repairs, "without token counts")


def test_a_result_before_the_line_of_its_tool_belongs_to_it() -> None:
    (program,), _ = read(
        user("u", None, 0), answer("a", "u", 4, "m1", written("so")), result("r", "a", 9, "t"),
        answer("b", "a", 4, "m1", tool("t", "Edit")),
        answer("c", "r", 12, "m2", cached=100, new=150),
    )  # fmt: skip
    assert (program.turns[0].tools, program.turns[0].tool_gap_s) == (("Edit",), 5.0)


def test_a_call_is_known_by_the_id_of_its_request_where_a_line_lacks_the_messages() -> None:
    first = answer("a", "u", 4, "m1", written("so"), requestId="q1")
    second = answer("b", "a", 5, "", tool("t"), requestId="q1")
    other = answer("c", "b", 9, "", requestId="q2")
    program = only(user("u", None, 0), first, second, other)
    assert [turn.prompt_tokens for turn in program.turns] == [100, 100]


def test_lines_of_one_request_are_one_call_even_if_the_first_has_an_early_prompt_count() -> None:
    first = answer("a", "u", 4, "chatcmpl-1", written("so"), new=10, requestId="req_1")
    second = answer("b", "a", 5, "chatcmpl-1", tool("t"), new=5000, requestId="req_1")
    other = answer("c", "b", 9, "chatcmpl-1", new=6000, requestId="req_2")
    program = only(user("u", None, 0), first, second, other)
    assert [turn.prompt_tokens for turn in program.turns] == [5000, 6000]


def test_a_copy_of_a_call_without_ids_is_known_by_the_id_of_its_line(tmp_path: Path) -> None:
    lines = [user("u", None, 0), answer("a", "u", 4, ""), user("v", "a", 9)]
    copy = [{**each, "sessionId": "b"} for each in (*lines, answer("c", "v", 12, "", new=200))]
    (tmp_path / "s.jsonl").write_bytes(session(*lines))
    (tmp_path / "b.jsonl").write_bytes(session(*copy))
    found = [[turn.prompt_tokens for turn in p.turns] for p in read_traces(tmp_path).programs]
    assert sorted(found) == [[100], [200]]


def test_sessions_of_one_version_and_model_share_the_cached_part_of_the_first_prompt(
    tmp_path: Path,
) -> None:
    for name, cached in (("x", 80), ("y", 60), ("z", 0)):
        lines = user("u", None, 0), answer("a", "u", 1, f"msg_{name}", cached=cached, new=40)
        (tmp_path / f"{name}.jsonl").write_bytes(
            session(*({**each, "sessionId": name} for each in lines))
        )
    x, y, z = read_traces(tmp_path).programs
    assert x.prefix == y.prefix
    assert x.prefix is not None
    assert x.prefix.tokens == 60
    assert z.prefix is None


SECRETS = ("/home/ada/acme", "hunter2", "merger", "deploy.acme.sh")


def private_history(folder: Path) -> Path:
    """Write a session in which every text is a secret; return the folder of all projects."""
    path, password, topic, script = SECRETS
    project = folder / "projects" / path.replace("/", "-")
    project.mkdir(parents=True)
    command = f"TOKEN={password} {path}/{script} --for {topic} && git push {password}"
    lines = [
        user("u", None, 0, f"the {topic}", cwd=path, gitBranch=topic),
        answer("a", "u", 4, "m1", written(topic), tool("t", "Bash", command=command), cwd=path),
        result("r", "a", 9, "t", toolUseResult={"stdout": password}),
        answer("b", "r", 12, "m2", tool("w", "Write", file_path=path, content=password), new=200),
    ]
    (project / "0a1b.jsonl").write_bytes(session(*lines) + b"{" + password.encode())
    (project / "0a2c.jsonl").write_bytes(session(line("summary", "x", None, 0, summary=topic)))
    return folder / "projects"


def test_nothing_but_lengths_tool_names_and_times_leaves_the_reader(tmp_path: Path) -> None:
    loaded = read_traces(private_history(tmp_path), keep_names=True)
    (program,) = loaded.programs
    assert program.turns[0].tools == (
        "git",
    )  # the name of a program, no argument, and no script of the person
    kept = b"".join(map(program_line, loaded.programs)).decode()
    notes = [*loaded.repairs, *loaded.rejections]
    everything = kept + json.dumps(loaded.formats) + repr(notes)
    assert [secret for secret in (*SECRETS, "acme") if secret in everything] == []
    assert {note.file for note in notes} == {"0a1b.jsonl", "0a2c.jsonl"}
    assert program.source == "0a1b.jsonl"


def test_messages_are_read_if_they_are_asked_for(tmp_path: Path) -> None:
    path = private_history(tmp_path) / "-home-ada-acme" / "0a1b.jsonl"
    (program,) = read_traces(path, messages=True).programs
    assert [m.content for m in program.messages] == ["the merger", "merger", "x", ""]
    assert program.prompt_messages == (1, 3)


def test_lines_of_an_answer_that_are_written_again_later_do_not_move_its_end() -> None:
    first = answer("a", "u", 4, "m1", tool("t", "Edit"))
    (program,), repairs = read(
        user("u", None, 0), first, result("r", "a", 9, "t"),
        {**first, "uuid": "a2", "timestamp": iso(50)},
        answer("b", "r", 60, "m2", cached=100, new=150),
    )  # fmt: skip
    assert (program.turns[0].tools, program.turns[0].tool_gap_s) == (("Edit",), 5.0)
    assert each_mentions(repairs, "written again: counted once")


def test_new_tokens_that_always_exceed_the_cached_ones_include_them() -> None:
    """Some gateways count cached tokens as new ones too."""
    lines = [user("u", None, 0)]
    for number, (new, read_) in enumerate([(1000, 0), (1200, 1000), (1500, 1200)]):
        line = answer(f"a{number}", "u", 4 + number, f"m{number}")
        line["message"]["usage"] = {"input_tokens": new, "cache_read_input_tokens": read_,
                                    "output_tokens": 20}  # fmt: skip
        lines.append(line)
    (program,), repairs = read(*lines)
    assert [turn.prompt_tokens for turn in program.turns] == [1000, 1200, 1500]
    assert mentions(repairs, "include the cached ones")


def test_calls_that_a_gateway_gave_one_id_are_told_apart_by_their_prompts(tmp_path: Path) -> None:
    """Ollama draws ids from a thousand numbers. A copy has the same prompts."""
    early = answer("a", "u", 4, "chatcmpl-7", written("so"), new=2)
    early["message"]["usage"] = {}
    lines = [
        user("u", None, 0), early,
        answer("b", "a", 5, "chatcmpl-7", tool("t")), result("r", "b", 9, "t"),
        answer("c", "r", 12, "chatcmpl-7", cached=100, new=150),
    ]  # fmt: skip
    more = answer("d", "c", 90, "chatcmpl-7", cached=250, new=50)
    (tmp_path / "s.jsonl").write_bytes(session(*lines))
    (tmp_path / "b.jsonl").write_bytes(session(*({**e, "sessionId": "b"} for e in (*lines, more))))
    programs = read_traces(tmp_path, keep_names=True).programs
    assert {p.id: [turn.prompt_tokens for turn in p.turns] for p in programs} == {
        "s": [100, 250],
        "b": [300],
    }


def test_lines_without_any_id_of_their_call_are_calls_of_their_own() -> None:
    first, second = answer("a", "u", 4, "m1"), answer("b", "a", 9, "", new=200)
    assert [t.prompt_tokens for t in only(user("u", None, 0), first, second).turns] == [100, 200]


def test_answers_may_number_their_tools_each_from_the_first() -> None:
    program = only(
        user("u", None, 0), answer("a", "u", 4, "m1", tool("call_0", "Edit")),
        result("r", "a", 9, "call_0"),
        answer("b", "r", 12, "m2", tool("call_0", "Write"), cached=100, new=150),
        result("q", "b", 19, "call_0"), answer("c", "q", 22, "m3", cached=250, new=50),
    )  # fmt: skip
    assert [(t.tools, t.tool_gap_s) for t in program.turns[:-1]] == [
        (("Edit",), 5.0),
        (("Write",), 7.0),
    ]
