"""Every error that Turnstile raises on purpose. Any other exception is a bug.

    TurnstileError
    ├── InvalidInput               invalid settings or files of the user: exit code 2
    │   ├── InvalidTrace             a trace file
    │   │   └── NoTraceRead            files none of which is a usable trace
    │   ├── TraceRejected            one trace file of several, without a usable program
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
    │   │   ├── InvalidPolicy          a policy that breaks the contract of `Policy`
    │   │   └── InvalidRouter          a router that breaks the contract of `Router`
    │   ├── InvalidVariant           a --policies that is malformed or names one policy twice
    │   ├── UnknownProfile           a name in --hardware or --model
    │   ├── UnknownModel             a model that is neither a known name nor a folder
    │   ├── InvalidProfile           a profile file
    │   ├── InvalidCosts             a cost curve file
    │   ├── InvalidEnvironment       the environment of the plug-in inside vLLM
    │   ├── DoesNotFit               a model or a request that exceeds the memory
    │   ├── CannotServe              a combination that vLLM or the plug-in cannot run
    │   ├── CannotWrite              a file or folder that cannot be written
    │   └── Unavailable              something missing on this machine
    │       ├── VllmUnavailable        no vLLM, or an unusable one
    │       │   └── VllmNotInstalled     no vLLM
    │       ├── TierUnavailable        no LMCache, or a tier of zero size
    │       ├── ContainersUnavailable  no package, no service, or no such image
    │       ├── ServerUnavailable      no usable server at a URL
    │       ├── LibraryUnavailable     an optional library
    │       ├── RouterUnavailable      a router of another project that is not installed
    │       └── PortTaken              a port that another process uses
    ├── EngineError                an engine or its helper process failed
    │   ├── ServerFailed             vLLM died or never became healthy
    │   ├── TierFailed               LMCache's server died or never became healthy
    │   ├── RouterFailed             a router of another project died or never became healthy
    │   ├── VirtualVllmFailed        the process of vLLM in virtual time
    │   └── StartAbandoned           a replica's start, cancelled because another failed
    ├── ClusterFailed              a Ray cluster was lost during a sweep
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
from collections.abc import Sequence
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


class ProgramTooLong(InvalidInput):
    """The engine can never serve a program, and the settings do not allow skipping it."""


class InvalidProgramId(InvalidInput):
    """A program id in a request to the gateway is invalid."""


class InvalidExperiment(InvalidInput):
    """An experiment file is invalid, or the experiment's name is unknown."""


class InvalidRunFolder(InvalidInput):
    """The folder is not a run folder of `bench sweep`, or a file in it is invalid."""


class UnknownCell(InvalidInput):
    """No finished cell of the run has this name."""


class NotComparable(InvalidInput):
    """The runs have different settings, or one of them has no result."""


class InvalidBaseline(InvalidInput):
    """The file is not a baseline."""


class InvalidHistory(InvalidInput):
    """The file is not a history, or the new entry does not match it."""


class UnknownName(InvalidInput):
    """No policy, trace format, engine or agent has this name."""


class InvalidPlugin(InvalidInput):
    """The object at a dotted path or an entry point cannot be loaded."""


class InvalidPolicy(InvalidPlugin):
    """A policy breaks the contract of `servers.policies.base.Policy`, or lacks an argument."""


class InvalidRouter(InvalidPlugin):
    """A router breaks the contract of `servers.routers.base.Router`, or lacks an argument."""


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
    """This machine lacks something that the command needs."""


class VllmUnavailable(Unavailable):
    """vLLM is not installed, or its installation is unusable."""


class VllmNotInstalled(VllmUnavailable):
    """vLLM is not installed."""


class SglangUnavailable(Unavailable):
    """SGLang is not installed, or its installation is unusable."""


class SglangNotInstalled(SglangUnavailable):
    """SGLang is not installed."""


class TierUnavailable(Unavailable):
    """LMCache is not installed next to vLLM, or the tier has no capacity."""


class ContainersUnavailable(Unavailable):
    """The `docker` package, a container service or the image is missing."""


class ServerUnavailable(Unavailable):
    """No usable server responds at a URL."""


class LibraryUnavailable(Unavailable):
    """An optional library is not installed."""


class RouterUnavailable(Unavailable):
    """A router of another project is not installed."""


class BrowserUnavailable(Unavailable):
    """No browser that draws figures without a window was found, or it failed."""


class PortTaken(Unavailable):
    """Another process uses the port."""


class EngineError(TurnstileError):
    """An engine, or a process that it needs, failed while it ran."""


class ServerFailed(EngineError):
    """vLLM or SGLang died or never became healthy. `tail` has the last lines of its log."""

    def __init__(self, message: str, log_path: Path, tail: list[str]) -> None:
        super().__init__(message)
        self.log_path = log_path
        self.tail = tail


class RouterFailed(EngineError):
    """A router of another project died or never became healthy."""


class TierFailed(EngineError):
    """LMCache's server died or never became healthy."""


class VirtualVllmFailed(EngineError):
    """The process of vLLM in virtual time could not start, died, or could not run the cell."""


class StartAbandoned(EngineError):
    """Another replica failed to start, or the caller stopped waiting."""


class ClusterFailed(TurnstileError):
    """The connection to a Ray cluster was lost."""


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
