"""SGLang's own schedulers, as variants: `fcfs`, `lpm(eviction=slru)`, `fcfs(sessions=true)`.

A name is a value of `--schedule-policy`, and the arguments are about the radix cache. Our policies
do not run inside SGLang. The classes only name and describe variants, since SGLang decides itself.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from servers.admission import HEADROOM, OTHER_SCHEDULER
from servers.basics.errors import InvalidVariant, refuse_twice
from servers.policies.arguments import arguments_text, check_arguments, parse_arguments
from servers.policies.base import Costs, Policy
from servers.routers.base import UNKNOWN_COSTS
from servers.variants import FORM, POLICIES, Variant, make_policy, split

Eviction = Literal["lru", "lfu", "slru", "tlru"]


class SglangScheduler(Policy):
    """A scheduler of SGLang, with options of its radix cache."""

    source: ClassVar[str] = "SGLang, --schedule-policy"
    follows_cache: ClassVar[bool] = False
    """Whether its order depends on the radix cache, without which SGLang runs `fcfs` instead."""

    def __init__(
        self,
        costs: Costs,
        *,
        eviction: Eviction = "lru",
        radix_cache: bool = True,
        sessions: bool = False,
    ) -> None:
        """`eviction`: which KV of the radix cache goes first. `sessions`: KV that no open session
        refers to goes before KV of one."""
        super().__init__(costs)
        self.eviction, self.radix_cache, self.sessions = eviction, radix_cache, sessions

    def flags(self) -> tuple[str, ...]:
        chosen = ["--schedule-policy", self.name, "--radix-eviction-policy", self.eviction]
        if not self.radix_cache:
            chosen.append("--disable-radix-cache")
        if self.sessions:
            chosen.append("--enable-session-radix-cache")
        return tuple(chosen)


class Fcfs(SglangScheduler):
    """Turns first come, first served."""

    name = "fcfs"


class LongestPrefixMatch(SglangScheduler):
    """The turn with the longest prefix in the radix cache first."""

    name = "lpm"
    follows_cache = True


class DepthFirst(SglangScheduler):
    """Turns in the order of a depth-first walk of the radix cache."""

    name = "dfs-weight"
    follows_cache = True


class LongestOutputFirst(SglangScheduler):
    """The turn with the longest limit of its answer first."""

    name = "lof"


class HighestResponseRatio(SglangScheduler):
    """The turn with the highest ratio of response time to service time first."""

    name = "hrrn"
    follows_cache = True


class ShortestPrefillFirst(SglangScheduler):
    """The turn with the shortest prefill first."""

    name = "shortest-prefill-first"
    follows_cache = True


class RoutingKey(SglangScheduler):
    """Turns of the programs with the most running turns first."""

    name = "routing-key"


class Random(SglangScheduler):
    """A random turn first."""

    name = "random"


SCHEDULERS: dict[str, type[SglangScheduler]] = {
    scheduler.name: scheduler
    for scheduler in (
        Fcfs,
        LongestPrefixMatch,
        DepthFirst,
        LongestOutputFirst,
        HighestResponseRatio,
        ShortestPrefillFirst,
        RoutingKey,
        Random,
    )
}
ALL = ("fcfs", "lpm", "fcfs(sessions=true)")
"""The variants of `--policies all`: the default, the one that follows the radix cache, and the one
that knows sessions."""


def sglang_variants(text: str) -> list[Variant]:
    """Return the variants of a comma list. Raise InvalidInput."""
    items = [name for item in split(text) for name in (ALL if item == "all" else (item,))]
    chosen = [_variant(item) for item in items]
    refuse_twice(f"--policies {text}", [each.name for each in chosen])
    return chosen


def scheduler_of(variant: Variant) -> SglangScheduler:
    """Return the scheduler that a variant of `sglang_variants` names."""
    scheduler = make_policy(variant, UNKNOWN_COSTS)
    if not isinstance(scheduler, SglangScheduler):
        raise TypeError(f"{variant.name} is not a scheduler of SGLang")
    return scheduler


def _variant(text: str) -> Variant:
    form = FORM.fullmatch(text)
    base = "" if form is None else form[1].strip()
    scheduler = SCHEDULERS.get(base)
    if form is None or scheduler is None or form[3]:
        known = ", ".join(SCHEDULERS)
        ours = form is not None and (base in POLICIES.names() or ":" in base or form[3])
        other = f", or use --engine vllm for {text}" if ours else ""
        raise InvalidVariant(
            f"--policies {text}: is not a scheduler of SGLang, which runs no others; use {known}"
            f"{other}"
        )
    given = parse_arguments(form[2] or "", text)
    if of_vllm := [name for name in HEADROOM if name in given]:
        raise InvalidVariant(
            f"--policies {text}: {of_vllm[0]}: not supported by SGLang, {OTHER_SCHEDULER}"
        )
    arguments = check_arguments(scheduler, given, text)
    if dict(arguments).get("radix_cache") is False:
        if scheduler.follows_cache:
            raise InvalidVariant(
                f"--policies {text}: SGLang does not run {base} without its radix cache; use "
                "fcfs(radix_cache=false)"
            )
        if len(arguments) > 1:
            raise InvalidVariant(
                f"--policies {text}: has no radix cache; remove its other arguments"
            )
    return Variant(
        name=base + arguments_text(arguments),
        policy=scheduler,
        offload=None,
        description=(scheduler.__doc__ or "").strip(),
        source=scheduler.source,
        arguments=arguments,
    )
