"""Reads a run's `turns.jsonl`, the requests that an engine has served, as a trace.

In: a `TurnRecord` per line (docs/reference/run-folder.md). Out: programs in order of arrival, with
the tool gaps of the run, and with messages if the run recorded them. Failed turns are left out. A
sub-agent becomes a separate program, since its record lacks the fork; this is reported as a repair.
In a stream, the jobs before the first unfinished one are kept; the finished jobs after it would be
mostly short ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import ValidationError
from msgspec.json import Decoder

from servers.basics.errors import TraceRejected
from servers.basics.text import MALFORMED, identifier, line_problem, text
from servers.records.turns import TurnRecord
from traces.formats.about import STATED, About
from traces.formats.shared.calls import stated_provenance
from traces.lenient import Repairs, line_start, lines, mapping, seconds, tokens
from traces.program import Message, Program, SharedPrefix, Turn

ABOUT = About(
    name="turns.jsonl",
    order=1,
    keys=(("program_id", "turn", "sent_at_s", "prompt_tokens"),),
    holds="turns of a run or of `bench record`",
    tokens="recorded, or counted by `--tokenizer`",
    tool_times="as in the run",
    repeats=STATED,
    without="sub-agents become programs of their own",
    title="`turns.jsonl`",
    rules=(
        "Failed turns, turns without counts and incomplete lines are left out; of a stream, the "
        "first job that had not finished and all later ones. Counts of `--tokenizer` are inferred"
    ),
)


def sniff(first_bytes: bytes) -> bool:
    record = mapping(line_start(first_bytes))
    return "program_id" in record and "sent_at_s" in record


def load(data: bytes, _name: str, repairs: Repairs) -> list[Program]:
    by_program: dict[str, list[TurnRecord]] = {}
    decoder = Decoder(TurnRecord)
    numbered = enumerate(lines(data), 1)
    found = [_record(decoder, line, number, repairs) for number, line in numbered]
    records = [record for record in found if record is not None]
    end = _first_unfinished(records)
    missing = "has succeeded"
    for record in records:
        if isinstance(record.job_index, int) and record.job_index >= end:
            repairs.add("a turn of a job that had not finished, or of a later one: left out")
        elif record.background is True:
            repairs.add("a request of the background: left out")
        elif record.error:
            repairs.add("a turn that failed: left out")
        elif tokens(record.prompt_tokens) and tokens(record.output_tokens):
            if record.counted is True:
                repairs.add_inferred_count("a turn whose tokens --tokenizer counted: inferred")
            by_program.setdefault(identifier(record.program_id) or "program", []).append(record)
        else:
            repairs.add("a turn without token counts: left out")
            missing = "has token counts"
    if not by_program:
        raise TraceRejected(f"no turn {missing}, or no job has finished")
    for records in by_program.values():
        records.sort(key=_sent_s)
        if records[0].job_id not in ("", records[0].program_id):
            repairs.add("a sub-agent, whose fork is not recorded: made a separate program")
    first_s = min(_sent_s(records[0]) for records in by_program.values())
    starts_s = {id: round(_sent_s(records[0]) - first_s, 6) for id, records in by_program.items()}
    ordered = sorted(by_program, key=lambda id: (starts_s[id], id))
    return [_program(id, by_program[id], starts_s[id], repairs) for id in ordered]


def _first_unfinished(records: Sequence[TurnRecord]) -> float:
    """Return the index of the first job of a stream that lacks turns; infinity for a fixed set."""
    missing: dict[int, int] = {}
    for record in records:
        if isinstance(record.job_index, int) and isinstance(record.job_turns, int):
            missing[record.job_index] = missing.get(record.job_index, record.job_turns) - 1
    if not missing:
        return math.inf
    return next(index for index in range(max(missing) + 2) if missing.get(index) != 0)


def _record(
    decoder: Decoder[TurnRecord], line: bytes, number: int, repairs: Repairs
) -> TurnRecord | None:
    try:
        return decoder.decode(line)
    except ValidationError as error:
        raise TraceRejected(
            f"line {number}: {line_problem(line, error, TurnRecord)}; give a run's turns.jsonl"
        ) from None
    except MALFORMED:
        repairs.add("an incomplete line: left out")
        return None


def _sent_s(record: TurnRecord) -> float:
    return seconds(record.sent_at_s) or 0.0


def _program(id: str, records: list[TurnRecord], start_s: float, repairs: Repairs) -> Program:
    turns: list[Turn] = []
    for index, record in enumerate(records):
        following = records[index + 1] if index + 1 < len(records) else None
        turns.append(_turn(record, following, turns[-1] if turns else None, repairs))
    prefix = _prefix(records[0], min(turn.prompt_tokens for turn in turns))
    messages, ends = _conversation(records, repairs)
    return Program(
        id, tuple(turns), prefix, recorded_start_s=start_s, messages=messages, prompt_messages=ends
    )


def _prefix(first: TurnRecord, shortest_prompt: int) -> SharedPrefix | None:
    if not first.system:
        return None
    count = min(tokens(first.system.tokens) or 0, shortest_prompt)
    id = identifier(first.system.id)
    return SharedPrefix(id, count) if count and id else None


def _conversation(
    records: Sequence[TurnRecord], repairs: Repairs
) -> tuple[tuple[Message, ...], tuple[int, ...]]:
    """Return all messages of a program, and the number of messages in each prompt; none if a turn
    was recorded without messages."""
    conversation: list[Message] = []
    ends: list[int] = []
    for record in records:
        if not isinstance(record.messages, list):
            return (), ()
        if conversation and record.messages_repeated != len(conversation):
            repairs.add("a prompt that rewrote its history: its messages appended to the others")
        conversation += (Message(text(m.role), text(m.content)) for m in record.messages)
        ends.append(len(conversation))
        conversation.append(Message("assistant", text(record.answer)))
    return tuple(conversation), tuple(ends)


def _turn(
    record: TurnRecord, following: TurnRecord | None, before: Turn | None, repairs: Repairs
) -> Turn:
    prompt_tokens = tokens(record.prompt_tokens) or 1
    max_kept = 0 if before is None else min(before.context_tokens, prompt_tokens - 1)
    return Turn(
        prompt_tokens=prompt_tokens,
        output_tokens=tokens(record.output_tokens) or 1,
        kept_tokens=min(tokens(record.kept_tokens) or 0, max_kept),
        tools=record.tools or (),
        command=text(record.command) or None,
        tool_gap_s=seconds(following.gap_s if following else None) or 0.0,
        gap_provenance=stated_provenance(following and following.gap_provenance, repairs),
    )
