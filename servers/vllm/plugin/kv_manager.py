"""vLLM's KV manager, seen by its scheduler through a policy: who gives way when blocks are short.

`WatchedManager` stands in for the scheduler's `kv_cache_manager` while an allocation may fail or
admit a turn, and passes on all else. It does not change the manager itself: an attribute put on
that object makes each of its methods slower (5% of a step with 64 running turns). Lengths in
tokens and blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import vllm
from vllm.v1.request import Request, RequestStatus

from servers.vllm.plugin.compatibility import check_kv

if TYPE_CHECKING:
    from servers.vllm.plugin.scheduler import TurnstileScheduler

Blocks = list[Any]
VICTIM = 1
"""The priority of whom vLLM preempts next; all others have 0."""


class WatchedManager:
    def __init__(self, scheduler: TurnstileScheduler) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._needed_names = check_kv(self._manager, vllm.__version__)
        self._one_group = len(scheduler.kv_cache_config.kv_cache_groups) == 1
        self._marked: Request | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def _free_blocks(self) -> int:
        return int(self._manager.block_pool.get_num_free_blocks())

    # Pins ---------------------------------------------------------------------------------------

    def hold(self, request: Request, whole_request: bool) -> tuple[Blocks, int]:
        """One more reference on its blocks, last block first, as vLLM frees them."""
        blocks = [
            block
            for group in self._manager.get_blocks(request.request_id).blocks
            for block in reversed(group)
            if not block.is_null and (whole_request or block.block_hash is not None)
        ]
        self._manager.block_pool.touch(blocks)
        return blocks, len(blocks)

    def release(self, blocks: Blocks) -> None:
        self._manager.block_pool.free_blocks(blocks)

    # Allocations --------------------------------------------------------------------------------

    def allocate_slots(self, request: Request, num_new_tokens: int, **given: Any) -> Any:
        """vLLM's, tried again as long as the policy gives way to the request."""
        running = request.status is RequestStatus.RUNNING
        while True:
            blocks = self._manager.allocate_slots(request, num_new_tokens, **given)
            if blocks is not None:
                if not running:
                    self._scheduler.admitted(request, given)
                return blocks
            if running:
                if not self._give_way_to_running(request, num_new_tokens, given):
                    return None
            elif not self._give_way_to_waiting(request, given):
                return None

    def _give_way_to_running(self, request: Request, tokens: int, given: dict[str, Any]) -> bool:
        scheduler, runner = self._scheduler, self._scheduler.runner
        if runner.policy.reclaim_when == "pressure" or len(scheduler.running) == 1:
            tokens += request.num_computed_tokens + given.get("num_lookahead_tokens", 0)
            tokens = min(tokens, scheduler.max_model_len)
            if runner.reclaim(lambda: self._missing(request, tokens, given)):
                runner.rerank_moved()
                return True
        if self._marked is not None:
            self._marked.priority = 0
        views = scheduler.running_views()
        self._marked = views[runner.policy.victim(list(views), runner.now_s)]
        self._marked.priority = VICTIM
        return False

    def _give_way_to_waiting(self, request: Request, given: dict[str, Any]) -> bool:
        scheduler, runner = self._scheduler, self._scheduler.runner
        stuck = not scheduler.running and not scheduler.loading
        if not stuck and runner.policy.reclaim_when == "stuck":
            return False

        def missing() -> int:
            reserved = int(given.get("reserved_blocks", 0))
            return self._missing(request, request.num_tokens, given) + reserved

        own: str = scheduler.turns[request.request_id].view.program_id
        if runner.reclaim(missing, spare=own):
            return True
        if not stuck or runner.unpin(own, "pressure"):
            # Without its pin the turn may no longer be the head: the next step asks.
            return False
        return runner.reclaim(lambda: 0)

    def _missing(self, request: Request, tokens: int, given: dict[str, Any]) -> int:
        """Blocks that are not free, of those that a context of so many tokens takes."""
        found = given.get("new_computed_blocks") or self._manager.empty_kv_cache_blocks
        local = request.num_computed_tokens + given.get("num_new_computed_tokens", 0)
        ask = {
            "request_id": request.request_id,
            "num_tokens": tokens,
            "new_computed_blocks": found.blocks,
            "num_encoder_tokens": given.get("num_encoder_tokens", 0),
            "total_computed_tokens": local + given.get("num_external_computed_tokens", 0),
            "num_local_computed_tokens": local,
            "num_tokens_main_model": tokens,
        }
        ask = {name: ask[name] for name in self._needed_names}
        return (
            int(self._manager.coordinator.get_num_blocks_to_allocate(**ask)) - self._free_blocks()
        )

    # Questions ----------------------------------------------------------------------------------

    def fits(self, waiting: Request) -> bool:
        found, hit = self._manager.get_computed_blocks(waiting)[:2]
        given = {"new_computed_blocks": found, "num_new_computed_tokens": hit}
        return self._missing(waiting, waiting.num_tokens, given) <= 0

    def running_turns_fit(self) -> bool:
        """Surely, with nobody having to give way: then their allocations go the stock way."""
        scheduler = self._scheduler
        if getattr(scheduler, "kv_holding_waiting", None) or not self._one_group:
            return False
        block, running, free = scheduler.block_size, scheduler.running, self._free_blocks()
        if scheduler._inflight_prefills:
            free -= -(-scheduler.max_num_scheduled_tokens // block)
        if free >= len(running) * (2 + scheduler.num_lookahead_tokens // block):
            return True
        if scheduler.num_spec_tokens or free < 0:
            return False
        # A decode needs a block when all of its own are full.
        opening = sum(r.num_computed_tokens % block == 0 for r in running)
        return bool(free >= opening)

    def unhash_uncomputed(self, request: Request) -> None:
        """vLLM hashes blocks when it hands them out for a step. A victim that was in the step
        already leaves hashed blocks that nobody will compute; a hit on those would be garbage."""
        groups = self._manager.get_blocks(request.request_id).blocks
        sizes = [m.block_size for m in self._manager.coordinator.single_type_managers]
        blank = {
            block.block_id
            for group, size in zip(groups, sizes, strict=True)
            for block in group[request.num_computed_tokens // size :]
            if block.block_hash is not None
        }
        if blank:
            self._manager.block_pool.evict_blocks(blank)
