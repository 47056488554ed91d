"""Mutated messages of servers and clients: streams, complete answers, requests."""

from __future__ import annotations

import json
from functools import partial
from random import Random
from typing import Any

import orjson
from msgspec.json import decode, encode

from harness.gateway.answers import ForwardedAnswer, Tap
from harness.gateway.client_request import identify_caller, parse_body, rewrite_body
from harness.gateway.conversations import add_messages, prompt_of
from harness.gateway.forwarding import APIS
from harness.gateway.programs import GatewayPrograms
from harness.replay.completion import PartialAnswer, error_message, measure
from harness.replay.prompts import TokenConversation
from harness.replay.sglang import GeneratedAnswer
from harness.replay.sse import Events
from servers.basics.errors import InvalidProgramId, TurnFailed
from servers.records.turns import TurnRecord
from tests.fuzz.mutations import mutated
from tests.fuzz.target import Target
from tests.gateway import agent_apis
from traces import Program, Turn

TURN = Turn(prompt_tokens=4, output_tokens=2)
CALL = {"index": 0, "id": "c", "function": {"name": "bash", "arguments": '{"command": "ls | wc"}'}}
USAGE = {
    "prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1},
}  # fmt: skip
CHUNKS: tuple[dict[str, Any], ...] = (
    {"choices": [{"index": 0, "text": "on", "token_ids": [5], "prompt_token_ids": [1, 2, 3, 4]}]},
    {"choices": [{"index": 0, "text": " we", "token_ids": [7], "finish_reason": "length"}]},
    {"choices": [], "usage": USAGE, "metrics": {"queue_time_ms": 3.5}},
)
NATIVE: tuple[dict[str, Any], ...] = tuple(
    {"text": "on", "output_ids": [5, 7][:n], "meta_info": {"finish_reason": reason,
     "prompt_tokens": 4, "completion_tokens": n, "cached_tokens": 1, "queue_time": 0.25}}
    for n, reason in ((1, None), (2, {"type": "length", "length": 2}))
)  # fmt: skip
CHAT: tuple[dict[str, Any], ...] = (
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "```bash\nls\n```"}}]},
    {"choices": [{"index": 0, "delta": {"reasoning_content": "hm", "tool_calls": [CALL]}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": USAGE},
)


def _stream(chunks: tuple[dict[str, Any], ...]) -> bytes:
    events = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)
    return b": hello\n\n" + events + b"event: end\r\ndata: [DONE]\r\n\r\n"


COMPLETION = json.dumps({"choices": [{"message": {"content": "on", "tool_calls": [CALL]}}],
                    "usage": USAGE}).encode()  # fmt: skip
ERROR = json.dumps({"error": {"message": "too long", "code": 400}}).encode()
REQUEST = json.dumps({
    "model": "m", "stream": True, "stream_options": {"include_usage": False}, "session_id": "s",
    "vllm_xargs": {"program_id": "p", "job_id": 7}, "prompt": "go " * 100, "tools": [{
        "function": {"name": "bash", "parameters": {"properties": {"command": {"type": "string"}}}}
    }], "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "fix it"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
    ],
}).encode()  # fmt: skip
MESSAGES_REQUEST = json.dumps({
    "model": "m", "stream": True, "system": [{"type": "text", "text": "be brief"}],
    "tools": [{"name": "bash", "input_schema": agent_apis.PARAMETERS}], "messages": [
        {"role": "user", "content": "list"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I look."},
            agent_apis.TOOL_USE,
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "content": [{"type": "text", "text": "a.py"}]},
            {"type": "text", "text": "go on"},
        ]},
    ],
}).encode()  # fmt: skip
RESPONSES_REQUEST = json.dumps({
    "model": "m", "stream": True, "instructions": "be brief",
    "tools": [{"type": "function", "name": "bash", "parameters": agent_apis.PARAMETERS}], "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "list"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        agent_apis.FUNCTION_CALL,
        {"type": "function_call_output", "call_id": "t1", "output": "a.py"},
    ],
}).encode()  # fmt: skip


def _mutated_events(stream: bytes, random: Random) -> bytes:
    """Mutate a stream, mostly within the JSON of one event."""
    events = stream.split(b"\n\n")
    if random.random() < 0.7:
        index = random.randrange(len(events))
        head, colon, data = events[index].partition(b"data: ")
        events[index] = head + colon + mutated(data, random)
        return b"\n\n".join(events)
    return mutated(b"\n\n".join(events), random)


def _chunks(data: bytes) -> list[bytes]:
    """Split the data as a network might, at points that depend on the bytes."""
    random = Random(data)
    splits = sorted(random.randint(0, len(data)) for _ in range(random.randint(0, 6)))
    return [data[a:b] for a, b in zip([0, *splits], [*splits, len(data)], strict=True)]


def events(data: bytes) -> bool:
    chunked, unchunked = Events(), Events()
    from_chunks = [event for chunk in _chunks(data) for event in chunked.feed(chunk)]
    assert from_chunks == list(unchunked.feed(data)), (
        "the events depend on where the bytes are split"
    )
    return bool(from_chunks)


def live(data: bytes) -> bool:
    return _answers(data, PartialAnswer(0.0, text=len(data) % 3 == 0))


def sglang(data: bytes) -> bool:
    return _answers(data, GeneratedAnswer(0.0))


def _answers(data: bytes, answer: PartialAnswer) -> bool:
    good = True
    try:
        for chunk in _chunks(data):
            answer.take(chunk, 1.0)
        answer.check(TURN)
    except TurnFailed as failed:
        good = False
        _assert_short(str(failed))
    else:
        conversation = TokenConversation(Program("p", (TURN,)), range(1, 9), seed=0)
        conversation.prompt(TURN)
        conversation.answered(answer.ids)
    record = empty_record()
    measure(record, answer, answer.prompt_tokens(TURN), answer.sent_at_s, 2.0)
    _assert_line(record)
    return good


def gateway_stream(data: bytes, path: str = "chat/completions") -> bool:
    answer = APIS[path].answer()
    tap = Tap(answer, hide_usage=False, key=None)
    try:
        sent = b"".join(tap.feed(chunk, 1.0) for chunk in _chunks(data)) + tap.end()
    except ValueError as error:
        _assert_short(str(error))
        return False
    assert sent == data.replace(b"\r\n", b"\n") or b"\r" in data, "the gateway loses bytes"
    return _record(REQUEST, answer) and answer.complete


def completion(data: bytes, path: str = "chat/completions") -> bool:
    answer = APIS[path].answer()
    try:
        answer.read_whole(data, 1.0)
    except ValueError as error:
        _assert_short(str(error))
    return _record(REQUEST, answer) and answer.complete


def request(data: bytes, path: str = "chat/completions") -> bool:
    try:
        body = parse_body(data)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(body, dict):
        return False
    _, sent = rewrite_body(body, data, {"program_id": "p", "turn": 0})
    tagged = orjson.loads(sent)["vllm_xargs"]
    assert (tagged["program_id"], tagged["turn"]) == ("p", 0), "the tag of another program"
    answer = ForwardedAnswer()
    answer.read_whole(COMPLETION, 1.0)
    return _record(data, answer, path)


def _record(data: bytes, answer: ForwardedAnswer, path: str = "chat/completions") -> bool:
    """Record a request and its answer as the gateway does."""
    body = orjson.loads(data)
    try:
        caller = identify_caller("p", {"X-Job-Id": "j"}, body)
    except InvalidProgramId as bad:
        _assert_short(str(bad))
        return False
    body = APIS[path].chat(body)
    programs, prompt = GatewayPrograms(), prompt_of(body)
    program = programs.start_turn(caller, prompt, 0.0).program
    programs.record_answer(program, prompt, answer)
    programs.end_turn(program, 1.0)
    kept = programs.kept_tokens(program, prompt, answer.prompt_tokens)
    record = empty_record()
    record.kept_tokens, record.tools, record.error = max(kept, 0), answer.tools, answer.error
    record.prompt_tokens, record.device_hit_tokens = answer.prompt_tokens, answer.cached_tokens
    record.queue_s = answer.queue_s
    repeated = program.prompt.shared(prompt) if program.prompt else 0
    add_messages(record, body, repeated, answer)
    _assert_line(record)
    return True


def error(data: bytes) -> bool:
    _assert_short(error_message(data, ("fix",)))
    return True


def empty_record() -> TurnRecord:
    return TurnRecord(program_id="p", turn=0, job_id="p", scheduled_at_s=0.0, sent_at_s=0.0)


def _assert_line(record: TurnRecord) -> None:
    """Check that the record can be written and read back."""
    assert decode(encode(record), type=TurnRecord) == record


def _assert_short(message: str) -> None:
    assert len(message) < 400, message[:500]
    assert "\n" not in message, message


def _of_api(path: str, stream: bytes, whole: bytes, asked: bytes) -> list[Target]:
    """Return the targets of an API that the gateway reads as chat completions."""
    return [
        Target(
            f"stream of {path}",
            lambda r: _mutated_events(stream, r),
            partial(gateway_stream, path=path),
            4,
        ),
        Target(f"answer of {path}", lambda r: mutated(whole, r), partial(completion, path=path), 2),
        Target(f"request of {path}", lambda r: mutated(asked, r), partial(request, path=path), 4),
    ]


TARGETS = [
    Target("sse", lambda r: _mutated_events(_stream(CHUNKS), r), events, 20),
    Target("stream of a replay", lambda r: _mutated_events(_stream(CHUNKS), r), live, 12),
    Target("stream of SGLang", lambda r: _mutated_events(_stream(NATIVE), r), sglang, 8),
    Target("stream at the gateway", lambda r: _mutated_events(_stream(CHAT), r), gateway_stream, 8),
    Target("answer at the gateway", lambda r: mutated(COMPLETION, r), completion, 5),
    Target("request at the gateway", lambda r: mutated(REQUEST, r), request, 8),
    *_of_api("messages", agent_apis.MESSAGES_STREAM, agent_apis.MESSAGES_WHOLE, MESSAGES_REQUEST),
    *_of_api(
        "responses", agent_apis.RESPONSES_STREAM, agent_apis.RESPONSES_WHOLE, RESPONSES_REQUEST
    ),
    Target("error of a server", lambda r: mutated(ERROR, r), error, 5),
]
