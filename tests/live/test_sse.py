"""Events are the same however the network cuts the bytes."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.replay import sse
from harness.replay.sse import Events

STREAM = (
    b": a comment\n\n"
    b'data: {"a": 1}\n\n'
    b"event: ping\r\ndata:no space\r\nid: 7\r\n\r\n"
    b"data: two\ndata: lines\n\n"
    b"\n\n"
    b"data: [DONE]\n\n"
    b"data: never ended"
)
EVENTS = [b'{"a": 1}', b"no space", b"two\nlines", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_the_events_do_not_depend_on_where_the_bytes_are_cut(cuts: list[int]) -> None:
    events = Events()
    ends = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(ends)]
    assert [event for piece in pieces for event in events.feed(piece)] == EVENTS


def test_an_event_is_out_with_its_last_byte() -> None:
    events = Events()
    assert list(events.feed(b"data: x\n")) == []
    assert list(events.feed(b"\n")) == [b"x"]


@pytest.mark.parametrize("piece", [b"x" * 100, b"data: x\n" * 12], ids=["line", "event"])
def test_a_line_or_an_event_without_end_does_not_fill_the_memory(
    piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    events = Events()
    with pytest.raises(ValueError, match="longer than 1000 bytes"):
        list(chain.from_iterable(events.feed(piece) for _ in range(100)))


def test_a_long_line_in_small_pieces_is_put_together_once() -> None:
    """16 MB in pieces of 16 bytes; to copy what is there for each of them would take hours."""
    events = Events()
    for _ in range(1 << 20):
        assert not list(events.feed(b"data: 0123456789"))
    assert [len(event) for event in events.feed(b"\n\n")] == [(16 << 20) - 6]
