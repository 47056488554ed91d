"""Fits how the steps of a program depend on each other: in one quantity, and in several.

In: programs and their steps. Out: correlations of normal scores (the ranks of values as quantiles
of the normal distribution). Scores are taken among the steps of the same tool, which removes the
effect of the tool.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servers.basics.least_squares import Floats, nonnegative_factors
from traces.program import Program, Turn
from traces.synthesis.fitted import EARLY, LEVELS, SERIES, Series

REWRITTEN = 0.5
"""If the next prompt repeats less than this part of the previous one, the history was rewritten."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step from a turn to the next one."""

    program: int
    index: int
    tool: str
    case: str
    before: Turn
    after: Turn

    @property
    def values(self) -> dict[str, float]:
        """Values by the names in `fitted.SERIES`."""
        return {
            "output": self.before.output_tokens,
            "gap": self.before.tool_gap_s,
            "new": self.after.new_tokens,
        }

    @property
    def ratio(self) -> float:
        return self.after.prompt_tokens / self.before.context_tokens


def case_of(before: Turn, after: Turn) -> str:
    """Return the field of `Cases` that the step counts for."""
    if after.kept_tokens == before.context_tokens:
        return "appended"
    if after.kept_tokens == before.prompt_tokens:
        return "answer_dropped"
    return "edited" if after.kept_tokens >= REWRITTEN * before.prompt_tokens else "rewritten"


Ints = NDArray[np.int64]

MAX_LAG = 20
MIN_PAIRS = 50
"""Correlations at distances with fewer pairs of steps are not used."""
DECAYS = tuple(k / 20 for k in range(20))
MIN_EIGENVALUE = 0.01
MIN_PROGRAMS = 20
"""With fewer programs, levels are assumed to be independent."""
MIN_PROGRAM_SHARE = 0.01
"""If a program's steps share less variance, its level is assumed to be independent of others."""


class SeriesFit(NamedTuple):
    levels: tuple[tuple[float, ...], ...]
    steps: tuple[tuple[float, ...], ...]
    series: dict[str, Series]


class _Scores(NamedTuple):
    scores: Floats
    """With mean 0."""
    variance: float
    """Below 1 if many values are equal."""


def fit_series(programs: Sequence[Program], steps: Sequence[Step]) -> SeriesFit:
    owner = np.array([step.program for step in steps], dtype=np.int64)
    index = np.array([step.index for step in steps], dtype=np.int64)
    scores: dict[str, _Scores] = {}
    series: dict[str, Series] = {}
    for name in SERIES:
        raw = _scores_by_tool(steps, name)
        early = _early_means(raw, index)
        scores[name] = _scored(raw - early[np.searchsorted(EARLY, index, side="right") - 1])
        program, neighbours, decay = _fit_decay(scores[name], owner)
        series[name] = Series(
            program=program,
            neighbours=neighbours,
            decay=decay,
            early=tuple(np.round(early, 2).tolist()),
        )
    levels = _level_correlation(programs, scores, series, owner)
    return SeriesFit(_rows(levels), _rows(_step_correlation(scores, series, levels)), series)


def _scores_by_tool(steps: Sequence[Step], name: str) -> Floats:
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, step in enumerate(steps):
        by_case = name == "new" and step.case != "appended"
        groups[("case", step.case) if by_case else ("tool", step.tool)].append(number)
    result = np.zeros(len(steps))
    for (_, group), numbers in groups.items():
        rewritten = name == "new" and group == "rewritten"
        result[numbers] = _normal_scores(
            [steps[i].ratio if rewritten else steps[i].values[name] for i in numbers]
        )
    return result


def _normal_scores(values: Sequence[float] | Floats) -> Floats:
    """Return scores with mean 0. Equal values have the mean of their ranks' scores."""
    array = np.asarray(values, dtype=float)
    by_rank = np.empty(array.size)
    ranks = ((np.arange(array.size) + 0.5) / array.size).tolist()
    by_rank[np.argsort(array, kind="stable")] = [*map(NormalDist().inv_cdf, ranks)]
    _, which, counts = np.unique(array, return_inverse=True, return_counts=True)
    result: Floats = (np.bincount(which, by_rank) / counts)[which]
    return result


def _scored(raw: Floats) -> _Scores:
    centred = raw - raw.mean() if raw.size else raw
    return _Scores(centred, float(np.mean(centred**2)) if raw.size else 1.0)


def _early_means(raw: Floats, index: Ints) -> Floats:
    """Return the mean score in each range of `EARLY`; 0 if few programs are long enough."""
    bounds = (*EARLY[1:], np.inf)
    masks = [(index >= low) & (index < high) for low, high in zip(EARLY, bounds, strict=True)]
    return np.array([raw[mask].mean() if mask.sum() >= 10 else 0.0 for mask in masks])


def _correlation(products: Floats, a: _Scores, b: _Scores) -> float:
    """Return the correlation of the normal variables behind scores. Equal values hide part of the
    variance v of each: E[score | normal] has slope v, and so the product of the scores is
    correlation · v · v."""
    if not products.size or a.variance * b.variance < 1e-6:
        return 0.0
    return float(products.mean() / (a.variance * b.variance))


def _fit_decay(scores: _Scores, owner: Ints) -> tuple[float, float, float]:
    """Fit correlation(lag) = program + neighbours · decay^lag, by least squares over the pairs."""
    lags, correlations, pairs = [], [], []
    for lag in range(1, min(MAX_LAG, owner.size - 1) + 1):
        same = owner[lag:] == owner[:-lag]
        if (count := int(same.sum())) >= MIN_PAIRS:
            products = (scores.scores[lag:] * scores.scores[:-lag])[same]
            lags.append(lag)
            correlations.append(_correlation(products, scores, scores))
            pairs.append(count)
    if len(lags) < 3:
        return 0.0, 0.0, 0.0
    weights = np.sqrt(pairs)
    best = (np.inf, 0.0, 0.0, 0.0)
    for decay in DECAYS[1:]:
        columns = np.stack([np.ones(len(lags)), decay ** np.array(lags)], axis=1)
        weighted, target = columns * weights[:, None], np.array(correlations) * weights
        program, neighbours = nonnegative_factors(weighted, target).tolist()
        error = float(np.linalg.norm(weighted @ (program, neighbours) - target))
        if error < best[0] - 1e-9 and program + neighbours <= 0.95:
            best = (error, program, neighbours, decay)
    return round(best[1], 3), round(best[2], 3), best[3] if best[2] else 0.0


def _level_correlation(
    programs: Sequence[Program],
    scores: dict[str, _Scores],
    series: dict[str, Series],
    owner: Ints,
) -> Floats:
    """Return the correlations among the numbers of turns, first prompts, and levels. The variance
    of a program's mean score is the variance of its level plus the variance of the mean of its
    steps, which dividing by the level's deviation alone removes."""
    present = np.unique(owner)
    if present.size < MIN_PROGRAMS:
        return np.eye(len(LEVELS))
    turns = _normal_scores([len(programs[i].turns) for i in present])
    first = _normal_scores([programs[i].turns[0].prompt_tokens for i in present])
    columns, deviations = [turns, first], [1.0, 1.0]
    for name in SERIES:
        sums = np.bincount(owner, scores[name].scores, len(programs))[present]
        counts = np.bincount(owner, minlength=len(programs))[present]
        columns.append(sums / counts / max(scores[name].variance, 1e-3))
        deviations.append(math.sqrt(series[name].program))
    result = np.eye(len(LEVELS))
    for i, j in zip(*np.triu_indices(len(LEVELS), 1), strict=True):
        if min(deviations[i], deviations[j]) ** 2 >= MIN_PROGRAM_SHARE:
            a, b = columns[i] - columns[i].mean(), columns[j] - columns[j].mean()
            value = float(np.mean(a * b)) / (deviations[i] * deviations[j])
            result[i, j] = result[j, i] = np.clip(value, -0.95, 0.95)
    return _positive(result)


def _step_correlation(
    scores: dict[str, _Scores], series: dict[str, Series], levels: Floats
) -> Floats:
    """Return the correlations within a step, excluding the programs' levels."""
    result = np.eye(len(SERIES))
    for i, j in zip(*np.triu_indices(len(SERIES), 1), strict=True):
        a, b = SERIES[i], SERIES[j]
        total = _correlation(scores[a].scores * scores[b].scores, scores[a], scores[b])
        by_level = levels[i + 2, j + 2] * math.sqrt(series[a].program * series[b].program)
        rest = math.sqrt((1 - series[a].program) * (1 - series[b].program))
        result[i, j] = result[j, i] = np.clip((total - by_level) / rest, -0.95, 0.95)
    return _positive(result)


def _positive(matrix: Floats) -> Floats:
    """Return the nearest matrix that is a correlation matrix (whose eigenvalues are positive)."""
    values, vectors = np.linalg.eigh(matrix)
    fixed = vectors @ np.diag(np.maximum(values, MIN_EIGENVALUE)) @ vectors.T
    scale = np.sqrt(np.diag(fixed))
    result: Floats = fixed / np.outer(scale, scale)
    return result


def _rows(matrix: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in np.round(matrix, 3).tolist())
