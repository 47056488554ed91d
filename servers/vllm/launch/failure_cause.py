"""Finds the cause of a server's failure in its log.

In: a log of vLLM, in which lines are prefixed with the process, the date and the source. Out: lines
without that prefix.
"""

from __future__ import annotations

import re
from pathlib import Path

from servers.processes.server import read_end

PREFIX = re.compile(r"^(\((\w+) pid=\d+\) ?)?((INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[\S+\] )?")
WARNING = re.compile(r"^(\(\w+ pid=\d+\) ?)?WARNING ")
ERROR_NAME = re.compile(r"\w*(Error|Exception|error): ")
NOT_THE_CAUSE = re.compile(
    r"See root cause above|See stack trace \(above\)"
    r"|^RuntimeError: (cancelled|Executor failed\.)($| at )"
)
FROM_ENGINE_CORE = re.compile(r"^\(EngineCore\S* pid=\d+\)")
WORKER_DIED = re.compile(r"Worker proc .* died unexpectedly")
STEP = re.compile(r'  File "(/[^"]+)", line (\d+)')
OF_PACKAGES = re.compile("/(site|dist)-packages/|/lib/python3|/servers/")
CORE_DIED = re.compile(r"engine core exited unexpectedly")
"""Messages about killed processes of vLLM. Those about other processes also have other causes."""


def log_lines(log: Path) -> list[str]:
    return [line for line in _without_prefix(read_end(log)) if line]


def failure_cause(log: Path) -> str:
    """Return the exception of the last traceback, or else the message about a killed process, or
    the last line with the name of an error, or the last line."""
    raw = [line for line in read_end(log) if PREFIX.sub("", line)]
    kept = _without_consequences([line for line in raw if not WARNING.match(line)])
    lines = _without_prefix(kept)
    causes = [line for line in lines if not NOT_THE_CAUSE.search(line)]
    exceptions = [line for line in _exceptions(kept) if not NOT_THE_CAUSE.search(line)]
    errors = [line for line in causes if ERROR_NAME.search(line) and not line.startswith(" ")]
    worker, core = (
        [line for line in _without_prefix(raw) if died.search(line)]
        for died in (WORKER_DIED, CORE_DIED)
    )
    return (exceptions or worker or core or errors or lines or ["the log is empty"])[-1].strip()


def _without_consequences(raw: list[str]) -> list[str]:
    """Drop the engine core's exceptions after a worker's death, which are about closed queues."""
    died = next((k for k, line in enumerate(raw) if WORKER_DIED.search(line)), len(raw))
    return raw[:died] + [line for line in raw[died:] if not FROM_ENGINE_CORE.match(line)]


def _exceptions(raw: list[str]) -> list[str]:
    """Return the last line of each traceback, which is the first that is not indented, and where
    it was raised if that is the code of a user, such as a policy. Pydantic's validation errors
    continue on the next two lines. Lines of other processes, which have another prefix or none, may
    be between those of a traceback."""
    exceptions = []
    in_traceback: dict[str, str] = {}
    """The processes whose last line was one of a traceback, with the last place in it."""
    lines = _without_prefix(raw)
    for number, (line, process) in enumerate(zip(lines, map(_process, raw), strict=True)):
        if line.startswith("Traceback (most recent call last)"):
            in_traceback[process] = ""
        elif process in in_traceback and (step := STEP.match(line)):
            in_traceback[process] = (
                "" if OF_PACKAGES.search(step[1]) else f" at {step[1]}:{step[2]}"
            )
        elif process in in_traceback and not line.startswith(" "):
            at = in_traceback.pop(process)
            if "validation error" in line:
                line = " ".join([line, *(more.strip() for more in lines[number + 1 : number + 3])])
            exceptions.append(line + at)
    return exceptions


def _process(line: str) -> str:
    """Return the process that a line names at its beginning, or ""."""
    prefix = PREFIX.match(line)
    return (prefix[1] or "").strip() if prefix else ""


def _without_prefix(raw: list[str]) -> list[str]:
    return [PREFIX.sub("", line).rstrip() for line in raw]
