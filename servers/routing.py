"""Routers by name: the text of `--router`, a comma list of names with arguments.

In: `sticky`, `thunderagent(order=arrival)`, or `my_module:MyRouter`. Out: a `NamedRouter` each, a
class whose decisions the harness asks for. In: `vllm-router:round_robin`. Out: a `ForeignRouter`, a
program of another project that runs as a process in front of the servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        return FOREIGN[self.project][self.policy]

    @property
    def package(self) -> str:
        """Its Python package."""
        return PACKAGES.get(self.project, self.project)

    @property
    def source(self) -> str:
        return ON_GITHUB.get(self.project, f"{self.package} on PyPI")


FOREIGN: Mapping[str, Mapping[str, str]] = {
    "vllm-router": {
        "round_robin": "Each turn goes to the next server.",
        "consistent_hash": "A program stays on the server that the hash of its id selects.",
        "cache_aware": "Turns go to the server that was sent most of their prompt before.",
        "program_scheduling": (
            "Progress-TTL: programs are admitted while their KV fits, and keep it for a time that "
            "their tools' past durations justify."
        ),
    },
    "sglang-router": {
        "round_robin": "Each turn goes to the next server.",
        "random": "Each turn goes to a random server.",
        "cache_aware": "Turns go to the server that was sent most of their prompt before.",
        "power_of_two": "Of two random servers, the turn goes to the one with the lower load.",
        "manual": "A program stays on the server that its first turn was sent to at random.",
    },
    "thunderagent-org": {
        "tr": "ThunderAgent: programs are paused while contexts exceed the KV of the servers.",
        "default": "ThunderAgent as a plain proxy, which keeps a program on a server.",
    },
    "dynamo": {
        "kv": (
            "Turns go where the fewest blocks remain to be computed, beside those in use there."
        ),
        "thunderagent": (
            "ThunderAgent in Dynamo: a program stays on one worker, and is paused between turns "
            "while its worker's KV memory is full."
        ),
        "round-robin": "Each turn goes to the next worker.",
        "least-loaded": "Turns go to the worker with the fewest active turns.",
        "power-of-two": "Turns go to the one of two random workers with fewer active turns.",
        "random": "Turns go to a random worker.",
    },
}
"""What the policies of each project do, by the project's and the policy's name."""
PACKAGES = {"dynamo": "ai-dynamo", "thunderagent-org": "ThunderAgent"}
"""Packages whose name differs from the project's."""
ON_GITHUB = {"thunderagent-org": "ThunderAgent-org/ThunderAgent on GitHub"}
"""Where projects are found that are not on PyPI."""
ENGINES = {
    "vllm-router": ("vllm", "sglang"),
    "sglang-router": ("vllm", "sglang"),
    "thunderagent-org": ("vllm", "sglang"),
    "dynamo": ("dynamo-mocker",),
}
"""The values of --engine that start the routers of a project, with the servers behind them."""


def find_router(text: str) -> NamedRouter | ForeignRouter:
    """Return one of ours, or one of another project. Raise what `named_router` raises."""
    project, colon, policy = text.strip().partition(":")
    if project not in FOREIGN:
        return named_router(text)
    if not colon or policy not in FOREIGN[project]:
        offered = ", ".join(f"{project}:{name}" for name in FOREIGN[project])
        raise UnknownName(f"--router {text}: {project} is offered with other policies: {offered}")
    return ForeignRouter(project, policy)


def named_router(text: str) -> NamedRouter:
    """Raise UnknownName, InvalidRouter or InvalidPlugin."""
    base, parenthesis, rest = text.strip().partition("(")
    if (engines := ENGINES.get(base.partition(":")[0])) is not None:
        raise InvalidRouter(
            f"--router {text}: is a process that only bench sweep --engine "
            f"{' or '.join(engines)} starts; use one of {', '.join(ROUTERS.built_in)}"
        )
    if parenthesis and not rest.endswith(")"):
        raise InvalidRouter(f"--router {text}: write NAME or NAME(argument=value, …)")
    if not is_path(base) and base not in ROUTERS.names():
        offered = [f"{project}:{base}" for project, own in FOREIGN.items() if base in own]
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
