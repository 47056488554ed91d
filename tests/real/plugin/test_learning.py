"""Without given costs, the plug-in learns them from vLLM's steps."""

from __future__ import annotations

import time
from typing import Any

import pytest

from servers.vllm.plugin.scheduler import TurnstileScheduler
from servers.vllm.virtual_time import headless
from servers.vllm.virtual_time.stepping import build, request, step


def test_the_work_of_steps_with_prompts_and_of_every_16th_other_step_is_observed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(headless._config()[0], "additional_config", {})
    scheduler = build(TurnstileScheduler, 1000, 8, 512)
    observed: list[tuple[Any, ...]] = []
    monkeypatch.setattr(scheduler._observer._learned, "observe", lambda *a: observed.append(a))
    scheduler.add_request(request("a", list(range(600)), 40, time.time(), program_id="a"))
    begun_s = time.monotonic()
    while scheduler.has_unfinished_requests():
        step(scheduler)
    passed_s = time.monotonic() - begun_s
    work = [values[:4] for values in observed]
    # 512 tokens attend to 1 + 2 + … + 512, and 88 more to the 512 before them too. The first of 40
    # tokens is sampled with the prompt, and the 16th and 32nd decode have 616 and 632 tokens.
    assert work == [
        (512, 512 * 513 // 2, 0, 0),
        (88, 88 * 512 + 88 * 89 // 2, 0, 0),
        (0, 0, 1, 616),
        (0, 0, 1, 632),
    ]
    assert 0 < sum(seconds for *_, seconds in observed) < passed_s
