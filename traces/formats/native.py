"""Turnstile's trace format `turnstile-trace-1`: JSON Lines with one program per line, optionally
compressed with gzip (suffix .gz).

In and out: programs, with the fields of `traces.program`; missing fields have their defaults. Times
are in seconds, lengths in tokens. The reader is strict: any error is reported with line, field,
value and remedy.
"""

from __future__ import annotations

import gzip
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from servers.errors import InvalidTrace
from traces.check import check
from traces.lenient import MAX_TOKENS, Repairs, describe_first_error
from traces.program import Fork, Message, Program, Provenance, SharedPrefix, Turn

FORMAT = "turnstile-trace-1"
_OUR_FIRST_FIELD = re.compile(rb'\s*\{[ \t]*"format"[ \t]*:[ \t]*"turnstile-')


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
    gap_provenance: Provenance = Provenance.MEASURED
    prefixes: tuple[_Prefix, ...] = ()

    def turn(self) -> Turn:
        prefixes = tuple(SharedPrefix(prefix.id, prefix.tokens) for prefix in self.prefixes)
        return Turn(**(self.__dict__ | {"prefixes": prefixes}))


class _Fork(_Strict):
    program_id: str = Field(min_length=1)
    after_turn: int = Field(ge=0)
    delay_s: float = Field(default=0.0, ge=0)
    joined_before_turn: int | None = None
    delay_provenance: Provenance = Provenance.INFERRED


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
        )


def sniff(first_bytes: bytes) -> bool:
    return _OUR_FIRST_FIELD.match(first_bytes) is not None


def load(data: bytes, _name: str, _repairs: Repairs) -> list[Program]:
    lines = enumerate(data.splitlines(), 1)
    return [_parse_line(line, number) for number, line in lines if line.strip()]


def parse_programs(data: bytes, name: str) -> list[Program]:
    """Read and check programs in this format. Error messages begin with `name`."""
    try:
        programs = load(data, name, Repairs())
        check(programs)
    except InvalidTrace as error:
        raise InvalidTrace(f"{name}, {error}") from None
    return programs


def _parse_line(line: bytes, number: int) -> Program:
    try:
        return _Program.model_validate_json(line).program()
    except ValidationError as error:
        problem = describe_first_error(error)
        if problem == "format: missing; add it":
            problem = f'format: missing; add "format": "{FORMAT}"'
        raise InvalidTrace(f"line {number}: {problem}") from None


def program_line(program: Program) -> bytes:
    """Return one line of the format, without fields that have their default value."""
    line: dict[str, Any] = {"format": FORMAT, "id": program.id}
    for key in ("prefix", "fork", "recorded_start_s", "source"):
        if value := getattr(program, key):
            line[key] = _fields(value) if isinstance(value, SharedPrefix | Fork) else value
    if program.recorded_start_s == 0:
        line["recorded_start_s"] = 0.0
    line["turns"] = [_fields(turn) for turn in program.turns]
    if program.messages:
        line["messages"] = [message._asdict() for message in program.messages]
        line["prompt_messages"] = program.prompt_messages
    return orjson.dumps(line) + b"\n"


def _fields(value: Turn | SharedPrefix | Fork) -> dict[str, Any]:
    fields = value.__dataclass_fields__.items()
    return {key: v for key, field in fields if (v := getattr(value, key)) != field.default}


def write_programs(path: Path, programs: Iterable[Program]) -> None:
    """Write the file atomically, so that an error leaves an existing file unchanged."""
    data = b"".join(program_line(program) for program in programs)
    if path.suffix == ".gz":
        # The header has no name and no time, so that equal programs give equal bytes.
        data = gzip.compress(data, mtime=0)
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InvalidTrace(f"{path}: cannot be written ({error.strerror})") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(partial, 0o666 & ~umask)
        os.replace(partial, path)
    except OSError as error:
        Path(partial).unlink(missing_ok=True)
        raise InvalidTrace(f"{path}: cannot be written ({error.strerror})") from None
