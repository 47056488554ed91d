"""Profiles of operator tables as files: evaluated on a grid, fitted, stored and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from harness.calibrate.operator_tables import (
    OperatorTables,
    Reach,
    _whole_experts,
    fit,
    open_tables,
    profile_from_tables,
)
from servers.basics.errors import InvalidInput, UnknownProfile
from servers.profiles import HARDWARE, MODELS, Profile, TableProfile, analytic_profile, shipped
from servers.profiles.cpu_time import CpuTime
from servers.profiles.files import (
    measured_for,
    notes_of_file,
    profile_for,
    profile_of_file,
    read_measured,
)
from servers.profiles.from_tables import FromTables, Tables
from servers.profiles.kv_budget import gpus_for
from servers.profiles.layout import Layout
from servers.profiles.machines.gpus import OPERATOR_TABLES
from servers.profiles.models.config import model_of
from tests.profiles.test_model_config import LLAMA_4
from tests.sentences import mentions

TABLES = Tables(package="aiconfigurator-core 0", system="h100_sxm", engine_version="0.24.0")


@dataclass
class Machine:
    """Tables that follow a profile: `error` is their relative distance from it."""

    profile: Profile
    error: float = 0.0

    def prefill_s(self, tokens: int, cached_tokens: int) -> float:
        return self.mixed_s(tokens, cached_tokens, 0, 0)

    def decode_s(self, batch: int, context: int) -> float:
        return self.mixed_s(0, 0, batch, context) * (1 + self.error)

    def mixed_s(self, tokens: int, cached_tokens: int, batch: int, context: int) -> float:
        pairs = tokens * cached_tokens + tokens * (tokens + 1) // 2
        turns = batch + bool(tokens)
        return self.profile.step_ps(tokens + batch, turns, batch * context, pairs) / 1e12


class Package:
    """The calls of an `EngineHandle`, in milliseconds. Matrix products take 0.01 ms per token, a
    chunk's attention 1 ms per 1,000 pairs, a decode's 0.001 ms per context token."""

    def predict_prefill_latency(self, batch: int, prompt: int, cached: int) -> float:
        new = prompt - cached
        return batch * (0.01 * new + (new * cached + new * new / 2) / 1000)

    def decode_step_latency(self, batch: int, context: int, output: int) -> float:
        return 0.01 * batch + 0.001 * batch * context

    def mixed_step_breakdown(
        self, chunk: int, batch: int, prompt: int, output: int
    ) -> tuple[float, float, float, float]:
        shared, decodes = 0.01 * (chunk + batch), 0.001 * batch * prompt
        return shared + decodes, shared, 0.0, decodes


def linear() -> Profile:
    analytic = analytic_profile("h100", "llama-3.1-8b")
    return replace(analytic, base_ps=0, weights_ps=0, sequence_ps=0, graph_tokens=0)


def made(
    error: float = 0.0,
    analytic: Profile | None = None,
    reach: Reach = Reach(131_072, 450_000),  # noqa: B008
) -> FromTables:
    small = analytic or linear()
    times = Machine(linear(), error)
    return fit(times, TABLES, small, gpus=1, step_tokens=2048, reach=reach)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "h100.json").write_text(made().model_dump_json())
    return tmp_path / "h100.json"


def test_a_mixed_step_adds_the_attention_of_chunk_and_decodes_to_what_they_share() -> None:
    tables = OperatorTables(Package())
    assert tables.prefill_s(100, 50) == pytest.approx(0.001 + 0.010)
    assert tables.decode_s(4, 1000) == pytest.approx(0.00004 + 0.004)
    assert tables.mixed_s(100, 50, 4, 1000) == pytest.approx(0.00104 + 0.010 + 0.004)


def test_tables_of_a_linear_machine_are_fitted_without_error() -> None:
    found = made()
    assert {what: errors.worst < 1e-3 for what, errors in found.errors.items()} == {
        "prefills": True,
        "decodes": True,
        "mixed steps": True,
    }


def test_a_file_gives_the_profile_with_memory_and_links_of_the_analytic_one(path: Path) -> None:
    found, analytic = profile_for(str(path), None), analytic_profile("h100", "llama-3.1-8b")
    assert isinstance(found, TableProfile)
    assert found.provenance == "operator-table"
    for field in ("hardware", "model", "kv_blocks", "max_model_len", "kv_bytes_per_token"):
        assert getattr(found, field) == getattr(analytic, field), field
    assert found.dram_bytes_per_s == pytest.approx(analytic.dram_bytes_per_s)
    assert read_measured(path) == made().model_copy(update={"date": read_measured(path).date})


def test_a_file_has_only_points_within_reach() -> None:
    found = made(reach=Reach(40_000, 40_000))
    assert max(p.tokens + p.cached_tokens for p in found.prefill) <= 40_000
    assert max(d.batch * d.context for d in found.decode) <= 40_000
    assert all(m.tokens + m.cached_tokens + m.batch * m.context <= 40_000 for m in found.mixed)


def test_too_little_memory_for_a_fit_is_one_line() -> None:
    with pytest.raises(InvalidInput, match=r"3 of each; use more --gpus"):
        made(reach=Reach(160, 160))


def test_notes_name_the_tables_and_what_they_leave_out() -> None:
    (note,) = made().notes()
    assert mentions(note, "aiconfigurator-core 0, h100_sxm, vLLM 0.24.0", "CPU time")


def test_a_file_of_another_model_is_one_line(path: Path) -> None:
    with pytest.raises(InvalidInput, match="give that model"):
        measured_for(str(path), "llama-3.1-70b", None)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"knots":[[1,', '"knots":[[2,', "steps.knots: .*tokens of knots must rise from 1"),
        ('"decode_ps"', '"decode"', "steps.decode_ps: Field required"),
    ],
)
def test_a_damaged_file_is_one_line(path: Path, old: str, new: str, reason: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InvalidInput, match=reason):
        read_measured(path)


@pytest.mark.parametrize("name", sorted({*HARDWARE} - {*OPERATOR_TABLES}))
def test_a_gpu_without_tables_is_one_line_with_those_that_have_them(name: str) -> None:
    with pytest.raises(UnknownProfile, match=f"--hardware {name}: .* they cover a100-80g, h100"):
        open_tables(name, "llama-3.1-8b", 1, None)


@pytest.fixture
def package() -> None:
    pytest.importorskip("aiconfigurator_core")


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("hardware", "model", "reason"),
    [
        ("h100", "gemma-3-12b", "architecture Gemma3ForConditionalGeneration is not supported"),
        ("a100-80g", "gpt-oss-20b", "context attention data missing"),
        ("a100-80g", "qwen3.5-27b", "context attention data missing"),
        ("b200", "nemotron-3-nano-30b-a3b", "the convolution of Mamba 2, but not its scan"),
    ],
)
def test_a_model_without_tables_is_one_line_with_the_reason(
    hardware: str, model: str, reason: str
) -> None:
    with pytest.raises(UnknownProfile, match=f"--model {model} on 1 x {hardware}: .*{reason}"):
        profile_from_tables(hardware, model, step_tokens=2048)


MISTRAL = {
    **MODELS["llama-3.1-8b"].config,
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "sliding_window": 4096,
}


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("config", "ignored"),
    [
        (MISTRAL, "sliding window of 4096 tokens of MistralForCausalLM"),
        (
            {**LLAMA_4, "architectures": ["Llama4ForConditionalGeneration"]},
            "chunks of 8192 tokens of Llama4ForConditionalGeneration",
        ),
    ],
    ids=["window", "chunks"],
)
def test_windows_and_chunks_that_the_tables_ignore_are_refused_in_one_line(
    config: Mapping[str, Any], ignored: str, tmp_path: Path
) -> None:
    (tmp_path / "windows.json").write_text(json.dumps(config))
    with pytest.raises(UnknownProfile, match=f"ignores the {ignored}; leave out --from"):
        profile_from_tables("h100", str(tmp_path / "windows.json"), step_tokens=2048)


def test_experts_whose_parts_are_not_whole_blocks_of_scales_stay_whole() -> None:
    # 1,536 of MiniMax-M2 are 12 blocks of 128: 3 on each of 4 GPUs, 1.5 on each of 8
    fields = {"model_type": "minimax_m2", "num_local_experts": 8, "num_experts_per_tok": 2}
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = {**MODELS["qwen3-8b"].config, **fields, "intermediate_size": 1536}
    llm = model_of({**config, "quantization_config": blocks}, "small-minimax")
    assert [_whole_experts(llm, gpus) for gpus in (4, 8)] == [False, True]


@pytest.mark.usefixtures("package")
def test_products_with_scales_of_blocks_do_not_take_as_long_as_their_launches() -> None:
    times, _ = open_tables("h200", "qwen3-coder-30b-a3b-fp8", 1, None)
    # A token reads 19 MB of attention and 8 of 128 experts, 38 MB, in each of 48 layers, and the
    # head of 622 MB in 16 bits: 3.3 GB at 4.8 TB/s. The two products of attention in each layer
    # would take 55 µs each to launch.
    assert 0.7e-3 < times.decode_s(1, 128) < 2 * 48 * 55e-6


def test_a_file_with_its_own_cpu_time_states_that() -> None:
    cpu = CpuTime(300_000_000, 0, 0, 0, request_ps=10**9, request_token_ps=700_000)
    file = made().model_copy(update={"cpu": cpu})
    profile = profile_of_file(file)
    assert (profile.base_ps, profile.request_token_ps) == (300_000_000, 700_000)
    _, added, *_ = notes_of_file(file, profile)
    assert mentions(
        added, "0.3 ms of CPU time per step", "0 µs per turn", "1 ms and 0.7 µs per token"
    )


@pytest.mark.usefixtures("package")
def test_a_model_in_fp8_reads_kv_of_16_bits() -> None:
    times, _ = open_tables("h200", "qwen3-coder-30b-a3b-fp8", 1, None)
    longer_s = times.decode_s(32, 65536) - times.decode_s(32, 8192)
    # 32 turns x 57,344 tokens x 98,304 bytes at 4,800 GB/s take 37.6 ms
    assert 0.0376 < longer_s < 0.0376 / 0.75


@pytest.mark.usefixtures("package")
def test_mistral_has_the_operators_of_llama() -> None:
    times, _ = open_tables("h100", "mistral-small", 1, None)
    # 2 FLOP x 22.9e9 parameters x 8,192 tokens at 989 TFLOP/s take 0.38 s
    assert 0.38 < times.prefill_s(8192, 0) < 0.38 / 0.6


@pytest.mark.usefixtures("package")
def test_ranks_of_attention_data_parallelism_read_the_kv_of_their_own_turns() -> None:
    model = "qwen3-coder-30b-a3b"
    times, _ = open_tables("h100", model, 4, None, layout=Layout.DP_ATTN)
    longer_s = times.decode_s(32, 65536) - times.decode_s(32, 8192)
    # 32 turns x 57,344 tokens x 98,304 bytes at 3,350 GB/s take 53.8 ms
    assert 0.0538 < longer_s < 0.0538 / 0.75


@pytest.mark.parametrize("hardware", OPERATOR_TABLES)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-70b"])
def test_every_gpu_is_followed_within_5_percent_at_the_median_and_12_at_worst(
    hardware: str, model: str
) -> None:
    found = shipped.shipped_steps(hardware, model, gpus_for(hardware, model, None))
    assert found
    for what, errors in found.errors.items():
        assert errors.median < 0.05, what
        assert errors.worst < 0.12, (what, errors.worst_at)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("hardware", ["h100", "l40s"])
def test_a_new_fit_equals_the_shipped_one(hardware: str) -> None:
    file = shipped.shipped_file(hardware)
    assert file
    name, version = file.tables.package.split()
    if metadata.version(name) != version:
        pytest.skip(f"the shipped step times are of {name} {version}")
    made = profile_from_tables(hardware, "llama-3.1-70b", step_tokens=2048)
    found = shipped.shipped_steps(hardware, "llama-3.1-70b", made.gpus)
    assert found
    assert made.steps == found.steps
    for what, errors in made.errors.items():
        assert errors.median == pytest.approx(found.errors[what].median, abs=1e-4)
        assert errors.worst == pytest.approx(found.errors[what].worst, abs=1e-4)


@pytest.mark.usefixtures("package")
def test_the_tables_give_the_published_times_of_an_h100() -> None:
    times, tables = open_tables("h100", "llama-3.1-8b", 1, None)
    assert (tables.system, tables.engine_version) == ("h100_sxm", "0.24.0")
    assert 1000 * times.prefill_s(8192, 0) == pytest.approx(200, rel=0.01)
    assert 1000 * times.prefill_s(1024, 31744) == pytest.approx(47.5, rel=0.01)
    assert 1000 * times.decode_s(32, 16384) == pytest.approx(28.5, rel=0.01)
    assert times.mixed_s(2048, 7168, 32, 16384) < times.prefill_s(2048, 7168) + times.decode_s(
        32, 16384
    )


@pytest.mark.usefixtures("package")
def test_a_version_without_tables_is_one_line_with_those_that_have_them() -> None:
    with pytest.raises(InvalidInput, match=r"--backend-version 0\.1: .* of vLLM 0\.14\.0 for a100"):
        open_tables("a100-80g", "llama-3.1-8b", 1, "0.1")
