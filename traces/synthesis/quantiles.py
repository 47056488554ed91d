"""Fits tables of quantiles: a distribution as a few points, with straight lines between them.

In: a sample. Out: its values at the probabilities `AT`, in the unit of the sample. They are fitted
to the sample by least squares, so that a table has the sample's mean and nearly its deviation
whatever its tail, unlike the sample's own quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from servers.basics.least_squares import Floats, nonnegative_factors

AT = (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1)
"""The probabilities of every table. The last of a table of 1,000 values is one of them."""
FEW = 40
"""A smaller sample has too few values for a fit and is interpolated."""


def fit_quantiles(sample: Sequence[float] | Floats) -> tuple[float, ...]:
    """Return the values at `AT`, rounded to four digits. The sample must not be empty."""
    values = np.sort(np.asarray(sample, dtype=float))
    u = (np.arange(values.size) + 0.5) / values.size
    table = np.interp(AT, u, values) if values.size < FEW else _nearest(u, values)
    return tuple(float(f"{value:.4g}") for value in np.maximum.accumulate(table))


def _nearest(u: Floats, values: Floats) -> Floats:
    """Return ascending values at `AT`, within the sample, whose polygon is nearest to it."""
    polygon = np.stack([np.interp(u, AT, row) for row in np.eye(len(AT))], axis=1)
    # A value is the sum of the rises up to it, none of which is negative.
    rises = nonnegative_factors(polygon @ np.tri(len(AT)), values - values[0])
    table: Floats = np.clip(values[0] + np.cumsum(rises), values[0], values[-1])
    return table
