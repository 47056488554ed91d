"""Text mode sends the recorded messages before each turn verbatim."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.replay.completion import text_body
from servers.basics.errors import InvalidTrace
from tests.live.replaying import program, replayed
from tests.live.server import Server
from tests.traces.test_token_counts import words
from traces import Message, Program, Turn, read_traces
from traces.token_counts import by_tokenizer

MESSAGES = (
    Message("system", "be brief"),
    Message("user", "fix the bug"),
    Message("assistant", "ls"),
    Message("user", "a.py b.py"),
    Message("assistant", "cat a.py"),
)
PROGRAM = Program("job", (Turn(30, 4), Turn(50, 6, 34)), messages=MESSAGES, prompt_messages=(2, 4))


def test_each_turn_sends_the_messages_before_it() -> None:
    server = Server()
    lines, done = replayed([PROGRAM], server, text=True)
    assert (done.finished_programs, done.failed_turns) == (1, 0)
    assert server.conversations["job", 0] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "fix the bug"},
    ]
    assert [message["content"] for message in server.conversations["job", 1]] == [
        "be brief",
        "fix the bug",
        "ls",
        "a.py b.py",
    ]
    # The server's tokenizer counts the prompt tokens; the answer has the recorded length.
    assert [
        (lines["job", t]["prompt_tokens"], lines["job", t]["output_tokens"]) for t in (0, 1)
    ] == [
        (5, 4),
        (8, 6),
    ]


def test_a_tokenizer_counts_prompts_and_answers_for_a_server_without_usage(tmp_path: Path) -> None:
    server, counter = Server(reports_usage=False), by_tokenizer(words(tmp_path))
    lines, done = replayed([PROGRAM], server, text=True, counter=counter)
    assert (done.finished_programs, done.failed_turns) == (1, 0)
    counts = [(line["prompt_tokens"], line["output_tokens"]) for line in lines.values()]
    # The server's answers are one word, "xxxx" and "xxxxxx"; "a.py b.py" are six for the tokenizer.
    assert counts == [(5, 1), (12, 1)]
    assert all(line["counted"] for line in lines.values())


def test_a_router_that_drops_fields_of_chats_gets_the_messages_as_one_text() -> None:
    """It begins with the text of the turn before, so that servers find that in their caches."""
    body = json.loads(text_body("m", MESSAGES[:2], PROGRAM.turns[0], "job", 0, False))
    assert body["prompt"] == "system: be brief\nuser: fix the bug\n"
    assert (body["max_tokens"], body["vllm_xargs"]["program_id"]) == (4, "job")
    later = json.loads(text_body("m", MESSAGES[:4], PROGRAM.turns[1], "job", 1, True))
    assert later["prompt"].startswith(body["prompt"])


def test_a_program_without_messages_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"program quiet: .* no messages"):
        replayed([program("quiet")], Server(), text=True)


def test_messages_of_a_trajectory_are_read_only_on_request(tmp_path: Path) -> None:
    usage = {"response": {"usage": {"prompt_tokens": 30, "completion_tokens": 4}}}
    later = {"response": {"usage": {"prompt_tokens": 50, "completion_tokens": 6}}}
    messages = [dict(message._asdict()) for message in MESSAGES]
    messages[2]["extra"], messages[4]["extra"] = usage, later
    file = tmp_path / "job.traj.json"
    file.write_text(json.dumps({"trajectory_format": "mini-swe-agent-1", "messages": messages}))
    (program_with_messages,) = read_traces([file], messages=True).programs
    assert (program_with_messages.messages, program_with_messages.prompt_messages) == (
        MESSAGES,
        (2, 4),
    )
    (plain,) = read_traces([file]).programs
    assert (plain.messages, plain.prompt_messages) == ((), ())
    assert plain.turns == program_with_messages.turns


def test_a_trace_without_messages_is_refused_if_they_are_required() -> None:
    with pytest.raises(InvalidTrace, match=r"no messages, .* --prompts text"):
        read_traces("swe-bench", messages=True)
