"""The columns of a report: a policy, with or without an offload tier, under a name.

In: what `--policies` says, which is names, comma lists, `all`, and policies of your own as
`my_module:MyPolicy` or `my_module.MyPolicy`; a `+` behind one puts it over LMCache, `+native` over
vLLM's own offloading. Out: `Variant`s, in the order asked for. Modules of your own are looked for
in the working directory too.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from dataclasses import dataclass, replace
from typing import Literal

from servers.errors import InvalidPolicy, InvalidVariant, UnknownName
from servers.policies.autellix import Autellix
from servers.policies.base import Costs, Oracle, Policy
from servers.policies.clairvoyant import Clairvoyant
from servers.policies.context_serve import ContextServe
from servers.policies.continuum import Continuum
from servers.policies.continuum_preview import ContinuumPreview
from servers.policies.continuum_v1 import ContinuumV1
from servers.policies.contract import check
from servers.policies.fcfs import Fcfs
from servers.policies.infercept import Infercept
from servers.policies.program_fcfs import ProgramFcfs
from servers.policies.static_ttl import StaticTtl

Tier = Literal["lmcache", "native"]
TIERS: dict[str, Tier] = {"+native": "native", "+": "lmcache"}
"""By what stands behind a policy's name."""


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    policy: type[Policy]
    offload: Tier | None
    """Which tier it runs over (DRAM, SSD behind it): LMCache's or vLLM's own. In virtual time both
    are the same."""
    bound: bool
    """Knows the trace's future: no system can be built like it."""
    description: str
    source: str

    @property
    def policy_spec(self) -> str:
        """Names the policy alone, without the tier."""
        ours = VARIANTS.get(self.policy.name)
        if ours is not None and ours.policy is self.policy:
            return self.policy.name
        return f"{self.policy.__module__}:{self.policy.__qualname__}"


def _variant(policy: type[Policy], description: str, name: str = "", source: str = "") -> Variant:
    name = name or policy.name
    return Variant(
        name=name,
        policy=policy,
        offload="lmcache" if name.endswith("+") or name == "lmcache" else None,
        bound=issubclass(policy, Oracle),
        description=description,
        source=source or policy.source,
    )


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        _variant(Fcfs, "stock vLLM: turns first come, first served, KV freed at the end of a turn"),
        _variant(ProgramFcfs, "programs in order of their first arrival, nothing kept"),
        _variant(StaticTtl, "program-fcfs, and KV kept for the same default TTL after every tool"),
        _variant(Continuum, "KV kept for a TTL from tool times and queueing delay, pinned first"),
        _variant(ContinuumV1, "its first version: TTL from a bound on the mean tool time"),
        _variant(ContinuumPreview, "its public code: 2 s for tools that take 2 s or less"),
        _variant(ContextServe, "fast tools pinned 3 s, slow ones freed, the rest as continuum"),
        _variant(Autellix, "programs that have been served least first (PLAS), preemptive"),
        _variant(Infercept, "preserve, discard or swap during a tool call, by least waste"),
        _variant(Fcfs, "fcfs over an offload tier", "lmcache", "Continuum v3, §6.1"),
        _variant(Autellix, "autellix over an offload tier", "autellix+", "Continuum v3, §6.1"),
        _variant(Infercept, "infercept over an offload tier", "infercept+", "Continuum v3, §6.1"),
        _variant(Continuum, "continuum over an offload tier", "continuum+", "Continuum v3, §6.1"),
        _variant(Clairvoyant, "a bound: knows each tool's time and each program's work left"),
    )
}


def variants(spec: str) -> list[Variant]:
    chosen: list[Variant] = []
    for name in (part.strip() for part in spec.split(",")):
        if name == "all":
            chosen.extend(VARIANTS.values())
        else:
            chosen.append(VARIANTS.get(name) or _over_tier(name))
    names = [variant.name for variant in chosen]
    for name in names:
        if names.count(name) > 1:
            raise InvalidVariant(f"--policies {spec}: {name} is there twice; name it once")
    return chosen


def make_policy(variant: Variant, costs: Costs) -> Policy:
    return variant.policy(costs)


def _over_tier(spec: str) -> Variant:
    suffix = next((suffix for suffix in TIERS if spec.endswith(suffix)), "")
    name = spec.removesuffix(suffix)
    plain = VARIANTS.get(name) or _by_path(name, spec)
    if not suffix:
        return plain
    if plain.offload:
        raise InvalidVariant(f"--policies {spec}: {name} has an offload tier already")
    return replace(
        plain,
        name=plain.name + suffix,
        offload=TIERS[suffix],
        description=f"{plain.description}; over an offload tier ({TIERS[suffix]})",
    )


def _by_path(path: str, spec: str) -> Variant:
    module_name, _, class_name = path.rpartition(":" if ":" in path else ".")
    if not module_name or not class_name:
        raise UnknownName(_unknown(spec))
    found = _load(module_name, class_name, spec)
    if not isinstance(found, type):
        raise InvalidPolicy(f"{spec}: is no class; derive one from servers.policies.base.Policy")
    policy = check(found)
    if policy.name in VARIANTS:
        raise InvalidPolicy(
            f"{spec}: its name, {policy.name}, is one of ours; give the class another"
        )
    document = (policy.__doc__ or "").strip().partition("\n")[0]
    return _variant(policy, document or f"{path}, a policy of your own", policy.name, path)


def _load(module_name: str, class_name: str, spec: str) -> object:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise InvalidPolicy(
            f"{spec}: importing {module_name} failed with {type(error).__name__}: {error}; "
            "run where it can be imported, or install it into this environment"
        ) from error
    if not hasattr(module, class_name):
        raise InvalidPolicy(f"{spec}: {module_name} ({module.__file__}) has no {class_name}")
    return getattr(module, class_name)


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, VARIANTS, n=2)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return (
        f"no policy is called {name!r}.{hint} There are {', '.join(VARIANTS)}; "
        "or give your own as my_module:MyPolicy"
    )
