"""Guided replay: real agents with real tools get the answers of recorded programs.

The k-th request of program p is the k-th turn of the recorded program p. The engine computes that
turn as in live replay (token mode: docs/howto/vllm.md), and the agent gets the recorded
answer when the engine's last token arrives. A program stops at a failed turn.
Answers are chat completions or completions (OpenAI's API), as one body or as the events of a
stream, with the recorded token counts.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp
import orjson
from aiohttp import web

from harness.gateway.access import refusal
from harness.gateway.client_request import Caller
from harness.gateway.conversations import functions, shell_tool
from harness.gateway.turns import ActiveTurn, Turns
from harness.replay.completion import PartialAnswer, completion_body, measure
from harness.replay.http import (
    FAILURES,
    authorization,
    failure_reason,
    known_keys,
    stream_completion,
)
from harness.replay.identity import identity_headers
from harness.replay.live_server import LiveServer
from harness.replay.prompts import TokenConversation, TokenPrompts
from harness.replay.schedule import shared_prefix
from servers.basics.errors import InvalidInput, InvalidRouter
from servers.basics.json_object import JsonObject
from traces import Program, Turn

PATHS = frozenset(("chat/completions", "completions"))
JSON = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


@dataclass(slots=True)
class _GuidedProgram:
    program: Program
    conversation: TokenConversation
    index: int = 0
    """Index of the next turn."""
    stopped: str | None = None
    """The error of the turn that failed."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a turn, so that a second request of the program waits."""

    def end_reason(self) -> str | None:
        """Return the reason why there is no next turn, or None if there is one."""
        if self.stopped is not None:
            return f"the recorded program stopped at turn {self.index}: {self.stopped}"
        if self.index == len(self.program.turns):
            return f"the recorded program has no turn {self.index}"
        return None


class Guide:
    """The recorded programs, and the contexts of the active ones."""

    def __init__(self, programs: Sequence[Program], vocabulary: range, seed: int) -> None:
        """`vocabulary`: the token ids for prompts. Raises InvalidInput for a program without
        messages."""
        if unrecorded := next((program for program in programs if not program.messages), None):
            raise InvalidInput(
                f"program {unrecorded.id}: its trace has no messages, so its agent has no answers; "
                "give trajectories, or a trace recorded with bench record --messages"
            )
        self._programs = {program.id: program for program in programs}
        self._prompts = TokenPrompts(vocabulary, seed)
        self._guided: dict[str, _GuidedProgram] = {}

    def guided_program(self, program_id: str) -> _GuidedProgram | None:
        program = self._programs.get(program_id)
        if program is not None and program_id not in self._guided:
            self._guided[program_id] = _GuidedProgram(program, self._prompts.conversation(program))
        return self._guided.get(program_id)

    def remove(self, program_id: str) -> None:
        """End a program. Its next request starts it again with the first turn."""
        self._guided.pop(program_id, None)


@dataclass(frozen=True, slots=True)
class Guided:
    guide: Guide
    backends: Sequence[LiveServer]
    session: aiohttp.ClientSession
    api_key: str | None
    turns: Turns

    async def complete(
        self, request: web.Request, path: str, body: JsonObject, raw: bytes, caller: Caller
    ) -> web.StreamResponse:
        if caller.program_id is None:
            return refusal(400, "guided replay needs the program in the URL: /programs/<id>/v1/…")
        guided = self.guide.guided_program(caller.program_id)
        if guided is None:
            return refusal(400, f"no recorded program has the id {caller.program_id}")
        async with guided.lock:
            if (reason := guided.end_reason()) is not None:
                return refusal(400, reason)
            index = guided.index
            await self._turn(guided, caller, body.get("model"))
            if guided.stopped is not None:
                return refusal(502, guided.stopped, "api_error")
        chat = path.startswith("chat")
        recorded = RecordedAnswer(guided.program, index, body, chat=chat, created_s=time.time())
        return await _send(request, body, recorded)

    async def _turn(self, guided: _GuidedProgram, caller: Caller, model: Any) -> None:
        program, index = guided.program, guided.index
        turn = program.turns[index]
        active = self.turns.start(caller, model)
        url = self.backends[0].root
        answer = PartialAnswer(active.sent_s, secrets=known_keys(self.api_key))
        try:
            prompt, is_last = guided.conversation.prompt(turn), index == len(program.turns) - 1
            await self.turns.route(active, turn.prompt_tokens, is_last)
            backend = self.backends[active.replica]
            url = f"{backend.root}/v1/completions"
            ids = [end.field for end in backend.session_ends]
            body = io.BytesIO(
                completion_body(model, prompt, turn, program.id, index, is_last, id_fields=ids)
            )
            job_id = active.started.program.job_id
            headers = {
                **JSON,
                **authorization(self.api_key),
                **identity_headers(program.id, job_id),
            }
            await stream_completion(self.session, url, body, answer, self.turns.now_s, headers)
            answer.check(turn)
            guided.index += 1
            guided.conversation.answered(answer.ids)
        except asyncio.CancelledError:
            guided.stopped = active.cancelled
            raise
        except InvalidRouter as failure:
            guided.stopped = str(failure)
        except FAILURES as failure:
            guided.stopped = failure_reason(failure, url, answer)
        finally:
            self._end_turn(active, guided, turn, answer)

    def _end_turn(
        self, active: ActiveTurn, guided: _GuidedProgram, turn: Turn, answer: PartialAnswer
    ) -> None:
        finished_s = answer.last_byte_at_s if guided.stopped is None else self.turns.now_s()
        record = active.record
        measure(record, answer, answer.prompt_tokens(turn), answer.sent_at_s, finished_s)
        record.kept_tokens, record.tools = turn.kept_tokens, turn.tools
        record.system = shared_prefix(guided.program, active.started.turn)
        self.turns.end(active, finished_s, guided.stopped)


async def _send(
    request: web.Request, body: JsonObject, recorded: RecordedAnswer
) -> web.StreamResponse:
    if body.get("stream") is not True:
        return web.json_response(recorded.body())
    options = body.get("stream_options")
    with_usage = isinstance(options, Mapping) and bool(options.get("include_usage"))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in recorded.events(with_usage):
        await response.write(event)
    await response.write_eof()
    return response


class ToolCall(NamedTuple):
    name: str
    arguments: dict[str, str]


def text_of(program: Program, index: int) -> str:
    """Return the text of a turn's answer, or "" if it was not recorded (the agent rejected it)."""
    position = program.prompt_messages[index]
    role, text = program.messages[position] if position < len(program.messages) else ("", "")
    return text if role == "assistant" else ""


def call_of(program: Program, index: int, text: str, tools: object) -> ToolCall | None:
    """Return the tool call of a turn's answer: the agent's shell tool with the turn's command.

    If the agent offers `finish` and `think` (OpenHands, which stops at an answer without a call),
    the last turn calls `finish`, and a turn without a command calls `think`.
    """
    offered = {name for name, _ in functions(tools)}
    if index == len(program.turns) - 1 and "finish" in offered:
        return ToolCall("finish", {"message": text})
    command, shell = program.turns[index].command, shell_tool(tools)
    if command is not None and shell is not None:
        return ToolCall(shell, {"command": command})
    return ToolCall("think", {"thought": text}) if "think" in offered else None


class RecordedAnswer:
    def __init__(
        self,
        program: Program,
        index: int,
        body: JsonObject,
        *,
        chat: bool,
        created_s: float,
    ) -> None:
        self._chat = chat
        self._text = text_of(program, index)
        self._call = call_of(program, index, self._text, body.get("tools")) if chat else None
        turn = program.turns[index]
        self._usage = {
            "prompt_tokens": turn.prompt_tokens,
            "completion_tokens": turn.output_tokens,
            "total_tokens": turn.context_tokens,
        }
        self._head: JsonObject = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{program.id}-{index}",
            "created": int(created_s),
            "model": body.get("model"),
        }

    def body(self) -> JsonObject:
        choice: JsonObject = {"index": 0, "finish_reason": self._finish, "logprobs": None}
        if self._chat:
            message: JsonObject = {"role": "assistant", "content": self._text}
            if calls := self._calls():
                message["tool_calls"] = calls
            choice["message"] = message
        else:
            choice["text"] = self._text
        return self._head | {
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [choice],
            "usage": self._usage,
        }

    def events(self, with_usage: bool) -> Iterator[bytes]:
        for delta, finish in self._pieces():
            choice: JsonObject = {"index": 0, "finish_reason": finish, "logprobs": None}
            choice |= {"delta": delta} if self._chat else {"text": delta.get("content", "")}
            yield self._event({"choices": [choice]})
        if with_usage:
            yield self._event({"choices": [], "usage": self._usage})
        yield b"data: [DONE]\n\n"

    def _pieces(self) -> Iterator[tuple[JsonObject, str | None]]:
        yield {"role": "assistant", "content": self._text}, None
        if calls := self._calls():
            yield {"tool_calls": [{"index": 0, **call} for call in calls]}, None
        yield {}, self._finish

    def _event(self, chunk: JsonObject) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return b"data: " + orjson.dumps(self._head | {"object": kind} | chunk) + b"\n\n"

    @property
    def _finish(self) -> str:
        return "tool_calls" if self._call else "stop"

    def _calls(self) -> list[JsonObject]:
        if self._call is None:
            return []
        arguments = orjson.dumps(self._call.arguments).decode()
        function = {"name": self._call.name, "arguments": arguments}
        return [{"id": f"call-{self._head['id']}", "type": "function", "function": function}]
