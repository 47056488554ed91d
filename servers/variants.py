"""Variants: the columns of a report. A variant is a policy with its arguments, over an offload tier
or not.

In: the text of `--policies`, a comma list of

    all                       the built-in variants
    continuum                 a name: one of ours, or an entry point of an installed package
    my_module:MyPolicy        a class of your own, also in the working directory
    continuum(k=50)           with arguments of the policy's constructor
    continuum(victim=lcf)     with another rule for the turn to preempt (`servers.policies.victims`)
    fcfs(long_prefill=512)    with settings of the engine, which override the machine's
    fcfs-tuned(watermark=0.1) fcfs with settings that a search found (`harness.cli.tuned`)
    continuum+                over LMCache
    continuum(k=50)+native    over vLLM's own offloading

Out: `Variant`s in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar, get_type_hints

from servers.admission import Headroom, Limits
from servers.basics.errors import (
    InvalidInput,
    InvalidPlugin,
    InvalidRouter,
    InvalidVariant,
    UnknownName,
    refuse_twice,
)
from servers.basics.registry import Registry, is_path
from servers.disaggregation import Split
from servers.policies.arguments import (
    Value,
    arguments_text,
    check_arguments,
    converted,
    parameters,
    parse_arguments,
)
from servers.policies.base import UNLIMITED_KV, Costs, Need, Oracle, Policy
from servers.policies.contract import check, check_class
from servers.policies.user_code import module_root, roots_of
from servers.policies.victims import Victim, with_victim
from servers.routing import DEFAULT as DEFAULT_ROUTER
from servers.routing import ForeignRouter, NamedRouter, find_router, named_router

Limited = TypeVar("Limited", bound=Headroom)
Tier = Literal["lmcache", "native"]
TIERS: dict[str, Tier] = {"+": "lmcache", "+native": "native"}

POLICIES = Registry(
    kind="policy",
    group="turnstile.policies",
    built_in={
        "fcfs": "servers.policies.fcfs:Fcfs",
        "program-fcfs": "servers.policies.program_fcfs:ProgramFcfs",
        "static-ttl": "servers.policies.static_ttl:StaticTtl",
        "continuum": "servers.policies.continuum:Continuum",
        "continuum-v1": "servers.policies.continuum_v1:ContinuumV1",
        "continuum-preview": "servers.policies.continuum_preview:ContinuumPreview",
        "context-serve": "servers.policies.context_serve:ContextServe",
        "autellix": "servers.policies.autellix:Autellix",
        "infercept": "servers.policies.infercept:Infercept",
        "thunderagent": "servers.policies.thunderagent:ThunderAgent",
        "progress-ttl": "servers.policies.progress_ttl:ProgressTtl",
        "agentix": "servers.policies.agentix:Agentix",
        "cachewise": "servers.policies.cachewise:CacheWise",
        "las": "servers.policies.las:Las",
        "mori": "servers.policies.mori:Mori",
        "turnstile": "servers.policies.turnstile:Turnstile",
        "residual-sjf": "servers.policies.residual_sjf:ResidualSjf",
        "session-affinity": "servers.policies.session_affinity:SessionAffinity",
        "soft-ttl": "servers.policies.soft_ttl:SoftTtl",
        "learned-ttl": "servers.policies.learned_ttl:LearnedTtl",
        "trajectory": "servers.policies.trajectory:Trajectory",
        "unlimited-kv": "servers.policies.unlimited_kv:UnlimitedKv",
        "clairvoyant": "servers.policies.clairvoyant:Clairvoyant",
    },
    remedy="give your own as my_module:MyPolicy",
)
LMCACHE = "lmcache"
"""The sources' name of `fcfs+`."""
TUNED = "fcfs-tuned"
"""`fcfs` with the settings of the engine that a search found."""
ALIASES = (LMCACHE, TUNED)
"""Other names of `fcfs`."""
PUBLISHED_OVER_TIER = (LMCACHE, "autellix+", "infercept+", "continuum+")
ONLY_OVER_TIER = ("mori",)
OURS_OVER_TIER = "turnstile+"
REFERENCES = ("unlimited-kv", "clairvoyant")
PROPOSED = ("residual-sjf", "session-affinity", "soft-ttl", "learned-ttl", "trajectory")
"""Of open RFCs and pull requests (docs/design/upstream.md). They run if they are named."""
ALL = (
    *(name for name in POLICIES.built_in if name not in (*ONLY_OVER_TIER, *REFERENCES, *PROPOSED)),
    *PUBLISHED_OVER_TIER,
    *(f"{name}+" for name in ONLY_OVER_TIER),
    OURS_OVER_TIER,
    *REFERENCES,
)
"""Names of the built-in variants, in the order of reports."""

PARTS = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|.""", re.DOTALL)
FORM = re.compile(r"([^()+]*)(?:\((.*)\))?(\+native|\+)?", re.DOTALL)
SECOND = "#2"
"""End of the name of a variant that is measured a second time."""
OF_THE_MACHINE = ("admission", "speculate")
LIMITS = {name: kind for name, kind in get_type_hints(Limits).items() if name not in OF_THE_MACHINE}
"""Types of the arguments that are settings of the engine, which every policy takes, by name."""
VICTIM = "victim"
"""Argument of every policy: the rule for the turn to preempt."""
OF_TUNED = "Stock vLLM, with the settings that were best on this machine in a search."
LONGEST_NAME = 120
"""Characters. Folders of cells are named after their variant."""


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    """Name of the policy, its arguments and its tier: `continuum(k=50,reclaim_when=pressure)+`."""
    policy: type[Policy]
    offload: Tier | None
    """The offload tier (DRAM, with an SSD behind it): LMCache's or vLLM's own. In virtual time both
    are the same."""
    description: str
    source: str
    arguments: tuple[tuple[str, Value], ...] = ()
    """Keyword arguments of the policy's constructor and `victim`, sorted by name."""
    limits: tuple[tuple[str, Value], ...] = ()
    """Settings of the engine, as fields of `Limits`, sorted by name."""
    same_as: str | None = None
    """The variant that this one measures a second time, under another name."""
    router: NamedRouter | ForeignRouter | None = None
    """What distributes the turns over several replicas."""
    split: Split | None = None
    """Which of the replicas compute prompts and which decode; None: all do both."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the variant makes use of."""
        needs = self.policy.needs
        return needs if self.offload is None or "tier" in needs else ("tier", *needs)

    def limited(self, limits: Limited) -> Limited:
        """Return the engine's settings with the variant's. Raise InvalidVariant."""
        try:
            return replace(limits, **dict(self.limits))
        except InvalidInput as error:
            raise InvalidVariant(f"--policies {self.name}: {error}") from None

    @property
    def reference(self) -> Need | None:
        """What makes the variant a reference, which no server can run; None for others."""
        if issubclass(self.policy, Oracle):
            return "the future"
        return UNLIMITED_KV if UNLIMITED_KV in self.policy.needs else None

    @property
    def impossible(self) -> str | None:
        """Why no server can run the variant; None if some can."""
        if self.reference == UNLIMITED_KV:
            return "it has unlimited KV memory"
        return "it knows the trace's future" if self.reference else None

    @property
    def policy_path(self) -> str:
        return f"{self.policy.__module__}:{self.policy.__qualname__}"

    @property
    def policy_spec(self) -> str:
        """The policy with its arguments, without the tier, as text that another process can load:
        it names no entry point, since vLLM's environment may lack the package."""
        name = self.policy.name
        ours = POLICIES.built_in.get(name) == self.policy_path
        return (name if ours else self.policy_path) + arguments_text(self.arguments)

    @property
    def module_root(self) -> Path | None:
        """File or folder of the top-level module that holds the policy; None for a policy of
        ours."""
        return module_root(self.policy)

    @property
    def user_code(self) -> set[Path]:
        """Files and folders with the code of the policy and of the router, without ours."""
        router = self.router.router if isinstance(self.router, NamedRouter) else None
        return roots_of(self.policy) | (set() if router is None else roots_of(router))


def variants(text: str) -> list[Variant]:
    chosen: list[Variant] = []
    for item in split(text):
        chosen.extend(map(variant, ALL) if item == "all" else [variant(item)])
    refuse_twice(f"--policies {text}", [found.name for found in chosen])
    return chosen


def split(text: str) -> list[str]:
    """Return the items of a comma list. Commas in parentheses separate arguments, not items."""
    items, depth = [""], 0
    for part in PARTS.findall(text):
        depth += (part == "(") - (part == ")")
        if part == "," and depth <= 0:
            items.append("")
        else:
            items[-1] += part
    return [item.strip() for item in items]


def variant(text: str) -> Variant:
    """Return the variant that a text names. Raise UnknownName, InvalidVariant or InvalidPlugin."""
    form = FORM.fullmatch(text.strip())
    if form is None:
        raise InvalidVariant(
            f"--policies {text}: write NAME or NAME(argument=value, …), and + or +native after it "
            "for an offload tier"
        )
    base, given, suffix = form[1].strip(), form[2] or "", form[3] or ""
    if base == LMCACHE and suffix:
        raise InvalidVariant(f"--policies {text}: {LMCACHE} has an offload tier already")
    policy = _load("fcfs" if base in ALIASES else base)
    if "tier" in policy.needs and not suffix:
        raise InvalidVariant(
            f"--policies {text}: {policy.name} needs an offload tier; write {text.strip()}+ for "
            f"LMCache, or {text.strip()}+native for vLLM's own offloading"
        )
    ours = base in POLICIES.built_in or base in ALIASES
    if UNLIMITED_KV in policy.needs and (given or suffix or not ours):
        raise InvalidVariant(
            f"--policies {text}: only the reference unlimited-kv has unlimited KV memory, without "
            "arguments and an offload tier; write unlimited-kv"
        )
    values = parse_arguments(given, text) if given else {}
    own, _ = parameters(policy)
    of_engine = {n: values.pop(n) for n in LIMITS if n in values and n not in own}
    limits = converted(of_engine, LIMITS, text)
    of_every = {n: values.pop(n) for n in (VICTIM,) if n in values and n not in own}
    rule = converted(of_every, {VICTIM: Victim}, text)
    if base == TUNED and not limits:
        raise InvalidVariant(
            f"--policies {text}: only bench sweep searches its settings, and not with --one, "
            "--show or an offload tier; give those that it found, such as "
            f"{TUNED}(long_prefill=512), or bench sweep RUN/sweep.toml --out RUN --show CELL"
        )
    others = (*LIMITS, VICTIM)
    arguments = check_arguments(policy, values, text, others) if values else ()
    tier: Tier | None = "lmcache" if base == LMCACHE else TIERS.get(suffix)
    if arguments or not ours:
        check(policy, dict(arguments), tier=tier is not None)
    arguments = tuple(sorted((*arguments, *rule)))
    if is_path(base) and base not in POLICIES.names():
        base = _name_of_class(policy, text)
    name = base + arguments_text(sorted((*arguments, *limits))) + suffix
    if len(name) > LONGEST_NAME:
        raise InvalidVariant(
            f"--policies {name[:40]}…: the name has {len(name)} characters, and folders are named "
            f"after it; at most {LONGEST_NAME}"
        )
    published = name in PUBLISHED_OVER_TIER
    return Variant(
        name=name,
        policy=policy,
        offload=tier,
        description=OF_TUNED if base == TUNED else _description(policy, tier),
        source="Continuum v3, §6.1" if published else policy.source or _where(policy, base),
        arguments=arguments,
        limits=limits,
    )


def one_router(text: str) -> NamedRouter:
    """Return the router of a gateway, which has one. Raise UnknownName or InvalidRouter."""
    names = split(text)
    if len(names) != 1:
        raise InvalidRouter(f"--router {text}: a gateway has one router; give one")
    return named_router(names[0])


def second_arm(variant: Variant) -> Variant:
    """Return the same variant under another name, to measure it twice."""
    return replace(variant, name=f"{variant.name}{SECOND}", same_as=variant.name)


def behind_routers(chosen: Iterable[Variant], routers: str | None) -> list[Variant]:
    """Return each variant behind each of the routers of a comma list: `continuum@sticky`. Raise
    InvalidInput if a router is unknown, invalid or given twice."""
    named = [find_router(text) for text in split(routers or DEFAULT_ROUTER)]
    refuse_twice(f"--router {routers}", [each.name for each in named])
    return [
        replace(each, name=f"{each.name}@{router.name}", router=router)
        for each in chosen
        for router in named
    ]


def disaggregated(chosen: Iterable[Variant], splits: Iterable[Split | None]) -> list[Variant]:
    """Return each variant with each of the splits: `continuum@sticky`, `continuum@sticky@1P1D`."""
    return [
        each if split is None else replace(each, name=f"{each.name}@{split.name}", split=split)
        for each in chosen
        for split in splits
    ]


def make_policy(variant: Variant, costs: Costs) -> Policy:
    policy, arguments = variant.policy, dict(variant.arguments)
    if VICTIM in arguments and VICTIM not in parameters(policy)[0]:
        policy = with_victim(policy, arguments.pop(VICTIM))
    return policy(costs, **arguments)


def _load(base: str) -> type[Policy]:
    if not is_path(base) and base not in POLICIES.names():
        raise UnknownName(POLICIES.unknown(base, [*ALL, *PROPOSED, TUNED, *POLICIES.installed()]))
    return check_class(POLICIES.load(base), base)


def _name_of_class(policy: type[Policy], text: str) -> str:
    """Return the `name` of a class that was given by its path. Raise InvalidPlugin if another
    policy has that name."""
    if policy.name in ALIASES or (
        policy.name in POLICIES.names() and POLICIES.load(policy.name) is not policy
    ):
        raise InvalidPlugin(
            f"{text}: another policy has its name, {policy.name}; give the class another"
        )
    return policy.name


def _description(policy: type[Policy], tier: Tier | None) -> str:
    document = (policy.__doc__ or "").strip().partition("\n")[0]
    plain = document or f"{policy.__qualname__}, which has no description"
    return f"{plain.rstrip('.')}; over an offload tier ({tier})." if tier else plain


def _where(policy: type[Policy], base: str) -> str:
    """Return the package that installed the policy, or the dotted path of its class."""
    return POLICIES.source(base) or f"{policy.__module__}:{policy.__qualname__}"
