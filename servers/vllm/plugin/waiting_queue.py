"""vLLM's waiting queue in the order of a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from servers.vllm.plugin.request_tags import Turn
from servers.vllm.plugin.runner import PolicyRunner


class RankedRequests(RequestQueue):  # type: ignore[misc]
    """Requests of `turns`, smallest rank first. Others (ended ones) are ignored on removal."""

    def __init__(
        self, runner: PolicyRunner[Any], turns: dict[str, Turn], on_peek: Callable[[], None]
    ) -> None:
        self._runner = runner
        self._turns = turns
        self._on_peek = on_peek
        """Called before the engine tries to admit the head."""
        self._requests: dict[int, Request] = {}
        self.aside: list[Request] | None = None
        """Where a list, requests put back go here for now, out of the queue."""

    def add_request(self, request: Request) -> None:
        if self.aside is not None:
            self.aside.append(request)
            return
        turn = self._turns[request.request_id]
        self._requests[turn.view.id] = request
        self._runner.push(turn)

    def peek_request(self) -> Request:
        self._on_peek()
        return self._requests[self._runner.waiting.peek().view.id]

    def pop_request(self) -> Request:
        key = self._runner.waiting.peek().view.id
        self._runner.waiting.remove(key)
        self._runner.rerank_moved()
        return self._requests.pop(key)

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        turn = self._turns.get(request.request_id)
        if turn is not None and self._requests.pop(turn.view.id, None) is not None:
            self._runner.waiting.remove(turn.view.id)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.remove_request(request)

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._requests.values()))
