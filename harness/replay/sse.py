"""Server-sent events: bytes in as they come, the data of each event out.

Of the format (WHATWG HTML, §9.2) what completion servers use: lines end in LF or CRLF, `data:`
lines make an event, comments and other fields are passed over. The packages there are reconnect
by themselves, which a measuring client must not do.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_EVENT_BYTES = 1 << 26
"""Of one event, whole or not: the ids of a prompt of a million tokens take 8 MB."""


class Events:
    """Takes time and memory as the bytes of an event do, however small the pieces are."""

    def __init__(self) -> None:
        self._rest = bytearray()
        """Of a line whose end has not come."""
        self._data: list[bytes] = []
        self._held_bytes = 0

    def feed(self, received: bytes) -> Iterator[bytes]:
        *ends, rest = received.split(b"\n")
        for end in ends:
            line = bytes(self._rest + end) if self._rest else end
            self._rest.clear()
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._held_bytes += len(line)
            elif not line and self._data:
                event, self._data, self._held_bytes = b"\n".join(self._data), [], 0
                yield event
        self._rest += rest
        if len(self._rest) + self._held_bytes > MAX_EVENT_BYTES:
            raise ValueError(f"an event of the stream is longer than {MAX_EVENT_BYTES} bytes")
