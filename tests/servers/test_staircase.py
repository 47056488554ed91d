"""`servers.policies.staircase`: the points that have no smaller one before them."""

from __future__ import annotations

import random

from servers.policies.staircase import MOST_IN_BLOCK, Staircase


def test_the_steps_are_the_minima_of_all_points_so_far_after_any_changes() -> None:
    for seed in range(3):
        draw = random.Random(seed)
        staircase, points = Staircase(), dict[int, tuple[int, int]]()
        for change in range(6 * MOST_IN_BLOCK):
            if points and draw.random() < (0.2 if change < 4 * MOST_IN_BLOCK else 0.9):
                key = draw.choice([*points, *staircase.steps()])
                staircase.remove(key)
                del points[key]
            else:
                key = draw.choice([change, -change])
                points[key] = draw.choice([change, draw.randrange(1000)]), draw.randrange(99)
                staircase.add(key, *points[key])
            if change % 3:
                continue
            steps, low = list[int](), 99
            for key in sorted(points, key=lambda key: (points[key][0], key)):
                if points[key][1] < low:
                    steps.append(key)
                    low = points[key][1]
            assert staircase.steps() == steps
            assert all(key in staircase for key in points)
            if points:
                assert staircase.first() == min(x for x, _ in points.values())


def test_an_unknown_point_is_not_removed() -> None:
    staircase = Staircase()
    staircase.add(1, 5.0, 5.0)
    staircase.remove(2)
    assert staircase.steps() == [1]
    assert 2 not in staircase
