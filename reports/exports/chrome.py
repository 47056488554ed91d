"""A cell in; a trace for Perfetto (ui.perfetto.dev) or chrome://tracing out.

Chrome's trace event format, JSON: times are whole microseconds on the cell's clock, so that what
lies inside another slice stays inside. One process holds a thread per program, in the order of
their jobs; the other holds counters of the engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from reports.exports.phases import Record, stretches
from reports.run_folder import records
from reports.run_folder.read import HITS, Cell, checked_lines
from reports.run_folder.records import Turn

PROGRAMS, ENGINE = 1, 2
"""Processes: `pid`."""
COUNTERS = (
    ("KV blocks in use", "blocks"),
    ("KV blocks pinned", "blocks"),
    ("turns waiting", "turns"),
    ("turns running", "turns"),
    ("KV blocks in DRAM", "blocks"),
    ("KV blocks on SSD", "blocks"),
)
"""As the numbers of `usage` in done.json follow its time."""
OF_TURN = ("prompt_tokens", "output_tokens", *HITS, "preemptions", "pinned_hit", "replica", "error")
OF_PIN = ("ttl_s", "blocks", "why", "reason")

Event = dict[str, Any]


def chrome_trace(cell: Cell) -> bytes:
    turns = checked_lines(cell.folder / "turns.jsonl", Turn)
    events = checked_lines(cell.folder / "engine.jsonl", records.Event)
    mine: dict[str, list[Record]] = defaultdict(list)
    for turn in turns:
        mine[turn["program_id"]].append(turn)
    of_engine: dict[str, list[Record]] = defaultdict(list)
    for event in events:
        of_engine[event["program_id"]].append(event)
    found = list(_named(PROGRAMS, "programs")) + list(_named(ENGINE, "engine"))
    for thread, program in enumerate(_in_order(mine), 1):
        found += _thread(thread, program, mine[program], of_engine[program])
    found += _counters((cell.done or {}).get("usage") or ())
    variant, jps, seed = cell.key
    about = {"variant": variant, "jps": jps, "seed": seed, "engine": cell.config.get("engine")}
    return orjson.dumps({"traceEvents": found, "displayTimeUnit": "ms", "otherData": about})


def _in_order(programs: Mapping[str, Sequence[Record]]) -> list[str]:
    """By the arrival of their job, sub-agents after their parent."""
    first_s = {name: min(t["scheduled_at_s"] for t in own) for name, own in programs.items()}
    job = {name: own[0]["job_id"] for name, own in programs.items()}
    return sorted(first_s, key=lambda n: (first_s.get(job[n], first_s[n]), job[n], first_s[n], n))


def _thread(
    thread: int, program: str, turns: Sequence[Record], events: Iterable[Record]
) -> Iterator[Event]:
    where: Event = {"pid": PROGRAMS, "tid": thread}
    yield {"ph": "M", "name": "thread_name", **where, "args": {"name": program}}
    yield {"ph": "M", "name": "thread_sort_index", **where, "args": {"sort_index": thread}}
    of_turn: dict[int, list[Record]] = defaultdict(list)
    for event in events:
        of_turn[event["turn"]].append(event)
        if event["event"] in ("pinned", "unpinned"):
            args = {name: event[name] for name in OF_PIN if event.get(name) is not None}
            at = {"name": event["event"], "cat": "pin", "ts": _us(event["t"]), "args": args}
            yield {"ph": "i", "s": "t", **where, **at}
    free_us = 0
    tools: Sequence[str] = ()
    for turn in sorted(turns, key=lambda t: t["turn"]):
        for event in [*_before(turn, tools, free_us), *_turn(turn, of_turn[turn["turn"]])]:
            yield event | where
            free_us = max(free_us, event["ts"] + event["dur"])
        tools = turn.get("tools") or ()


def _before(turn: Record, tools: Sequence[str], free_us: int) -> Iterator[Event]:
    """The tool that the turn before called, and the wait for sub-agents that came first."""
    due_s, gap_s = turn["scheduled_at_s"], turn.get("gap_s") or 0.0
    called_s = due_s - gap_s
    waited = _slice("wait for sub-agents", "wait", called_s - (turn.get("wait_s") or 0.0), called_s)
    tool = _slice(f"tool: {', '.join(tools) or 'none'}", "tool", called_s, due_s)
    provenance = turn.get("gap_provenance")
    for event in (waited, tool | {"args": {"provenance": provenance}}):
        begin_us = max(event["ts"], free_us)
        if (end_us := event["ts"] + event["dur"]) > begin_us:
            yield event | {"ts": begin_us, "dur": end_us - begin_us}


def _turn(turn: Record, events: Sequence[Record]) -> Iterator[Event]:
    """From when it was due to its last token, and inside it what it did."""
    parts = stretches(turn, events)
    if not parts:
        return
    args = {name: turn[name] for name in OF_TURN if turn.get(name) is not None}
    due_s, sent_s = turn["scheduled_at_s"], turn["sent_at_s"]
    whole = _slice(f"turn {turn['turn']}", "turn", min(due_s, sent_s), parts[-1].end_s)
    yield whole | {"args": args}
    inside = [_slice("client late", "late", due_s, sent_s)]
    inside += [_slice(p.name, p.name, p.begin_s, p.end_s) for p in parts]
    yield from (event for event in inside if event["dur"] > 0)


def _slice(name: str, category: str, begin_s: float, end_s: float) -> Event:
    begin_us = _us(begin_s)
    return {"ph": "X", "name": name, "cat": category, "ts": begin_us, "dur": _us(end_s) - begin_us}


def _counters(usage: Iterable[Sequence[float]]) -> Iterator[Event]:
    for at_s, *numbers in usage:
        for (name, unit), number in zip(COUNTERS, numbers, strict=False):
            at = {"ph": "C", "pid": ENGINE, "name": name, "ts": _us(at_s)}
            yield {**at, "args": {unit: number}}


def _named(process: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
