"""vLLM's waiting queue in the order of a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from servers.policies.runner import PolicyRunner
from servers.vllm.plugin.request_tags import VllmTurn


class RankedRequests(RequestQueue):  # type: ignore[misc]
    """Requests of `turns`, smallest rank first. Removing a request that has ended, and so is not in
    `turns`, does nothing. While vLLM schedules a step, the queue is false if its head would be
    refused its blocks as in the last step."""

    def __init__(
        self,
        runner: PolicyRunner[VllmTurn, Any],
        turns: dict[str, VllmTurn],
        on_peek: Callable[[], None],
        is_refused: Callable[[], bool],
    ) -> None:
        self._runner = runner
        self._turns = turns
        self._on_peek = on_peek
        """Called before vLLM tries to admit the head."""
        self._is_refused = is_refused
        """Whether the head would certainly be refused its blocks again."""
        self.in_step = False
        self._requests: dict[str, Request] = {}
        self.displaced: list[Request] | None = None
        """If this is a list, requests are appended to it instead of being queued."""

    def add_request(self, request: Request) -> None:
        if self.displaced is not None:
            self.displaced.append(request)
            return
        self._requests[request.request_id] = request
        self._runner.push(self._turns[request.request_id])

    def peek_request(self) -> Request:
        self._on_peek()
        return self._requests[self._runner.head().request_id]

    def pop_request(self) -> Request:
        """Remove the head that `peek_request` returned, even if its admission released pins, which
        makes ranks outdated."""
        turn = self._runner.waiting.peek()
        self._runner.waiting.remove(turn.view.id)
        return self._requests.pop(turn.request_id)

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        turn = self._turns.get(request.request_id)
        if turn is not None and self._requests.pop(turn.request_id, None) is not None:
            self._runner.waiting.remove(turn.view.id)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.remove_request(request)

    def __bool__(self) -> bool:
        return bool(self._requests) and not (self.in_step and self._is_refused())

    def __len__(self) -> int:
        return len(self._requests) + len(self.displaced or ())

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._requests.values()))


class AdmittedRequests(RankedRequests):
    """The queue of a policy that may hold turns back. While vLLM schedules a step, the queue is
    also false unless the policy admits one of its turns, which `peek_request` then returns. Turns
    that are held back stay in the queue and count in its length."""

    def __init__(self, *args: Any, candidate: Callable[[], VllmTurn | None]) -> None:
        super().__init__(*args)
        self._candidate = candidate

    def __bool__(self) -> bool:
        if not self.in_step:
            return bool(self._requests)
        return bool(self._requests) and not self._is_refused() and self._candidate() is not None
