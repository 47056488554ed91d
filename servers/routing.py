"""Routers by name: the text of `--router`, a comma list of names with arguments.

In: `sticky`, `thunderagent(order=arrival)`, or `my_module:MyRouter`. Out: a `NamedRouter` each, a
class whose decisions the harness asks for. In: `vllm-router:round_robin`. Out: a `ForeignRouter`, a
program of another project that runs as a process in front of the servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from servers.basics.errors import InvalidRouter, UnknownName
from servers.basics.registry import Registry, is_path
from servers.policies.arguments import Value, arguments_text, check_arguments, parse_arguments
from servers.routers.base import Replica, Router

ROUTERS = Registry(
    kind="router",
    group="turnstile.routers",
    built_in={
        "round-robin": "servers.routers.round_robin:RoundRobin",
        "least-loaded": "servers.routers.least_loaded:LeastLoaded",
        "power-of-two": "servers.routers.power_of_two:PowerOfTwo",
        "sticky": "servers.routers.sticky:Sticky",
        "prefix-aware": "servers.routers.prefix_aware:PrefixAware",
        "thunderagent": "servers.routers.thunderagent:ThunderAgent",
        "program-scheduling": "servers.routers.program_scheduling:ProgramScheduling",
    },
    remedy="give your own as my_module:MyRouter",
    option="--router",
)
DEFAULT = "sticky"
"""The router of several replicas if none is named, as with live replicas."""


@dataclass(frozen=True, slots=True)
class NamedRouter:
    name: str
    """With its arguments: `thunderagent(order=arrival)`."""
    router: type[Router]
    arguments: tuple[tuple[str, Value], ...] = ()

    def __call__(self, replicas: Sequence[Replica]) -> Router:
        return self.router(replicas, **dict(self.arguments))


class ForeignProject(NamedTuple):
    """Another project with routers. Its package has a Python environment of its own: `.venv-NAME`,
    or that of the Python in TURNSTILE_NAME_PYTHON."""

    package: str
    environment: str
    """The name of the environment."""
    policies: Mapping[str, str]
    """What its policies do, by name."""
    engines: Sequence[str] = ("vllm", "sglang")
    """The values of --engine that start its routers, with the servers behind them."""
    repository: str = ""
    """On GitHub, if the package is not on PyPI."""


FOREIGN: Mapping[str, ForeignProject] = {
    "vllm-router": ForeignProject(
        "vllm-router",
        "routers",
        {
            "round_robin": "Each turn goes to the next server.",
            "consistent_hash": "A program stays on the server that the hash of its id selects.",
            "cache_aware": "Turns go to the server that was sent most of their prompt before.",
            "program_scheduling": (
                "Progress-TTL: programs are admitted while their KV fits, and keep it for a time "
                "that their tools' past durations justify."
            ),
        },
    ),
    "sglang-router": ForeignProject(
        "sglang-router",
        "sglang-router",
        {
            "round_robin": "Each turn goes to the next server.",
            "random": "Each turn goes to a random server.",
            "cache_aware": "Turns go to the server that was sent most of their prompt before.",
            "power_of_two": "Of two random servers, the turn goes to the one with the lower load.",
            "manual": "A program stays on the server that its first turn was sent to at random.",
        },
    ),
    "thunderagent-org": ForeignProject(
        "ThunderAgent",
        "thunderagent",
        {
            "tr": "ThunderAgent: programs are paused while contexts exceed the KV of the servers.",
            "default": "ThunderAgent as a plain proxy, which keeps a program on a server.",
        },
        repository="ThunderAgent-org/ThunderAgent",
    ),
    "dynamo": ForeignProject(
        "ai-dynamo",
        "dynamo",
        {
            "kv": (
                "Turns go where the fewest blocks remain to be computed, beside those in use there."
            ),
            "thunderagent": (
                "ThunderAgent in Dynamo: a program stays on one worker, and is paused between "
                "turns while its worker's KV memory is full."
            ),
            "round-robin": "Each turn goes to the next worker.",
            "least-loaded": "Turns go to the worker with the fewest active turns.",
            "power-of-two": "Turns go to the one of two random workers with fewer active turns.",
            "random": "Turns go to a random worker.",
        },
        engines=("dynamo-mocker",),
    ),
}


@dataclass(frozen=True, slots=True)
class ForeignRouter:
    """A router of another project, with one of its policies."""

    project: str
    """Name of the project, a key of `FOREIGN`."""
    policy: str
    version: str | None = None
    """Version of the package that is installed; None before it was looked for."""

    @property
    def name(self) -> str:
        return f"{self.project}:{self.policy}"

    @property
    def description(self) -> str:
        return FOREIGN[self.project].policies[self.policy]

    @property
    def source(self) -> str:
        package, *_, repository = FOREIGN[self.project]
        return f"{repository} on GitHub" if repository else f"{package} on PyPI"


def find_router(text: str) -> NamedRouter | ForeignRouter:
    """Return one of ours, or one of another project. Raise what `named_router` raises."""
    project, colon, policy = text.strip().partition(":")
    if project not in FOREIGN:
        return named_router(text)
    if not colon or policy not in FOREIGN[project].policies:
        offered = ", ".join(f"{project}:{name}" for name in FOREIGN[project].policies)
        raise UnknownName(f"--router {text}: {project} is offered with other policies: {offered}")
    return ForeignRouter(project, policy)


def named_router(text: str) -> NamedRouter:
    """Raise UnknownName, InvalidRouter or InvalidPlugin."""
    base, parenthesis, rest = text.strip().partition("(")
    if (foreign := FOREIGN.get(base.partition(":")[0])) is not None:
        raise InvalidRouter(
            f"--router {text}: is a process that only bench sweep --engine "
            f"{' or '.join(foreign.engines)} starts; use one of {', '.join(ROUTERS.built_in)}"
        )
    if parenthesis and not rest.endswith(")"):
        raise InvalidRouter(f"--router {text}: write NAME or NAME(argument=value, …)")
    if not is_path(base) and base not in ROUTERS.names():
        offered = [f"{name}:{base}" for name, each in FOREIGN.items() if base in each.policies]
        if offered:
            raise UnknownName(
                f"--router {text}: none of our routers; did you mean {' or '.join(offered)}?"
            )
        raise UnknownName(ROUTERS.unknown(base, ROUTERS.names()))
    router = ROUTERS.load(base)
    if not (isinstance(router, type) and issubclass(router, Router)):
        raise InvalidRouter(
            f"--router {text}: is not a router; derive a class from servers.routers.base.Router"
        )
    label = f"--router {text}"
    arguments = check_arguments(router, parse_arguments(rest[:-1], label), label)
    try:
        router([Replica(index, 1) for index in range(2)], **dict(arguments))
    except ValueError as error:
        raise InvalidRouter(f"{label}: {error}") from None
    name = router.name if is_path(base) else base
    return NamedRouter(name + arguments_text(arguments), router, arguments)
