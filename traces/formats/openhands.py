"""OpenHands trajectories: the legacy event list, and conversations of its SDK.

In: a list of events (`trajectory.json`); an object with events in `events`, `trajectory` or
`history`, and token counts in `base_state` or `metrics`; `rows` of such objects (an evaluation's
`output.jsonl`); or the folder that the SDK persists, `base_state.json` with `events/event-*.json`.
Out: a program per conversation, with one turn per response of the model, and a sub-agent for each
summary that the condenser requested. Times in seconds, lengths in tokens.
`docs/reference/trace-formats.md` has the rules and repairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from traces.formats.about import LENGTHS, MEASURED, About
from traces.formats.openhands_conversation import ConversationBuilder, Usages
from traces.formats.openhands_events import is_event, utterances
from traces.formats.shared.rows import INCOMPLETE_LINE, documents
from traces.lenient import Repairs, items, mapping, parse_json, read_bytes, seconds, starts
from traces.merge import agree_on_prefixes, renamed
from traces.program import Program

ABOUT = About(
    name="openhands",
    order=7,
    holds="conversations and trajectories of OpenHands",
    tool_times=MEASURED,
    sub_agents=True,
    accuracy=LENGTHS,
    without="without token counts: refused",
)

HEAD_FILE = "base_state.json"
EVENTS = ("events", "trajectory", "history")
EVENTS_TO_CHECK = 20
"""A list is a list of events if one of this many first elements is an event."""


def sniff(first_bytes: bytes) -> bool:
    return any(map(has_events, starts(first_bytes)))


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    found = [document for document in documents(data, repairs) if document is not None]
    document = next(iter(found), None)
    if len(found) > 1:
        document = {"events" if is_event(found[0]) else "rows": found}
    try:
        return read_document(document, name, repairs)
    except TraceRejected as error:
        incomplete = [each for each in repairs.reasons() if each.startswith(INCOMPLETE_LINE)]
        raise TraceRejected("; ".join([str(error), *incomplete])) from None


def has_events(document: object) -> bool:
    rows = items(mapping(document).get("rows"))
    return any(map(_has_own_events, [document, *rows]))


def _has_own_events(document: object) -> bool:
    return any(map(is_event, _events(document)[:EVENTS_TO_CHECK]))


def _events(document: object) -> list[Any]:
    """Return the events of a document. Old evaluations have pairs of action and observation."""
    if is_event(document):
        return [document]
    fields = (items(mapping(document).get(name)) for name in EVENTS)
    events = document if isinstance(document, list) else next(filter(None, fields), [])
    return [e for event in events for e in (event if isinstance(event, list) else [event])]


def is_part(path: Path) -> bool:
    """Return whether a file is read together with the `base_state.json` of its conversation."""
    return path.parent.name == "events" and (path.parent.parent / HEAD_FILE).is_file()


def read_folder(head: Path) -> bytes:
    """Return the SDK's folder as one document, in which incomplete events are null."""
    events = [_complete_event(path) for path in sorted(head.parent.glob("events/*.json"))]
    return b'{"base_state":%b,"events":[%b]}' % (read_bytes(head), b",".join(events))


def _complete_event(event: Path) -> bytes:
    try:
        data = read_bytes(event)
        parse_json(data)
    except TraceRejected:
        return b"null"
    return data


def read_document(document: Any, name: str, repairs: Repairs) -> list[Program]:
    rows = items(mapping(document).get("rows"))
    if not rows:
        return _conversation(document, name, repairs)
    programs: list[Program] = []
    ids: set[str] = set()
    errors: list[str] = []
    for number, row in enumerate(rows, 1):
        try:
            conversation = _conversation(row, f"{name}-{number}", repairs)
        except TraceRejected as error:
            errors.append(str(error))
            repairs.add(f"a row left out: {error}")
            continue
        if any(program.id in ids for program in conversation):
            conversation = _numbered(conversation, number)
        programs += conversation
        ids.update(program.id for program in conversation)
    if not programs:
        raise TraceRejected(errors[0])
    return list(agree_on_prefixes(programs))


def _numbered(programs: list[Program], number: int) -> list[Program]:
    """Add the number of the row to the ids, for a further attempt at the same task."""
    return [renamed(program, lambda id: f"{id}@{number}", str) for program in programs]


def _conversation(document: Any, name: str, repairs: Repairs) -> list[Program]:
    events = _events(document)
    for event in events:
        if not isinstance(event, dict):
            repairs.add("an event that is not an object: left out")
    builder = ConversationBuilder(_usages(document, events), repairs)
    for utterance in utterances(events):
        builder.add(utterance)
    return builder.programs(_id(document) or name)


def _id(document: Any) -> str:
    state = mapping(mapping(document).get("base_state"))
    state_id = identifier(mapping(state.get("tags")).get("program")) or identifier(state.get("id"))
    return identifier(mapping(document).get("instance_id")) or state_id


def _usages(document: Any, events: list[Any]) -> Usages:
    """Return the usage of all responses, from all places of a document that may have it."""
    usages = Usages()
    for metrics in _metrics(document, events):
        for usage in map(mapping, items(metrics.get("token_usages"))):
            usages.tokens[text(usage.get("response_id"))] = usage
        for latency in map(mapping, items(metrics.get("response_latencies"))):
            if (latency_s := seconds(latency.get("latency"))) is not None:
                usages.latencies_s[text(latency.get("response_id"))] = latency_s
    usages.tokens.pop("", None)
    return usages


def _metrics(document: Any, events: Iterable[Any]) -> Iterator[JsonObject]:
    stats = [mapping(mapping(document).get("base_state")).get("stats")]
    yield mapping(mapping(document).get("metrics"))
    for event in map(mapping, events):
        yield mapping(event.get("llm_metrics"))
        if event.get("kind") == "ConversationStateUpdateEvent":
            value = mapping(event.get("value"))
            stats.append(value if event.get("key") == "stats" else value.get("stats"))
    for stat in map(mapping, stats):
        for name in ("usage_to_metrics", "service_to_metrics"):
            yield from map(mapping, mapping(stat.get(name)).values())
