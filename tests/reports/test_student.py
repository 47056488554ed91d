import pytest

from reports.student import quantile


@pytest.mark.parametrize(
    ("probability", "freedom", "t"),
    [
        *((0.975, 1, 12.7062), (0.975, 2, 4.3027), (0.975, 4, 2.7764), (0.975, 9, 2.2622)),
        *((0.9, 2, 1.8856), (0.9, 3, 1.6377), (0.995, 30, 2.7500), (0.975, 120, 1.9799)),
    ],
)
def test_it_agrees_with_the_printed_tables(probability: float, freedom: int, t: float) -> None:
    assert quantile(probability, freedom) == pytest.approx(t, abs=5e-5)


def test_half_of_all_lie_below_zero() -> None:
    assert quantile(0.5, 7) == pytest.approx(0.0, abs=1e-9)
