"""`servers.policies.ordered`: items in order of their places, as `sorted` would have them."""

from __future__ import annotations

import math
import random

from servers.policies.ordered import MOST_IN_BLOCK, Entry, Ordered


def test_items_are_found_by_size_in_order_of_place_and_then_of_their_first_put() -> None:
    for seed in range(3):
        draw = random.Random(seed)
        ordered, expected = Ordered[int, str](), dict[int, Entry[int, str]]()
        puts, after = 0, None
        for change in range(6 * MOST_IN_BLOCK):
            if expected and draw.random() < (0.2 if change < 4 * MOST_IN_BLOCK else 0.9):
                after = ordered.pop(draw.choice([*expected, change]))
                assert after == (expected.pop(after.key) if after else None)
            else:
                key = draw.choice([change, *expected])
                place, size = (float(draw.randrange(50)),), float(draw.randrange(20))
                puts += key not in expected
                number = expected[key].number if key in expected else puts
                expected[key] = Entry(place, number, size, key, f"item {key}")
                assert ordered.put(key, f"item {key}", place, size) == expected[key]
            most = draw.choice([-1.0, 0.0, 3.0, 19.0, math.inf])
            found, start = list[Entry[int, str]](), after
            while (entry := ordered.next_within(most, start)) is not None:
                found.append(entry)
                start = entry
            assert found == [e for e in sorted(expected.values())
                             if e.size <= most and (after is None or e > after)]  # fmt: skip
            assert len(ordered) == len(expected)
            assert [key in ordered for key in range(9)] == [key in expected for key in range(9)]
