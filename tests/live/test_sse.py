"""Server-sent events are the same however the network splits the bytes."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.replay.sse import Events, data_of

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
def test_events_do_not_depend_on_where_the_bytes_are_split(splits: list[int]) -> None:
    events = Events()
    ends = [0, *sorted(splits), len(STREAM)]
    chunks = [STREAM[a:b] for a, b in pairwise(ends)]
    received = [event for chunk in chunks for event in events.feed(chunk)]
    assert [data for event in received if (data := data_of(event))] == EVENTS
    raw = b"".join(event + b"\n\n" for event in received) + events.rest()
    assert raw == STREAM.replace(b"\r\n", b"\n")


def test_an_event_is_complete_with_its_last_byte() -> None:
    events = Events()
    assert list(events.feed(b"data: x\n")) == []
    assert list(events.feed(b"\n")) == [b"data: x"]


@pytest.mark.parametrize("chunk", [b"x" * 100, b"data: x\n" * 12], ids=["line", "event"])
def test_an_endless_line_or_event_does_not_fill_the_memory(chunk: bytes) -> None:
    events = Events(max_bytes=1000)
    with pytest.raises(ValueError, match="longer than 1000 bytes"):
        list(chain.from_iterable(events.feed(chunk) for _ in range(100)))


def test_a_long_line_in_small_chunks_is_joined_only_once() -> None:
    """16 MB arrive in chunks of 16 bytes; copying the line for each chunk would take hours."""
    events = Events()
    for _ in range(1 << 20):
        assert not list(events.feed(b"data: 0123456789"))
    assert [len(data_of(event)) for event in events.feed(b"\n\n")] == [(16 << 20) - 6]
