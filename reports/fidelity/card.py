"""Renders the fidelity card as one HTML page and as JSON.

In: runs and their distance. Out: the page, which needs no network and no script, and the JSON.
The template escapes names.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson
from msgspec import to_builtins

from reports.fidelity.distance import CellSpread, Fidelity, PairedPoint, RankAgreement
from reports.fidelity.targets import MAX_MEAN_ERROR, MAX_P95_ERROR, TargetVerdict
from reports.numbers import DASH
from reports.page.environment import page_of
from reports.run_folder.read import NOT_DONE, Run
from servers.basics.json_object import JsonObject
from servers.basics.phrasing import counted, seconds, share

Invalid = tuple[str, str, str]
"""Run, cell, and the reason why the cell is not valid."""
COLUMNS = (
    *("Policy", "Load", "Live mean", "Virtual", "Error of mean", "Live spread"),
    *("Error of P95", "Live spread", "Live hits", "Virtual", "Error of hits", "Live spread"),
)


def headline(verdict: TargetVerdict, live: Run) -> str:
    if verdict.good:
        return f"Virtual time can be trusted for {engine(live)}: all targets are met."
    count = len(verdict.missed)
    return (
        f"Virtual time is not within its targets for {engine(live)}: "
        f"{count} of {len(verdict.checks)} missed."
    )


def engine(live: Run) -> str:
    sweep = live.sweep
    version = sweep.server.vllm
    name = f"vLLM {version}" if version else str(sweep.engine)
    return f"{name}, {sweep.model}, on {sweep.hardware}"


def page(
    live: Sequence[Run],
    virtual: Run,
    found: Fidelity,
    verdict: TargetVerdict,
    caveats: Sequence[str],
    invalid: Sequence[Invalid],
) -> str:
    return page_of(
        "fidelity.html.j2",
        context=[engine(live[0]), live[0].sweep.workload.name or ""],
        headline=headline(verdict, live[0]),
        tiles=_tiles(found),
        checks=verdict.checks,
        caveats=caveats,
        columns=COLUMNS,
        rows=[_row(point) for point in found.points],
        rankings=[_ranking(r) for r in found.rankings if r.pairs],
        invalid=invalid,
        command=shlex.join(live[0].sweep.made_by.argv),
        facts=_facts(live, virtual),
    )


def _tiles(found: Fidelity) -> list[tuple[str, str, str]]:
    """Return rows of (number, label, context)."""
    if not found.points:
        return []
    tiles = []
    for what, of, spread in (
        ("error of mean JCT", "mean", "mean_spread"),
        ("error of P95 JCT", "p95", "p95_spread"),
    ):
        errors = [abs(getattr(p, of).value) for p in found.points]
        own = [getattr(p, spread).value for p in found.points]
        context = f"worst {max(errors):.1%}; live spread {_percent(sum(own) / len(own))}"
        tiles.append((f"{sum(errors) / len(errors):.1%}", f"mean absolute {what}", context))
    ranked = [r for r in found.rankings if r.pairs]
    if ranked:
        good = sum(r.same_winner for r in ranked)
        cost = f"choosing in virtual time costs at most {max(r.regret for r in ranked):.1%} live"
        tiles.append((f"{good} of {len(ranked)}", "loads with the same winner", cost))
        taus = [r.tau for r in ranked]
        own = [r.tau_live for r in ranked]
        context = f"live repeats: {_tau(sum(own) / len(own))}"
        tiles.append((_tau(sum(taus) / len(taus)), "Kendall's τ, mean over loads", context))
    return tiles


def _row(point: PairedPoint) -> JsonObject:
    values = [
        _plain_cell(seconds(point.live_s)),
        _plain_cell(seconds(point.virtual_s)),
        _error_cell(point.mean, _signed, limit=MAX_MEAN_ERROR),
        _plain_cell(_percent(point.mean_spread.value)),
        _error_cell(point.p95, _signed, limit=MAX_P95_ERROR),
        _plain_cell(_percent(point.p95_spread.value)),
        _plain_cell(share(point.live_hits)),
        _plain_cell(share(point.virtual_hits)),
        _error_cell(point.hits, _signed_points),
        _plain_cell(_number(point.hits_spread.value, ".1f")),
    ]
    return {
        "variant": point.variant,
        "load": point.load,
        "saturated": point.saturated,
        "values": values,
    }


def table_rows(found: Fidelity) -> list[list[str]]:
    """Return the table of errors for a terminal, with its header. It has no ranges over seeds."""
    head = ["policy", "load", "live", "virtual", "mean", "spread", "P95", "spread", "hits"]
    rows = [
        [
            *(point.variant, point.load, seconds(point.live_s), seconds(point.virtual_s)),
            *(_signed(point.mean.value), _percent(point.mean_spread.value)),
            *(_signed(point.p95.value), _percent(point.p95_spread.value)),
            _signed_points(point.hits.value) + " pp",
            *(["saturated"] if point.saturated else []),
        ]
        for point in found.points
    ]
    return [head, *rows]


def ranking_rows(found: Fidelity) -> list[list[str]]:
    """Return the table of rankings for a terminal, with its header; empty for one policy."""
    head = ["load", "live", "virtual time", "winner", "tau", "tau live", "settled", "agree"]
    rows = [_ranking(ranking) for ranking in found.rankings if ranking.pairs]
    table = [
        [
            row["load"],
            " < ".join(row["live"]),
            " < ".join(row["virtual"]),
            "same" if row["same_winner"] else "different",
            *row["texts"][:-1],
        ]
        for row in rows
    ]
    return [head, *table] if rows else []


def _plain_cell(text: str) -> JsonObject:
    return {"text": text, "ends": "", "beyond": False}


def _error_cell(
    error: CellSpread, text: Callable[[float], str], limit: float = math.inf
) -> JsonObject:
    """Format an error. `ends` is its range over seeds, empty if both ends have the same text."""
    low, high = text(error.low), text(error.high)
    ends = f"{low} to {high}" if low != high else ""
    return {"text": text(error.value), "ends": ends, "beyond": abs(error.value) > limit}


def _signed_points(value: float) -> str:
    return _number(value, "+.1f")


def _signed(value: float) -> str:
    return _number(value, "+.1%")


def _percent(value: float) -> str:
    return _number(value, ".1%")


def _tau(value: float) -> str:
    return _number(value, ".2f")


def _number(value: float, form: str) -> str:
    return DASH if math.isnan(value) else format(value, form)


def _ranking(ranking: RankAgreement) -> JsonObject:
    settled = DASH if ranking.settled is None else f"{ranking.settled} of {ranking.pairs}"
    agreed = DASH if ranking.agreed is None else str(ranking.agreed)
    texts = (_tau(ranking.tau), _tau(ranking.tau_live), settled, agreed, f"{ranking.regret:+.1%}")
    return {
        "load": ranking.load,
        "live": ranking.live,
        "virtual": ranking.virtual,
        "same_winner": ranking.same_winner,
        "texts": texts,
    }


def _facts(live: Sequence[Run], virtual: Run) -> list[tuple[str, str]]:
    sweep, simulated = live[0].sweep, virtual.sweep
    load, done = sweep.workload, live[0].cells[0].done if live[0].cells else NOT_DONE
    facts = (
        ("Live engine", engine(live[0])),
        ("Live settings", _settings(to_builtins(sweep.server))),
        ("Live KV", _settings({"kv_blocks": done.kv_blocks, "block_tokens": done.block_tokens})),
        ("Limits", _settings(to_builtins(sweep.limits))),
        ("Virtual time", simulated.engine),
        ("Profile", _settings(to_builtins(simulated.profile))),
        (
            "Workload",
            f"{load.name}: {counted(load.programs or 0, 'program')},"
            f" {counted(load.turns or 0, 'turn')}",
        ),
        ("Trace SHA-256", load.trace_sha256),
        ("Arrivals", sweep.arrivals),
        ("Seeds", ", ".join(map(str, sweep.seeds))),
        ("Live repeats", len(live)),
        ("Run folders", ", ".join(run.folder.resolve().name for run in (*live, virtual))),
        ("Turnstile", sweep.turnstile_version),
        ("Sources", sweep.code_sha256),
        ("Commit", sweep.made_by.git_commit),
    )
    return [(name, str(value)) for name, value in facts if value]


def _settings(values: Mapping[str, Any] | None) -> str:
    known = {k: v for k, v in (values or {}).items() if v not in (None, [], (), "")}
    return ", ".join(f"{k} {_plain(v)}" for k, v in known.items())


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def as_json(
    found: Fidelity,
    verdict: TargetVerdict,
    about: Mapping[str, Any],
    caveats: Sequence[str],
    invalid: Sequence[Invalid],
) -> bytes:
    """Return the content of `fidelity.json`, with null for NaN."""
    value = {
        "format": "turnstile-fidelity-1",
        "within_targets": verdict.good,
        "checks": [check._asdict() for check in verdict.checks],
        **about,
        "live_repeats": found.repeats,
        "points": found.points,
        "rankings": [asdict(ranking) for ranking in found.rankings],
        "cells": found.cells.to_dict("records"),
        "caveats": caveats,
        "invalid": [dict(zip(("run", "cell", "why"), row, strict=True)) for row in invalid],
    }
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
    return orjson.dumps(value, option=options)
