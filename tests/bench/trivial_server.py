"""A minimal OpenAI-compatible server, which answers at once and stores nothing.

`python -m tests.bench.trivial_server [FAULTS_EVERY]` serves on a free port of loopback, which it
prints, until it is terminated. Every FAULTS_EVERY-th turn fails, alternately by status 500, a
truncated stream, and no answer.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, cycle
from pathlib import Path
from typing import Any

import orjson

MODELS = orjson.dumps({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 1 << 20}]})
FAULTS = ("500", "cut", "silent")


@contextmanager
def trivial_server(faults_every: int = 0) -> Iterator[str]:
    """Run the server in a separate process; yield its URL."""
    command = [sys.executable, "-m", "tests.bench.trivial_server", str(faults_every)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


class Answers(asyncio.Protocol):
    turns = count(1)
    faults = cycle(FAULTS)
    faults_every = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            index = head.find(b"content-length:")
            length = int(head[index + 15 :].split(b"\r\n", 1)[0]) if index >= 0 else 0
            if len(self._received) < end + 4 + length:
                return
            body = self._received[end + 4 : end + 4 + length]
            self._received = self._received[end + 4 + length :]
            if head.startswith(b"get"):
                self._send(MODELS)
            else:
                self._answer(orjson.loads(body))

    def _answer(self, request: dict[str, Any]) -> None:
        fault = ""
        if self.faults_every and not next(self.turns) % self.faults_every:
            fault = next(self.faults)
        if fault == "silent":
            return
        if fault == "500":
            self._send(b'{"error": {"message": "as asked"}}', b"500 Sorry")
            return
        n = request["max_tokens"]
        prompt = request.get("prompt") or request.get("messages")
        events = [
            {"choices": [{"index": 0, "text": "x" * n, "token_ids": list(range(1000, 1000 + n))}]},
            {"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": n}},
        ]
        stream = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events)
        self._send(stream + b"data: [DONE]\n\n", kind=b"text/event-stream", cut=fault == "cut")

    def _send(
        self,
        body: bytes,
        status: bytes = b"200 OK",
        kind: bytes = b"application/json",
        cut: bool = False,
    ) -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
        response = head % (status, kind, len(body)) + body
        if cut:
            self._transport.write(response[: -len(body) // 2])
            self._transport.close()
        else:
            self._transport.write(response)


async def main() -> None:
    Answers.faults_every = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    server = await asyncio.get_running_loop().create_server(Answers, sock=listening, backlog=4096)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
