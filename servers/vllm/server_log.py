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
NAMES_AN_ERROR = re.compile(r"\w*(Error|Exception|error): ")
NOT_THE_CAUSE = "See root cause above"


def last_lines(log: Path, count: int) -> list[str]:
    return _lines(log)[-count:]


def cause(log: Path) -> str:
    """The last exception that a traceback ends with, or else the last line that names an error, or
    else the last line."""
    lines = _lines(log)
    raised = [line for line in _raised(lines) if NOT_THE_CAUSE not in line]
    named = [line for line in lines if NAMES_AN_ERROR.search(line)]
    return (raised or named or lines or ["it said nothing"])[-1].strip()


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


def _lines(log: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - END_BYTES))
        lines = (PREFIX.sub("", line) for line in file.read().decode(errors="replace").split("\n"))
        return [line.rstrip() for line in lines if line.strip()]
    return []
