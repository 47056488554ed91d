"""List prices of one GPU for one hour in the cloud, on demand, in USD.

Prices differ by provider and change from month to month, so each has its source and date; `--price`
and the `price` of a GPU file replace them. SkyPilot's catalog (github.com/skypilot-org/
skypilot-catalog) repeats the providers' own lists; its commit identifies the exact numbers.
"""

from __future__ import annotations

from typing import NamedTuple


class ListPrice(NamedTuple):
    usd_per_h: float
    source: str
    date: str
    """A year, month or day in ISO 8601."""


LAMBDA = "Lambda, on demand, per GPU of the largest instance, SkyPilot catalog v8 0f40703"
VERDA = "Verda, on demand, SkyPilot catalog v8 000c1d0"
RUNPOD = "Runpod, secure cloud, SkyPilot catalog v8 01acdfd"
NEBIUS = "Nebius, on demand, smallest instance, SkyPilot catalog v8 0082b04"
RUNPOD_LIST = "Runpod, lowest price, deploybase.ai/articles/runpod-gpu-pricing"
SPHERON = "Spheron, half a superchip, spheron.network/blog/nvidia-h200-vs-b200-vs-gb200"
TENSORWAVE = "TensorWave, cliffcenter.com/research/amd-inference-economics"

LIST_PRICES = {
    "a100-40g": ListPrice(1.99, LAMBDA, "2026"),
    "a100-80g": ListPrice(2.79, LAMBDA, "2026"),
    "h100": ListPrice(3.99, LAMBDA, "2026"),
    "h200": ListPrice(4.59, RUNPOD, "2026"),
    "b200": ListPrice(6.69, LAMBDA, "2026"),
    "b300": ListPrice(6.99, VERDA, "2026"),
    "gh200": ListPrice(2.29, LAMBDA, "2026"),
    "gb200": ListPrice(4.54, SPHERON, "2026-03-17"),
    "l4": ListPrice(0.44, RUNPOD_LIST, "2026-03"),
    "l40s": ListPrice(1.55, NEBIUS, "2026"),
    "rtx-4090": ListPrice(0.74, RUNPOD, "2026"),
    "rtx-5090": ListPrice(0.69, RUNPOD_LIST, "2026-03"),
    "rtx-6000-24g": ListPrice(0.69, LAMBDA, "2026"),
    "rtx-pro-6000": ListPrice(1.69, VERDA, "2026"),
    "rtx-pro-6000-server": ListPrice(1.69, VERDA, "2026"),
    "mi300x": ListPrice(1.50, TENSORWAVE, "2026-05-18"),
    "mi325x": ListPrice(1.95, TENSORWAVE, "2026-05-18"),
}
"""By the name of the GPU in `gpus.HARDWARE`."""
