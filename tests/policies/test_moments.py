"""Mean and variance of tool times."""

from __future__ import annotations

import pytest

from servers.policies.estimates.moments import Moments


@pytest.mark.parametrize(
    ("seconds", "mean", "variance"),
    [((), 0.0, 0.0), ((4.0,), 4.0, 0.0), ((1.0, 3.0), 2.0, 2.0), ((1.0, 2.0, 6.0), 3.0, 7.0)],
)
def test_the_variance_is_that_of_a_sample_and_zero_below_two_samples(
    seconds: tuple[float, ...], mean: float, variance: float
) -> None:
    # Of 1, 2 and 6: (4 + 1 + 9) / 2.
    moments = Moments()
    for each in seconds:
        moments.add(each)
    assert (moments.samples, moments.mean) == (len(seconds), mean)
    assert moments.variance == pytest.approx(variance)
