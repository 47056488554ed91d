"""Least squares whose solution is not negative."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def nonnegative_factors(columns: Floats, values: Floats) -> Floats:
    """Return factors of the columns, none negative, with which their sum is nearest to the values.

    This is the active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974,
    chapter 23). The equations are reduced to a triangle first, since there may be many values.
    """
    rotation, triangle = np.linalg.qr(columns)
    target = rotation.T @ values
    rounding = 10 * max(columns.shape) * np.finfo(float).eps * float(np.abs(columns).sum(0).max())
    factors = np.zeros(columns.shape[1])
    is_free, is_refused = factors > 0, factors > 0
    while True:
        gain = triangle.T @ (target - triangle @ factors)
        gain[is_free | is_refused] = 0.0
        if gain.max() <= rounding:
            return factors
        best = gain.argmax()
        is_free[best] = True
        found = _solution(triangle, target, is_free)
        if found[best] <= 0:  # its gain is a rounding error
            is_free[best], is_refused[best] = False, True
            continue
        while (below := is_free & (found <= 0)).any():
            share = (factors[below] / (factors[below] - found[below])).min()
            factors = np.maximum(factors + share * (found - factors), 0.0)
            is_free &= factors > rounding
            factors[~is_free] = 0.0
            found = _solution(triangle, target, is_free)
        factors = found
        is_refused[:] = False


def _solution(columns: Floats, values: Floats, is_free: npt.NDArray[np.bool_]) -> Floats:
    """Return the factors of the least squares in which all but the free ones are zero."""
    factors = np.zeros(columns.shape[1])
    factors[is_free] = np.linalg.lstsq(columns[:, is_free], values)[0]
    return factors
