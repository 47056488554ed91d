"""`--answers recorded`: a server gets the tokens of each recorded answer with its turn."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from servers.basics.errors import CellFailed
from tests.live.replaying import program, replayed
from tests.live.server import Server
from tests.sentences import mentions
from traces import Message, Program, Turn

MESSAGES = (
    Message("user", "fix the bug"),
    Message("assistant", "first I list the files"),
    Message("user", "a.py b.py"),
    Message("assistant", "cat a.py"),
)
PROGRAM = Program("job", (Turn(30, 3), Turn(50, 6, 33)), messages=MESSAGES, prompt_messages=(1, 3))


def words(server: Server, turn: int) -> list[str]:
    names = {token: word for word, token in server.vocabulary.items()}
    return [names[token] for token in server.recorded["job", turn]]


def test_each_turn_says_with_which_tokens_its_answer_begins() -> None:
    server = Server()
    lines, done = replayed([PROGRAM], server, text=True, replays_answers=True)
    assert words(server, 0) == ["first", "I", "list", "the", "files"]
    assert words(server, 1) == ["cat", "a.py"]
    # By this tokenizer the first answer is longer than recorded, so it is generated whole. The
    # second is shorter: the model adds four tokens, since so many were recorded (its reasoning).
    assert [lines["job", turn]["output_tokens"] for turn in (0, 1)] == [5, 6]
    assert (done.recorded_answers, done.failed_turns) == (2, 0)


def test_answers_are_generated_without_the_option() -> None:
    server = Server()
    lines, done = replayed([PROGRAM], server, text=True)
    assert server.recorded == {}
    assert [lines["job", turn]["output_tokens"] for turn in (0, 1)] == [3, 6]
    assert done.recorded_answers is None


def test_an_answer_that_does_not_follow_its_prompt_in_later_prompts_is_generated() -> None:
    """Of a template that begins an answer with <think> and drops that later, no answer continues
    its prompt."""
    server = Server(reasons=True)
    _, done = replayed([PROGRAM], server, text=True, replays_answers=True)
    assert server.recorded == {}
    assert (done.recorded_answers, done.finished_programs) == (0, 1)


def test_a_program_that_ends_with_its_last_prompt_has_no_last_answer() -> None:
    server = Server()
    cut = Program("job", PROGRAM.turns, messages=MESSAGES[:3], prompt_messages=(1, 3))
    _, done = replayed([cut], server, text=True, replays_answers=True)
    assert list(server.recorded) == [("job", 0)]
    assert done.recorded_answers == 1


def test_copies_of_a_program_have_its_answers() -> None:
    server = Server()
    copies = [PROGRAM, Program("job#2", PROGRAM.turns, messages=MESSAGES, prompt_messages=(1, 3))]
    _, done = replayed(copies, server, text=True, replays_answers=True)
    assert server.recorded["job#2", 1] == server.recorded["job", 1]
    assert done.recorded_answers == 4


def test_a_turn_fails_if_the_server_answers_something_else() -> None:
    server = Server(replays=False)
    lines, done = replayed([PROGRAM], server, text=True, replays_answers=True)
    line: dict[str, Any] = lines["job", 0]
    assert mentions(line["error"], "not the recorded one", "--answers generated")
    assert done.finished_programs == 0


def test_a_server_that_cannot_tokenize_fails_the_cell() -> None:
    class WithoutTokens(Server):
        async def tokenize(self, request: Any) -> Any:
            return await self.models(request)

    with pytest.raises(CellFailed, match=r"/tokenize: no tokens .*--answers"):
        replayed([PROGRAM], WithoutTokens(), text=True, replays_answers=True)

    class Refuses(Server):
        async def tokenize(self, request: Any) -> Any:
            return web.json_response({}, status=404)

    with pytest.raises(CellFailed, match="/tokenize: HTTP status 404; --answers"):
        replayed([PROGRAM], Refuses(), text=True, replays_answers=True)


def test_a_background_beside_recorded_answers_generates_its_own() -> None:
    request = Program("background/0", (Turn(9, 2),), messages=MESSAGES[:2], prompt_messages=(1,))
    server = Server()
    later = [(request, 0), (program("background/late", turns=1), 10**18)]
    lines, _ = replayed([PROGRAM], server, text=True, replays_answers=True, background=later)
    assert lines["background/0", 0]["output_tokens"] == 2
    assert ("background/0", 0) not in server.recorded
