"""SWE-agent trajectories (`.traj`), of runs, replays and human demonstrations.

In: `{environment, trajectory[{action, observation, response, execution_time}], history[{role,
content, action, tool_calls, is_demo}], info: {model_stats}}`. Out: one program with a turn for each
answer in the history. Only token totals are recorded, and none for replays and demonstrations:
tokens are estimated from the text, and scaled to the totals. `execution_time` is the measured time
of the tool, in seconds; old files lack it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import text
from servers.tool_names import command_names, tool_names
from traces.assumptions import Assumptions, Gap
from traces.formats.about import BY_TEXT, DRAW, About
from traces.formats.shared.calls import Call
from traces.formats.shared.chat_messages import flat_text
from traces.formats.shared.transcript import Transcript
from traces.laws import Law
from traces.lenient import Repairs, document_start, items, mapping, parse_json, seconds, tokens
from traces.program import Program, Provenance
from traces.token_counts import TokenCounter

ABOUT = About(
    name="swe-agent",
    order=14,
    suffixes=(".traj",),
    keys=(("environment", "trajectory", "history"),),
    holds="trajectories of SWE-agent",
    tokens="inferred",
    tool_times="measured, else no",
    starts=False,
    accuracy=f"{BY_TEXT}, scaled to a recorded total",
    without=f"without `execution_time` {DRAW}",
    title="SWE-agent (`.traj`)",
    rules=(
        "A turn is an assistant message that is no demonstration. Lengths are scaled to "
        "`tokens_sent` and `tokens_received`. The gap is `execution_time`. Tools are in the "
        "first line of the action"
    ),
)

SAID = ("content", "tool_calls")
"""Fields of a message that are counted as tokens."""
STEPS_TO_CHECK = 20


def sniff(first_bytes: bytes) -> bool:
    document = mapping(document_start(first_bytes))
    steps = document.get("trajectory")
    if not isinstance(steps, list):
        return False
    if not steps:
        return "history" in document or "environment" in document
    return any(
        "action" in mapping(step) and "source" not in mapping(step)
        for step in steps[:STEPS_TO_CHECK]
    )


def load_with(data: bytes, name: str, repairs: Repairs, assumptions: Assumptions) -> list[Program]:
    document = mapping(parse_json(data))
    messages = [message for message in items(document.get("history")) if isinstance(message, dict)]
    steps = [mapping(step) for step in items(document.get("trajectory"))]
    if not any(_is_call(message) for message in messages):
        messages = _history_of(steps)
    read = _read(messages, assumptions.tokens)
    if not read.calls:
        raise TraceRejected("no answer of the model in its history or trajectory")
    stats = mapping(mapping(document.get("info")).get("model_stats"))
    repairs.laws.total(Law.CALLS, len(read.calls), tokens(stats.get("api_calls")))
    _scale(read.calls, stats, assumptions.tokens, repairs)
    tools = [call.tools for call in read.calls]
    gaps = assumptions.complete_gaps(name, tools, _gaps(read.calls, steps), repairs)
    return [read.program(name, gaps, repairs)]


def _is_call(message: JsonObject) -> bool:
    return message.get("role") == "assistant" and not message.get("is_demo")


def _said(message: JsonObject) -> str:
    return flat_text([message.get(field) for field in SAID])


def _history_of(steps: Sequence[JsonObject]) -> list[Any]:
    """Return the conversation of the steps, for files whose history has no answer."""
    history: list[Any] = []
    for step in steps:
        answer = {"content": text(step.get("response")), "action": step.get("action")}
        history.append({"role": "assistant", **answer})
        history.append({"role": "user", "content": text(step.get("observation"))})
    return history


def _read(messages: Sequence[JsonObject], counter: TokenCounter) -> Transcript:
    """Return the messages, and the calls with counted lengths."""
    read, context = Transcript(), 0
    for message in messages:
        said = _said(message)
        length = counter.length([said]) if said else 0
        call = None
        if _is_call(message):
            call = Call(max(context, 1), max(length, 1), tools=_tools(message))
        read.say(text(message.get("role")), said, call)
        context += length
    return read


def _tools(message: JsonObject) -> tuple[str, ...]:
    """Return the commands in the first line of the action; other lines may be text that is written
    to a file."""
    first_line = text(message.get("action")).strip().partition("\n")[0]
    names = command_names(first_line) or tool_names(items(message.get("tool_calls")))
    return names or (("tool",) if first_line else ())


def _scale(
    calls: Sequence[Call], stats: JsonObject, counter: TokenCounter, repairs: Repairs
) -> None:
    """Scale the counted lengths so that their sums equal the recorded totals, if any. Calls that
    are not in the history, such as retries, are assumed to be of average length."""
    sent, received = tokens(stats.get("tokens_sent")), tokens(stats.get("tokens_received"))
    share = len(calls) / max(len(calls), tokens(stats.get("api_calls")) or 0)
    if not sent or not received:
        repairs.add(f"a trajectory without token counts: {counter.basis}")
        return
    repairs.add("lengths of calls from their texts, scaled to the recorded totals: inferred")
    prompts = share * sent / sum(call.prompt for call in calls)
    outputs = share * received / sum(call.output for call in calls)
    for call in calls:
        call.prompt = max(1, round(call.prompt * prompts))
        call.output = max(1, round(call.output * outputs))


def _gaps(calls: Sequence[Call], steps: Sequence[JsonObject]) -> list[Gap | None]:
    """Return the measured times of the tools. Steps are in the order of the calls; further calls at
    the end have none."""
    times = (seconds(step.get("execution_time")) for step in steps[: len(calls)])
    pairs = zip_longest(calls, times)
    return [None if time_s is None else (time_s, Provenance.MEASURED) for _, time_s in pairs]
