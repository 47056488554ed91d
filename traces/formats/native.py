"""Turnstile's trace format `turnstile-trace-1`: JSON Lines with one program per line, optionally
gzip-compressed (suffix .gz).

In and out: programs, with the fields of `traces.program`; missing fields have their defaults. Times
are in seconds, lengths in tokens. The reader is strict: any error is reported with line, field,
value and remedy.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from servers.basics.atomic import write_chunks
from servers.basics.errors import InvalidTrace
from servers.basics.json_object import JsonObject
from servers.basics.text import text
from traces.block_hashes import kept_tokens
from traces.check import check
from traces.formats.about import STATED, About
from traces.formats.native_errors import problem
from traces.lenient import MAX_TOKENS, Repairs, line_start, lines, mapping
from traces.program import Fork, Message, Program, Provenance, SharedPrefix, Turn

ABOUT = About(
    name="turnstile",
    order=0,
    keys=(("format", "id", "turns.prompt_tokens", "turns.output_tokens"),),
    holds="programs in Turnstile's own format",
    tool_times="as the file says",
    repeats=STATED,
    sub_agents=True,
    accuracy="repeats from lengths if no turn has `kept_tokens`",
)

FORMAT = "turnstile-trace-1"
_OUR_FIRST_FIELD = re.compile(rb'\s*\{[ \t]*"format"[ \t]*:[ \t]*"turnstile-')
UNSTATED = "and no turn of the file states kept_tokens"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Prefix(_Strict):
    id: str = Field(min_length=1)
    tokens: int = Field(ge=1)


class _Turn(_Strict):
    prompt_tokens: int = Field(ge=1, le=MAX_TOKENS)
    output_tokens: int = Field(ge=1, le=MAX_TOKENS)
    kept_tokens: int = Field(default=0, ge=0)
    tools: tuple[str, ...] = ()
    command: str | None = None
    tool_gap_s: float = Field(default=0.0, ge=0)
    gap_provenance: Provenance = Provenance.UNSTATED
    prefixes: tuple[_Prefix, ...] = ()

    def turn(self) -> Turn:
        prefixes = tuple(SharedPrefix(prefix.id, prefix.tokens) for prefix in self.prefixes)
        return Turn(**(self.__dict__ | {"prefixes": prefixes}))


class _Fork(_Strict):
    program_id: str = Field(min_length=1)
    after_turn: int = Field(ge=0)
    delay_s: float = Field(default=0.0, ge=0)
    joined_before_turn: int | None = None
    delay_provenance: Provenance = Provenance.UNSTATED


class _Message(_Strict):
    role: str
    content: str


class _Program(_Strict):
    format: Literal["turnstile-trace-1"]
    id: str = Field(min_length=1)
    turns: tuple[_Turn, ...] = Field(min_length=1)
    prefix: _Prefix | None = None
    fork: _Fork | None = None
    recorded_start_s: float | None = None
    source: str = ""
    messages: tuple[_Message, ...] = ()
    prompt_messages: tuple[int, ...] = ()
    inferred_tokens: bool = False

    def program(self) -> Program:
        return Program(
            id=self.id,
            turns=tuple(turn.turn() for turn in self.turns),
            prefix=SharedPrefix(**self.prefix.__dict__) if self.prefix else None,
            fork=Fork(**self.fork.__dict__) if self.fork else None,
            recorded_start_s=self.recorded_start_s,
            source=self.source,
            messages=tuple(Message(message.role, message.content) for message in self.messages),
            prompt_messages=self.prompt_messages,
            inferred_tokens=self.inferred_tokens,
        )


def sniff(first_bytes: bytes) -> bool:
    if _OUR_FIRST_FIELD.match(first_bytes) is not None:
        return True
    return text(mapping(line_start(first_bytes)).get("format")).startswith("turnstile-")


def load(data: bytes, _name: str, repairs: Repairs) -> list[Program]:
    programs: list[Program] = []
    states_kept = False
    for number, line in enumerate(lines(data), 1):
        if line.strip():
            parsed = _parse_line(line, number)
            states_kept |= any("kept_tokens" in turn.model_fields_set for turn in parsed.turns)
            programs.append(parsed.program())
    return programs if states_kept else [_append_only(program, repairs) for program in programs]


def _append_only(program: Program, repairs: Repairs) -> Program:
    """Infer the kept tokens of a program whose file does not state any: if prompts grow, the agent
    has only appended to them."""
    turns: list[Turn] = list(program.turns[:1])
    for before, turn in pairwise(program.turns):
        kept = kept_tokens(before.prompt_tokens, before.output_tokens, turn.prompt_tokens, None, 1)
        if kept and (before.prefixes or turn.prefixes):
            repairs.add(f"a prompt that grows and has prefixes, {UNSTATED}: taken as 0")
            kept = 0
        elif kept:
            repairs.add(
                f"a prompt that grows, {UNSTATED}: inferred that it repeats the previous one"
            )
        else:
            repairs.add(f"a prompt that does not grow, {UNSTATED}: taken as 0")
        turns.append(replace(turn, kept_tokens=kept))
    return replace(program, turns=tuple(turns))


def parse_programs(data: bytes, name: str) -> list[Program]:
    """Read and check programs in this format. Error messages begin with `name`."""
    try:
        programs = load(data, name, Repairs())
        check(programs)
    except InvalidTrace as error:
        raise InvalidTrace(f"{name}, {error}") from None
    return programs


def _parse_line(line: bytes, number: int) -> _Program:
    try:
        return _Program.model_validate_json(line)
    except ValidationError as error:
        raise InvalidTrace(f"line {number}: {problem(error, _fields_at)}") from None


def _fields_at(location: Sequence[int | str]) -> Collection[str]:
    """Return the fields of the object that contains the field at this location."""
    models: dict[object, type[_Strict]] = {
        "turns": _Turn, "prefix": _Prefix, "prefixes": _Prefix, "fork": _Fork, "messages": _Message
    }  # fmt: skip
    names = [models[key] for key in location[:-1] if key in models]
    return (names[-1] if names else _Program).model_fields


def program_line(program: Program) -> bytes:
    """Return one line of the format, without fields that have their default value. If no turn of a
    program keeps tokens, this is stated: a file without `kept_tokens` is read as append-only."""
    line: JsonObject = {"format": FORMAT, "id": program.id}
    for key in ("prefix", "fork", "recorded_start_s", "source", "inferred_tokens"):
        if value := getattr(program, key):
            line[key] = _fields(value) if isinstance(value, SharedPrefix | Fork) else value
    if program.recorded_start_s == 0:
        line["recorded_start_s"] = 0.0
    line["turns"] = [_fields(turn) for turn in program.turns]
    if not any(turn.kept_tokens for turn in program.turns):
        for fields in line["turns"][1:]:
            fields["kept_tokens"] = 0
    if program.messages:
        line["messages"] = [message._asdict() for message in program.messages]
        line["prompt_messages"] = program.prompt_messages
    return orjson.dumps(line) + b"\n"


def _fields(value: Turn | SharedPrefix | Fork) -> JsonObject:
    fields = value.__dataclass_fields__.items()
    return {key: v for key, field in fields if (v := getattr(value, key)) != field.default}


def write_programs(path: Path, programs: Iterable[Program]) -> None:
    """Write the file atomically, so that an error leaves an existing file unchanged."""
    write_chunks(path, map(program_line, programs))
