"""Computes how a router distributes turns over replicas (docs/reference/metrics.md, "Routing")."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from reports.metrics.metric import NONE, SECONDS, SHARE, Group, Unit, Value, of_variants
from reports.run_folder.read import CellRun
from reports.run_folder.turns import HITS, Column, Turns


def routing(cell: CellRun, jobs: int, turns: Turns) -> dict[str, Value]:
    """Return the columns; none for a cell with one replica. `turns` excludes errors, and `jobs` is
    the number of finished jobs. If only some engines decode, imbalances compare these."""
    replicas = cell.config.replica_count
    if replicas == 1:
        return {}
    if not len(turns["turn"]) or np.isnan(turns["replica"]).any():
        return dict.fromkeys(ROUTING.columns, math.nan)
    split = cell.config.disaggregate
    decoders = (split and split.decode) or replicas
    held_s = np.nan_to_num(turns["held_s"])
    was_held = held_s > 0
    there_s = turns["finished_at_s"] - turns["sent_at_s"] - held_s
    of_replicas_s = np.bincount(turns["replica"].astype(int), there_s, decoders)
    sampled = np.asarray(cell.done.replica_blocks or np.empty((1, 0)), dtype=float)
    moved, lost = _migrations(turns)
    return {
        "replica_imbalance": _imbalance(of_replicas_s),
        "memory_imbalance": _imbalance(sampled.mean(axis=0)[:decoders]),
        "migrations_per_job": moved / jobs if jobs else math.nan,
        "migration_lost_ratio": lost / (float(turns["prompt_tokens"].sum()) or math.nan),
        "held_turn_ratio": float(was_held.mean()),
        "held_mean_s": float(held_s[was_held].mean()) if was_held.any() else 0.0,
        "held_max_s": float(held_s.max()),
    }


def _imbalance(of_replicas: Column) -> float:
    """Return the largest value ÷ the mean: 1 if all are equal, the number of replicas if one has
    everything."""
    mean = float(of_replicas.mean()) if len(of_replicas) else 0.0
    return float(of_replicas.max()) / mean if mean > 0 else math.nan


def _migrations(turns: Turns) -> tuple[int, float]:
    """Return the number of turns that ran on another replica than their program's previous turn,
    and the number of tokens of its context that they did not find in a cache."""
    programs, _ = pd.factorize(turns["program_id"])
    order = np.lexsort((turns["turn"], programs))
    programs, replica = programs[order], turns["replica"][order]
    moved = (programs[1:] == programs[:-1]) & (replica[1:] != replica[:-1])
    later = order[1:][moved]
    hits = sum(turns[hit][later] for hit in HITS)
    lost = np.clip(np.nan_to_num(turns["kept_tokens"][later]) - hits, 0, None)
    return int(moved.sum()), float(np.nansum(lost))


ROUTING = Group(
    lambda facts: routing(facts.cell, len(facts.done["jct_s"]), facts.good),
    (
        of_variants("replica_imbalance", NONE, "lower", "Busiest ÷ mean").means(
            "Time that turns spend on the busiest replica, compared with the mean of all.",
            "T_max ÷ T̄ of replicas or decode engines, where T_r = Σ (`finished_at_s` −"
            " `sent_at_s` − `held_s`). 1: all are equally busy; N: one of N has all turns.",
        ),
        of_variants("memory_imbalance", NONE, "lower", "Memory").means(
            "The same of the mean KV blocks in use.",
            "From `replica_blocks` of `done.json`; unknown live.",
        ),
        of_variants("migrations_per_job", Unit("1/job"), "lower", "Migrations per job").means(
            "Turns on another replica than the program's turn before ÷ finished jobs."
        ),
        of_variants("migration_lost_ratio", SHARE, "lower", "Hits lost").means(
            "Share of all prompt tokens that these turns did not find, although computed before.",
            "Σ max(0, `kept_tokens` − hit tokens) of these ÷ Σ `prompt_tokens` of all.",
        ),
        of_variants("held_turn_ratio", SHARE, title="Turns held").means(
            "Share of the turns that the router held back."
        ),
        of_variants("held_mean_s", SECONDS, title="Mean hold").means("Mean hold of these."),
        of_variants("held_max_s", SECONDS, title="Longest hold", pool="max").means(
            "The longest hold."
        ),
    ),
)
