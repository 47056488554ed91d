"""Applied Compute's agentic workloads, in the form that Dynamo's replay reads.

In: a session per line, `{num_turns, input_prompt_length, assistant_response_length[],
tool_call_output_length[], tool_call_latency[], final_assistant_response_length}`, with latencies in
seconds. Out: a program per session: a turn for each tool call, and one for the final answer. Each
prompt is everything before it.
"""

from __future__ import annotations

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import brief
from traces.formats.about import MEASURED, About
from traces.formats.shared.rows import first_row, in_seconds, lengths, rows
from traces.formats.shared.timed_calls import UNNAMED_TOOL
from traces.lenient import MAX_GAP_S, MAX_TOKENS, Repairs, items, tokens
from traces.program import Program, Turn

ABOUT = About(
    name="applied-compute",
    holds="lengths and tool latencies per session",
    tool_times="unstated",
    repeats=MEASURED,
    starts=False,
    accuracy="tools have no names",
    without="without starts: `--arrivals recorded` is refused",
    title="Applied Compute",
    rules=(
        "A line is a session whose prompts are everything before. Gaps are `tool_call_latency`, "
        "**unstated**"
    ),
)


def sniff(first_bytes: bytes) -> bool:
    return {"input_prompt_length", "assistant_response_length"} <= first_row(first_bytes).keys()


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    programs = []
    for number, row in enumerate(rows(data, repairs)):
        if turns := _turns(row, repairs):
            programs.append(Program(f"{name}-{number}", tuple(turns)))
    if not programs:
        raise TraceRejected("no session with prompt tokens")
    return programs


def _turns(row: JsonObject, repairs: Repairs) -> list[Turn]:
    first = tokens(row.get("input_prompt_length"))
    if not first:
        prompt = brief(row.get("input_prompt_length"))
        repairs.add(f"a session with {prompt} prompt tokens: left out")
        return []
    answers = items(row.get("assistant_response_length"))
    results = items(row.get("tool_call_output_length"))
    latencies = items(row.get("tool_call_latency"))
    calls = min(len(answers), len(results), len(latencies))
    if not calls == len(answers) == len(results) == len(latencies):
        repairs.add("lists of different lengths: the additional entries are left out")
    turns: list[Turn] = []
    prompt_tokens, kept = first, 0
    final = row.get("final_assistant_response_length")
    rest = zip(answers, results, latencies, strict=False)
    for answer, result, latency in [*rest, (final, 0, None)]:
        last = latency is None and len(turns) == calls
        found = lengths(prompt_tokens, answer, repairs)
        if found is None or sum(found) > MAX_TOKENS:
            break
        gap_s = in_seconds(latency, 1)
        if gap_s is None and not last:
            repairs.add(f"a tool call with a latency of {brief(latency)}: set to 0")
        tools = () if last else UNNAMED_TOOL
        gap_s = round(min(gap_s or 0.0, MAX_GAP_S), 3)
        turns.append(Turn(*found, min(kept, prompt_tokens - 1), tools, tool_gap_s=gap_s))
        kept = sum(found)
        prompt_tokens = kept + max(tokens(result) or 0, 1)
    return turns
