"""The KV memory of profiles beside what vLLM printed: the table of docs/reference/profiles.md.

The columns "here" and "error" are computed from the other cells of each row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import pytest

from servers.profiles import HARDWARE, MODELS, analytic_profile
from servers.profiles.kv_budget import (
    CUDA_GRAPH_BYTES,
    MemoryUse,
    activation_bytes,
    cuda_graph_bytes,
    kv_budget_bytes,
)
from servers.profiles.layout import Layout
from servers.profiles.machines.gpus import GIB
from servers.profiles.models.shape import Model

PAGE = Path(__file__).parents[2] / "docs/reference/profiles.md"
BLOCK_TOKENS = 16
VARIANTS: dict[str, Callable[[Model], Model]] = {
    "": lambda llm: llm,
    "without windows": lambda llm: replace(
        llm, kinds=tuple(replace(kind, window=None) for kind in llm.kinds)
    ),
}
"""The model of a row, made from the listed one, by the words after its name."""


@dataclass(frozen=True, slots=True)
class Row:
    gpu: str
    gpus: int
    model: str
    variant: str
    use: MemoryUse
    vllm: int
    here: str
    error: str
    source: str

    def tokens(self) -> int:
        """Return the KV tokens that a profile of this machine and model has."""
        gpu = HARDWARE[self.gpu]
        llm = VARIANTS[self.variant](MODELS[self.model])
        graphs = self.gpus * cuda_graph_bytes(llm, self.use.max_num_seqs)
        budget = kv_budget_bytes(gpu, llm, self.gpus, self.use) + graphs
        return budget // (llm.kv_bytes_per_token_on(self.gpus) * BLOCK_TOKENS) * BLOCK_TOKENS

    def ratio(self) -> float:
        return self.tokens() / self.vllm - 1


def rows() -> list[Row]:
    text = PAGE.read_text()
    section = text[text.index("| GPU | GPUs | model | utilisation |") :].split("\n\n")[0]
    read = []
    for line in section.splitlines()[2:]:
        gpu, gpus, model, utilization, limits, *rest = line.strip("| ").split(" | ")
        vllm, here, error, source = rest
        name, _, variant = model.partition(", ")
        turns, tokens = (int(limit.replace(",", "")) for limit in limits.split(", "))
        read.append(
            Row(
                gpu.strip("`"),
                int(gpus),
                name.strip("`"),
                variant,
                MemoryUse(utilization=float(utilization), max_num_seqs=turns, step_tokens=tokens),
                int(vllm.replace(",", "")),
                here,
                error,
                source,
            )
        )
    return read


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.gpus}x{row.gpu}-{row.vllm}")
def test_the_page_states_the_kv_tokens_of_the_profile_and_their_error(row: Row) -> None:
    assert (row.here, row.error) == (f"{row.tokens():,}", f"{row.ratio():+.1%}")


def test_a_profile_has_the_blocks_of_the_budget() -> None:
    """Of Llama-3.1-8B on an H100 with 1,024 turns and 8,192 tokens per step, where the sampler
    needs more than a layer."""
    profile = analytic_profile("h100", "llama-3.1-8b", max_num_seqs=1024, step_tokens=8192)
    sampler = 1024 * 128_256 * 15 + 8192 * 4096 * 2
    graphs = 32 * 51 * int(0.46 * 2**20)
    weights = 2 * 8_030_261_248
    budget = int(int(79.11 * GIB) * 0.9) - sampler - GIB // 4 - graphs - weights
    assert profile.kv_blocks == budget // (32 * 2 * 8 * 128 * 2 * 16)


def test_a_layer_needs_more_than_the_sampler_of_few_turns() -> None:
    """q and o of Llama-3.1-8B are 4,096 wide, k and v 1,024, gate and up 14,336, and down has
    14,336 inputs; two norms add a vector each. GPUs divide them."""
    llm, use = MODELS["llama-3.1-8b"], MemoryUse(max_num_seqs=64, step_tokens=8192)
    widths = 2 * 4096 + 2 * 1024 + 3 * 14_336 + 2
    assert activation_bytes(llm, 1, use) == 8192 * widths * 2
    assert activation_bytes(llm, 2, use) == 8192 * widths


def test_cuda_graphs_are_captured_for_batches_of_up_to_twice_the_turns() -> None:
    """1, 2, 4, 8, 16, 24 and 32; and 3 + 31 + 17 up to 512."""
    llm = MODELS["llama-3.1-8b"]
    sizes = [cuda_graph_bytes(llm, turns) // (32 * CUDA_GRAPH_BYTES) for turns in (16, 256, 1024)]
    assert sizes == [7, 51, 51]


@pytest.mark.parametrize(("stages", "tokens"), [(2, 1_075_312), (4, 2_257_264)])
def test_stages_have_the_kv_tokens_that_vllm_printed(stages: int, tokens: int) -> None:
    """As in the rows of 0.95 for one GPU, whose source has these too: vLLM 0.19, without graphs."""
    llm, limits = MODELS["llama-3.1-8b"], {"max_num_seqs": 1024, "step_tokens": 8192}
    profile = analytic_profile(
        "h100", llm.name, gpus=stages, gpu_memory_utilization=0.95, layout=Layout.PP, **limits
    )
    graphs = cuda_graph_bytes(llm, 1024) // stages * stages // llm.kv_bytes_per_token
    assert profile.kv_blocks * 16 + graphs == pytest.approx(tokens, rel=0.005)


def test_the_page_states_the_median_and_the_worst_error() -> None:
    errors = [row.ratio() for row in rows()]
    middle, worst = median(map(abs, errors)), max(errors, key=abs)
    stated = f"these {len(errors)} rows the median error is {middle:.1%} and the worst {worst:+.1%}"
    assert stated in " ".join(PAGE.read_text().split())
