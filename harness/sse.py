"""Server-sent events: bytes in as they come, the data of each event out.

Of the format (WHATWG HTML, §9.2) what completion servers use: lines end in LF or CRLF, `data:`
lines make an event, comments and other fields are passed over. The packages there are reconnect
by themselves, which a measuring client must not do.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_LINE_BYTES = 1 << 26


class Events:
    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data = []
        if len(self._rest) > MAX_LINE_BYTES:
            raise ValueError(f"a line of the stream is longer than {MAX_LINE_BYTES} bytes")
