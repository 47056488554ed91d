"""What servers and clients send, mutated: streams, whole answers, requests."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import orjson
from msgspec.json import decode, encode

from harness.gateway.answers import Answer as Passed
from harness.gateway.answers import Tap
from harness.gateway.client_request import identify_caller, parse_body, rewrite_body
from harness.gateway.conversations import prompt_of
from harness.gateway.messages import add_messages
from harness.gateway.programs import Programs
from harness.replay.completion import Answer, error_message, measure
from harness.replay.sse import Events
from harness.replay.token_prompts import Conversation
from servers.errors import InvalidProgramId, TurnFailed
from servers.records import TurnRecord
from tests.fuzz.mutations import mutated
from tests.fuzz.target import Target
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
CHAT: tuple[dict[str, Any], ...] = (
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "```bash\nls\n```"}}]},
    {"choices": [{"index": 0, "delta": {"reasoning_content": "hm", "tool_calls": [CALL]}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": USAGE},
)


def _stream(chunks: tuple[dict[str, Any], ...]) -> bytes:
    events = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)
    return b": hello\n\n" + events + b"event: end\r\ndata: [DONE]\r\n\r\n"


WHOLE = json.dumps({"choices": [{"message": {"content": "on", "tool_calls": [CALL]}}],
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


def _mutated_events(chunks: tuple[dict[str, Any], ...], random: Random) -> bytes:
    """Mostly within one event's JSON: a stream as a whole is none."""
    events = _stream(chunks).split(b"\n\n")
    if random.random() < 0.7:
        place = random.randrange(len(events))
        head, colon, data = events[place].partition(b": ")
        events[place] = head + colon + mutated(data, random)
        return b"\n\n".join(events)
    return mutated(b"\n\n".join(events), random)


def _pieces(data: bytes) -> list[bytes]:
    """The network's cuts, drawn from the bytes themselves."""
    random = Random(data)
    cuts = sorted(random.randint(0, len(data)) for _ in range(random.randint(0, 6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def events(data: bytes) -> bool:
    cut, whole = Events(), Events()
    in_pieces = [event for piece in _pieces(data) for event in cut.feed(piece)]
    assert in_pieces == list(whole.feed(data)), "the events depend on where the bytes are cut"
    return bool(in_pieces)


def live(data: bytes) -> bool:
    answer, good = Answer(0.0, text=len(data) % 3 == 0), True
    try:
        for piece in _pieces(data):
            answer.take(piece, 1.0)
        answer.check(TURN)
    except TurnFailed as failed:
        good = False
        _assert_short(str(failed))
    else:
        conversation = Conversation(Program("p", (TURN,)), range(1, 9), seed=0)
        conversation.prompt(TURN)
        conversation.answered(answer.ids)
    record = empty_record()
    measure(record, answer, answer.prompt_tokens(TURN), answer.sent_at_s, 2.0)
    _assert_line(record)
    return good


def passed_on(data: bytes) -> bool:
    answer = Passed()
    tap = Tap(answer, hide_usage=False, key=None)
    try:
        sent = b"".join(tap.feed(piece, 1.0) for piece in _pieces(data)) + tap.end()
    except ValueError as error:
        _assert_short(str(error))
        return False
    assert sent == data.replace(b"\r\n", b"\n") or b"\r" in data, "bytes are lost on the way"
    return _recorded(REQUEST, answer) and answer.complete


def whole(data: bytes) -> bool:
    answer = Passed()
    try:
        answer.read_whole(data, 1.0)
    except ValueError as error:
        _assert_short(str(error))
    return _recorded(REQUEST, answer) and answer.complete


def request(data: bytes) -> bool:
    try:
        body = parse_body(data)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(body, dict):
        return False
    _, sent = rewrite_body(body, data, {"program_id": "p", "turn": 0})
    tagged = orjson.loads(sent)["vllm_xargs"]
    assert (tagged["program_id"], tagged["turn"]) == ("p", 0), "another's tag"
    answer = Passed()
    answer.read_whole(WHOLE, 1.0)
    return _recorded(data, answer)


def _recorded(data: bytes, answer: Passed) -> bool:
    """What the gateway does with a request and its answer."""
    body = orjson.loads(data)
    try:
        who = identify_caller("p", {"X-Job-Id": "j"}, body)
    except InvalidProgramId as bad:
        _assert_short(str(bad))
        return False
    programs, prompt = Programs(), prompt_of(body)
    program = programs.start_turn(who, prompt, 0.0).program
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
    """It can be written, and read again."""
    assert decode(encode(record), type=TurnRecord) == record


def _assert_short(message: str) -> None:
    assert len(message) < 400, message[:500]
    assert "\n" not in message, message


TARGETS = [
    Target("sse", lambda r: _mutated_events(CHUNKS, r), events, 20),
    Target("stream of a replay", lambda r: _mutated_events(CHUNKS, r), live, 12),
    Target("stream at the gateway", lambda r: _mutated_events(CHAT, r), passed_on, 8),
    Target("answer at the gateway", lambda r: mutated(WHOLE, r), whole, 5),
    Target("request at the gateway", lambda r: mutated(REQUEST, r), request, 8),
    Target("error of a server", lambda r: mutated(ERROR, r), error, 5),
]
