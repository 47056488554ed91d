"""The numbers of models and machines, calculated manually from their published shapes."""

import pytest

from servers.basics.errors import InvalidInput, UnknownProfile
from servers.profiles import HARDWARE, MODELS, Hardware, Model, analytic_profile, hardware, model
from servers.profiles.kv_budget import kv_budget_bytes
from servers.profiles.kv_groups import groups_of, pool
from servers.profiles.kv_memory import Groups
from servers.profiles.models.config import model_of
from servers.vllm.launch.command_line import listed_gpu


@pytest.mark.parametrize(
    ("name", "kv_bytes_per_token"),
    [
        # 2 (K, V) × 32 layers × 8 heads × 128 × 2 bytes: 2 MiB per block of 16 tokens
        ("llama-3.1-8b", 2 * 1024 * 1024 // 16),
        # 2 × 80 × 8 × 128 × 2: 5 MiB per block
        ("llama-3.1-70b", 5 * 1024 * 1024 // 16),
        # 8192 bytes in each of 48 layers, of which 40 keep the last 1024 tokens only
        ("gemma-3-12b", 48 * 8192),
        # 2 × 92 × 8 × 128 × 2: 5.75 MiB per block
        ("glm-4.5-fp8", 376_832),
        # 2 × 46 × 8 × 128 × 2
        ("glm-4.5-air", 188_416),
        # 2 × 48 × 4 × 128 × 2
        ("qwen3-coder-30b-a3b", 98_304),
    ],
)
def test_a_token_has_a_key_and_a_value_per_kv_head_and_layer(
    name: str, kv_bytes_per_token: int
) -> None:
    assert model(name).kv_bytes_per_token == kv_bytes_per_token


def test_a_decode_of_gemma_reads_8_layers_for_all_tokens_and_40_for_those_of_the_window() -> None:
    llm = model("gemma-3-12b")
    assert llm.window == 1024
    assert llm.read_bytes_per_token_on(1, windows=False) == 8 * 8192
    assert llm.read_bytes_per_token_on(1, windows=True) == 40 * 8192


@pytest.mark.parametrize(
    ("name", "groups", "layers"),
    [
        ("llama-3.1-8b", (None,), 32),
        ("gpt-oss-20b", (128, None), 12),
        ("gpt-oss-120b", (128, None), 18),
        ("gemma-3-12b", (*[1024] * 5, None), 8),
        # 52 local layers in groups of 10, of which the last is padded
        ("gemma-3-27b", (*[1024] * 6, None), 10),
    ],
)
def test_layers_of_each_kind_are_divided_into_groups_of_equal_size(
    name: str, groups: Groups, layers: int
) -> None:
    assert groups_of(model(name)) == (groups, layers)


def test_a_block_of_gemma_is_that_of_one_group_and_its_pool_has_as_many_as_fit() -> None:
    profile = analytic_profile("h100", "gemma-3-12b")
    llm = model("gemma-3-12b")
    budget = kv_budget_bytes(hardware("h100"), llm, 1)
    assert profile.kv_groups == (*[1024] * 5, None)
    assert profile.kv_blocks == budget // (8 * 8192 * 16)
    # 131,072 tokens are 8,192 blocks of the global layers; each local group has room for a window
    # and two steps of 2,048 tokens, which are 5,119 tokens or 320 blocks, and one more.
    tokens = profile.kv_tokens(2048, 131_072)
    assert tokens == int(profile.kv_blocks / (8192 + 5 * 321) * 131_072)


@pytest.mark.parametrize(
    ("gpus", "layer_bytes", "lengths"),
    [
        # A GPU has 8 KV heads of 256 dimensions in layers with a window, and 2 of 512 elsewhere.
        (1, 8192, (2, 1)),
        (4, 4 * 2048, (1, 1)),
        # A GPU has at least one of both.
        (8, 8 * 2048, (1, 2)),
    ],
)
def test_blocks_of_gemma_4_have_two_lengths_that_fill_the_same_page(
    gpus: int, layer_bytes: int, lengths: tuple[int, int]
) -> None:
    found = pool(model("gemma-4-26b-a4b"), gpus, 16)
    assert found == ((*[1024] * 5, None), 5 * 16 * layer_bytes, lengths)


def test_vllm_pads_pages_that_do_not_divide_the_largest() -> None:
    config = {**model("mimo-v2-flash").config, "swa_num_key_value_heads": 16}
    llm = model_of({**config, "num_key_value_heads": 1, "swa_head_dim": 200}, "a-model")
    # 16 × (200 + 128) × 2 bytes are no multiple of 192 + 128 of one head.
    assert pool(llm, 1, 16).lengths == (1, 1)
    assert pool(llm, 1, 16).block_bytes == 9 * 16 * 16 * 328 * 2


def test_layers_of_mimo_v2_have_heads_of_their_own_in_windows() -> None:
    llm = model("mimo-v2-flash")
    # Keys have 192 dimensions and values 128.
    assert llm.kv_bytes_per_token == (9 * 4 + 39 * 8) * (192 + 128) * 2
    assert llm.flops_per_pair(windows=False) == 2 * 64 * (192 + 128) * 9
    assert llm.flops_per_pair(windows=True) == 2 * 64 * (192 + 128) * 39
    full = 4096 * (64 * 192 + 4 * 320) + 64 * 128 * 4096
    local = 4096 * (64 * 192 + 8 * 320) + 64 * 128 * 4096 + 64
    experts = 256 * (3 * 4096 * 2048 + 4096 + 1)
    body = 9 * full + 39 * local + 3 * 4096 * 16_384 + 47 * experts + (2 * 48 + 1) * 4096
    assert llm.params == body + 2 * 152_576 * 4096


def test_gemma_4_has_experts_beside_an_mlp_and_a_tower_with_positions_in_two_dimensions() -> None:
    llm = model("gemma-4-26b-a4b")
    local = 2816 * (16 + 8 + 8) * 256 + 16 * 256 * 2816 + 2 * 256
    full = 2816 * (16 + 2 + 2) * 512 + 16 * 512 * 2816 + 2 * 512
    router = 128 * 2816 + 2816 + 128
    layer = 3 * 2816 * 2112 + 128 * 3 * 2816 * 704 + router + (4 + 3) * 2816
    assert llm.step_params == 25 * local + 5 * full + 30 * layer + 2816 + 262_144 * 2816
    tower = 27 * (4 * 1152 * 1152 + 2 * 72 + 3 * 1152 * 4304 + 4 * 1152)
    tower += (3 * 256 + 2 * 10_240) * 1152 + 1152 * 2816
    assert llm.params - llm.step_params == tower


def test_with_an_offload_tier_all_layers_of_gemma_keep_all_tokens() -> None:
    profile = analytic_profile("h100", "gemma-3-12b", offload=True)
    budget = kv_budget_bytes(hardware("h100"), model("gemma-3-12b"), 1)
    assert profile.kv_groups == (None,)
    assert profile.kv_blocks == budget // (48 * 8192 * 16)


def test_attention_of_llama_8b_is_half_a_megaflop_per_query_key_pair() -> None:
    # 4 × 32 heads × 128 × 32 layers
    llm = model("llama-3.1-8b")
    assert llm.window is None
    assert llm.flops_per_pair(windows=False) == 524_288
    assert llm.flops_per_pair(windows=True) == 0


def test_attention_of_gemma_has_pairs_of_its_40_local_layers_apart() -> None:
    llm = model("gemma-3-12b")
    assert llm.flops_per_pair(windows=False) == 4 * 16 * 256 * 8
    assert llm.flops_per_pair(windows=True) == 4 * 16 * 256 * 40


def test_parameters_of_llama_8b_add_up_from_its_layers() -> None:
    table = 128_256 * 4096  # the output table has the same size
    attention = 4096 * 4096 * 2 + 4096 * 1024 * 2
    layer = attention + 3 * 4096 * 14_336 + 2 * 4096
    body = 32 * layer + 4096
    llm = model("llama-3.1-8b")
    assert (llm.token_params, llm.step_params, llm.params) == (body, body + table, body + 2 * table)


def test_parameters_of_llama_70b_add_up_from_its_layers() -> None:
    table = 128_256 * 8192
    layer = 8192 * 8192 * 2 + 8192 * 1024 * 2 + 3 * 8192 * 28_672 + 2 * 8192
    body = 80 * layer + 8192
    llm = model("llama-3.1-70b")
    assert (llm.token_params, llm.step_params, llm.params) == (body, body + table, body + 2 * table)


def test_parameters_of_gemma_add_up_without_the_vision_tower_which_text_does_not_use() -> None:
    attention = 3840 * 4096 * 2 + 3840 * 2048 * 2
    layer = attention + 3 * 3840 * 15_360 + 4 * 3840 + 2 * 256
    body = 48 * layer + 3840
    llm = model("gemma-3-12b")
    assert llm.token_params == body
    assert llm.step_params == body + 262_208 * 3840  # one table for input and output
    assert 0.41e9 < llm.params - llm.step_params < 0.43e9  # SigLIP 400M and its projector


def test_glm_reads_355_billion_parameters_and_uses_32_billion_per_token() -> None:
    llm = model("glm-4.5-fp8")
    assert llm.params == pytest.approx(355e9, rel=0.01)
    assert llm.token_params == pytest.approx(32e9, rel=0.01)
    expert = 3 * 5120 * 1536
    # 89 layers of 160 experts, of which a token takes 8
    assert llm.step_params - llm.token_params == 89 * (160 - 8) * expert + 151_552 * 5120


def test_weights_of_llama_8b_have_the_size_that_vllm_reports() -> None:
    assert model("llama-3.1-8b").weight_bytes / 2**30 == pytest.approx(14.99, rel=0.005)


@pytest.mark.parametrize("gpu", HARDWARE.values(), ids=lambda gpu: gpu.name)
def test_every_gpu_has_a_source_and_plausible_peaks(gpu: Hardware) -> None:
    assert gpu.source.startswith(("NVIDIA", "AMD"))
    # FLOPs per byte of memory traffic at the ridge, as of every tensor-core GPU since 2018. An H20
    # has a seventh of an H200's FLOP/s.
    least = 30 if gpu.name == "h20" else 100
    assert least < gpu.bf16_flops / gpu.memory_bytes_per_s < 460
    assert gpu.fp8_flops is None or gpu.fp8_flops == pytest.approx(2 * gpu.bf16_flops, rel=0.02)
    # A copy within the one memory of a DGX Spark reads and writes it.
    share = 2 if gpu.name == "dgx-spark" else 8
    assert gpu.pcie_bytes_per_s <= gpu.memory_bytes_per_s / share


@pytest.mark.parametrize(
    ("driver_name", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA A100 80GB PCIe", "a100-80g"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", None),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H20-3e", None),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA GB10", "dgx-spark"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("NVIDIA RTX 6000 Ada Generation", None),
        ("Quadro RTX 6000", "rtx-6000-24g"),
        ("", None),
    ],
)
def test_a_gpu_is_found_by_the_words_of_the_drivers_name(
    driver_name: str, name: str | None
) -> None:
    assert listed_gpu(driver_name) == name


def test_each_listed_nvidia_gpu_has_a_drivers_name() -> None:
    assert all(bool(gpu.driver_name) == ("NVIDIA" in gpu.source) for gpu in HARDWARE.values())


@pytest.mark.parametrize("llm", MODELS.values(), ids=lambda llm: llm.name)
def test_every_model_names_its_config(llm: Model) -> None:
    assert "config.json" in llm.source


def test_an_unknown_machine_lists_the_known_ones_and_suggests_the_closest() -> None:
    with pytest.raises(UnknownProfile) as caught:
        hardware("A100-80GB")
    message = str(caught.value)
    assert "--hardware A100-80GB: unknown; did you mean a100-80g?" in message
    assert all(name in message for name in HARDWARE)
    assert "\n" not in message


def test_an_unknown_model_without_a_similar_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownProfile, match=r"^--model xyz: unknown \(known: llama-3.1-8b, "):
        model("xyz")


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("Kimi-K3", "states of Kimi delta attention"),
        ("deepseek-v4-flash", "latent vectors of 4 or 128 tokens"),
        ("gemma-3n-e4b", "KV that they share"),
        ("Gemma-4-E4B", "KV that they share, and embeddings"),
    ],
)
def test_a_model_that_keeps_other_memory_is_refused_by_name(name: str, kept: str) -> None:
    with pytest.raises(
        InvalidInput, match=f"--model {name}: not supported: its layers have {kept}"
    ):
        model(name)


@pytest.mark.parametrize("name", ["minimax-m3", "glm-6", "deepseek-v5"])
def test_no_model_of_another_version_is_suggested(name: str) -> None:
    with pytest.raises(UnknownProfile, match=rf"--model {name}: unknown \(known"):
        model(name)


def test_parameters_of_glm_air_add_up_to_its_published_106_and_12_billion() -> None:
    """Layer 0 is dense; 45 layers have 128 experts, 8 of which a token is routed to, and a shared
    one."""
    query, key = 96 * 128, 8 * 128
    attention = 2 * 4096 * query + 2 * 4096 * key + query + 2 * key  # q, k and v have a bias
    expert = 3 * 4096 * 1408
    dense, router = 3 * 4096 * 10_944, 128 * 4096
    routed = 46 * attention + dense + 45 * (router + (8 + 1) * expert)
    llm = model("glm-4.5-air")
    assert llm.token_params == pytest.approx(routed, rel=1e-4)  # norms are the rest
    assert llm.params - llm.token_params == 45 * 120 * expert + 2 * 151_552 * 4096
    assert (round(llm.params / 1e9), round(llm.token_params / 1e9)) == (107, 12)


CODER = "qwen3-coder-30b-a3b (context 262,144, 57 GiB of weights)"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        (
            "Qwen3-Coder-30B-A3B",
            "qwen3-coder-30b-a3b (context 262,144, 57 GiB of weights) or "
            "qwen3-coder-30b-a3b-fp8 (context 262,144, 29 GiB of weights)",
        ),
        (
            "Qwen3-Coder-30B-A3B-Instruct",
            "qwen3-coder-30b-a3b (context 262,144, 57 GiB of weights)",
        ),
        ("qwen3-30b", "qwen3-30b-a3b (context 40,960, 57 GiB of weights)"),
        ("GLM-4.5-Air", "glm-4.5-air (context 131,072, 199 GiB of weights)"),
    ],
)
def test_a_suggested_model_has_its_context_and_its_memory(name: str, meant: str) -> None:
    with pytest.raises(UnknownProfile) as unknown:
        model(name)
    assert f"did you mean {meant}?" in str(unknown.value)
