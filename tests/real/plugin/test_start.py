"""The plug-in starts on a supported vLLM and reports what is wrong on any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from servers.basics.errors import InvalidInput, UnsupportedVllm
from servers.vllm.plugin import scheduler as plugin
from servers.vllm.plugin.compatibility import check_scheduler
from servers.vllm.plugin.settings import read_policy
from servers.vllm.virtual_time import headless
from servers.vllm.virtual_time.stepping import build

COSTS = {
    "base_s": 0.01,
    "linear_s": 2e-4,
    "quadratic_s": 1e-9,
    "reload_s_per_token": None,
    "step_tokens": 512,
}


@pytest.fixture
def costs(tmp_path: Path) -> str:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS))
    return str(path)


def test_a_policy_gets_the_costs_of_the_cost_file(costs: str) -> None:
    policy = read_policy({"TURNSTILE_POLICY": "continuum", "TURNSTILE_COSTS": costs}, 1600)
    assert policy.name == "continuum"
    assert policy.costs.prefill_s(1000) == pytest.approx(0.01 + 0.2 + 0.001)
    assert policy.costs.reload_s is None
    assert policy.costs.step_tokens == 512
    assert policy.costs.kv_tokens == 1600
    assert policy.costs.decode_step_s is None


def test_a_policy_knows_the_decode_steps_of_a_cost_file_that_has_them(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    decode_step = {"base_s": 0.005, "turn_s": 2e-4, "context_token_s": 1e-7}
    path.write_text(json.dumps(COSTS | {"decode_step": decode_step}))
    environment = {"TURNSTILE_POLICY": "fcfs", "TURNSTILE_COSTS": str(path)}
    known = read_policy(environment, 1600).costs.decode_step_s
    assert known is not None
    assert known(10, 20_000) == pytest.approx(0.005 + 0.002 + 0.002)
    path.write_text(json.dumps(COSTS | {"decode_step": decode_step | {"turn_s": "fast"}}))
    with pytest.raises(InvalidInput, match=r"decode_step\.turn_s is 'fast', not a number"):
        read_policy(environment, 1600)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "TURNSTILE_POLICY is not set"),
        ({"TURNSTILE_POLICY": "fcfs,continuum"}, "a server runs one policy"),
        ({"TURNSTILE_POLICY": "clairvoyant"}, "knows the trace's future"),
        ({"TURNSTILE_POLICY": "unlimited-kv"}, "unlimited KV memory"),
        ({"TURNSTILE_POLICY": "fcfs(watermark=0.1)"}, "watermark is a setting of vLLM itself; "),
        ({"TURNSTILE_POLICY": "fcfs"}, "TURNSTILE_COSTS is not set"),
        ({"TURNSTILE_POLICY": "fcfs", "TURNSTILE_COSTS": "/nowhere.json"}, "/nowhere.json"),
    ],
)
def test_missing_and_invalid_variables_are_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_policy(environment, 1600)


def test_a_cost_file_without_a_number_names_the_number(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS | {"linear_s": None}))
    with pytest.raises(InvalidInput, match="linear_s is None, not a number"):
        read_policy({"TURNSTILE_POLICY": "fcfs", "TURNSTILE_COSTS": str(path)}, 1600)


def test_the_scheduler_is_configured_by_the_environment(
    costs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_POLICY", "infercept")
    monkeypatch.setenv("TURNSTILE_COSTS", costs)
    scheduler = build(plugin.TurnstileScheduler, 100, 8, 512)
    assert scheduler.runner.policy.name == "infercept"
    # The blocks without vLLM's null block, of 16 tokens each.
    assert scheduler.runner.policy.costs.kv_tokens == 100 * 16


def test_vllms_own_priorities_are_refused(costs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_POLICY", "fcfs")
    monkeypatch.setenv("TURNSTILE_COSTS", costs)
    monkeypatch.setattr(headless._config()[0].scheduler_config, "policy", "priority")
    with pytest.raises(InvalidInput, match="--scheduling-policy is priority"):
        build(plugin.TurnstileScheduler, 100, 8, 512)


def test_this_vllm_is_supported() -> None:
    check_scheduler(AsyncScheduler, "0.32.0")


def test_an_old_vllm_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedVllm, match=r"vLLM 0\.19\.1 is not supported: it is older"):
        check_scheduler(AsyncScheduler, "0.19.1")


def test_a_changed_signature_is_refused_with_the_reason() -> None:
    class Changed(AsyncScheduler):
        def _preempt_request(self, request: Any) -> None: ...

    with pytest.raises(UnsupportedVllm, match="_preempt_request does not take timestamp"):
        check_scheduler(Changed, "0.99")


def test_a_schedule_without_the_expected_line_is_refused_with_that_line() -> None:
    class Changed(AsyncScheduler):
        def schedule(self) -> Any:
            return self.waiting.popleft()

    with pytest.raises(UnsupportedVllm, match=r"does not have `SchedulingPolicy\.PRIORITY`"):
        check_scheduler(Changed, "0.99")
