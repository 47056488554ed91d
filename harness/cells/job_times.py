"""Summaries of job completion times (JCTs)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

PERCENTILES = (50, 90, 95, 99)


class Jct(NamedTuple):
    """The mean and percentiles of job completion times, in seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


def jct_summary(jct_s: Sequence[float]) -> Jct:
    """Summarise at least one JCT. Percentiles are linear between the two nearest ranks."""
    points = np.percentile(jct_s, PERCENTILES).tolist()
    return Jct(math.fsum(jct_s) / len(jct_s), *points)
