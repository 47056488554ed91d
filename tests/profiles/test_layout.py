"""Ranks of attention that share experts, and stages of layers: memory and times of one, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from harness.engines.base import resolve_engine
from harness.engines.sim import SimEngine
from harness.load.settings import Machine, Server, SweepSettings
from servers.basics.errors import DoesNotFit, InvalidInput
from servers.profiles.cpu_time import StepTimes
from servers.profiles.files import profile_for
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.profiles.layout import Layout, stages_of
from servers.profiles.machines.gpus import GIB
from servers.profiles.models.listed import model
from servers.profiles.rebuild import costs
from servers.profiles.roofline import analytic_profile, expert_times, stage_times
from servers.vllm.launch.cost_curve import costs_on

MODEL = "qwen3-30b-a3b"
EXPERTS = 48 * 128 * 3 * 2048 * 768
"""Parameters of its experts: 128 in each of 48 layers, with 8 for a token."""
SAMPLER = 256 * 151_936 * 15 + 2048 * 2048 * 2
BUFFERS = SAMPLER + GIB // 4 + int(1.85 * GIB) + 48 * 51 * int(0.46 * 2**20)
"""Activations, non-torch memory, NCCL and CUDA graphs of each GPU."""


def test_a_rank_has_all_weights_but_those_of_experts_and_all_of_its_memory_for_its_own_kv() -> None:
    rank = analytic_profile("h200", MODEL, gpus=4, layout=Layout.DP_ATTN)
    weights = 2 * (30_532_122_624 - EXPERTS * 3 // 4)
    budget = int(int(139.81 * GIB) * 0.9) - BUFFERS - weights
    assert rank.kv_bytes_per_token == 98_304
    assert rank.kv_blocks == budget // (98_304 * 16)
    assert rank.base_ps == 200_000_000 + 48 * 2 * 10_000_000


@pytest.mark.parametrize(
    ("model", "per_token", "experts", "size"),
    [(MODEL, 8, 128, 768), ("qwen3-coder-next", 10, 512, 512)],
)
def test_the_experts_of_a_rank_are_read_and_computed_for_the_tokens_of_all(
    model: str, per_token: int, experts: int, size: int
) -> None:
    """One token takes 8 of 128 experts, and reads as many bytes; many take all. The states of
    qwen3-coder-next are not among what ranks share."""
    times = expert_times("h200", model, 4, KvCacheDtype.AUTO)
    params = 48 * experts * 3 * 2048 * size / 4
    read_s = params * 2 / (4.8e12 * 0.75)
    computed_s = 2 * params * per_token / experts / (989.5e12 * 0.3)
    sent_s = 48 * 2048 * 2 * 2 * 3 / 4 / (450e9 * 0.8)
    assert times.ps(1) == pytest.approx(read_s * per_token / experts * 1e12)
    assert times.token_ps == pytest.approx((computed_s + sent_s) * 1e12, rel=1e-6)
    assert times.ps(65_536) == pytest.approx(65_536 * times.token_ps, rel=1e-6)


def test_a_rank_alone_takes_as_long_as_what_it_has_of_its_own_and_its_experts() -> None:
    rank = analytic_profile("h200", MODEL, gpus=4, layout=Layout.DP_ATTN)
    times = expert_times("h200", MODEL, 4, KvCacheDtype.AUTO)
    own_ps = 2 * (30_532_122_624 - EXPERTS - 2 * 151_936 * 2048) / (989.5e12 * 0.3) * 1e12
    tokens = 8192
    taken_ps = rank.tokens_ps(tokens) - rank.base_ps
    assert taken_ps == pytest.approx(tokens * own_ps + times.ps(tokens), rel=1e-4)


@pytest.mark.parametrize(
    ("machine", "server", "reason"),
    [
        ({"model": "llama-3.1-8b", "gpus": 2}, {}, "no experts.*--gpus 1 --replicas 2"),
        ({}, {}, "1 GPU cannot share the 128 experts of qwen3-30b-a3b; use --gpus with 2 to 128"),
        ({"gpus": 256}, {}, "256 GPUs cannot share"),
        ({"gpus": 4}, {"replicas": 2}, "--replicas 2: not modelled with --layout dp-attn"),
        ({"gpus": 4}, {"disaggregate": "1P1D"}, "--disaggregate 1P1D: not modelled"),
        ({"gpus": 4, "speculate": "ngram:3,accept=0.5"}, {}, "--speculate ngram.*not modelled"),
        ({"gpus": 4, "engine": "sglang-sim"}, {}, "--layout: not supported by --engine sglang-sim"),
        ({"hardware": "here.json"}, {}, "--layout dp-attn: here.json is a file of bench profile"),
    ],
)
def test_what_is_not_modelled_with_ranks_is_refused(
    machine: dict[str, object], server: dict[str, object], reason: str
) -> None:
    chosen = Machine(**{"model": MODEL, "layout": Layout.DP_ATTN, **machine})
    settings = SweepSettings(policies="fcfs", machine=chosen, server=Server(**server))
    with pytest.raises(InvalidInput, match=reason):
        resolve_engine(settings)


def test_experts_that_gpus_cannot_share_evenly_leave_one_more_to_some_ranks() -> None:
    """43 of 128 on two of three GPUs."""
    rank = analytic_profile("h200", MODEL, gpus=3, layout=Layout.DP_ATTN)
    weights = 2 * (30_532_122_624 - EXPERTS * 85 // 128)
    budget = int(int(139.81 * GIB) * 0.9) - BUFFERS - weights
    assert rank.kv_blocks == budget // (98_304 * 16)


def test_ranks_that_do_not_fit_are_refused_with_the_remedy() -> None:
    with pytest.raises(DoesNotFit, match="use more --gpus, or --layout tp"):
        analytic_profile("h100", "deepseek-v3", gpus=8, layout=Layout.DP_ATTN)


def test_a_run_with_ranks_counts_their_gpus_once() -> None:
    chosen = Machine(hardware="h200", model=MODEL, gpus=4, layout=Layout.DP_ATTN)
    variants, engine, _ = resolve_engine(SweepSettings(policies="fcfs", machine=chosen))
    assert isinstance(engine, SimEngine)
    assert [variant.name for variant in variants] == ["fcfs@sticky"]
    recorded = engine.settings()
    assert (recorded.gpus, recorded.replicas, recorded.layout) == (4, 4, "dp-attn")


QWEN3_32B = "qwen3-32b"
"""64 layers, hidden size 5,120, a vocabulary of 151,936 tokens, and a head of its own."""
TABLE = 151_936 * 5120
"""Parameters of its embedding, and of its head."""


def test_a_stage_keeps_an_nth_of_the_layers_and_the_first_and_last_one_a_table_each() -> None:
    """Half a KV block of 16 tokens is 64 / 2 layers · 2 · 8 heads · 128 · 2 bytes · 16."""
    stage = analytic_profile("a100-80g", QWEN3_32B, gpus=2, layout=Layout.PP)
    llm = model(QWEN3_32B)
    weights = 2 * ((llm.params - 2 * TABLE) // 2 + TABLE)
    sampler, graphs = 256 * 151_936 * 15 + 2048 * 5120 * 2, 32 * 51 * int(0.46 * 2**20)
    other = sampler + GIB // 4 + graphs
    budget = int(int(79.25 * GIB) * 0.9) - other - weights
    assert stage.kv_blocks == pytest.approx(budget // (32 * 2 * 8 * 128 * 2 * 16), abs=1)
    assert stage.kv_bytes_per_token == 64 * 2 * 8 * 128 * 2
    read_s = weights / (2039e9 * 0.75)
    assert stage.weights_ps == pytest.approx(read_s * 1e12, rel=1e-3)
    assert stage.base_ps == 200_000_000


def test_layers_that_are_left_over_go_to_the_stages_before_the_last_one() -> None:
    """As vLLM's `get_pp_indices`: 64 layers on 3, 5 and 6 GPUs."""
    layers = {n: [stage.layers for stage in stages_of(model(QWEN3_32B), n)] for n in (3, 5, 6)}
    assert layers == {
        3: [21, 22, 21],
        5: [13, 13, 13, 13, 12],
        6: [10, 11, 11, 11, 11, 10],
    }


def test_a_model_whose_embedding_is_also_its_head_has_it_on_the_first_and_the_last_stage() -> None:
    llm = model("qwen3-4b-fp8")
    first, middle, last = stages_of(llm, 3)
    uses = [{each.use for each in stage.weights} for stage in (first, middle, last)]
    assert uses == [{"head", "layers"}, {"layers"}, {"head", "layers"}]


def test_a_stage_sends_two_vectors_per_token_over_the_link_to_the_next_gpu() -> None:
    """PCIe 4 x16: 31.5 GB/s, of which 80% are reached."""
    stages = stage_times("l40s", QWEN3_32B, 4)
    assert (stages.count, stages.transfer_ps) == (4, 10_000_000)
    assert stages.transfer_token_ps == round(2 * 5120 * 2 / (31.5e9 * 0.8) * 1e12)


def test_policies_expect_a_token_of_each_turn_after_a_step_in_each_stage() -> None:
    """A step of 16 of 32 turns in each of two stages, and one transfer."""
    profile = analytic_profile("l40s", QWEN3_32B, gpus=2, layout=Layout.PP, kv_blocks=10_000)
    stages = stage_times("l40s", QWEN3_32B, 2)
    found = costs(profile, step_tokens=2048, offload=False, stages=stages).decode_s(32, 64_000)
    step_ps = profile.step_ps(16, 16, 32_000, 0)
    transfer_ps = 10_000_000 + 16 * stages.transfer_token_ps
    assert found == pytest.approx((2 * step_ps + transfer_ps) / 1e12)


def test_the_costs_of_a_live_policy_count_a_stage_for_each_gpu_of_the_server() -> None:
    """Four steps of 8 of 32 turns and three transfers, which the fitted line approximates."""
    settings: dict[str, Any] = {
        "gpus": 4, "layout": Layout.PP, "step_times": StepTimes.ANALYTIC,
    }  # fmt: skip
    curve, _ = costs_on(QWEN3_32B, "l40s", step_tokens=2048, **settings)
    decode = curve.decode_step
    assert decode is not None
    fitted_s = decode.base_s + 32 * decode.turn_s + 64_000 * decode.context_token_s
    step_ps = profile_for("l40s", QWEN3_32B, **settings).step_ps(8, 8, 16_000, 0)
    transfer_ps = 10_000_000 + 8 * stage_times("l40s", QWEN3_32B, 4).transfer_token_ps
    assert fitted_s == pytest.approx((4 * step_ps + 3 * transfer_ps) / 1e12, rel=0.1)


@pytest.mark.parametrize(
    ("machine", "server", "reason"),
    [
        ({"gpus": 1}, {}, "1 GPU cannot share the 64 layers of qwen3-32b; use --gpus with 2 to 64"),
        ({"model": "gpt-oss-20b"}, {}, "gpt-oss-20b has sliding windows.*--layout tp"),
        ({"model": "qwen3-coder-next"}, {}, "has sliding windows, chunks, states"),
        ({}, {"disaggregate": "1P1D"}, "--disaggregate 1P1D: not modelled with --layout pp"),
        ({"speculate": "ngram:3,accept=0.5"}, {}, "--speculate ngram.*not modelled"),
        ({"engine": "sglang-sim"}, {}, "--layout: not supported by --engine sglang-sim"),
        ({"policies": "lmcache"}, {}, "lmcache: has an offload tier.*--layout pp"),
    ],
)
def test_what_is_not_modelled_with_stages_is_refused(
    machine: dict[str, object], server: dict[str, object], reason: str
) -> None:
    policies = str(machine.pop("policies", "fcfs"))
    chosen = Machine(**{"model": QWEN3_32B, "gpus": 4, "layout": Layout.PP, **machine})
    settings = SweepSettings(policies=policies, machine=chosen, server=Server(**server))
    with pytest.raises(InvalidInput, match=reason):
        resolve_engine(settings)


def test_stages_that_do_not_fit_are_refused_with_the_remedy() -> None:
    with pytest.raises(DoesNotFit, match="2 GPUs has 32 layers or fewer: use more --gpus"):
        analytic_profile("l4", QWEN3_32B, gpus=2, layout=Layout.PP)


def test_a_run_with_stages_counts_the_gpus_of_all_replicas() -> None:
    chosen = Machine(hardware="l40s", model=QWEN3_32B, gpus=4, layout=Layout.PP)
    settings = SweepSettings(policies="fcfs", machine=chosen, server=Server(replicas=2))
    _, engine, _ = resolve_engine(settings)
    assert isinstance(engine, SimEngine)
    recorded = engine.settings()
    assert (recorded.gpus, recorded.replicas, recorded.layout) == (8, 2, "pp")
