"""OpenHands trajectories of both formats, compared with manual calculations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.basics.errors import TraceRejected
from tests.sentences import each_mentions, mentions
from tests.traces.sample import Sample, load_bytes
from traces import Fork, Program, Provenance, SharedPrefix, read_traces
from traces.check import check
from traces.formats import openhands
from traces.formats.openhands import has_events as matches
from traces.formats.openhands import read_document as load
from traces.lenient import Repairs


def sample() -> Sample:
    def event(kind: str, second: int, **fields: Any) -> dict[str, Any]:
        return {"kind": kind, "timestamp": f"2026-01-01T00:00:{second:02}", **fields}

    def action(second: int, response: str) -> dict[str, Any]:
        return event("ActionEvent", second, source="agent", llm_response_id=response,
                     tool_name="terminal", action={"command": "ls"})  # fmt: skip

    def document(id: str, task: str, *events: dict[str, Any]) -> bytes:
        usages = [{"response_id": "x", "prompt_tokens": 100, "completion_tokens": 20},
                  {"response_id": "y", "prompt_tokens": 150, "completion_tokens": 20}]  # fmt: skip
        state = {"id": id, "stats": {"usage_to_metrics": {"agent": {"token_usages": usages}}}}
        opening = [
            event("SystemPromptEvent", 0, source="agent", system_prompt={"text": "be brief " * 20}),
            event("MessageEvent", 1, source="user", llm_message={"content": [{"text": task}]}),
        ]
        return json.dumps({"base_state": state, "events": [*opening, *events]}).encode()

    observed = event("ObservationEvent", 4, observation={"content": [{"text": "x"}]})
    return Sample(
        {
            "a.json": document("a", "fix it", action(2, "x"), observed, action(9, "y")),
            "b.json": document("b", "test it", action(3, "x")),
        },
        (Provenance.MEASURED,),
    )


SAMPLE = sample()


SYSTEM = "s" * 90
TASK = "t" * 10


def iso_time(second: float) -> str:
    return f"2026-01-27T22:45:{second:09.6f}"


def system() -> dict[str, Any]:
    prompt = {"type": "text", "text": SYSTEM}
    return {"kind": "SystemPromptEvent", "source": "agent", "timestamp": iso_time(0),
            "system_prompt": prompt}  # fmt: skip


def task(second: float = 0) -> dict[str, Any]:
    message = {"role": "user", "content": [{"type": "text", "text": TASK}]}
    return {"kind": "MessageEvent", "source": "user", "timestamp": iso_time(second),
            "llm_message": message}  # fmt: skip


def action(second: float, response: str, command: str, tool: str = "terminal") -> dict[str, Any]:
    return {
        "kind": "ActionEvent", "source": "agent", "timestamp": iso_time(second), "tool_name": tool,
        "thought": [{"type": "text", "text": "on"}], "llm_response_id": response,
        "tool_call_id": "c", "tool_call": {"name": tool, "arguments": "{}"},
        "action": {"command": command},
    }  # fmt: skip


def observation(second: float, text: str = "ok") -> dict[str, Any]:
    return {"kind": "ObservationEvent", "source": "environment", "timestamp": iso_time(second),
            "observation": {"content": [{"type": "text", "text": text}]}}  # fmt: skip


def condensation(second: float, response: str) -> dict[str, Any]:
    return {"kind": "Condensation", "source": "environment", "timestamp": iso_time(second),
            "llm_response_id": response, "summary": "so far"}  # fmt: skip


def base_state(usages: dict[str, tuple[int, int]], **latencies: float) -> dict[str, Any]:
    metrics = {
        "token_usages": [
            {"response_id": id, "prompt_tokens": prompt, "completion_tokens": output}
            for id, (prompt, output) in usages.items()
        ],
        "response_latencies": [
            {"response_id": id, "latency": latency} for id, latency in latencies.items()
        ],
    }
    return {"id": "uuid", "tags": {"program": "p"}, "stats": {"usage_to_metrics": {"x": metrics}}}


def sdk(state: dict[str, Any], *events: dict[str, Any]) -> tuple[list[Program], list[str]]:
    repairs = Repairs()
    document = {"base_state": state, "events": [system(), task(), *events]}
    assert matches(document)
    programs = load(document, "file", repairs)
    check(programs)
    return programs, repairs.reasons()


def test_a_gap_is_measured_from_the_action_to_its_observation() -> None:
    (program,), repairs = sdk(
        base_state({"a": (1000, 50), "b": (1200, 20)}, a=2.0),
        action(3, "a", "cd x && pytest"), observation(7.5), action(20, "b", "", "finish"),
    )  # fmt: skip
    first, last = program.turns
    assert (first.prompt_tokens, first.output_tokens, first.tool_gap_s) == (1000, 50, 4.5)
    assert first.gap_provenance is Provenance.MEASURED
    assert first.tools == ("cd", "pytest")
    assert first.command == "cd x && pytest"
    assert (last.tools, last.command, last.kept_tokens) == (("finish",), None, 1050)
    assert program.id == "p"
    assert repairs == []


def test_a_response_with_several_tool_calls_is_one_turn() -> None:
    (program,), _ = sdk(
        base_state({"a": (1000, 50), "b": (1200, 20)}),
        action(3, "a", "ls"), action(3.1, "a", "make"), observation(4), observation(9),
        action(20, "b", "", "finish"),
    )  # fmt: skip
    assert [turn.tools for turn in program.turns] == [("ls", "make"), ("finish",)]
    assert program.turns[0].command == "ls\nmake"
    assert program.turns[0].tool_gap_s == 6.0


def test_the_command_of_an_editor_is_not_a_shell_command() -> None:
    (program,), _ = sdk(base_state({"a": (1000, 50)}), action(3, "a", "view", "file_editor"))
    assert program.turns[0].tools == ("file_editor",)
    assert program.turns[0].command is None


def test_a_program_starts_with_its_first_request_and_shares_its_system_prompt() -> None:
    (program,), _ = sdk(base_state({"a": (1000, 50)}, a=2.0), action(3, "a", "ls"))
    (later,), _ = sdk(base_state({"a": (1000, 50)}), action(3, "a", "ls"))
    assert program.recorded_start_s is not None
    assert later.recorded_start_s is not None
    # The first program's request was sent at 1 s, its task at 0 s.
    assert program.recorded_start_s - later.recorded_start_s == 1.0
    # Of 102 characters before the first call (with "[]" for no tools), 90 are the system prompt.
    assert program.prefix == SharedPrefix("system:" + program.prefix.id[7:], 882)  # type: ignore[union-attr]
    assert program.prefix == later.prefix


def test_a_call_of_the_condenser_is_a_sub_agent_that_the_agent_waits_for() -> None:
    (program, condenser), repairs = sdk(
        base_state({"a": (1000, 50), "k": (800, 40), "b": (600, 20)}, k=3.0, b=1.0),
        action(3, "a", "ls"), observation(4), condensation(7.5, "k"), action(9, "b", "ls"),
    )  # fmt: skip
    assert condenser.id == "p/condenser-1"
    # Sent at 4.5 s, 1.5 s after the action; answered at 7.5 s, 0.5 s before the next request.
    assert condenser.fork == Fork("p", 0, 1.5, 1, Provenance.MEASURED)
    assert [(t.prompt_tokens, t.output_tokens) for t in condenser.turns] == [(800, 40)]
    assert program.turns[0].tool_gap_s == 0.5
    assert program.turns[1].kept_tokens == 599
    assert program.messages == ()  # later prompts no longer contain the messages
    assert each_mentions(repairs, "much shorter than the previous one")


def test_messages_are_kept_with_their_number_before_each_turn() -> None:
    (program,), _ = sdk(
        base_state({"a": (1000, 50), "b": (1200, 20)}),
        action(3, "a", "ls"), observation(4, "x y"), action(5, "b", "", "finish"),
    )  # fmt: skip
    assert [message.role for message in program.messages] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert [message.content for message in program.messages[2:4]] == ["on", "x y"]
    assert program.prompt_messages == (2, 4)


def test_events_without_tokens_are_refused() -> None:
    with pytest.raises(TraceRejected, match="no token usage"):
        load([system(), task(), action(3, "a", "ls")], "file", Repairs())


def folder(path: Path) -> Path:
    (path / "events").mkdir(parents=True)
    state = base_state({"a": (1000, 50), "b": (1200, 20)})
    (path / "base_state.json").write_text(json.dumps(state))
    events = [system(), task(), action(3, "a", "ls"), observation(4), action(5, "b", "ls")]
    for number, event in enumerate(events):
        (path / f"events/event-{number:05d}-x.json").write_text(json.dumps(event))
    return path


def test_a_folder_of_the_sdk_counts_as_one_trace_file(tmp_path: Path) -> None:
    folder(tmp_path / "conversations/1")
    loaded = read_traces(tmp_path)
    assert loaded.formats == {"conversations/1/base_state.json": "openhands"}
    assert loaded.rejections == loaded.repairs == ()
    assert [len(program.turns) for program in loaded.programs] == [2]
    assert read_traces(tmp_path / "conversations/1/base_state.json").sha256 == loaded.sha256


def test_a_truncated_event_is_left_out_and_reported(tmp_path: Path) -> None:
    truncated = folder(tmp_path) / "events/event-00003-x.json"
    truncated.write_bytes(truncated.read_bytes()[:20])
    loaded = read_traces(tmp_path)
    broken, untimed = (note.reason for note in loaded.repairs)
    assert mentions(broken, "event that is not an object", "left out")
    assert mentions(untimed, "observation without a time", "tool gap set to 0")


def row(id: str, *tokens: int) -> dict[str, Any]:
    metrics = base_state({"a": (tokens[0], 9)})["stats"]["usage_to_metrics"]["x"] if tokens else {}
    return {"instance_id": id, "history": [task(), action(3, "a", "ls")], "metrics": metrics}


def test_a_refusal_names_the_lines_that_were_left_out() -> None:
    with pytest.raises(TraceRejected, match=r"no response of .*; an incomplete line"):
        load_bytes(openhands, b'{"instance_id":"a","history":[]}\n{bad', Repairs())


def test_the_rows_of_an_evaluation_are_programs(tmp_path: Path) -> None:
    rows = [row("x", 1000), row("y"), row("x", 2000)]
    (tmp_path / "output.jsonl").write_text("\n".join(map(json.dumps, rows)))
    loaded = read_traces(tmp_path)
    assert [(p.id, p.turns[0].prompt_tokens) for p in loaded.programs] == [
        ("x", 1000),
        ("x@3", 2000),
    ]
    (note,) = loaded.repairs
    assert mentions(note.reason, "left out", "no token usage")


def test_rows_with_one_system_prompt_share_its_shortest_estimate(tmp_path: Path) -> None:
    """It is 90 of the 102 characters until the first call (with its "on"): 882 or 1,764 tokens."""
    rows = [{**row(id, n), "history": [system(), *row(id)["history"]]}
            for id, n in (("x", 1000), ("y", 2000))]  # fmt: skip
    (tmp_path / "output.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prefixes = [program.prefix for program in read_traces(tmp_path).programs]
    assert [prefix and prefix.tokens for prefix in prefixes] == [882, 882]


def test_a_file_of_event_lines_is_a_program(tmp_path: Path) -> None:
    stats = {"kind": "ConversationStateUpdateEvent", "source": "environment", "key": "stats",
             "value": base_state({"a": (1000, 9)})["stats"]}  # fmt: skip
    lines = [system(), task(), action(3, "a", "ls"), stats]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (program,) = read_traces(tmp_path).programs
    assert program.id == "events"
    assert program.turns[0].prompt_tokens == 1000


def legacy(id: int, second: float, response: str, command: str, *tokens: int) -> dict[str, Any]:
    usage = dict(zip(("prompt_tokens", "completion_tokens"), tokens, strict=True))
    return {
        "id": id, "timestamp": iso_time(second), "source": "agent", "message": "", "action": "run",
        "args": {"command": command, "thought": ""},
        "tool_call_metadata": {
            "function_name": "execute_bash", "tool_call_id": "c", "total_calls_in_response": 1,
            "model_response": {"id": response, "usage": usage, "choices": []},
        },
    }  # fmt: skip


def observed(id: int, second: float, kind: str = "run") -> dict[str, Any]:
    return {"id": id, "timestamp": iso_time(second), "source": "agent", "message": "",
            "cause": id - 1, "observation": kind, "content": "ok", "extras": {}}  # fmt: skip


LEGACY_TASK = {"id": 0, "timestamp": iso_time(0), "source": "user", "message": TASK,
               "action": "message", "args": {"content": TASK}}  # fmt: skip


def test_the_tokens_of_a_legacy_turn_come_from_its_response() -> None:
    repairs = Repairs()
    events = [
        LEGACY_TASK, legacy(1, 3, "a", "ls", 1000, 50), observed(2, 3.5),
        legacy(3, 3.6, "a", "pwd", 1000, 50), observed(4, 5), observed(5, 9, "agent_state_changed"),
        legacy(6, 20, "b", "make", 1200, 20),
    ]  # fmt: skip
    (program,) = load(events, "file", repairs)
    first, last = program.turns
    assert (first.prompt_tokens, first.output_tokens, first.tools) == (1000, 50, ("ls", "pwd"))
    assert first.tool_gap_s == 2.0
    assert (last.prompt_tokens, last.kept_tokens) == (1200, 1050)
    assert program.id == "file"
    assert repairs.reasons() == []


def test_the_tokens_of_a_legacy_message_are_the_increase_of_the_sums() -> None:
    def with_sums(event: dict[str, Any], prompt: int, output: int) -> dict[str, Any]:
        total = {"prompt_tokens": prompt, "completion_tokens": output}
        return {**event, "llm_metrics": {"accumulated_token_usage": total}}

    message = {**LEGACY_TASK, "id": 3, "source": "agent", "timestamp": iso_time(5)}
    events = [LEGACY_TASK, with_sums(legacy(1, 3, "a", "ls", 1000, 50), 1000, 50), observed(2, 4),
              with_sums(message, 2100, 80)]  # fmt: skip
    (program,) = load(events, "file", Repairs())
    last = program.turns[1]
    assert (last.prompt_tokens, last.output_tokens, last.tools) == (1100, 30, ())


def test_turns_before_the_first_prompt_with_token_counts_are_left_out() -> None:
    message = {**LEGACY_TASK, "id": 1, "source": "agent", "timestamp": iso_time(2)}
    repairs = Repairs()
    (program,) = load(
        [LEGACY_TASK, message, LEGACY_TASK, legacy(3, 9, "a", "ls", 1000, 50)], "file", repairs
    )
    assert [turn.prompt_tokens for turn in program.turns] == [1000]
    assert program.prompt_messages == (3,)
    assert each_mentions(repairs.reasons(), "before the first one with prompt tokens")


def test_old_evaluations_with_pairs_of_action_and_observation_are_read() -> None:
    pairs = [
        [LEGACY_TASK, observed(1, 0, "null")],
        [legacy(2, 3, "a", "ls", 1000, 50), observed(3, 4)],
    ]
    document = {"instance_id": "i", "history": pairs}
    assert matches(document)
    (program,) = load(document, "file", Repairs())
    assert program.turns[0].tools == ("ls",)


def test_a_swe_agent_trajectory_is_not_taken_for_openhands() -> None:
    step = {"action": "ls", "observation": "ok", "response": "…"}
    assert not matches({"trajectory": [step], "history": [{"role": "user", "content": "x"}]})


KEYS = st.text(max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(
        ["agent", "user", "run", "message", "condensation", "terminal", "a", iso_time(1), "\ud800"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
FIELDS = (
    *("id", "timestamp", "source", "action", "observation", "args", "content", "cause", "key"),
    *("tool_call_metadata", "llm_metrics", "llm_message", "llm_response_id", "tool_name", "value"),
    *("tool_call", "thought", "system_prompt", "tools", "summary", "extras", "message"),
)
KINDS = st.sampled_from(
    ["SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent", "Condensation",
     "AgentErrorEvent", "ConversationStateUpdateEvent"]
)  # fmt: skip
EVENTS = st.lists(
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6)
    | st.builds(lambda kind, rest: {**rest, "kind": kind}, KINDS | JSON,
                st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6))
    | st.sampled_from([task(), action(3, "a", "ls"), observation(4), condensation(5, "a"),
                       legacy(1, 3, "b", "ls", 1000, 50), observed(2, 4), LEGACY_TASK])
    | JSON,
    max_size=8,
)  # fmt: skip
STATES = st.just(base_state({"a": (1000, 50), "b": (1200, 20)}, a=2.0)) | JSON


@given(EVENTS, STATES, JSON, st.sampled_from(["events", "history", "trajectory", "rows", None]))
def test_any_json_gives_valid_programs_or_an_error(
    events: list[Any], state: Any, metrics: Any, name: str | None
) -> None:
    document = {name: events, "base_state": state, "metrics": metrics} if name else events
    matches(document)
    try:
        programs = load(document, "file", Repairs())
    except TraceRejected:
        return
    check(programs)
