"""Retains vLLM's KV blocks for pins, and reclaims them for turns that lack blocks.

`ReclaimingKVManager` replaces the scheduler's `kv_cache_manager` while an allocation may fail or
admit a turn. All other calls are forwarded. It does not modify vLLM's manager, since an attribute
set on that object makes each of its methods slower (5% of a step with 64 running turns). Lengths
are in tokens and blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec
from vllm.v1.request import Request, RequestStatus

from servers.admission import Headroom
from servers.policies.base import Request as View
from servers.policies.runner import PolicyRunner
from servers.vllm.plugin.compatibility import check_kv
from servers.vllm.plugin.request_tags import VllmTurn

Blocks = list[Any]
FULL_ATTENTION = (FullAttentionSpec, MLAAttentionSpec)
VICTIM = 1
"""The priority of the turn that vLLM should preempt next; all others have 0."""


def retain_blocks(manager: Any, request: Request, whole_request: bool) -> tuple[Blocks, int]:
    """Add one reference to the request's hashed blocks, or to all of its blocks, and to the window
    blocks and states that it has freed and that the next turn needs. Return them and their number.
    Group by group, the last block comes first, as when vLLM frees them."""
    groups = manager.get_blocks(request.request_id).blocks
    left = _freed(manager, request, groups) if len(groups) > 1 else {}
    blocks = [
        block
        for group_id, group in enumerate(groups)
        for block in (*reversed(group), *left.get(group_id, ()))
        if not block.is_null and (whole_request or block.block_hash is not None)
    ]
    manager.block_pool.touch(blocks)
    return blocks, len(blocks)


def has_states(manager: Any) -> bool:
    """Return whether the manager of a group has states of constant size."""
    return hasattr(manager, "mamba_cache_mode")


def _window(manager: Any) -> int | None:
    """Return the window of a group in tokens, None for full attention. A state is needed like a
    window of two tokens."""
    return 2 if has_states(manager) else getattr(manager, "sliding_window", None)


def _freed(manager: Any, request: Request, groups: Any) -> dict[int, Blocks]:
    """Return the blocks of the last window before the end of the prompt that have left the window
    of a sliding-window group, and those of the last states in the prompt, by group and last block
    first.

    Of these groups, vLLM by default only hashes the blocks before the end of the prompt, where the
    next turn's prefix hit then ends, and frees them once enough tokens follow. Without them, the
    pinned blocks of the full-attention group cannot be hit."""
    if getattr(manager.coordinator, "retention_interval", None) is None:
        return {}
    left: dict[int, Blocks] = {}
    coordinator, pool = manager.coordinator, manager.block_pool
    managers, aligned = coordinator.single_type_managers, coordinator.scheduler_block_size
    boundary = (request.num_prompt_tokens - 1) // aligned * aligned
    windows = {i: window for i, one in enumerate(managers) if (window := _window(one))}
    for spec in {managers[i].kv_cache_spec for i in windows}:
        same = [i for i in windows if managers[i].kv_cache_spec == spec]
        end, hashes = boundary // spec.block_size, spec.block_size // pool.hash_block_size
        start = max(0, end - -(-(windows[same[0]] - 1) // spec.block_size))
        for position in range(end - 1, start - 1, -1):
            if groups[same[0]][position].is_null:
                content = request.block_hashes[(position + 1) * hashes - 1]
                found = pool.get_cached_block(content, same)
                for group_id, block in zip(same, found or (), strict=False):
                    left.setdefault(group_id, []).append(block)
    return left


def last_states(manager: Any, request: Request) -> Blocks:
    """Return the states at the last block boundary in the prompt, of those that the request has.

    vLLM frees them once the request has the next states, and may evict them before it ends."""
    groups = manager.get_blocks(request.request_id).blocks
    position = (request.num_prompt_tokens - 1) // manager.coordinator.scheduler_block_size - 1
    return [
        group[position]
        for one, group in zip(manager.coordinator.single_type_managers, groups, strict=True)
        if has_states(one) and 0 <= position < len(group)
        if not group[position].is_null and group[position].block_hash is not None
    ]


def unhash_uncomputed(manager: Any, request: Request) -> None:
    """Remove the hashes of blocks that no step will compute. vLLM hashes blocks when it allocates
    them for a step. If it then preempts their request, they are never computed, and a hit on them
    would read invalid KV."""
    groups = manager.get_blocks(request.request_id).blocks
    sizes = [m.block_size for m in manager.coordinator.single_type_managers]
    uncomputed = {
        block.block_id
        for group, size in zip(groups, sizes, strict=True)
        for block in group[request.num_computed_tokens // size :]
        if block.block_hash is not None
    }
    if uncomputed:
        manager.block_pool.evict_blocks(uncomputed)


class _Refusal(NamedTuple):
    turn: VllmTurn
    free_blocks: int
    missed: Any
    """The hash of the first block that the turn did not find in the cache; None if it found all."""


class ReclaimingKVManager:
    def __init__(
        self,
        scheduler: AsyncScheduler,
        runner: PolicyRunner[VllmTurn, Blocks],
        turns: dict[str, VllmTurn],
        loading: set[str],
        on_admitted: Callable[[Request, dict[str, Any]], None],
        next_turn: Callable[[], VllmTurn | None],
    ) -> None:
        """`turns` and `loading` (requests whose KV a connector loads) are the scheduler's objects.
        `on_admitted` is called after each allocation for a waiting request, with the keyword
        arguments that vLLM passed to `allocate_slots`. `next_turn` returns the turn to admit
        next."""
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._runner = runner
        self._turns = turns
        self._loading = loading
        self._on_admitted = on_admitted
        self._next_turn = next_turn
        self._needed_names = check_kv(self._manager, vllm.__version__)
        self._needed_values = itemgetter(*self._needed_names)
        managers = enumerate(self._manager.coordinator.single_type_managers)
        self._state_groups = [
            each for each in managers if hasattr(each[1], "cached_blocks_this_step")
        ]
        self._one_group = len(scheduler.kv_cache_config.kv_cache_groups) == 1
        self._victim: Request | None = None
        self.steps_that_fit = 0
        """Steps, from the next one on, in which the running turns certainly get their blocks, if
        only `schedule` computes tokens and each step one of each turn; 0: not known."""
        self._remembers_refusals = (
            self._one_group
            and type(scheduler.kv_cache_config.kv_cache_groups[0].kv_cache_spec) in FULL_ATTENTION
            and scheduler.connector is None
            and not scheduler.num_spec_tokens
        )
        """Whether blocks are refused for lack of free ones only."""
        self.refusal: _Refusal | None = None
        """The latest one, unless a turn has been admitted since."""
        self.settled = False
        """Whether nothing has happened since the refusal, or since it was found to hold."""

    def __getattr__(self, name: str) -> Any:
        """Forward to vLLM's manager. Methods are stored, since this lookup costs half a
        microsecond and vLLM uses four methods in a step."""
        value = getattr(self._manager, name)
        if callable(value):
            setattr(self, name, value)
        return value

    # Allocations --------------------------------------------------------------------------------

    def allocate_slots(self, request: Request, num_new_tokens: int, **kwargs: Any) -> Any:
        """Call vLLM's `allocate_slots`, and repeat it while pins are reclaimed for the request."""
        running = request.status is RequestStatus.RUNNING
        while True:
            blocks = self._manager.allocate_slots(request, num_new_tokens, **kwargs)
            if blocks is not None:
                if not running:
                    self.steps_that_fit, self.refusal = 0, None
                    self._on_admitted(request, kwargs)
                return blocks
            if running:
                self.settled = False
                if not self._make_room_for_running(request, num_new_tokens, kwargs):
                    return None
            elif not self._make_room_for_head(request, num_new_tokens, kwargs):
                if self._remembers_refusals:
                    self._remember_refusal(request, kwargs)
                return None

    def _make_room_for_running(self, request: Request, tokens: int, kwargs: dict[str, Any]) -> bool:
        """Reclaim pins, or else mark the policy's victim for preemption by vLLM; return whether to
        retry the allocation immediately."""
        scheduler, runner = self._scheduler, self._runner
        tokens += request.num_computed_tokens + kwargs.get("num_lookahead_tokens", 0)
        tokens = min(tokens, scheduler.max_model_len)
        if runner.reclaim_for_running(
            self._turns[request.request_id],
            len(scheduler.running),
            lambda: self._missing(request, tokens, kwargs),
        ):
            return True
        if self._victim is not None:
            self._victim.priority = 0
        views = self.running_views()
        self._victim = views[runner.policy.victim(list(views), runner.now_s)]
        self._victim.priority = VICTIM
        return False

    def _make_room_for_head(self, request: Request, chunk: int, kwargs: dict[str, Any]) -> bool:
        """Reclaim pins for the head of the queue, if vLLM would compute `chunk` of its tokens;
        return whether the allocation should be tried again."""
        runner, turn = self._runner, self._turns[request.request_id]
        others = self._others()
        if not runner.may_reclaim(others) or self._is_computing_state(kwargs):
            return False

        def missing() -> int:
            reserved = int(kwargs.get("reserved_blocks", 0))
            return self._missing_for_head(request, chunk, kwargs) + reserved

        # A turn that lost its pin may no longer be the head, so vLLM retries in the next step.
        return runner.reclaim_for_head(turn, others, missing) and not runner.needs_rerank(turn)

    def _remember_refusal(self, request: Request, kwargs: dict[str, Any]) -> None:
        """Remember that the blocks of a whole prompt, whose number does not depend on the batch,
        are not free."""
        whole_prompt = kwargs.get("full_sequence_must_fit")
        if not whole_prompt or request.num_computed_tokens or request.has_encoder_inputs:
            return
        block = self._manager.coordinator.single_type_managers[0].block_size
        hits = kwargs.get("num_new_computed_tokens", 0) // block
        may_grow = hits < (request.num_tokens - 1) // block
        missed = request.block_hashes[hits] if may_grow else None
        self.refusal = _Refusal(self._turns[request.request_id], self._free_blocks(), missed)
        self.settled = True

    def is_refused(self) -> bool:
        """Return True only if the turn to admit next would certainly be refused its blocks again:
        it is the same one, no more blocks are free, its hit has not become longer, and the policy
        gives up no pin for it."""
        if self.refusal is None:
            return False
        turn, free, missed = self.refusal
        pool, runner = self._manager.block_pool, self._runner
        if pool.get_num_free_blocks() > free:
            return False
        if not self.settled:
            if self._next_turn() is not turn or runner.would_reclaim(turn, self._others()):
                return False
            self.settled = True
        return missed is None or pool.get_cached_block(missed, [0]) is None

    def _is_computing_state(self, kwargs: dict[str, Any]) -> bool:
        """Return whether the step computes the state at the end of the request's hit. vLLM then
        refuses the allocation however many blocks are free."""
        if not self._state_groups:
            return False
        found = kwargs.get("new_computed_blocks") or self._manager.empty_kv_cache_blocks
        return any(
            found.blocks[group]
            and found.blocks[group][-1].block_hash in manager.cached_blocks_this_step
            for group, manager in self._state_groups
        )

    def _missing_for_head(self, request: Request, chunk: int, kwargs: dict[str, Any]) -> int:
        """Return the number of free blocks missing to admit the head of the queue, if the next step
        computes `chunk` of its tokens. Its first chunk must fit and, if admission requires it, its
        whole prompt, which needs at least as many blocks in a full-attention group, unless slots
        for drafts follow the chunk."""
        whole_prompt = self._scheduler.scheduler_reserve_full_isl
        missing = []
        if whole_prompt:
            missing.append(self._missing(request, int(request.num_tokens), kwargs, cap=True))
        if not (whole_prompt and self._one_group and not self._scheduler.num_spec_tokens):
            chunk += kwargs.get("num_new_computed_tokens", 0)
            chunk += kwargs.get("num_external_computed_tokens", 0)
            chunk += kwargs.get("num_lookahead_tokens", 0)
            tokens = min(request.num_computed_tokens + chunk, self._scheduler.max_model_len)
            missing.append(self._missing(request, int(tokens), kwargs))
        # vLLM before 0.32 has no watermark.
        left = getattr(self._manager, "watermark_blocks", 0) if self._scheduler.running else 0
        return max(missing) + int(left)

    def _missing(
        self, request: Request, tokens: int, kwargs: dict[str, Any], *, cap: bool = False
    ) -> int:
        """Return the number of free blocks missing for a context of `tokens` tokens; at most 0 if
        it fits. `cap`: a sliding-window group needs at most the blocks of a window and one step."""
        found = kwargs.get("new_computed_blocks") or self._manager.empty_kv_cache_blocks
        local = request.num_computed_tokens + kwargs.get("num_new_computed_tokens", 0)
        values = {
            "request_id": request.request_id,
            "num_tokens": tokens,
            "new_computed_blocks": found.blocks,
            "num_encoder_tokens": kwargs.get("num_encoder_tokens", 0),
            "total_computed_tokens": local + kwargs.get("num_external_computed_tokens", 0),
            "num_local_computed_tokens": local,
            "num_tokens_main_model": tokens,
            "apply_admission_cap": cap,
            "prefill_end": max(request.num_prompt_tokens, request.num_tokens - 1),
        }
        known = dict(zip(self._needed_names, self._needed_values(values), strict=True))
        return (
            int(self._manager.coordinator.get_num_blocks_to_allocate(**known)) - self._free_blocks()
        )

    def _others(self) -> int:
        """Return the number of turns that run or load, and so will free blocks."""
        return len(self._scheduler.running) + len(self._loading)

    def _free_blocks(self) -> int:
        return int(self._manager.block_pool.get_num_free_blocks())

    # Queries ------------------------------------------------------------------------------------

    def running_views(self) -> dict[View, Request]:
        """Return the running requests by their policy views, in order of admission."""
        views = {}
        for request in self._scheduler.running:
            view = self._turns[request.request_id].view
            view.output_tokens = request.num_output_tokens
            views[view] = request
        return views

    def fits(self, waiting: Request) -> bool:
        """Return whether the blocks of a request without KV fit, if the step that admits it
        computes one token of each running turn."""
        scheduler = self._scheduler
        found, hit, *boundary = self._manager.get_computed_blocks(waiting)
        kwargs = {
            "new_computed_blocks": found,
            "num_new_computed_tokens": hit,
            "num_lookahead_tokens": scheduler.num_lookahead_tokens,
        }
        budget = scheduler.max_num_scheduled_tokens - len(scheduler.running)
        chunk = min(waiting.num_tokens - hit, budget, self._most_chunk())
        if getattr(scheduler, "need_mamba_block_aligned_split", False):
            # The states of the previous step can be hit.
            self._manager.new_step_starts()
            waiting.shared_prefix_boundary = boundary[0]
            chunk = scheduler._mamba_block_aligned_split(waiting, chunk, hit)
        return self._missing_for_head(waiting, chunk, kwargs) <= 0

    def _most_chunk(self) -> int:
        """Return how many tokens of one prompt the next step computes at most."""
        scheduler, config = self._scheduler, self._scheduler.scheduler_config
        most = config.long_prefill_token_threshold
        # Without a threshold vLLM ignores `_adaptive`.
        adaptive = most and getattr(config, "long_prefill_token_threshold_adaptive", False)
        headroom = Headroom(long_prefill=most, long_prefill_adaptive=bool(adaptive))
        loading = getattr(scheduler, "kv_holding_waiting", ())
        turns = len(scheduler.running) + len(scheduler.waiting) + len(loading)
        return headroom.most_chunk(config.max_num_batched_tokens, turns)

    def running_turns_fit(self) -> bool:
        """Return True only if all running turns certainly get their blocks without reclaim or
        preemption, so that vLLM may use its own manager for them."""
        scheduler = self._scheduler
        if getattr(scheduler, "kv_holding_waiting", None) or not self._one_group:
            return False
        if self.steps_that_fit:
            self.steps_that_fit -= 1
            return True
        block, running, free = scheduler.block_size, scheduler.running, self._free_blocks()
        if prefills := len(scheduler._inflight_prefills):
            # Each but one may open a block more than its share of the step's tokens fills.
            free -= -(-scheduler.max_num_scheduled_tokens // block) + prefills - 1
        drafts = scheduler.num_spec_tokens + scheduler.num_lookahead_tokens
        if free >= len(running) * (2 + drafts // block):
            return True
        if scheduler.num_spec_tokens or free < 0:
            return False
        if free >= len(running):
            return True
        # A decode opens a block if all of its blocks are full. Until a turn is admitted, only
        # decodes take free blocks: all steps fit before the one that opens one too many.
        steps: int = sorted([-request.num_computed_tokens % block for request in running])[free]
        if not prefills:
            self.steps_that_fit = max(steps - 1, 0)
        return steps > 0
