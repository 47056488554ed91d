"""What a server's log says last, and why it died.

In: the log of vLLM, whose processes put their name, the date and the place in front of each line.
Out: lines without that.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

END_BYTES = 65_536
PREFIX = re.compile(r"^(\((\w+) pid=\d+\) ?)?((INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[\S+\] )?")
A_WARNING = re.compile(r"^(\(\w+ pid=\d+\) ?)?WARNING ")
NAMES_AN_ERROR = re.compile(r"\w*(Error|Exception|error): ")
NOT_THE_CAUSE = re.compile(
    r"See root cause above|See stack trace \(above\)|^RuntimeError: (cancelled|Executor failed\.)$"
)
OF_THE_CORE = re.compile(r"^\(EngineCore\S* pid=\d+\)")
WORKER_DIED = re.compile(r"Worker proc .* died unexpectedly")
CORE_DIED = re.compile(r"engine core exited unexpectedly")
"""Of processes of vLLM that were killed, and could not say why; of others it is said when they end
for another reason too."""


def last_lines(log: Path, count: int) -> list[str]:
    return _bare(_raw(log))[-count:]


def failure_cause(log: Path) -> str:
    """The last exception that a traceback ends with, or a process that died, or the last line that
    names an error, or the last line."""
    raw = _raw(log)
    lines = _bare(_without_what_follows([line for line in raw if not A_WARNING.match(line)]))
    own = [line for line in lines if not NOT_THE_CAUSE.search(line)]
    raised = [line for line in _raised(lines) if not NOT_THE_CAUSE.search(line)]
    named = [line for line in own if NAMES_AN_ERROR.search(line) and not line.startswith(" ")]
    worker, core = (
        [line for line in _bare(raw) if died.search(line)] for died in (WORKER_DIED, CORE_DIED)
    )
    return (raised or worker or core or named or lines or ["it said nothing"])[-1].strip()


def _without_what_follows(told: list[str]) -> list[str]:
    """What the core raises after a worker's death is of the queues that it lost with it."""
    died = next((number for number, line in enumerate(told) if WORKER_DIED.search(line)), len(told))
    return told[:died] + [line for line in told[died:] if not OF_THE_CORE.match(line)]


def _raised(lines: list[str]) -> list[str]:
    """A traceback ends with the first line that is not indented; pydantic's says what in the one
    after the next."""
    found = []
    inside = False
    for number, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            inside = True
        elif inside and not line.startswith(" "):
            inside = False
            if "validation error" in line:
                line = " ".join([line, *(more.strip() for more in lines[number + 1 : number + 3])])
            found.append(line)
    return found


def _bare(raw: list[str]) -> list[str]:
    return [PREFIX.sub("", line).rstrip() for line in raw]


def _raw(log: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - END_BYTES))
        lines = file.read().decode(errors="replace").split("\n")
        return [line for line in lines if PREFIX.sub("", line).strip()]
    return []
