"""What vllm-router is told of the servers and their model."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from servers.foreign_routers.installation import Deployment
from servers.foreign_routers.vllm_router import VLLM_ROUTER, program_scheduling
from servers.vllm.plugin.cost_curve import CostCurve, DecodeStep

COSTS = CostCurve(
    base_s=0.01,
    linear_s=2e-5,
    quadratic_s=3e-9,
    decode_step=DecodeStep(base_s=0.005, turn_s=2e-4, context_token_s=1e-7),
)
URLS = ("http://127.0.0.1:8001", "http://127.0.0.1:8002")


def test_costs_are_given_per_1000_tokens() -> None:
    """A prefill of 1,000 tokens takes 0.01 + 0.02 + 0.003 s."""
    settings = program_scheduling(Deployment(URLS, 4096, COSTS, 3600.0))
    assert settings["prefill_cost_model"] == pytest.approx(
        {
            "intercept_seconds": 0.01,
            "linear_seconds_per_1k_tokens": 0.02,
            "quadratic_seconds_per_1k_tokens_squared": 0.003,
        }
    )
    assert settings["decode_throughput_model"] == {
        "fixed_step_seconds": 0.005,
        "batch_step_seconds_per_request": 2e-4,
        "context_step_seconds_per_token": 1e-7,
    }


def test_without_a_known_decode_step_the_router_uses_its_own() -> None:
    costs = replace(COSTS, decode_step=None)
    assert "decode_throughput_model" not in program_scheduling(Deployment(URLS, 1, costs, 1.0))


@pytest.mark.parametrize(("turn_timeout_s", "held_s"), [(3600.0, 3600.0), (1.0, 600.0)])
def test_a_turn_may_be_held_back_until_its_time_is_up(turn_timeout_s: float, held_s: float) -> None:
    settings = program_scheduling(Deployment(URLS, 1, COSTS, turn_timeout_s))
    assert settings["queue_timeout_seconds"] == held_s


def test_only_program_scheduling_gets_its_settings() -> None:
    deployment = Deployment(URLS, 4096, COSTS, 0.5)
    plain = VLLM_ROUTER.command("python", "cache_aware", deployment, 1, 2)
    assert plain[plain.index("--policy") + 1] == "cache_aware"
    assert plain[plain.index("--request-timeout-secs") + 1] == "1"
    assert "--enable-program-scheduling" not in plain
    scheduled = VLLM_ROUTER.command("python", "program_scheduling", deployment, 1, 2)
    assert "--enable-program-scheduling" in scheduled


def test_neither_proxies_nor_services_of_the_user_are_passed_on() -> None:
    inherited = {"PATH": "/bin", "https_proxy": "http://p", "NO_PROXY": "", "ALL_PROXY": "p"}
    inherited["API_KEY_VALIDATION_URLS"] = "http://elsewhere"
    assert VLLM_ROUTER.environment(inherited) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ([], "its log has no message"),
        (["DEBUG: AppContext created"], "its log has no message"),
        (
            ["Traceback (most recent call last):", "  raise e", "RuntimeError: in use", "bye"],
            "RuntimeError: in use",
        ),
        (
            ["2026-11-24 02:51:22  INFO vllm_router_rs::server: src/server.rs:10: Router ready"],
            "Router ready",
        ),
    ],
)
def test_the_cause_of_a_failure_is_the_last_error_or_the_last_message(
    log: list[str], cause: str
) -> None:
    assert VLLM_ROUTER.failure_cause(log) == cause
