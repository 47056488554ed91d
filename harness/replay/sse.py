"""Incremental parser of server-sent events.

In: bytes of a stream. Out: the data of each event. Supports the part of the format (WHATWG HTML,
§9.2) that completion servers use: lines end in LF or CRLF, `data:` lines form an event, comments
and other fields are ignored. The available packages reconnect automatically, which a measuring
client must not do.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_EVENT_BYTES = 1 << 26
"""Limit of an event, complete or not. The ids of a prompt of a million tokens take 8 MB."""


class Events:
    """Time and memory are linear in the bytes of an event, however small the chunks are."""

    def __init__(self) -> None:
        self._rest = bytearray()
        """The incomplete line."""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, received: bytes) -> Iterator[bytes]:
        *ends, rest = received.split(b"\n")
        for end in ends:
            line = bytes(self._rest + end) if self._rest else end
            self._rest.clear()
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._data_bytes += len(line)
            elif not line and self._data:
                event, self._data, self._data_bytes = b"\n".join(self._data), [], 0
                yield event
        self._rest += rest
        if len(self._rest) + self._data_bytes > MAX_EVENT_BYTES:
            raise ValueError(f"an event of the stream is longer than {MAX_EVENT_BYTES} bytes")
