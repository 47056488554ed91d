"""Finds the cause of a server's failure in its log.

In: a log of SGLang, in which lines are prefixed with the date and the rank. Out: lines without that
prefix.
"""

from __future__ import annotations

import re
from pathlib import Path

from servers.processes.server import read_end

PREFIX = re.compile(r"^\[[\d-]+ [\d:]+[^\]]*\] ")
ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception|error)\b: ")


def log_lines(log: Path) -> list[str]:
    return [PREFIX.sub("", line) for line in read_end(log)]


def failure_cause(log: Path) -> str:
    """Return the last line that begins with the name of an error, or else the last line. The main
    process prints others after it, when it ends with a failed scheduler."""
    lines = log_lines(log)
    errors = [line for line in lines if ERROR.match(line)]
    return (errors or lines or ["the log is empty"])[-1].strip()
