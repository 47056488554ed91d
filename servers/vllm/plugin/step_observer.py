"""Measures the steps of vLLM's engine, from which costs are learned.

In: each step when it is scheduled and when its tokens arrive. Out: calls of `LearnedCosts.observe`.
A step lasts from when it is scheduled, or from the end of the step before if that is later, as
vLLM schedules a step while the one before runs. All steps with prompts are measured, and one in 16
of the others. Times in seconds.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, NamedTuple

from servers.vllm.plugin.learned_costs import LearnedCosts

DECODE_STEPS = 16


class _Work(NamedTuple):
    prefill_tokens: int
    pairs: int
    turns: int
    context_tokens: int


class StepObserver:
    def __init__(self, learned: LearnedCosts) -> None:
        self._learned = learned
        self._scheduled: deque[tuple[Any, float, _Work | None]] = deque(maxlen=16)
        """Steps in progress, with the time when each was scheduled and its work if it counts."""
        self._ended_s = 0.0
        self._decode_steps = 0

    def scheduled(self, output: Any, begun_s: float, requests: dict[str, Any]) -> None:
        tokens, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
        decoded = len(tokens) + sum([len(draft) for draft in drafts.values()])
        has_prompt, work = output.total_num_scheduled_tokens > decoded, None
        self._decode_steps += not has_prompt
        if has_prompt or (tokens and self._decode_steps % DECODE_STEPS == 0):
            work = _work(tokens, drafts, requests)
        self._scheduled.append((output, begun_s, work))

    def ended(self, output: Any) -> None:
        now_s = time.monotonic()
        while self._scheduled:
            step, begun_s, work = self._scheduled.popleft()
            if step is output:
                if work is not None:
                    self._learned.observe(*work, now_s - max(begun_s, self._ended_s))
                break
        self._ended_s = now_s


def _work(tokens: dict[str, int], drafts: dict[str, Any], requests: dict[str, Any]) -> _Work:
    """Return the work of the step that vLLM has just scheduled. vLLM already counts its tokens as
    computed. A decode with draft tokens counts like one without."""
    prefill = pairs = turns = context = 0
    for key, count in tokens.items():
        computed = requests[key].num_computed_tokens
        if count == 1 or key in drafts:
            turns += 1
            context += computed
        else:
            prefill += count
            pairs += count * (computed - count) + count * (count + 1) // 2
    return _Work(prefill, pairs, turns, context)
