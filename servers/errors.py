"""Every error that Turnstile raises on purpose. Any other exception is a bug.

    TurnstileError
    ├── InvalidInput               invalid settings or files of the user: exit code 2
    │   ├── InvalidTrace             a trace file
    │   ├── TraceRejected            one trace file of several, which gives no program
    │   ├── ProgramTooLong           a program that the engine can never serve
    │   ├── InvalidProgramId         an id in a request to the gateway
    │   ├── InvalidExperiment        an experiment file, or an unknown experiment
    │   ├── InvalidRunFolder         a run folder, or a file in it
    │   ├── UnknownCell              a cell name that is not in the run
    │   ├── NotComparable            runs with different settings
    │   ├── InvalidBaseline          a baseline file
    │   ├── InvalidHistory           a history file
    │   ├── UnknownName              a name that is not in a registry
    │   ├── InvalidPlugin            an object of the user or of a package that cannot be loaded
    │   │   └── InvalidPolicy          a policy that breaks the contract of `Policy`
    │   ├── InvalidVariant           a --policies that is malformed or names one policy twice
    │   ├── UnknownProfile           a name in --hardware or --model
    │   ├── UnknownModel             a model that is neither a known name nor a folder
    │   ├── InvalidProfile           a profile file
    │   ├── InvalidCosts             a cost curve file
    │   ├── InvalidEnvironment       the environment of the plug-in inside vLLM
    │   ├── DoesNotFit               a model or a request that exceeds the memory
    │   ├── CannotServe              a combination that vLLM or the plug-in cannot run
    │   ├── CannotWrite              a file or folder that cannot be written
    │   └── Unavailable              something that this machine lacks
    │       ├── VllmUnavailable        no vLLM, or one that cannot be used
    │       │   └── VllmNotInstalled     no vLLM
    │       ├── TierUnavailable        no LMCache, or a tier of zero size
    │       ├── ContainersUnavailable  no package, no service, or no such image
    │       ├── ServerUnavailable      no usable server at a URL
    │       ├── LibraryUnavailable     an optional library
    │       └── PortTaken              a port that another process uses
    ├── EngineError                an engine or its helper process failed
    │   ├── ServerFailed             vLLM died or never became healthy
    │   ├── TierFailed               LMCache's server died or never became healthy
    │   ├── VirtualVllmFailed        the process of vLLM in virtual time
    │   └── StartAbandoned           a replica's start, cancelled because another failed
    ├── AgentStartError            an agent's process did not start its task
    ├── MeasurementFailed          a request of a measurement failed
    ├── MeasurementUnavailable     this machine lacks what a measurement needs
    ├── UnsupportedVllm            a vLLM version whose scheduler the plug-in does not support
    ├── CellFailed                 an engine could not run a cell
    └── TurnFailed                 a turn has no usable response

Messages are one line. They name the file or option, the value and the remedy. The module is in the
lowest layer, since policies inside vLLM raise these errors too.
"""

from __future__ import annotations

import errno
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk or a quota that is full."""


class TurnstileError(Exception):
    """Base of all errors that Turnstile raises on purpose."""


class InvalidInput(TurnstileError, ValueError):
    """What the user gave cannot be used."""


class InvalidTrace(InvalidInput):
    """A trace file cannot be used."""


class TraceRejected(InvalidInput):
    """One file gives no program; the others are still read."""


class ProgramTooLong(InvalidInput):
    """The engine can never serve a program, and the user asked for this to be refused."""


class InvalidProgramId(InvalidInput):
    """An id in a request to the gateway cannot be an id."""


class InvalidExperiment(InvalidInput):
    """An experiment's file cannot be used, or its name is unknown."""


class InvalidRunFolder(InvalidInput):
    """The folder, or a file in it, is not what `bench sweep` writes."""


class UnknownCell(InvalidInput):
    """No finished cell of the run has this name."""


class NotComparable(InvalidInput):
    """The runs answer different questions, or one of them has no result."""


class InvalidBaseline(InvalidInput):
    """The file is not a baseline."""


class InvalidHistory(InvalidInput):
    """The file is not a history, or cannot take the entry that is added."""


class UnknownName(InvalidInput):
    """No policy, trace format, engine or agent has this name."""


class InvalidPlugin(InvalidInput):
    """What a dotted path or an installed package names cannot be loaded."""


class InvalidPolicy(InvalidPlugin):
    """A policy breaks the contract of `servers.policies.base.Policy`, or takes no such argument."""


class InvalidVariant(InvalidInput):
    """`--policies` is malformed, or names the same policy twice."""


class UnknownProfile(InvalidInput):
    """No profile exists for this hardware or model."""


class UnknownModel(InvalidInput):
    """The model is neither a known name nor a folder with its config."""


class InvalidProfile(InvalidInput):
    """The file is not a profile, or not of this hardware and model."""


class InvalidCosts(InvalidInput):
    """The file is not a cost curve."""


class InvalidEnvironment(InvalidInput):
    """The plug-in cannot start with these environment variables."""


class DoesNotFit(InvalidInput):
    """The model, or one request of the longest length, does not fit into memory."""


class CannotServe(InvalidInput):
    """vLLM, or the plug-in in it, cannot run this combination."""


class CannotWrite(InvalidInput):
    """A file or folder cannot be written."""

    @classmethod
    def of(cls, path: Path, error: OSError) -> CannotWrite:
        reason = (error.strerror or str(error)).lower()
        full = error.errno in FULL
        remedy = "free some space" if full else "choose another place"
        return cls(f"cannot write {path}: {reason}; {remedy}")


class Unavailable(InvalidInput):
    """This machine lacks what was asked for."""


class VllmUnavailable(Unavailable):
    """There is no vLLM, or it cannot be used."""


class VllmNotInstalled(VllmUnavailable):
    """There is no vLLM."""


class TierUnavailable(Unavailable):
    """LMCache is not installed next to vLLM, or its tier could hold nothing."""


class ContainersUnavailable(Unavailable):
    """The `docker` package, a container service or the image is missing."""


class ServerUnavailable(Unavailable):
    """Nothing of use answers at a URL."""


class LibraryUnavailable(Unavailable):
    """An optional library is not installed."""


class PortTaken(Unavailable):
    """Another process has the port."""


class EngineError(TurnstileError):
    """An engine, or a process that it needs, failed while it ran."""


class ServerFailed(EngineError):
    """vLLM died or never became healthy. `tail` holds the last lines of its log."""

    def __init__(self, message: str, log_path: Path, tail: list[str]) -> None:
        super().__init__(message)
        self.log_path = log_path
        self.tail = tail


class TierFailed(EngineError):
    """LMCache's server died or never became healthy."""


class VirtualVllmFailed(EngineError):
    """The process of vLLM in virtual time could not start, died, or could not run the cell."""


class StartAbandoned(EngineError):
    """Another replica failed to start, or the caller stopped waiting."""


class AgentStartError(TurnstileError):
    """An agent's process never came to its task; the message holds its last output."""


class MeasurementFailed(TurnstileError):
    """A request of a measurement failed, or its answer cannot be used."""


class MeasurementUnavailable(TurnstileError):
    """This machine lacks what the measurement needs."""


class UnsupportedVllm(TurnstileError, RuntimeError):
    """The scheduler of this vLLM is not one that the plug-in was written for."""


class CellFailed(TurnstileError):
    """The engine could not run the cell."""


class TurnFailed(TurnstileError):
    """A turn has no usable answer."""
