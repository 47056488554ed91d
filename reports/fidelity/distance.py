"""Computes how far virtual time is from a live engine.

In: the cells of live runs and of one run in virtual time. Out: errors and rankings;
docs/design/fidelity.md defines each number. A *cell* is a policy under a load with one
draw of arrivals; a *point* is a policy under a load, over all seeds. Errors are signed and relative
to the live engine: +0.05 means that virtual time is 5% above it. Errors of hit ratios are
differences in percentage points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import pandas as pd

KEY = ["load", "variant", "seed"]
MEAN, P95, HITS = "jct_mean_s", "jct_p95_s", "hit_ratio"
MIN_DIFFERENCES = 2
"""The order of two policies is not settled by fewer differences than this."""


@dataclass(frozen=True, slots=True)
class CellSpread:
    """The mean, the smallest and the largest value of several cells."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairedPoint:
    variant: str
    load: str
    jps: float | None
    live_s: float
    """Mean JCT over seeds and repeats."""
    virtual_s: float
    live_hits: float
    virtual_hits: float
    mean: CellSpread
    p95: CellSpread
    hits: CellSpread
    """Errors over seeds, relative to the mean of a cell's repeats."""
    mean_spread: CellSpread
    p95_spread: CellSpread
    hits_spread: CellSpread
    """The differences between live repeats of a cell, over seeds. NaN if there is one repeat."""
    saturated: bool
    """Whether any seed and repeat of the live engine is saturated."""


@dataclass(frozen=True, slots=True)
class RankAgreement:
    """The policies under one load, ranked by mean JCT over all seeds and live repeats."""

    load: str
    jps: float | None
    live: tuple[str, ...]
    virtual: tuple[str, ...]
    """Best first."""
    same_winner: bool
    regret: float
    """Live mean JCT of the winner in virtual time ÷ the live winner's − 1."""
    tau: float
    tau_live: float
    """Kendall's tau between live repeats, mean over their pairs. NaN if there is one repeat."""
    pairs: int
    settled: int | None
    """The number of pairs with the same order in all seeds and live repeats. None if there is only
    one cell per policy."""
    agreed: int | None
    """The number of these pairs that virtual time orders in the same way."""
    saturated: bool
    error: CellSpread
    """The error of the mean JCT over all cells of the load."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    cells: pd.DataFrame
    """One row per cell that all runs have, with `KEY` and the columns of `paired`."""
    points: tuple[PairedPoint, ...]
    rankings: tuple[RankAgreement, ...]
    repeats: int


def fidelity(live: Sequence[pd.DataFrame], virtual: pd.DataFrame) -> Fidelity:
    """`live` are repeats of the same cells. All frames are as in `Results.cells`.

    Cells that one of the frames lacks are left out.
    """
    cells = paired(live, virtual)
    groups = list(cells.groupby(["load", "variant"], sort=False))
    points = tuple(_point(group) for _, group in groups)
    rankings = tuple(_ranking(group) for _, group in cells.groupby("load", sort=False))
    return Fidelity(cells, points, rankings, len(live))


def paired(live: Sequence[pd.DataFrame], virtual: pd.DataFrame) -> pd.DataFrame:
    """A row per cell, in the order of `virtual`.

    Columns are `live_…` (mean of the repeats), `virtual_…`, `…_error` and `…_spread` for each of
    mean, p95 and hits; `live_mean_1_s`, … for each repeat; and `saturated`.
    """
    columns = [MEAN, P95, HITS]
    common = virtual[[*KEY, "jps", *columns]].set_index(KEY)
    repeats = [frame.set_index(KEY).reindex(common.index) for frame in live]
    present = pd.concat([r[MEAN].notna() for r in [*repeats, common]], axis=1).all(axis=1)
    common, repeats = common[present], [repeat[present] for repeat in repeats]
    cells = common[["jps"]].copy()
    for name, column, suffix in (("mean", MEAN, "_s"), ("p95", P95, "_s"), ("hits", HITS, "")):
        seen = pd.concat([repeat[column] for repeat in repeats], axis=1).astype(float)
        mean, width = seen.mean(axis=1, skipna=False), seen.max(axis=1) - seen.min(axis=1)
        own = common[column].astype(float)
        cells[f"live_{name}{suffix}"], cells[f"virtual_{name}{suffix}"] = mean, own
        if name == "hits":  # Relative errors are meaningless for ratios near zero.
            cells["hits_error"], spread = 100.0 * (own - mean), 100.0 * width
        else:
            cells[f"{name}_error"], spread = own / mean - 1.0, width / mean
        cells[f"{name}_spread"] = spread if len(repeats) > 1 else math.nan
    for number, repeat in enumerate(repeats, 1):
        cells[f"live_mean_{number}_s"] = repeat[MEAN].astype(float)
    saturated = pd.concat([repeat["saturated"].astype(bool) for repeat in repeats], axis=1)
    return cells.assign(saturated=saturated.any(axis=1)).reset_index()


def kendall_tau(one: Sequence[float], other: Sequence[float]) -> float:
    """τ-b = (concordant − discordant pairs) / √(pairs not tied in one · pairs not tied in other).
    NaN if all values of a side are equal."""
    signs = [
        (_sign(one[i] - one[j]), _sign(other[i] - other[j]))
        for i, j in combinations(range(len(one)), 2)
    ]
    untied = sum(a != 0 for a, _ in signs) * sum(b != 0 for _, b in signs)
    return sum(a * b for a, b in signs) / math.sqrt(untied) if untied else math.nan


def settled_order(one: pd.DataFrame, other: pd.DataFrame) -> int:
    """-1 if `one` has the lower mean JCT in every repeat of every seed, 1 if `other` has, else 0.

    Rows are seeds, columns are repeats.
    """
    signs = {_sign(float(d)) for d in (one - other).to_numpy().ravel()}
    return signs.pop() if len(signs) == 1 else 0


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _span(values: pd.Series) -> CellSpread:
    return CellSpread(*(float(v) for v in (values.mean(skipna=False), values.min(), values.max())))


def _point(cells: pd.DataFrame) -> PairedPoint:
    first = cells.iloc[0]
    return PairedPoint(
        variant=str(first["variant"]),
        load=str(first["load"]),
        jps=_jps(first),
        live_s=float(cells["live_mean_s"].mean()),
        virtual_s=float(cells["virtual_mean_s"].mean()),
        live_hits=float(cells["live_hits"].mean(skipna=False)),
        virtual_hits=float(cells["virtual_hits"].mean(skipna=False)),
        **{name: _span(cells[f"{name}_error"]) for name in ("mean", "p95", "hits")},
        **{f"{name}_spread": _span(cells[f"{name}_spread"]) for name in ("mean", "p95", "hits")},
        saturated=bool(cells["saturated"].any()),
    )


def _ranking(cells: pd.DataFrame) -> RankAgreement:
    """Over the seeds that every policy of this load has, so that arrivals are the same."""
    repeats = _repeat_columns(cells)
    by_policy = {str(name): group.set_index("seed") for name, group in _common(cells)}
    live = {name: float(group["live_mean_s"].mean()) for name, group in by_policy.items()}
    virtual = {name: float(group["virtual_mean_s"].mean()) for name, group in by_policy.items()}
    best_live, least = min(live, key=live.__getitem__), min(virtual.values())
    winners = [name for name, value in virtual.items() if value == least]
    own = [[float(group[r].mean()) for group in by_policy.values()] for r in repeats]
    taus = [kendall_tau(a, b) for a, b in combinations(own, 2)]
    settled, agreed = _settled_pairs(by_policy, virtual, repeats)
    return RankAgreement(
        load=str(cells["load"].iloc[0]),
        jps=_jps(cells.iloc[0]),
        live=tuple(sorted(live, key=live.__getitem__)),
        virtual=tuple(sorted(virtual, key=virtual.__getitem__)),
        same_winner=best_live in winners,
        regret=max(live[name] for name in winners) / live[best_live] - 1.0,
        tau=kendall_tau(list(live.values()), list(virtual.values())),
        tau_live=sum(taus) / len(taus) if taus else math.nan,
        pairs=math.comb(len(live), 2),
        settled=settled,
        agreed=agreed,
        saturated=bool(cells["saturated"].any()),
        error=_span(cells["mean_error"]),
    )


def _common(cells: pd.DataFrame) -> list[tuple[object, pd.DataFrame]]:
    policies = cells["variant"].nunique()
    whole = cells.groupby("seed")["variant"].transform("nunique") == policies
    return list((cells[whole] if whole.any() else cells).groupby("variant", sort=False))


def _settled_pairs(
    by_policy: dict[str, pd.DataFrame], virtual: dict[str, float], repeats: list[str]
) -> tuple[int | None, int | None]:
    """The number of settled pairs, and of those that virtual time orders in the same way."""
    if len(repeats) * min(map(len, by_policy.values())) < MIN_DIFFERENCES:
        return None, None
    settled = agreed = 0
    for one, other in combinations(by_policy, 2):
        sign = settled_order(by_policy[one][repeats], by_policy[other][repeats])
        settled += sign != 0
        agreed += sign != 0 and sign == _sign(virtual[one] - virtual[other])
    return settled, agreed


def _repeat_columns(cells: pd.DataFrame) -> list[str]:
    return [c for c in cells.columns if c.startswith("live_mean_") and c != "live_mean_s"]


def _jps(row: pd.Series) -> float | None:
    return None if pd.isna(row["jps"]) else float(row["jps"])
