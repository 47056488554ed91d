"""Summaries of job completion times (JCTs)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from servers.records.done import Jct

PERCENTILES = (50, 90, 95, 99)


def jct_summary(jct_s: Sequence[float]) -> Jct:
    """Summarise at least one JCT. Percentiles are linear between the two nearest ranks."""
    points = np.percentile(jct_s, PERCENTILES).tolist()
    return Jct(math.fsum(jct_s) / len(jct_s), *points)
