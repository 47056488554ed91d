"""Sessions of iFlow CLI (`~/.iflow/projects/…/session-ID.jsonl`).

In: lines as Claude Code writes them, with the session's id in the form `session-ID`. A prompt's
`input_tokens` include the cached ones, and counts of 0 are unknown. Out: a program per session.
"""

from __future__ import annotations

from servers.basics.errors import TraceRejected
from traces.formats import claude_code
from traces.formats.about import PERMISSION, About
from traces.formats.look_alikes import RECORD
from traces.formats.shared.linked import first_lines
from traces.lenient import Repairs
from traces.program import Program

ABOUT = About(
    name="iflow",
    order=2,
    holds="sessions of iFlow CLI",
    tool_times=PERMISSION,
    accuracy="known from a description only",
    without="without token counts: refused",
)

links = claude_code.links


def sniff(first_bytes: bytes) -> bool:
    return any(map(claude_code.is_of_iflow, first_lines(first_bytes)))


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    try:
        return claude_code.load(data, name, repairs)
    except TraceRejected:
        raise TraceRejected(f"no answer with token counts; {RECORD}") from None
