"""Whose request it is: what it says of itself, in this order; then whose conversation goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.gateway.answers import Answer
from harness.gateway.client_request import Caller, identify_caller
from harness.gateway.conversations import Conversations, Prompt, prompt_of, with_answer
from harness.gateway.programs import Programs
from servers.errors import InvalidProgramId


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
def test_the_path_goes_before_a_header_and_that_before_the_body(path, headers, body, program):  # type: ignore[no-untyped-def]
    assert identify_caller(path, headers, body).program_id == program


def test_a_job_is_named_beside_its_program() -> None:
    assert identify_caller("sub-2", {"X-Job-Id": "job"}, {}) == Caller("sub-2", "job")
    assert identify_caller(None, {"X-Job-Id": "job"}, {}) == Caller("job", "job")


@pytest.mark.parametrize("bad", ["x" * 201, "a\nb", {"a": 1}, True, 1.5])
def test_what_cannot_be_an_id_is_refused_by_name(bad: object) -> None:
    with pytest.raises(InvalidProgramId, match="program_id: a program's id"):
        identify_caller(None, {}, {"program_id": bad})


def messages(*texts: str) -> dict[str, object]:
    """A system prompt, a task, then answers and observations in turn."""
    roles = ["system", "user", *["assistant", "user"] * len(texts)]
    return {"messages": [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]}


def anyone(_program: str) -> bool:
    return True


def test_a_prompt_that_goes_on_is_its_programs() -> None:
    known = Conversations()
    known.remember("a", prompt_of(messages("system", "task A")))
    known.remember("b", prompt_of(messages("system", "task B")))
    assert known.find(prompt_of(messages("system", "task A", "ls", "files")), anyone) == "a"
    assert known.find(prompt_of(messages("system", "task C")), anyone) is None


def test_a_system_prompt_in_common_is_no_conversation() -> None:
    known = Conversations()
    known.remember("a", prompt_of(messages("system", "task A", "ls", "files")))
    assert known.find(prompt_of(messages("system", "task B", "ls", "files")), anyone) is None


def test_the_same_prompt_once_more_is_another_program() -> None:
    known = Conversations()
    known.remember("a", prompt_of(messages("system", "task")))
    assert known.find(prompt_of(messages("system", "task")), anyone) is None


def test_only_programs_without_a_name_are_known_by_their_conversations() -> None:
    programs, first = Programs(), prompt_of(messages("system", "task"))
    started = programs.start_turn(Caller("named", None), first, 0.0)
    programs.end_turn(started.program, 1.0)
    programs.record_answer(started.program, first, Answer(texts=["ls"]))
    goes_on = prompt_of(messages("system", "task", "ls", "files"))
    assert programs.start_turn(Caller(None, None), goes_on, 2.0).program.id == "program-1"


def test_of_two_with_one_task_the_answer_tells_which_goes_on() -> None:
    known = Conversations()
    for name, answer in (("a", "ls"), ("b", "cat x")):
        prompt = prompt_of(messages("system", "task"))
        known.remember(name, with_answer(prompt, {"role": "assistant", "content": answer}))
    assert known.find(prompt_of(messages("system", "task", "ls", "1")), anyone) == "a"
    assert known.find(prompt_of(messages("system", "task", "cat x", "2")), anyone) == "b"


def test_a_program_that_waits_for_an_answer_asks_nothing_more() -> None:
    known = Conversations()
    known.remember("a", prompt_of(messages("system", "task")))
    next_one = prompt_of(messages("system", "task", "ls", "files"))
    assert known.find(next_one, lambda program: program != "a") is None


def test_a_shortened_history_is_still_its_programs() -> None:
    known = Conversations()
    known.remember("a", prompt_of(messages("system", "task", "ls", "a long list", "cat", "text")))
    assert known.find(prompt_of(messages("system", "task", "a summary")), anyone) == "a"


def test_text_and_ids_go_on_where_all_of_the_last_prompt_is_repeated() -> None:
    known = Conversations()
    known.remember("text", prompt_of({"prompt": "x" * 600}))
    known.remember("ids", prompt_of({"prompt": [1] * 600}))
    assert known.find(prompt_of({"prompt": "x" * 900}), anyone) == "text"
    assert known.find(prompt_of({"prompt": [1] * 900}), anyone) == "ids"
    assert known.find(prompt_of({"prompt": "x" * 300 + "y" * 600}), anyone) is None


def test_an_empty_answer_with_a_call_is_found_again_as_clients_write_it() -> None:
    call = {"function": {"name": "bash", "arguments": "{}"}}
    asked = prompt_of(messages("system", "task"))
    answered = with_answer(asked, {"role": "assistant", "content": "", "tool_calls": [call]})
    said_by_client = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", **call}]}
    body = messages("system", "task")
    body["messages"].append(said_by_client)  # type: ignore[attr-defined]
    assert prompt_of(body).digests == answered.digests


pieces = st.lists(st.text("ab", max_size=2), max_size=6)


@given(pieces, pieces)
def test_prompts_share_the_messages_that_are_equal_from_the_first(
    a: list[str], b: list[str]
) -> None:
    one, other = (
        prompt_of({"messages": [{"role": "user", "content": t} for t in x]}) for x in (a, b)
    )
    expected = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        expected += 1
    assert one.shared(other) == other.shared(one) == expected
    assert isinstance(one, Prompt)
