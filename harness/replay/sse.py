"""Incremental parser of server-sent events.

In: bytes of a stream. Out: each event, with LF as line ends and without the empty line at its end.
Supports the part of the format (WHATWG HTML, §9.2) that completion servers use: lines end in LF or
CRLF, `data:` lines form an event, comments and other fields are ignored. The available packages
reconnect automatically, which a measuring client must not do.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_EVENT_BYTES = 1 << 26
"""Limit of an event. The ids of a prompt of a million tokens take 8 MB."""


class Events:
    """Time and memory are linear in the bytes of an event, however small the chunks are."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._carriage_return = b""
        """A carriage return at the end of the received bytes: a line feed may follow."""

    def feed(self, received: bytes) -> Iterator[bytes]:
        """Return the events that are complete. Raises ValueError for one that is too long."""
        received = self._carriage_return + received
        self._carriage_return = b"\r" if received.endswith(b"\r") else b""
        seen = max(0, len(self._rest) - 1)
        self._rest += received.removesuffix(b"\r").replace(b"\r\n", b"\n")
        if self._rest.find(b"\n\n", seen) >= 0:
            *events, rest = bytes(self._rest).split(b"\n\n")
            self._rest = bytearray(rest)
            yield from events
        elif len(self._rest) > self._max_bytes:
            raise ValueError(f"an event of the stream is longer than {self._max_bytes} bytes")

    def rest(self) -> bytes:
        """Return the incomplete event at the end of the stream."""
        return bytes(self._rest) + self._carriage_return

    def end(self) -> Iterator[bytes]:
        """Yield the last event if only the end of the stream ends it."""
        rest, self._rest = bytes(self._rest), bytearray()
        if data_of(rest).rstrip().endswith((b"]", b"}")):
            yield rest


def data_of(event: bytes) -> bytes:
    """Return the data of an event; empty for a comment."""
    lines = event.split(b"\n")
    return b"\n".join([line[5:].removeprefix(b" ") for line in lines if line[:5] == b"data:"])
