"""Step times that come with Turnstile: found by name, with memory of the analytic profile."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.basics.errors import InvalidInput
from servers.profiles import HARDWARE, MODELS, Profile, TableProfile, analytic_profile, shipped
from servers.profiles.cpu_time import Scheduling, StepTimes
from servers.profiles.end_to_end import EndToEnd
from servers.profiles.files import notes_for, profile_for
from servers.profiles.kv_budget import TENSOR_PARALLEL
from servers.profiles.models.listed import model
from servers.profiles.reference_steps import reference_steps
from tests.sentences import mentions

SHIPPED = [
    (gpu, llm, n)
    for gpu, llm, n in product(HARDWARE, MODELS, TENSOR_PARALLEL)
    if shipped.shipped_steps(gpu, llm, n)
]
STEPS = {"base_ps", "weights_ps", "token_ps", "sequence_ps", "context_ps", "pair_ps", "request_ps"}


def test_a_named_gpu_and_model_have_the_step_times_of_operator_tables() -> None:
    profile = profile_for("h100", "llama-3.1-8b")
    assert isinstance(profile, TableProfile)
    assert profile.provenance == "operator-table"
    # a decode step of the tables takes 9.63 ms, the CPU adds 0.2 ms and 14 µs for each turn
    ms = profile.step_ps(32, 32, 32 * 2048, 0) / 1e9
    assert ms == pytest.approx(9.63 + 0.2 + 32 * 0.014, rel=0.03)


def test_memory_and_links_are_those_of_the_analytic_profile() -> None:
    ours, analytic = profile_for("h100", "llama-3.1-8b"), analytic_profile("h100", "llama-3.1-8b")
    for field in {each.name for each in fields(Profile)} - STEPS - {"provenance"}:
        assert getattr(ours, field) == getattr(analytic, field), field


def test_analytic_step_times_can_be_asked_for() -> None:
    found = profile_for("h100", "llama-3.1-8b", step_times=StepTimes.ANALYTIC)
    assert found == analytic_profile("h100", "llama-3.1-8b")


def test_offload_adds_the_cpu_time_of_synchronous_scheduling_that_continuum_measured() -> None:
    plain, offload = (
        profile_for("h100", "llama-3.1-8b", offload=on, scheduling=Scheduling.SYNC)
        for on in (False, True)
    )
    assert plain.base_ps == 950_000_000
    assert offload == replace(plain, base_ps=2_330_000_000)


@pytest.mark.parametrize(
    ("gpu", "llm"), [("rtx-4090", "llama-3.1-8b"), ("h100", "gemma-3-12b")], ids=str
)
def test_what_no_table_covers_is_analytic_and_says_so(gpu: str, llm: str) -> None:
    profile = profile_for(gpu, llm)
    assert profile == analytic_profile(gpu, llm)
    assert f"no operator tables cover {llm} on 1 x {gpu}" in notes_for(gpu, llm, profile)
    asked = notes_for(gpu, llm, profile, step_times=StepTimes.ANALYTIC)
    assert not any("no operator tables" in note for note in asked)


def test_notes_name_package_vllm_and_errors_of_the_fit() -> None:
    profile = profile_for("h100", "llama-3.1-8b")
    first, second, *_ = notes_for("h100", "llama-3.1-8b", profile)
    assert "aiconfigurator-core" in first
    assert "h100_sxm, vLLM 0.24.0" in first
    assert "(worst) for mixed steps" in first
    assert mentions(second, "0.2 ms of CPU time", "14 µs per turn", "async scheduling")


def test_a_profile_file_has_no_analytic_step_times(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--step-times analytic: .*p.json"):
        profile_for(str(tmp_path / "p.json"), None, step_times=StepTimes.ANALYTIC)


def test_files_of_other_folders_are_not_read() -> None:
    assert shipped.shipped_file("../tables/h100") is None


def test_end_to_end_errors_are_noted_if_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    known = EndToEnd(rows=34, ttft=0.12, tpot=0.07)
    monkeypatch.setattr(shipped, "end_to_end_error", lambda *_: known)
    assert str(known) in shipped.shipped_notes("h100", "llama-3.1-8b", 1)
    monkeypatch.setattr(shipped, "end_to_end_error", lambda *_: None)
    assert "end-to-end" not in " ".join(shipped.shipped_notes("h100", "llama-3.1-8b", 1))


def test_tables_with_a_slow_decode_of_one_turn_are_noted() -> None:
    note = (
        "in the tables, decoding 1 turn takes 37.4 ms, but decoding 32 turns 31.2 ms "
        "(2,048 tokens each), so the step times of small batches are too long"
    )
    assert note in shipped.shipped_notes("b200", "deepseek-v3", 8)
    assert "longer than" not in " ".join(shipped.shipped_notes("h100", "llama-3.1-8b", 1))


def test_every_gpu_with_tables_has_the_8b_and_the_70b_model() -> None:
    gpus = {gpu for gpu, *_ in SHIPPED}
    assert {(gpu, llm) for gpu, llm, _ in SHIPPED} >= {
        *product(gpus, ("llama-3.1-8b", "llama-3.1-70b"))
    }


@pytest.mark.parametrize(("gpu", "llm", "gpus"), SHIPPED)
def test_a_shipped_profile_is_near_the_tables_at_the_reference_steps(
    gpu: str, llm: str, gpus: int
) -> None:
    found = shipped.shipped_steps(gpu, llm, gpus)
    assert found
    # Prompts of the tables are computed in one step, and those of these profiles in chunks here.
    profile = replace(profile_for(gpu, llm, gpus=gpus), base_ps=0)
    points = reference_steps(profile, 8192)
    near = [
        abs(point.ms / ms - 1)
        for point, ms in zip(points, found.reference_ms, strict=True)
        if ms is not None
    ]
    assert sorted(near)[len(near) // 2] < 0.08
    assert max(errors.median for errors in found.errors.values()) < 0.05


@given(
    shape=st.sampled_from(SHIPPED),
    decodes=st.integers(0, 256),
    chunk=st.integers(0, 2048),
    context=st.integers(1, 100_000),
    cached=st.integers(0, 100_000),
)
def test_the_next_step_of_a_shipped_profile_takes_exactly_the_increment_longer(
    shape: tuple[str, str, int], decodes: int, chunk: int, context: int, cached: int
) -> None:
    if not decodes + chunk:
        return
    gpu, llm, n = shape
    profile = profile_for(gpu, llm, gpus=n)
    turns, read = decodes + bool(chunk), decodes * context
    pairs = chunk * cached + chunk * (chunk + 1) // 2
    now = profile.step_ps(decodes + chunk, turns, read, pairs)
    after = profile.step_ps(decodes + chunk, turns, read + decodes, pairs + chunk * chunk)
    assert after - now == profile.increment_ps(decodes, chunk)


def test_shipped_files_are_small_and_step_times_load_in_under_5_ms() -> None:
    paths = sorted(shipped.FOLDER.glob("*.json"))
    assert sum(path.stat().st_size for path in paths) < 600_000
    model("llama-3.1-8b")
    times = []
    for path in paths:
        shipped.shipped_file.cache_clear()
        shipped.shipped_steps.cache_clear()
        begin = time.process_time()
        assert shipped.shipped_steps(path.stem, "llama-3.1-8b", 1)
        times.append(time.process_time() - begin)
    assert sorted(times)[len(times) // 2] < 0.005
