"""Files of measured profiles: their contents, notes and errors."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from servers.basics.errors import DoesNotFit, InvalidInput
from servers.profiles.cpu_time import CPU_TIME, CpuTime, Scheduling
from servers.profiles.files import profile_for, read_measured
from servers.profiles.measured import DecodeTimes, Measured, PrefillTimes, ReloadTimes, fitted
from servers.vllm.launch.command_line import ServerConfig, policy_costs
from servers.vllm.launch.find_vllm import VllmInstallation
from tests.sentences import mentions

PREFILL = tuple(
    PrefillTimes(tokens=n, seconds=(s, 1.1 * s, 0.9 * s))
    for n, s in ((n, 0.02 + 1e-4 * n + 1e-8 * n * n) for n in (32, 512, 2048))
)
"""Medians of 0.02 + 1e-4 n + 1e-8 n² seconds, of at most one step, so that the fit is exact."""
DECODE = tuple(
    DecodeTimes(batch=b, context=c, seconds=(0.01 + 1e-4 * b + 2e-7 * b * c,))
    for b, c in ((1, 100), (8, 100), (1, 4000), (8, 4000))
)


@cache
def fit() -> dict[str, Any]:
    """Fit the times above, which takes a quarter of a second."""
    return dict(fitted(PREFILL, DECODE, 2048))


def measured(**changed: Any) -> Measured:
    defaults = {
        "date": "2026-01-02T03:04:05Z",
        "made_by": "turnstile-bench 0",
        "machine": "cpu, 2 cores",
        "engine": "vLLM 0.32.0",
        "flags": (),
        "model": "tiny",
        "gpus": None,
        "kv_blocks": 100,
        "block_tokens": 32,
        "max_model_len": 3000,
        "kv_bytes_per_token": 1024,
        "step_tokens": 2048,
        "prefill": PREFILL,
        "decode": DECODE,
        "reload": None,
        "left_out": (),
        **fit(),
    }
    return Measured.model_validate({**defaults, **changed})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "p.json").write_text(measured().model_dump_json())
    return tmp_path / "p.json"


def test_a_file_gives_the_profile_that_generated_its_times(path: Path) -> None:
    profile = read_measured(path).profile()
    assert (profile.provenance, profile.hardware, profile.model) == (
        "measured",
        "cpu, 2 cores",
        "tiny",
    )
    assert (profile.kv_blocks, profile.block_tokens, profile.max_model_len) == (100, 32, 3000)
    # Step: 10 ms, 0.1 ms per token, 0.2 us per token read. Prompt: another 10 ms, 20 ns per pair.
    assert profile.base_ps + profile.weights_ps == pytest.approx(10.1e9, rel=0.01)
    assert profile.token_ps == pytest.approx(100e6, rel=0.01)
    assert profile.context_ps == pytest.approx(200e3, rel=0.01)
    assert profile.pair_ps == pytest.approx(20e3, rel=0.01)
    assert read_measured(path).steps.request_ps == pytest.approx(10e9, rel=0.02)
    assert read_measured(path).decode_errors.worst < 0.01


def test_a_measured_prompt_contains_the_time_of_the_api_server_for_its_tokens(path: Path) -> None:
    profile = profile_for(str(path), None)
    assert profile.request_ps == pytest.approx(10e9, rel=0.02)
    assert profile.request_token_ps == 0


def test_policies_get_a_quadratic_fitted_to_the_medians(path: Path) -> None:
    curve = read_measured(path).curve
    assert curve.seconds(1000) == pytest.approx(0.02 + 0.1 + 0.01)


def test_the_policy_of_a_server_gets_the_measured_costs(path: Path) -> None:
    vllm = VllmInstallation("python", "0.32.0", cpu=True, torch=None, has_request_metrics=True)
    config = ServerConfig(policy="continuum", hardware=str(path), step_tokens=512)
    curve, message = policy_costs(config, vllm)
    assert (curve.base_s, curve.linear_s, curve.quadratic_s) == pytest.approx((0.02, 1e-4, 1e-8))
    assert (curve.step_tokens, curve.reload_s_per_token) == (512, None)
    decode = curve.decode_step
    assert decode is not None
    # The formula of steps has a knee in their tokens, whose place the few times leave open.
    assert decode.context_token_s == pytest.approx(2e-7, rel=0.05)
    assert message == f"costs measured on cpu, 2 cores, 2026-01-02T03:04:05Z ({path})"


def test_a_poor_fit_is_reported_with_its_error_and_batch_size() -> None:
    slow = (*DECODE, DecodeTimes(batch=1, context=100, seconds=(0.1,)))
    notes = measured(decode=slow, **fitted(PREFILL, slow, 2048)).notes()
    assert any("error for decodes is up to" in note and "batch 1" in note for note in notes)
    assert not any("error for decodes" in note for note in measured().notes())


def test_a_note_warns_if_repeated_times_vary_too_much() -> None:
    # 0.7 to 1.3 of the median is a spread of 60%, for all lengths.
    busy = tuple(
        PrefillTimes(tokens=n, seconds=(0.7 * n, 1.0 * n, 1.3 * n)) for n in (32, 64, 128, 256, 512)
    )
    notes = measured(prefill=busy).notes()
    assert mentions(notes, "repeated times is 60%")
    assert not any("busy" in note for note in measured().notes())


def test_reload_bandwidth_excludes_the_overhead_of_the_request() -> None:
    # Of 30 ms, 10 ms are overhead of the request: 2000 tokens of 1 KiB in 20 ms.
    reload = ReloadTimes(tokens=2010, from_tier_tokens=2000, seconds=(0.02, 0.03, 0.05))
    assert measured(reload=reload).profile().dram_bytes_per_s == pytest.approx(
        2000 * 1024 / 0.02, rel=0.02
    )


def test_a_file_contains_its_cpu_time_and_only_the_costs_of_a_tier_are_added(path: Path) -> None:
    plain, offload = profile_for(str(path), None), profile_for(str(path), None, offload=True)
    assert plain == profile_for(str(path), None, scheduling=Scheduling.SYNC)
    assert plain.base_ps == read_measured(path).steps.base_ps
    assert offload.base_ps - plain.base_ps == CPU_TIME[Scheduling.ASYNC].offload_step_ps


@pytest.mark.parametrize("scheduling", Scheduling)
def test_a_measured_engine_schedules_ahead_if_its_file_states_so(
    path: Path, scheduling: Scheduling
) -> None:
    """Whatever `--scheduling`, which is about the costs of a tier then."""
    cpu = CpuTime(step_ps=0, offload_step_ps=7, load_ps=11, load_token_ps=13)
    assert not profile_for(str(path), None, scheduling=scheduling).schedules_ahead
    for own in (None, cpu):
        path.write_text(measured(schedules_ahead=True, cpu=own).model_dump_json())
        assert profile_for(str(path), None, scheduling=scheduling).schedules_ahead


def test_cpu_time_in_a_file_replaces_the_published_one(path: Path) -> None:
    cpu = CpuTime(step_ps=0, offload_step_ps=7, load_ps=11, load_token_ps=13)
    path.write_text(measured(cpu=cpu).model_dump_json())
    plain, offload = profile_for(str(path), None), profile_for(str(path), None, offload=True)
    assert offload == replace(plain, base_ps=plain.base_ps + 7, load_ps=11, load_token_ps=13)


def test_options_change_the_memory_of_a_profile(path: Path) -> None:
    profile = profile_for(str(path), None, kv_blocks=50)
    assert (profile.kv_blocks, profile.max_model_len) == (50, 1600)
    assert profile_for(str(path), "tiny", max_model_len=500).max_model_len == 500
    with pytest.raises(DoesNotFit, match=r"--max-model-len 4000: 100 KV blocks of 32"):
        profile_for(str(path), None, max_model_len=4000)


def with_groups(groups: str) -> str:
    return measured().model_dump_json().replace('"kv_groups":[null]', f'"kv_groups":{groups}')


@pytest.mark.parametrize("groups", [(None,), (512, None), (0, 0, None), (None, -1)])
def test_a_file_contains_the_groups_of_windows_or_states(groups: tuple[int | None, ...]) -> None:
    assert measured(kv_groups=groups).profile().kv_groups == groups


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory; name a machine"),
        ("{", "Invalid JSON"),
        ('{"format": "turnstile-profile-2"}', "format: Input should be 'turnstile-profile-1'"),
        (measured().model_dump_json().replace('"base_ps":', '"base":'), "steps.base_ps: Field req"),
        (measured().model_dump_json().replace('"kv_blocks":100', '"kv_blocks":0'), "kv_blocks: "),
        (with_groups("[null,-2]"), "kv_groups.1: Input should be greater than"),
        (with_groups("[]"), "kv_groups: Value error, must have groups"),
        (with_groups("[0,0]"), "one of full attention alone beside states"),
        (with_groups("[0,512,null]"), "one of full attention alone beside states"),
    ],
)
def test_invalid_files_are_reported_in_one_line(
    content: str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "p.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidInput) as failed:
        read_measured(path)
    assert str(failed.value).startswith(f"{path}: ")
    assert message in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_profile_is_refused_for_another_model_than_the_measured_one(path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--model llama-3\.1-8b: .* was measured with tiny"):
        profile_for(str(path), "llama-3.1-8b")
    with pytest.raises(InvalidInput, match="--gpus 2: "):
        profile_for(str(path), "tiny", gpus=2)


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"2 prompt lengths and 4 decode batches"):
        fitted(PREFILL[:2], DECODE, 2048)
