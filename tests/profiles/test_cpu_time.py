"""CPU time between steps: what profiles charge for it, with and without an offload tier."""

from __future__ import annotations

from functools import partial

import pytest

from servers.profiles import analytic_profile, costs
from servers.profiles.cpu_time import CPU_TIME, CpuTime, Scheduling, StepTimes, with_cpu_time
from servers.profiles.files import profile_for

H100 = partial(profile_for, "h100", "llama-3.1-8b")
MS = 1_000_000_000


def charged(scheduling: Scheduling, offload: bool) -> tuple[int, int, int]:
    profile = H100(scheduling=scheduling, offload=offload)
    return profile.base_ps, profile.load_ps, profile.load_token_ps


def test_a_synchronous_step_has_the_scheduler_time_that_the_paper_measured() -> None:
    # Continuum v3, Table 4: 0.95 ms, and 2.33 ms with offload, the mean of steps with and without
    # loads
    assert charged(Scheduling.SYNC, offload=False) == (950_000_000, 0, 0)
    assert charged(Scheduling.SYNC, offload=True) == (2_330_000_000, 0, 0)


def test_an_asynchronous_step_has_what_the_gpu_waits_for_and_half_of_it_more_with_a_tier() -> None:
    assert charged(Scheduling.ASYNC, offload=False) == (MS // 5, 0, 0)
    # 1.5 times 0.2 ms; a load takes 1.35 ms, and 0.27 us for each token
    assert charged(Scheduling.ASYNC, offload=True) == (300_000_000, 1_350_000_000, 270_000)


def test_only_asynchronous_scheduling_schedules_ahead_and_hides_most_of_the_time_of_turns() -> None:
    ahead, waits = H100(), H100(scheduling=Scheduling.SYNC)
    assert (ahead.schedules_ahead, ahead.sequence_ps) == (True, 14_000_000)
    assert (waits.schedules_ahead, waits.sequence_ps) == (False, 50_000_000)


def test_asynchronous_scheduling_gains_as_much_with_48_turns_as_was_measured() -> None:
    # vllm-ascend #2783: 44.20 - 41.73 ms per token. Here 0.95 - 0.2 ms per step and 50 - 14 us per
    # turn: 0.75 + 48 * 0.036 ms
    step_ms = [H100(scheduling=each).step_ps(48, 48, 1, 0) / MS for each in Scheduling]
    assert step_ms[1] - step_ms[0] == pytest.approx(0.75 + 48 * 0.036)
    assert step_ms[1] - step_ms[0] == pytest.approx(44.20 - 41.73, rel=0.02)


def test_asynchronous_scheduling_is_the_default() -> None:
    assert H100() == H100(scheduling=Scheduling.ASYNC)


@pytest.mark.parametrize("scheduling", Scheduling)
@pytest.mark.parametrize("step_times", StepTimes)
def test_a_prompt_of_50000_tokens_takes_77_ms_in_the_api_server(
    scheduling: Scheduling, step_times: StepTimes
) -> None:
    # 1.9 ms, and 1.15 us per token of the tokenizer times 1.31 for all work
    profile = H100(scheduling=scheduling, step_times=step_times)
    assert profile.request_token_ps == pytest.approx(1.15e6 * 1.31, rel=0.01)
    assert (profile.request_ps + 50_000 * profile.request_token_ps) / MS == pytest.approx(76.9)


@pytest.mark.parametrize("scheduling", Scheduling)
def test_cpu_time_changes_only_the_coefficients_of_cpu_time(scheduling: Scheduling) -> None:
    plain, offload = H100(scheduling=scheduling), H100(scheduling=scheduling, offload=True)
    difference = offload.base_ps - plain.base_ps
    assert difference == CPU_TIME[scheduling].offload_step_ps
    assert offload.step_ps(40, 3, 900, 70) - plain.step_ps(40, 3, 900, 70) == difference


def test_a_policys_reload_time_contains_the_cpu_time_of_a_load() -> None:
    bare = analytic_profile("h100", "llama-3.1-8b")
    cpu = CpuTime(step_ps=0, offload_step_ps=0, load_ps=2 * MS, load_token_ps=500_000)
    reload_s = costs(
        with_cpu_time(bare, cpu, ahead=True, offload=True), step_tokens=2048, offload=True
    ).reload_s
    # 131,072 bytes per token at 0.8 x 63 GB/s
    read_s = 1000 * 131_072 / 50.4e9
    assert reload_s is not None
    assert reload_s(1000) == pytest.approx(read_s + 2e-3 + 1000 * 0.5e-6)
