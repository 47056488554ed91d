"""The plug-in starts on a supported vLLM and reports what is wrong on any other."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.engine.core_client import DPLBAsyncMPClient

from servers.basics.errors import InvalidInput, UnsupportedVllm
from servers.identity import LAST
from servers.policies.base import Policy
from servers.vllm.plugin import api_server
from servers.vllm.plugin import scheduler as plugin
from servers.vllm.plugin.compatibility import check_scheduler
from servers.vllm.plugin.settings import Options, check, read_options
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
def config(monkeypatch: pytest.MonkeyPatch) -> Any:
    config = headless._config()[0]
    monkeypatch.setattr(config, "additional_config", {})
    return config


def policy_of(config: Any, **options: Any) -> Policy:
    config.additional_config = {"turnstile": options}
    return read_options(config, {}).make_policy(config, 1600)[0]


def test_a_policy_gets_the_costs_of_the_options_or_of_a_file(config: Any, tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text(json.dumps(COSTS))
    for given in (COSTS, str(tmp_path / "costs.json")):
        policy = policy_of(config, policy="continuum", costs=given)
        assert policy.name == "continuum"
        assert policy.costs.prefill_s(1000) == pytest.approx(0.01 + 0.2 + 0.001)
        assert policy.costs.reload_s is None
        assert policy.costs.step_tokens == 512
        assert policy.costs.kv_tokens == 1600
        assert policy.costs.decode_step_s is None


def test_a_policy_knows_the_decode_steps_of_costs_that_have_them(config: Any) -> None:
    decode_step = {"base_s": 0.005, "turn_s": 2e-4, "context_token_s": 1e-7}
    costs = COSTS | {"decode_step": decode_step}
    known = policy_of(config, policy="fcfs", costs=costs).costs.decode_step_s
    assert known is not None
    assert known(10, 20_000) == pytest.approx(0.005 + 0.002 + 0.002)


def test_without_costs_they_are_guessed_from_the_model(config: Any) -> None:
    costs = policy_of(config).costs
    # 2 layers of 2·64·16·6 + 3·64·128 weights, and 64·200,000 of the output, on a CPU.
    weights = 2 * (12_288 + 24_576) + 12_800_000
    assert costs.prefill_s(1) == pytest.approx(0.005 + 2 * weights / 1e11, rel=1e-6)
    assert costs.kv_tokens == 1600


def test_without_options_the_policy_is_turnstile(config: Any) -> None:
    assert read_options(config, {}) == Options("turnstile", None, None, 3600.0, True)


def test_a_file_has_the_same_options_as_the_command_line(config: Any, tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    path.write_text(json.dumps({"policy": "infercept", "idle_s": None}))
    options = read_options(config, {"TURNSTILE_OPTIONS": str(path)})
    assert options == Options("infercept", idle_s=None)
    config.additional_config = {"turnstile": {"policy": "infercept"}}
    with pytest.raises(InvalidInput, match=r"TURNSTILE_OPTIONS=.* and in --additional-config; rem"):
        read_options(config, {"TURNSTILE_OPTIONS": str(path)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"polcy": "fcfs"},
            r"unknown field `polcy`; did you mean policy\? \(fields: p",
        ),
        ("continuum", r"--additional-config: turnstile: Expected `object`, got `str`"),
        (
            {"policy": "continum"},
            r"^policy continum: no policy is .* did you mean continuum",
        ),
        ({"policy": "continuum(kk=3)"}, r"^policy continuum\(kk=3\): kk is not an argument"),
        ({"policy": "fcfs,continuum"}, "policy fcfs,continuum: a server runs one policy"),
        ({"policy": "clairvoyant"}, "knows the trace's future"),
        ({"policy": "unlimited-kv"}, "unlimited KV memory"),
        ({"policy": "fcfs(watermark=0.1)"}, "watermark is a setting of vLLM itself; "),
        ({"costs": "/nowhere.json"}, "costs is /nowhere.json: .*; it must be a JSON file"),
        (
            {"costs": COSTS | {"linear_s": "fast"}},
            r"Expected `float`.* - at `\$.*linear_s",
        ),
        (
            {"costs": COSTS | {"base": 1}},
            r"^costs: .*unknown field `base`; did you mean base_s\? \(fields: base_s, ",
        ),
        ({"costs": COSTS | {"base_s": -1}}, r"`float` >= 0.0 - at `\$.*base_s"),
        ({"events": "/nowhere/events.jsonl"}, "events is /nowhere/events.jsonl: No such file"),
        ({"idle_s": 0}, r"`float` > 0.0 - at `\$.idle_s"),
    ],
)
def test_invalid_options_are_refused_by_name(config: Any, options: Any, message: str) -> None:
    config.additional_config = {"turnstile": options}
    with pytest.raises(InvalidInput, match=message):
        check(config)


def test_a_model_whose_costs_cannot_be_estimated_needs_given_ones(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = config.model_config.hf_text_config
    monkeypatch.setattr(text, "num_experts", {"first": 8}, raising=False)
    config.additional_config = {"turnstile": {}}
    with pytest.raises(InvalidInput, match=r"cannot be estimated \(TypeError: .*option costs"):
        check(config)
    config.additional_config = {"turnstile": {"costs": COSTS}}
    check(config)


def test_the_scheduler_is_configured_by_the_options(config: Any) -> None:
    config.additional_config = {"turnstile": {"policy": "infercept", "costs": COSTS}}
    scheduler = build(plugin.TurnstileScheduler, 100, 8, 512)
    assert scheduler.runner.policy.name == "infercept"
    # The blocks without vLLM's null block, of 16 tokens each.
    assert scheduler.runner.policy.costs.kv_tokens == 100 * 16


def test_vllms_own_priorities_are_refused(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config.scheduler_config, "policy", "priority")
    with pytest.raises(InvalidInput, match="--scheduling-policy is priority"):
        build(plugin.TurnstileScheduler, 100, 8, 512)


def test_a_vllm_without_prefix_caching_is_refused(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config.cache_config, "enable_prefix_caching", False)
    with pytest.raises(InvalidInput, match="start vLLM with --enable-prefix-caching"):
        check(config)


def test_a_pipeline_needs_asynchronous_scheduling(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config.parallel_config, "pipeline_parallel_size", 2)
    with pytest.raises(InvalidInput, match="--pipeline-parallel-size is 2 without async"):
        check(config)
    monkeypatch.setattr(config.scheduler_config, "async_scheduling", True)
    check(config)


def test_this_vllm_is_supported() -> None:
    check_scheduler(AsyncScheduler, "0.32.0")


def test_an_old_vllm_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedVllm, match=r"vLLM 0\.19\.1 is not supported"):
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


def test_all_requests_of_a_program_go_to_the_same_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    method = "get_core_engine_for_request"
    monkeypatch.setattr(DPLBAsyncMPClient, method, getattr(DPLBAsyncMPClient, method))
    api_server._keep_programs_on_their_ranks.__wrapped__()
    client = DPLBAsyncMPClient.__new__(DPLBAsyncMPClient)
    client.core_engines = [b"0", b"1", b"2", b"3"]
    client.lb_engines = [[0, 0, 0.0] for _ in client.core_engines]
    client.reqs_in_flight, client.engine_inflight, client.streaming_reqs = {}, Counter(), set()
    client.client_count, client.eng_start_index = 1, 0

    def engine(session: str | None = None, rank: int | None = None, **xargs: Any) -> Any:
        request = SimpleNamespace(
            request_id=str(len(client.reqs_in_flight)),
            session_id=session,
            data_parallel_rank=rank,
            sampling_params=headless.sampling(1, **xargs),
            pooling_params=None,
            resumable=False,
        )
        return client.get_core_engine_for_request(request)

    chosen = {program: engine(program) for program in "abcdefgh"}
    assert len(set(chosen.values())) > 1
    for program, first in chosen.items():
        assert engine(program) == engine(None, program_id=program) == first
        assert engine(program + LAST) == engine(None, ended=program) == first
    assert [engine("a", rank) for rank in range(4)] == client.core_engines
    fewest = min(client.engine_inflight[each] for each in client.core_engines)
    assert client.engine_inflight[engine()] == fewest + 1, "vLLM chooses for the others"
