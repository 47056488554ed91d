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
from servers.profiles.models.shape import Model
from servers.profiles.roofline import kv_budget_bytes

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
    utilization: float
    vllm: int
    here: str
    error: str
    source: str

    def tokens(self) -> int:
        """Return the KV tokens that a profile of this machine and model has."""
        gpu = HARDWARE[self.gpu]
        llm = VARIANTS[self.variant](MODELS[self.model])
        budget = kv_budget_bytes(gpu, llm, self.gpus, self.utilization)
        return budget // (llm.kv_bytes_per_token_on(self.gpus) * BLOCK_TOKENS) * BLOCK_TOKENS

    def ratio(self) -> float:
        return self.tokens() / self.vllm - 1


def rows() -> list[Row]:
    text = PAGE.read_text()
    section = text[text.index("| GPU | GPUs | model | utilisation |") :].split("\n\n")[0]
    read = []
    for line in section.splitlines()[2:]:
        gpu, gpus, model, utilization, vllm, here, error, source = line.strip("| ").split(" | ")
        name, _, variant = model.partition(", ")
        read.append(
            Row(
                gpu.strip("`"),
                int(gpus),
                name.strip("`"),
                variant,
                float(utilization),
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


def test_the_rows_of_listed_machines_and_models_are_those_of_analytic_profiles() -> None:
    listed = [row for row in rows() if not row.variant]
    assert len(listed) >= 10
    for row in listed:
        profile = analytic_profile(
            row.gpu, row.model, gpus=row.gpus, gpu_memory_utilization=row.utilization
        )
        assert profile.kv_blocks * profile.block_tokens == row.tokens()


def test_the_page_states_the_median_and_the_worst_error() -> None:
    errors = [row.ratio() for row in rows()]
    middle, worst = median(map(abs, errors)), max(errors, key=abs)
    stated = f"these {len(errors)} rows the median error is {middle:.1%} and the worst {worst:+.1%}"
    assert stated in " ".join(PAGE.read_text().split())
