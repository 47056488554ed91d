"""The GPUs of gpus.toml: their published peaks for analytic profiles, and their list prices.

`gpu_file` reads a GPU that is not listed there from a file.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

GIB = 1 << 30
PCIE3_X16 = 15_750_000_000
PCIE4_X16 = 31_500_000_000
PCIE5_X16 = 63_000_000_000
"""Bytes/s in one direction after line coding: 16 lanes of 8, 16 and 32 GT/s × 128/130 (PCI-SIG)."""


@dataclass(frozen=True, slots=True)
class Hardware:
    name: str
    bf16_flops: float
    memory_bytes_per_s: float
    memory_bytes: int
    pcie_bytes_per_s: float
    """From host to GPU: PCIe, or NVLink-C2C in a superchip."""
    source: str
    fp8_flops: float | None = None
    """None if FP8 weights are converted to BF16 for the multiplication."""
    link_bytes_per_s: float | None = None
    """NVLink or Infinity Fabric, from GPU to GPU; None if the GPUs are connected by PCIe only."""
    offload_gb: float = 100.0
    """Default DRAM per GPU of an offload tier (Continuum v3, §6.1: 100 GB for A100, 200 GB for H100
    and B200; other GPUs are assumed to be like the A100)."""
    driver_name: str = ""
    """Words in the name that the NVIDIA driver has for it. The GH200 with 96 GB of HBM3 is named
    after its 480 GB of LPDDR5X."""
    operator_tables: str = ""
    """Its name in `aiconfigurator-core`, if that has operator tables of vLLM for it."""
    note: str = ""
    capability: int | None = None
    """Major compute capability of a GPU for which vLLM has kernels of sparse latent
    attention."""
    price_usd_per_hour: float | None = None
    """Price of one GPU, if a GPU file states it; `LIST_PRICES` has the listed GPUs'."""


class ListPrice(NamedTuple):
    """Prices differ by provider and change from month to month, so each has its source and date;
    `--price` and the `price` of a GPU file replace them."""

    usd_per_h: float
    source: str
    date: str
    """A year, month or day in ISO 8601."""


HARDWARE: dict[str, Hardware] = {}
LIST_PRICES: dict[str, ListPrice] = {}
for _name, _gpu in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items():
    if _price := _gpu.pop("list_price", None):
        LIST_PRICES[_name] = ListPrice(*_price)
    HARDWARE[_name] = Hardware(_name, memory_bytes=int(_gpu.pop("memory_gib") * GIB), **_gpu)
OPERATOR_TABLES = {
    gpu.name: gpu.operator_tables for gpu in HARDWARE.values() if gpu.operator_tables
}
