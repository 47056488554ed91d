"""vLLM's API server passes the program that a client names in a header on to the scheduler."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from servers.identity import LAST, PROGRAM_HEADERS
from servers.vllm.plugin.api_server import ProgramHeaders, with_session
from servers.vllm.plugin.request_tags import read_tags

Sent = dict[str, str]


def received(sent: Sent) -> Sent:
    headers = with_session([(k.lower().encode(), v.encode("latin-1")) for k, v in sent.items()])
    return {name.decode(): value.decode("latin-1") for name, value in headers}


@pytest.mark.parametrize("header", PROGRAM_HEADERS)
def test_every_known_header_becomes_the_session(header: str) -> None:
    assert received({header: "s", "Accept": "*/*"})["x-session-id"] == "s"


@pytest.mark.parametrize(
    ("sent", "session"),
    [
        ({"X-Session-Id": "s", "X-Claude-Code-Session-Id": "c"}, "s"),
        ({"X-Program-Id": "p", "X-Session-Id": "s"}, "p"),
        ({"Session_Id": "codex", "X-SMG-Routing-Key": "tenant"}, "codex"),
        # An invalid id counts as absent.
        ({"X-Session-Id": "x" * 201, "Session-Id": "codex"}, "codex"),
        ({"X-Session-Id": "a\x07b", "Session-Id": "codex"}, "codex"),
        ({"X-Session-Id": "", "Session-Id": "codex"}, "codex"),
        # Sub-agents of Claude Code and Codex are programs of their own.
        ({"X-Claude-Code-Session-Id": "s", "X-Claude-Code-Agent-Id": "a"}, "s:a"),
        ({"Session-Id": "s", "Thread-Id": "t"}, "s:t"),
        ({"Session-Id": "s", "Thread-Id": "s"}, "s"),
    ],
)
def test_the_first_valid_header_decides(sent: Sent, session: str) -> None:
    assert received(sent)["x-session-id"] == session


def test_without_a_program_the_headers_stay() -> None:
    assert received({"Accept": "*/*"}) == {"accept": "*/*"}


def test_the_last_request_of_a_program_is_marked_for_the_scheduler() -> None:
    session = received({"X-Session-Id": "s", "X-Dynamo-Session-Final": "true"})["x-session-id"]
    tags = read_tags(None, session)
    assert (tags.program_id, tags.is_last) == ("s", True)
    assert read_tags(None, "s").is_last is None
    assert read_tags({"is_last": 0}, session).is_last is False


def test_invalid_ids_belong_to_no_program() -> None:
    for id in ("x" * 201, "a\nb", LAST, ""):
        assert read_tags({"program_id": id}, id).program_id is None
    assert read_tags({"program_id": "a\nb"}, "s").program_id == "s"


def test_names_of_tools_are_limited_like_ids() -> None:
    def tools(sent: str) -> tuple[str, ...] | None:
        return read_tags({"tools": sent}).tools

    assert tools(f"ls, {'x' * 201},a\x07b,cat") == ("ls", "cat")
    assert tools("x" * 201) is None, "like an absent value"
    assert tools("") == ()
    assert len(tools(",".join(map(str, range(100)))) or ()) == 64


def test_a_middleware_that_is_named_twice_sets_the_session_once() -> None:
    seen: list[Any] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(scope)

    scope = {"type": "http", "headers": [(b"session-id", b"s")]}
    asyncio.run(ProgramHeaders(ProgramHeaders(app))(scope, None, None))
    assert seen[0]["headers"] == [(b"session-id", b"s"), (b"x-session-id", b"s")]
    assert scope["headers"] == [(b"session-id", b"s")]
