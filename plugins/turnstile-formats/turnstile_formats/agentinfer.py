"""`requests.jsonl` of AgentInfer (openJiuwen), with the requests that its benchmark sent.

In: a request per line, `{session_id, actor_id, actor_role, started_at, finished_at, status,
input_tokens, output_tokens, cached_tokens}`. Out: a program for each actor of a session; actors
other than `lead` are its sub-agents.
"""

from __future__ import annotations

from servers.basics.errors import TraceRejected
from servers.basics.text import identifier, text
from traces.formats.about import LENGTHS, MEASURED, About
from traces.formats.shared.calls import Call
from traces.formats.shared.rows import clock_s, first_row, lengths, rows
from traces.formats.shared.timed_calls import TimedAgent, estimate_ends, programs_of
from traces.lenient import Repairs, tokens
from traces.program import Program

ABOUT = About(
    name="agentinfer",
    holds="requests of AgentInfer's benchmark",
    tool_times=MEASURED,
    sub_agents=True,
    accuracy=f"{LENGTHS}; tools have no names",
    title="AgentInfer (`requests.jsonl`)",
    rules="The actor `lead` is the program, others are sub-agents. Gaps are **measured**",
)

LEAD = "lead"


def sniff(first_bytes: bytes) -> bool:
    return {"session_id", "actor_id", "started_at"} <= first_row(first_bytes).keys()


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    agents: dict[str, TimedAgent] = {}
    for row in rows(data, repairs):
        if text(row.get("status")) not in ("success", ""):
            repairs.add("a request that failed: left out")
            continue
        found = lengths(row.get("input_tokens"), row.get("output_tokens"), repairs)
        started_s = clock_s(row.get("started_at"))
        if found is None or started_s is None:
            if found is not None:
                repairs.add("a request without started_at: left out")
            continue
        session = identifier(row.get("session_id")) or name
        actor = identifier(row.get("actor_id")) or LEAD
        id, parent = (session, None) if actor == LEAD else (f"{session}/{actor}", session)
        agent = agents.setdefault(id, TimedAgent(id, [], parent))
        finished_s = clock_s(row.get("finished_at"))
        cached = tokens(row.get("cached_tokens"))
        agent.calls.append(Call(*found, started_s, finished_s, cached=cached))
    if not agents:
        raise TraceRejected("no successful request with prompt tokens and a start")
    for agent in agents.values():
        estimate_ends(agent.calls, repairs)
    ordered = sorted(agents.values(), key=lambda agent: agent.parent is not None)
    return programs_of(ordered, repairs, unnamed_tool=True)[0]
