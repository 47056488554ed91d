"""`servers.policies.ordered`: items in order of their places, as `sorted` would have them."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from servers.policies.ordered import Ordered, Place

IDS, PLACES = st.sampled_from("abcdefg"), st.tuples(st.integers(0, 3).map(float))


@given(st.lists(st.tuples(IDS, st.none() | PLACES), max_size=60))
def test_items_are_in_order_of_place_and_equal_ones_in_order_of_their_first_put(
    changes: list[tuple[str, Place | None]],
) -> None:
    ordered, places = Ordered[str](), dict[str, Place]()
    for item_id, place in changes:
        if place is None:
            expected = item_id.upper() if places.pop(item_id, None) else None
            assert ordered.pop(item_id) == expected
        else:
            ordered.put(item_id, item_id.upper(), place)
            places[item_id] = place
        in_order = sorted(places, key=lambda item_id: places[item_id])
        assert [item for *_, item in ordered.entries()] == [i.upper() for i in in_order]
        assert len(ordered) == len(places)
        assert [item_id in ordered for item_id in "abc"] == [i in places for i in "abc"]
