"""Finds the settings in which two runs differ.

In: the settings of two `Side`s. Out: a phrase for each difference, without those that are allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from typing import Any

from reports.compare.baseline import Side
from servers.admission import Limits
from servers.basics.errors import InvalidInput, NotComparable
from servers.basics.json_object import JsonObject
from servers.basics.nearest import nearest
from servers.basics.phrasing import listed
from servers.profiles.profile import Profile

SAME_QUESTION = (
    "engine",
    "hardware",
    "model",
    "profile",
    "limits",
    "arrivals",
    "horizon",
    "background",
    "scenario",
)
"""Settings that must be equal. Runs are compared at the rates and seeds that both have."""
TRACE = ("trace_sha256", "programs", "turns")
WORKLOAD = "workload"
OPTION = "--allow-different"
MOST_PARTS = 3
"""With more different parts, a remedy names the whole setting."""


def parse_allowed(text: str) -> tuple[str, ...]:
    """Return the names of settings in a comma-separated list, such as `limits,profile.kv_blocks`.

    Raises InvalidInput.
    """
    names = tuple(name.strip() for name in text.split(","))
    settings = (*SAME_QUESTION, WORKLOAD)
    for name in names:
        if name.partition(".")[0] not in settings:
            close = nearest(name, settings) or _nearest_part(name)
            hint = f"did you mean {close}?" if close else f"use {listed(settings, 'or')}, or one"
            more = "" if close else " part of them such as profile.kv_blocks"
            raise InvalidInput(f"{OPTION} {name}: unknown; {hint}{more}")
    return names


def _nearest_part(name: str) -> str:
    """Return the setting and part, such as profile.kv_blocks for `kv-blocks`."""
    whole = {
        each.name: f"{setting}.{each.name}"
        for setting, of in (("profile", Profile), ("limits", Limits))
        for each in fields(of)
    }
    found = nearest(name.rpartition(".")[2].replace("-", "_"), whole)
    return " or ".join(whole[part] for part in found.split(" or ") if part)


def refuse_different(base: Side, new: Side, allowed: Collection[str]) -> None:
    """Raise NotComparable if results of the two would not be about the same question."""
    if base.steady != new.steady:
        stream, fixed = (base, new) if base.steady else (new, base)
        raise NotComparable(
            f"{stream.name} measured a stream of jobs and {fixed.name} a fixed set (--once): their "
            "JCTs are of different jobs; run one of them again like the other"
        )
    one, other = base.settings, new.settings
    if found := list(differences(one, other, SAME_QUESTION, allowed)):
        names = ",".join(dict.fromkeys(_names(one, other, allowed)))
        raise NotComparable(
            f"{base.name} and {new.name} have different settings: "
            f"{'; '.join([*_options(one, other), *found])}; run one of them again with the other's "
            f"sweep.toml, or compare them all the same with {OPTION} {names}. Different machines "
            "and models: bench compare --across hardware,model"
        )
    slos = [side.capacities.slo for side in (base, new) if side.capacities]
    if len(set(slos)) > 1:
        raise NotComparable(
            f"{base.name} and {new.name} have capacities with different SLOs, {slos[0]} and "
            f"{slos[1]}; run one of them again with the other's --slo"
        )


def allowed_differences(base: Side, new: Side, allowed: Collection[str]) -> tuple[str, ...]:
    """Return a phrase for each setting in which runs differ that are compared all the same."""
    if not allowed:
        return ()
    one, other = base.settings, new.settings
    return (*_options(one, other), *differences(one, other, SAME_QUESTION))


def differences(
    one: JsonObject,
    other: JsonObject,
    fields: Sequence[str],
    allowed: Collection[str] = (),
) -> Iterable[str]:
    """Yield a phrase for each field in which two settings differ."""
    for field in fields:
        if _differs(field, one.get(field), other.get(field), allowed):
            yield _difference(field, one.get(field), other.get(field), allowed)
    if bool(one.get("steady_state")) != bool(other.get("steady_state")):
        yield "a stream of jobs and a fixed set (--once)"
    for field in TRACE:
        old, new = ((side.get(WORKLOAD) or {}).get(field) for side in (one, other))
        if old != new and not {WORKLOAD, f"{WORKLOAD}.{field}"} & set(allowed):
            yield _difference(f"{WORKLOAD}.{field}", old, new, allowed)


def _names(one: JsonObject, other: JsonObject, allowed: Collection[str]) -> Iterable[str]:
    """Yield what `--allow-different` needs for two settings to be comparable."""
    yield from allowed
    for field in SAME_QUESTION:
        old, new = one.get(field), other.get(field)
        if _differs(field, old, new, allowed):
            parts = _parts(field, old, new, allowed)
            few = 0 < len(parts) <= MOST_PARTS
            yield from (f"{field}.{key}" for key in parts) if few else [field]
    if any(differences(one, other, (), allowed)):
        yield WORKLOAD


def _differs(field: str, one: Any, other: Any, allowed: Collection[str]) -> bool:
    if one == other or field in allowed:
        return False
    return (
        not isinstance(one, dict)
        or not isinstance(other, dict)
        or bool(_parts(field, one, other, allowed))
    )


def _parts(field: str, one: Any, other: Any, allowed: Collection[str]) -> list[str]:
    """Return the keys in which two values differ. A value that is no object has none."""
    of_one, of_other = (value if isinstance(value, dict) else {} for value in (one, other))
    keys = of_one.keys() | of_other.keys()
    differ = (key for key in keys if of_one.get(key) != of_other.get(key))
    return sorted(key for key in differ if f"{field}.{key}" not in allowed)


def _options(one: JsonObject, other: JsonObject) -> Iterable[str]:
    """Yield a phrase for each recorded option whose value explains differences in the profile."""
    for name, old, new in (
        ("scheduling", one.get("scheduling"), other.get("scheduling")),
        ("layout", *(side.get("layout") or "tp" for side in (one, other))),
        ("kv-cache-dtype", *(side.get("kv_cache_dtype") or "auto" for side in (one, other))),
        ("step-times", *((side.get("profile") or {}).get("provenance") for side in (one, other))),
        ("admission", *((side.get("limits") or {}).get("admission") for side in (one, other))),
    ):
        if old and new and old != new:
            yield f"{name}: {old} against {new}"


def _difference(field: str, one: Any, other: Any, allowed: Collection[str]) -> str:
    if parts := _parts(field, one, other, allowed):
        return f"{field}: {listed(parts)}"
    short = [v[:12] if isinstance(v, str) else v for v in (one, other)]
    return f"{field} {short[0]} and {short[1]}"
