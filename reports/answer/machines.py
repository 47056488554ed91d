"""Compares the answers of a sweep on several machines: which scheduler is fastest on which machine.

In: the answer and the points of each machine. Out: sentences, and the rows of tables.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.answer.asked import Price
from reports.answer.speed_headline import NEGLIGIBLE
from reports.answer.speed_ups import MIN_FULL_TINT
from reports.answer.verdict import Answer
from reports.phrasing import counted, listed, seconds, times
from reports.run_folder.machines import Member
from reports.statistics.bootstrap import interval
from reports.statistics.capacities import VariantCapacity
from reports.statistics.points import Point


@dataclass(frozen=True, slots=True)
class OnMachine:
    member: Member
    answer: Answer
    points: Sequence[Point]
    usd_per_job: float
    """Of the fastest variant at the answer's load; NaN if the GPU has no price."""
    baseline: str
    price: Price

    @property
    def fastest(self) -> str | None:
        """The variant that is significantly better than the baseline: with the highest capacity, or
        else the fastest; None if there is none."""
        if self.answer.capacities:
            best = self.best_capacity
            return None if best is None or best.ratio is None else best.variant
        winner = self.answer.winner
        return winner.variant if winner is not None and _gains(winner) else None

    @property
    def best_capacity(self) -> VariantCapacity | None:
        """The highest capacity; that of the baseline if it ties with the highest."""
        answer = self.answer
        names = [self.baseline] if self.baseline in answer.winners else answer.winners[:1]
        return next((each for each in answer.capacities if each.variant in names), None)


def _gains(point: Point) -> bool:
    gain = point.against
    return gain is not None and gain.mean.differs_from_one and gain.mean.value > 1 + NEGLIGIBLE


def headline(machines: Sequence[OnMachine], baseline: str) -> str:
    """State which variant is fastest on which machine, each at the load of its own answer."""
    answered = [m for m in machines if m.answer.winners]
    if not answered:
        return "No cell has finished: there is no answer yet."
    wins = Counter(m.fastest for m in answered if m.fastest is not None)
    even = len(answered) - wins.total()
    capacity = any(m.answer.capacities for m in answered)
    better, best = ("better", "best") if capacity else ("faster", "fastest")
    if not wins:
        return f"No scheduler is significantly {better} than {baseline} on any of these machines."
    if len(wins) == 1 and not even:
        return f"{next(iter(wins))} is {best} on all {len(answered)} machines."
    fastest = [f"{name} on {count}" for name, count in wins.most_common()]
    sentence = f"{best.capitalize()} scheduler on {len(answered)} machines: {listed(fastest)}"
    if even:
        return f"{sentence}; on {even} none is significantly {better} than {baseline}."
    return f"{sentence}."


def unlike_step_times(profiles: Mapping[str, str]) -> list[str]:
    """Return a caveat if some step times are analytic and others not. `profiles` has the
    provenance of the profile by machine."""
    analytic = [name for name, kind in profiles.items() if kind == "analytic"]
    if not analytic or len(analytic) == len(profiles):
        return []
    others = list(dict.fromkeys(kind for kind in profiles.values() if kind != "analytic"))
    return [
        f"Step times are analytic (a roofline of published peaks, not a measurement) for "
        f"{listed(analytic)}, and from {listed([f'{kind} profiles' for kind in others])} for the "
        "others: differences between the two groups are partly differences between the profiles."
    ]


def matrix(machines: Sequence[OnMachine]) -> dict[str, Any]:
    """Return the table of models by hardware, whose cells have the fastest variant."""
    hardware = list(dict.fromkeys(m.member.hardware for m in machines))
    models = list(dict.fromkeys(m.member.model for m in machines))
    at = {(m.member.model, m.member.hardware): m for m in machines}
    winners = [m.answer.winner for m in machines if m.answer.winner is not None]
    full = _full_tint(winners)
    several = any((m.member.gpus or 1) > 1 for m in machines)
    return {
        "hardware": hardware,
        "rows": [
            {
                "model": model,
                "cells": [_matrix_cell(at.get((model, gpu)), full, several) for gpu in hardware],
            }
            for model in models
        ],
    }


def _matrix_cell(machine: OnMachine | None, full: float, several: bool) -> dict[str, Any]:
    winner = machine.answer.winner if machine is not None else None
    if machine is not None and (best := machine.best_capacity) is not None:
        return _capacity_cell(machine, best, several)
    if machine is None or winner is None:
        text = "not in this sweep" if machine is None else "no result"
        return {"name": "–", "lines": [text], "kind": "none", "tint": 0, "href": None}
    base, gain = machine.answer.baseline, winner.against
    member = machine.member
    lines = [f"on {member.gpus} x {member.hardware}"] if several and member.gpus else []
    if gain is not None and base is not None:
        lines.append(f"{times(gain.mean.value)} ({interval(gain.mean)})")
        lines.append(f"{seconds(winner.jct_mean_s.value)} instead of "
                     f"{seconds(base.jct_mean_s.value)}")  # fmt: skip
    else:
        lines.append(seconds(winner.jct_mean_s.value))
    lines.append(f"at {winner.load}{', past saturation' if winner.saturated else ''}")
    if not math.isnan(machine.usd_per_job):
        lines.append(f"{machine.usd_per_job:.3g} USD per job")
    return {
        "name": winner.variant,
        "lines": lines,
        "href": f"{member.folder.name}/report.html",
        **_tinted(winner, full),
    }


def _capacity_cell(machine: OnMachine, best: VariantCapacity, several: bool) -> dict[str, Any]:
    member, value, ratio = machine.member, best.jobs_per_s, best.ratio
    lines = [f"on {member.gpus} x {member.hardware}"] if several and member.gpus else []
    if value is None:
        lines.append("every rate that was tried")
    else:
        gain = "" if ratio is None else f", {times(ratio.value)} ({interval(ratio)})"
        lines.append(f"{value.value:.3g} jobs/s{gain}")
        lines.append(f"{machine.price.gpus / value.value:.3g} GPUs per job/s")
        usd = machine.price.usd_per_1000_jobs(value.value)
        if not math.isnan(usd):
            lines.append(f"{usd:.3g} USD per 1,000 jobs")
    tied = len(machine.answer.winners) - 1
    return {
        "name": best.variant + (f" and {counted(tied, 'tie')}" if tied else ""),
        "lines": lines,
        "href": f"{member.folder.name}/report.html",
        "kind": "even" if ratio is None else "faster",
        "tint": 0 if ratio is None else min(100, round(100 * math.log(max(ratio.value, 1)))),
    }


def by_load(machines: Sequence[OnMachine]) -> dict[str, Any] | None:
    """Return the table of machines by load, whose cells have the fastest variant that is no bound;
    None if there is one load only, or if capacities were searched."""
    loads = {p.load: p.jps or 0.0 for m in machines for p in m.points}
    ordered = sorted(loads, key=lambda load: loads[load])
    if len(ordered) < 2 or any(m.answer.capacities for m in machines):
        return None  # Each machine has rates of its own around its capacities.
    best = [{load: _fastest(m.points, load) for load in ordered} for m in machines]
    full = _full_tint([p for row in best for p in row.values() if p is not None])
    return {
        "loads": [load.removesuffix(" jobs/s") for load in ordered],
        "rows": [
            {"machine": m.member.label, "cells": [_load_cell(row[load], full) for load in ordered]}
            for m, row in zip(machines, best, strict=True)
        ],
    }


def _fastest(points: Sequence[Point], load: str) -> Point | None:
    here = [p for p in points if p.load == load and not p.bound and not p.failed_gates]
    return min(here, key=lambda p: p.jct_mean_s.value, default=None)


def _load_cell(point: Point | None, full: float) -> dict[str, Any]:
    if point is None:
        cell = {"name": "–", "gain": "", "title": "no result", "hollow": False}
        return {**cell, "kind": "none", "tint": 0}
    gain = point.against
    title = f"{point.variant}: mean {seconds(point.jct_mean_s.value)}"
    return {
        "name": point.variant,
        "gain": f"{gain.mean.value:.2f}" if gain is not None else "1",
        "title": title if gain is None else f"{title}, {interval(gain.mean)}",
        "hollow": point.saturated,
        **_tinted(point, full),
    }


def _full_tint(points: Sequence[Point]) -> float:
    """Return the logarithm of the speed-up that has the strongest tint."""
    gains = [math.log(p.against.mean.value) for p in points if p.against is not None]
    return max([MIN_FULL_TINT, *gains])


def _tinted(point: Point, full: float) -> dict[str, Any]:
    if point.against is None:
        return {"kind": "base", "tint": 0}
    tint = round(100 * max(math.log(point.against.mean.value), 0) / full)
    return {"kind": "faster" if _gains(point) else "even", "tint": tint}
