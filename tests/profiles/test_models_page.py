"""The table of models in docs/reference/profiles.md is what the configs of the models give."""

from __future__ import annotations

from pathlib import Path

from servers.profiles import MODELS, Model
from servers.profiles.machines.gpus import GIB

PAGE = Path(__file__).parents[2] / "docs/reference/profiles.md"
COLUMNS = (
    "name",
    "layers",
    "heads / KV",
    "parameters",
    "per token",
    "weights",
    "GiB",
    "KV bytes/token",
    "context",
    "GPUs",
    "source",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def layers(llm: Model) -> str:
    local = [kind for kind in llm.kinds if kind.window is not None]
    windows = "".join(f" ({kind.layers} with {kind.window:,})" for kind in local)
    return f"{llm.layers}{windows}"


def row(llm: Model) -> str:
    heads = "MLA" if llm.kinds[0].kv_heads == 1 else str(llm.kinds[0].kv_heads)
    cells = (
        f"`{llm.name}`",
        layers(llm),
        f"{llm.heads} / {heads}",
        f"{llm.params / 1e9:.2f}e9",
        f"{llm.token_params / 1e9:.2f}e9",
        llm.precision,
        f"{llm.weight_bytes / GIB:.1f}",
        f"{llm.kv_bytes_per_token:,}",
        f"{llm.max_model_len:,}",
        str(llm.gpus),
        llm.source.removesuffix(" config.json"),
    )
    return f"| {' | '.join(cells)} |"


def test_the_page_has_the_sizes_of_each_model() -> None:
    table = "\n".join([HEAD, *map(row, MODELS.values())])
    assert table in PAGE.read_text(), f"write this table into {PAGE.name}:\n{table}"
