"""Exports a trace for Perfetto (ui.perfetto.dev) or chrome://tracing. In: a cell. Out: JSON.

Chrome's trace event format: times are whole microseconds on the cell's clock, so that rounding
keeps nested slices nested. One process has a thread per program, in the order of their jobs; the
other has counters of the engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import orjson
from msgspec import to_builtins

from reports.exports.phases import stretches
from reports.run_folder.lines import read_records
from reports.run_folder.read import CellRun
from reports.run_folder.turns import HITS
from servers.basics.json_object import JsonObject
from servers.records.turns import EventRecord, TurnRecord

PROGRAMS, ENGINE = 1, 2
"""Process ids (`pid`)."""
COUNTERS = (
    ("KV blocks in use", "blocks"),
    ("KV blocks pinned", "blocks"),
    ("turns waiting", "turns"),
    ("turns running", "turns"),
    ("KV blocks in DRAM", "blocks"),
    ("KV blocks on SSD", "blocks"),
)
"""Name and unit of the numbers in a point of `usage` in done.json, after its time."""
OF_TURN = ("prompt_tokens", "output_tokens", *HITS, "preemptions", "pinned_hit", "replica", "error")
OF_PIN = ("ttl_s", "blocks", "why", "reason")

Event = JsonObject


def chrome_trace(cell: CellRun) -> bytes:
    mine: dict[str, list[TurnRecord]] = defaultdict(list)
    for turn in read_records(cell.folder / "turns.jsonl", TurnRecord):
        mine[turn.program_id].append(turn)
    of_engine: dict[str, list[EventRecord]] = defaultdict(list)
    for event in read_records(cell.folder / "engine.jsonl", EventRecord):
        of_engine[event.program_id].append(event)
    found = list(_named(PROGRAMS, "programs")) + list(_named(ENGINE, "engine"))
    for thread, program in enumerate(_in_order(mine), 1):
        found += _thread(thread, program, mine[program], of_engine[program])
    found += _counters(cell.done.usage or ())
    fields = ("variant", "jps", "agents", "seed", "engine")
    about = {field: getattr(cell.config, field) for field in fields}
    return orjson.dumps({"traceEvents": found, "displayTimeUnit": "ms", "otherData": about})


def _in_order(programs: Mapping[str, Sequence[TurnRecord]]) -> list[str]:
    """Return programs by the arrival of their job, sub-agents after their parent."""
    first_s = {name: min(t.scheduled_at_s for t in own) for name, own in programs.items()}
    job = {name: own[0].job_id for name, own in programs.items()}
    return sorted(first_s, key=lambda n: (first_s.get(job[n], first_s[n]), job[n], first_s[n], n))


def _thread(
    thread: int, program: str, turns: Sequence[TurnRecord], events: Iterable[EventRecord]
) -> Iterator[Event]:
    where: Event = {"pid": PROGRAMS, "tid": thread}
    yield {"ph": "M", "name": "thread_name", **where, "args": {"name": program}}
    yield {"ph": "M", "name": "thread_sort_index", **where, "args": {"sort_index": thread}}
    of_turn: dict[int, list[EventRecord]] = defaultdict(list)
    for event in events:
        of_turn[event.turn].append(event)
        if event.event in ("pinned", "unpinned"):
            args = _known(event, OF_PIN)
            at = {"name": event.event, "cat": "pin", "ts": _us(event.t), "args": args}
            yield {"ph": "i", "s": "t", **where, **at}
    free_us = 0
    tools: Sequence[str] = ()
    for turn in sorted(turns, key=lambda t: t.turn):
        for part in [*_before(turn, tools, free_us), *_turn(turn, of_turn[turn.turn])]:
            yield part | where
            free_us = max(free_us, part["ts"] + part["dur"])
        tools = turn.tools or ()


def _before(turn: TurnRecord, tools: Sequence[str], free_us: int) -> Iterator[Event]:
    """Yield slices of the previous turn's tool call, and of the wait for sub-agents before it."""
    due_s, gap_s = turn.scheduled_at_s, turn.gap_s or 0.0
    called_s = due_s - gap_s
    waited = _slice("wait for sub-agents", "wait", called_s - (turn.wait_s or 0.0), called_s)
    tool = _slice(f"tool: {', '.join(tools) or 'none'}", "tool", called_s, due_s)
    provenance = turn.gap_provenance
    for event in (waited, tool | {"args": {"provenance": provenance}}):
        begin_us = max(event["ts"], free_us)
        if (end_us := event["ts"] + event["dur"]) > begin_us:
            yield event | {"ts": begin_us, "dur": end_us - begin_us}


def _turn(turn: TurnRecord, events: Sequence[EventRecord]) -> Iterator[Event]:
    """Yield a slice from the turn's due time to its last token, and its stretches inside it."""
    parts = stretches(turn, events)
    if not parts:
        return
    args = _known(turn, OF_TURN)
    due_s, sent_s = turn.scheduled_at_s, turn.sent_at_s
    whole = _slice(f"turn {turn.turn}", "turn", min(due_s, sent_s), parts[-1].end_s)
    yield whole | {"args": args}
    inside = [_slice("client late", "late", due_s, sent_s)]
    inside += [_slice(p.name, p.name, p.begin_s, p.end_s) for p in parts]
    yield from (event for event in inside if event["dur"] > 0)


def _known(record: TurnRecord | EventRecord, names: Sequence[str]) -> JsonObject:
    """Return the fields that are neither null nor left out."""
    fields = to_builtins(record)
    return {name: fields[name] for name in names if fields.get(name) is not None}


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
