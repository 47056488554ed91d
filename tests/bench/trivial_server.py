"""The least that passes for an OpenAI-compatible server: an answer at once, nothing kept.

`python -m tests.bench.trivial_server [FAULTS_EVERY]` serves on a free port of loopback, which it
prints, until it is terminated. With FAULTS_EVERY each so-manieth turn fails, in turn by a 500, a
stream that is cut, and no answer at all.
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
def beside(faults_every: int = 0) -> Iterator[str]:
    """Its URL, in a process of its own while the block lasts."""
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
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._received) < end + 4 + length:
                return
            body = self._received[end + 4 : end + 4 + length]
            self._received = self._received[end + 4 + length :]
            if head.startswith(b"get"):
                self._say(MODELS)
            else:
                self._answer(orjson.loads(body))

    def _answer(self, asked: dict[str, Any]) -> None:
        fault = ""
        if self.faults_every and not next(self.turns) % self.faults_every:
            fault = next(self.faults)
        if fault == "silent":
            return
        if fault == "500":
            self._say(b'{"error": {"message": "as asked"}}', b"500 Sorry")
            return
        n = asked["max_tokens"]
        prompt = asked.get("prompt") or asked.get("messages")
        said = [
            {"choices": [{"index": 0, "text": "x" * n, "token_ids": list(range(1000, 1000 + n))}]},
            {"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": n}},
        ]
        stream = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in said)
        self._say(stream + b"data: [DONE]\n\n", kind=b"text/event-stream", cut=fault == "cut")

    def _say(
        self,
        body: bytes,
        status: bytes = b"200 OK",
        kind: bytes = b"application/json",
        cut: bool = False,
    ) -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
        whole = head % (status, kind, len(body)) + body
        if cut:
            self._transport.write(whole[: -len(body) // 2])
            self._transport.close()
        else:
            self._transport.write(whole)


async def main() -> None:
    Answers.faults_every = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    server = await asyncio.get_running_loop().create_server(Answers, sock=listening, backlog=4096)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
