"""Every error that Turnstile raises on purpose. Any other exception is a bug.

A class exists only if some code treats its errors differently from its base. Messages
are one line. They name the file or option, the value and the remedy. The module is in the lowest
layer, since policies inside vLLM raise these errors too.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk or a quota that is full."""


class TurnstileError(Exception):
    """Base of all errors that Turnstile raises on purpose."""


class InvalidInput(TurnstileError, ValueError):
    """The user's input is invalid."""


class InvalidTrace(InvalidInput):
    """A trace file cannot be used."""


class NoTraceRead(InvalidTrace):
    """None of the files is a usable trace."""

    def __init__(self, message: str, rejections: Sequence[tuple[str, str]]) -> None:
        super().__init__(message)
        self.rejections = rejections
        """The name of each file, and the reason why it was rejected."""


class TraceRejected(InvalidInput):
    """One file contains no usable program; the others are still read."""


class InvalidProgramId(InvalidInput):
    """A program id in a request to the gateway is invalid."""


class InvalidRunFolder(InvalidInput):
    """The folder is not a run folder of `bench sweep`, or a file in it is invalid."""


class NotComparable(InvalidInput):
    """The runs have different settings, or one of them has no result."""


class UnknownName(InvalidInput):
    """No policy, trace format, engine or agent has this name."""


class InvalidPlugin(InvalidInput):
    """An object of the user or of a package cannot be loaded, or breaks its contract."""


class InvalidRouter(InvalidPlugin):
    """A router breaks the contract of `servers.routers.base.Router`, or lacks an argument."""


class InvalidVariant(InvalidInput):
    """`--policies` is malformed."""


class UnknownProfile(InvalidInput):
    """No profile exists for this hardware or model."""


class DoesNotFit(InvalidInput):
    """The model, one request of the longest length, or every job of the workload does not fit into
    memory, or the GPU has no kernels of the model's attention."""


class CannotShare(InvalidInput):
    """The heads of the model cannot be divided between this number of GPUs."""


class NoTier(InvalidInput):
    """A policy offloads KV, and the machine has no tier that could store it."""


class CannotWrite(InvalidInput):
    """A file or folder cannot be written."""

    @classmethod
    def of(cls, path: Path, error: OSError) -> CannotWrite:
        reason = (error.strerror or str(error)).lower()
        full = error.errno in FULL
        remedy = "free some space" if full else "choose another place"
        return cls(f"cannot write {path}: {reason}; {remedy}")


class Unavailable(InvalidInput):
    """The command needs something that is missing or unusable: a package, a port, a server."""


class NotInstalled(Unavailable):
    """No installation of the engine was found."""


class EngineError(TurnstileError):
    """An engine, a process that it needs, or a Ray cluster failed while it ran."""


class ServerFailed(EngineError):
    """A server that we started died or never became healthy. `tail` has the end of its log."""

    def __init__(self, message: str, log_path: Path, tail: list[str]) -> None:
        super().__init__(message)
        self.log_path = log_path
        self.tail = tail


class AgentStartError(TurnstileError):
    """An agent's process ended before its task began; the message contains its last output."""


class MeasurementFailed(TurnstileError):
    """A request of a measurement failed, or its response is unusable."""


class MeasurementUnavailable(TurnstileError):
    """This machine lacks what the measurement needs."""


class UnsupportedVllm(TurnstileError, RuntimeError):
    """The plug-in does not support the scheduler of this vLLM version."""


class CellFailed(TurnstileError):
    """The engine could not run the cell."""


class TurnFailed(TurnstileError):
    """A turn has no usable response."""


def refuse_twice(option: str, names: Sequence[str]) -> None:
    """Raise InvalidInput if a list has a name more than once. `option`: with its value."""
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"{option}: {name} is given twice; give it once")


def check_flags(flags: Sequence[str], refused: Mapping[str, str]) -> None:
    """Raise InvalidInput for a flag of `refused`, whose values are the reasons. As servers allow, a
    flag may be abbreviated, have underscores, and be followed by `=value` or the `.key` of JSON."""
    for flag in flags:
        given = re.split(r"[=.]", flag, maxsplit=1)[0]
        name = given.replace("_", "-")
        if name.strip("-") and (full := _in_full(name, refused)) is not None:
            raise InvalidInput(f"{given if name == full else f'{given} ({full})'}: {refused[full]}")


def _in_full(name: str, flags: Collection[str]) -> str | None:
    """Return the flag that `name` is or abbreviates; argparse expands abbreviations."""
    if name in flags:
        return name
    return next((full for full in flags if name[0] == "-" and full.startswith(name)), None)
