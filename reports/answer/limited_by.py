"""Decides what limits each capacity: the SLO, compute, KV memory, or the recovery from a burst.

In: capacities, among them that of `unlimited-kv`. Out: the limit of each, and sentences; nothing
without that reference. docs/design/statistics.md, "Which limit binds", has the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from reports.capacity.estimate import Kind
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import (
    EQUAL_WITHIN,
    VariantCapacity,
    capacity_ratio,
)
from servers.basics.phrasing import listed
from servers.policies.base import UNLIMITED_KV
from servers.policies.fcfs import Fcfs


class Bottleneck(StrEnum):
    SLO = "SLO"
    COMPUTE = "compute"
    KV_MEMORY = "KV memory"
    RECOVERY = "recovery"
    UNCLEAR = "unclear"
    """The seeds do not show whether unlimited KV memory sustains more."""


@dataclass(frozen=True, slots=True)
class LimitedBy:
    bottleneck: Bottleneck
    share: Estimate
    """The capacity ÷ that with unlimited KV memory behind the same router, paired by seed."""


def limited_by(capacities: Sequence[VariantCapacity], *, burst: bool) -> dict[str, LimitedBy]:
    """Return the limits by variant, for capacities that are numbers. `burst`: cells begin with a
    burst of jobs."""
    found = [c for c in capacities if c.kind is Kind.FOUND]
    references = {_placement(c.variant): c for c in found if c.reference == UNLIMITED_KV}
    limits = {}
    for each in found:
        reference = references.get(_placement(each.variant))
        if each.reference or reference is None:
            continue
        share = capacity_ratio(each.loads, reference.loads)
        if share is not None:
            limits[each.variant] = LimitedBy(_limit(each, share, burst), share)
    return limits


def _placement(variant: str) -> str:
    """Return the end of the name that states the router and the split of engines."""
    return "".join(variant.partition("@")[1:])


def _limit(capacity: VariantCapacity, share: Estimate, burst: bool) -> Bottleneck:
    misses_slo = bool(capacity.missed and capacity.missed[0][0])
    if share.value >= 1 - EQUAL_WITHIN:
        return Bottleneck.SLO if misses_slo else Bottleneck.COMPUTE
    if share.has_interval and share.high >= 1:
        return Bottleneck.UNCLEAR
    return Bottleneck.RECOVERY if burst and not misses_slo else Bottleneck.KV_MEMORY


def unlimited_kv_sentences(
    shown: Sequence[VariantCapacity],
    capacities: Iterable[VariantCapacity],
    limits: Mapping[str, LimitedBy],
) -> list[str]:
    """State what unlimited KV memory would sustain, and how much of it is reached."""
    sentences = []
    for reference in capacities:
        place = _placement(reference.variant)
        beside = [each.variant for each in shown if _placement(each.variant) == place]
        if reference.reference != UNLIMITED_KV or reference.load is None or not beside:
            continue
        known = [name for name in beside if name in limits]
        shares = [
            f"{name} {'reaches ' if name == known[0] else ''}{100 * limits[name].share.value:.3g}%"
            for name in known
        ]
        sentences.append(
            f"With unlimited KV memory {Fcfs.name}{place} would sustain {reference.text()}"
            f"{', of which ' if shares else ''}{listed(shares)}."
        )
    return sentences
