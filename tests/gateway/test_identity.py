"""The program of a request comes from its path, headers or body, else from its conversation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.gateway.answers import ForwardedAnswer
from harness.gateway.client_request import Caller, identify_caller
from harness.gateway.conversations import Conversations, DigestedPrompt, prompt_of, with_answer
from harness.gateway.programs import GatewayProgram, GatewayPrograms
from servers.basics.errors import InvalidProgramId


@pytest.mark.parametrize(
    ("path", "headers", "body", "program"),
    [
        ("p", {"X-Program-Id": "h"}, {"program_id": "b"}, "p"),
        (None, {"X-Program-Id": "h"}, {"program_id": "b"}, "h"),
        (None, {"X-Session-Id": "h"}, {}, "h"),
        (None, {}, {"program_id": "b", "session_id": "s"}, "b"),
        (None, {}, {"session_id": "s", "prompt_cache_key": "k"}, "s"),
        (None, {}, {"prompt_cache_key": "k"}, "k"),
        (None, {}, {"vllm_xargs": {"program_id": "x"}}, "x"),
        (None, {}, {"program_id": 7}, "7"),
        (None, {}, {"program_id": ""}, None),
    ],
)
def test_the_path_overrides_headers_and_headers_override_the_body(path, headers, body, program):  # type: ignore[no-untyped-def]
    assert identify_caller(path, headers, body).program_id == program


def test_the_job_is_read_from_its_header_even_without_a_program() -> None:
    assert identify_caller("sub-2", {"X-Job-Id": "job"}, {}) == Caller("sub-2", "job")
    assert identify_caller(None, {"X-Job-Id": "job"}, {}) == Caller("job", "job")


@pytest.mark.parametrize("bad", ["x" * 201, "a\nb", {"a": 1}, True, 1.5])
def test_an_invalid_program_id_is_refused_with_its_field(bad: object) -> None:
    with pytest.raises(InvalidProgramId, match="program_id: a program's id"):
        identify_caller(None, {}, {"program_id": bad})


def messages(*texts: str) -> dict[str, object]:
    """Return a system prompt, a task, then alternating answers and observations."""
    roles = ["system", "user", *["assistant", "user"] * len(texts)]
    return {"messages": [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]}


def any_program(_program: str) -> bool:
    return True


def test_a_prompt_that_continues_a_conversation_belongs_to_its_program() -> None:
    known = Conversations()
    known.remember("a", prompt_of(messages("system", "task A")))
    known.remember("b", prompt_of(messages("system", "task B")))
    assert known.find(prompt_of(messages("system", "task A", "ls", "files")), any_program) == "a"
    assert known.find(prompt_of(messages("system", "task C")), any_program) is None


def test_a_common_system_prompt_is_not_a_common_conversation() -> None:
    known = Conversations()
    known.remember("a", prompt_of(messages("system", "task A", "ls", "files")))
    assert known.find(prompt_of(messages("system", "task B", "ls", "files")), any_program) is None


def test_a_repeated_first_prompt_is_a_new_program() -> None:
    known = Conversations()
    known.remember("a", prompt_of(messages("system", "task")))
    assert known.find(prompt_of(messages("system", "task")), any_program) is None


def test_only_programs_without_an_id_are_recognised_by_their_conversations() -> None:
    programs, first = GatewayPrograms(), prompt_of(messages("system", "task"))
    started = programs.start_turn(Caller("named", None), first, 0.0)
    programs.end_turn(started.program, 1.0)
    programs.record_answer(started.program, first, ForwardedAnswer(texts=["ls"]))
    continued = prompt_of(messages("system", "task", "ls", "files"))
    assert programs.start_turn(Caller(None, None), continued, 2.0).program.id == "program-1"


def test_of_two_programs_with_the_same_task_the_answer_decides_which_one_continues() -> None:
    known = Conversations()
    for name, answer in (("a", "ls"), ("b", "cat x")):
        prompt = prompt_of(messages("system", "task"))
        known.remember(name, with_answer(prompt, {"role": "assistant", "content": answer}))
    assert known.find(prompt_of(messages("system", "task", "ls", "1")), any_program) == "a"
    assert known.find(prompt_of(messages("system", "task", "cat x", "2")), any_program) == "b"


def test_a_program_that_waits_for_an_answer_is_not_continued() -> None:
    known = Conversations()
    known.remember("a", prompt_of(messages("system", "task")))
    next_prompt = prompt_of(messages("system", "task", "ls", "files"))
    assert known.find(next_prompt, lambda program: program != "a") is None


def test_a_shortened_history_still_belongs_to_its_program() -> None:
    known = Conversations()
    known.remember("a", prompt_of(messages("system", "task", "ls", "a long list", "cat", "text")))
    assert known.find(prompt_of(messages("system", "task", "a summary")), any_program) == "a"


def test_text_and_token_prompts_continue_a_program_if_they_repeat_its_whole_last_prompt() -> None:
    known = Conversations()
    known.remember("text", prompt_of({"prompt": "x" * 600}))
    known.remember("ids", prompt_of({"prompt": [1] * 600}))
    assert known.find(prompt_of({"prompt": "x" * 900}), any_program) == "text"
    assert known.find(prompt_of({"prompt": [1] * 900}), any_program) == "ids"
    assert known.find(prompt_of({"prompt": "x" * 300 + "y" * 600}), any_program) is None


def test_an_empty_answer_with_a_call_matches_however_clients_write_it() -> None:
    call = {"function": {"name": "bash", "arguments": "{}"}}
    prompt = prompt_of(messages("system", "task"))
    answered = with_answer(prompt, {"role": "assistant", "content": "", "tool_calls": [call]})
    sent_back = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", **call}]}
    body = messages("system", "task")
    body["messages"].append(sent_back)  # type: ignore[attr-defined]
    assert prompt_of(body).digests == answered.digests


pieces = st.lists(st.text("ab", max_size=2), max_size=6)


@given(pieces, pieces)
def test_prompts_share_their_longest_common_prefix_of_messages(a: list[str], b: list[str]) -> None:
    one, other = (
        prompt_of({"messages": [{"role": "user", "content": t} for t in x]}) for x in (a, b)
    )
    expected = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        expected += 1
    assert one.shared(other) == other.shared(one) == expected
    assert isinstance(one, DigestedPrompt)


def test_another_conversation_with_the_id_of_a_program_is_a_program_of_its_job() -> None:
    """A client asks for a title under the id of its session, before the second turn."""
    programs = GatewayPrograms()

    def start(*texts: str, caller: Caller = Caller("s", None)) -> tuple[str, str, int]:  # noqa: B008
        started = programs.start_turn(caller, prompt_of(messages(*texts)), 0.0)
        return started.program.id, started.program.job_id, started.turn

    assert start("be an agent", "task") == ("s", "s", 0)
    assert start("give a title", "task") == ("s#2", "s", 0)
    assert start("be an agent", "task", "ls", "files") == ("s", "s", 1)
    assert start("give a title", "task", "Fix", "shorter") == ("s#2", "s", 1)
    assert start("be a new agent", "task", "ls", "files", "cat", "x") == ("s", "s", 2)
    agent = Caller("s", None, is_agent=True)
    assert start("give a title", "task", caller=agent) == ("s", "s", 3)


def test_a_side_conversation_does_not_get_the_id_of_another_program() -> None:
    """`t#2` is the second copy of a recorded program, an agent of the run."""
    programs = GatewayPrograms()
    agent, client = Caller("t", None, is_agent=True), Caller("t", None)
    copy = Caller("t#2", None, is_agent=True)

    def start(system: str, caller: Caller) -> GatewayProgram:
        prompt = prompt_of(messages(system, "task"))
        return programs.start_turn(caller, prompt, 0.0).program

    start("be an agent", agent)
    start("be an agent", copy)
    assert start("give a title", agent).sides == {}, "the end of t must not end t#2"
    assert start("give a title", client).id == "t#3"
    assert start("summarise", client).id == "t#4"
