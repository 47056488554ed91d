"""Published peaks of GPUs for analytic profiles; docs/reference/profiles.md has the sources.

FLOP/s are dense (no sparsity) tensor peaks with FP32 accumulation, bytes/s are in one direction,
and `memory_bytes` is the amount that CUDA or ROCm reports, which is less than the product's name
suggests. `gpu_file` reads a GPU that is not listed here from a file.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """Price of one GPU, if a GPU file states it; `prices` has the listed GPUs'."""


HARDWARE = {
    gpu.name: gpu
    for gpu in (
        Hardware(
            "a100-40g",
            bf16_flops=312e12,
            memory_bytes_per_s=1555e9,
            memory_bytes=int(39.50 * GIB),
            pcie_bytes_per_s=PCIE4_X16,
            link_bytes_per_s=300e9,
            source="NVIDIA A100 datasheet, SXM4 40 GB",
            driver_name="A100 40GB",
        ),
        Hardware(
            "a100-80g",
            bf16_flops=312e12,
            memory_bytes_per_s=2039e9,
            memory_bytes=int(79.25 * GIB),
            pcie_bytes_per_s=PCIE4_X16,
            link_bytes_per_s=300e9,
            source="NVIDIA A100 datasheet, SXM4 80 GB",
            driver_name="A100 80GB",
            operator_tables="a100_sxm",
        ),
        Hardware(
            "h100",
            bf16_flops=989.5e12,
            fp8_flops=1979e12,
            memory_bytes_per_s=3350e9,
            memory_bytes=int(79.11 * GIB),
            pcie_bytes_per_s=PCIE5_X16,
            link_bytes_per_s=450e9,
            offload_gb=200.0,
            capability=9,
            source="NVIDIA H100 datasheet, SXM5 80 GB (half of the sparse figures)",
            driver_name="H100",
            operator_tables="h100_sxm",
        ),
        Hardware(
            "h200",
            bf16_flops=989.5e12,
            fp8_flops=1979e12,
            memory_bytes_per_s=4800e9,
            memory_bytes=int(139.81 * GIB),
            pcie_bytes_per_s=PCIE5_X16,
            link_bytes_per_s=450e9,
            offload_gb=200.0,
            capability=9,
            source="NVIDIA H200 datasheet, SXM5 141 GB (half of the sparse figures)",
            driver_name="H200",
            operator_tables="h200_sxm",
        ),
        Hardware(
            "h20",
            bf16_flops=148e12,
            fp8_flops=296e12,
            memory_bytes_per_s=4000e9,
            memory_bytes=int(94.50 * GIB),
            pcie_bytes_per_s=PCIE5_X16,
            link_bytes_per_s=450e9,
            offload_gb=200.0,
            capability=9,
            source="NVIDIA publishes no H20 datasheet; willitrunai.com/gpus/h20-96gb, FP8 as INT8 "
            "there; memory: as the GH200, of which nvidia-smi reports the same 97,871 MiB "
            "(inferred); host link: PCIe 5 is assumed",
            driver_name="H20",
        ),
        Hardware(
            "b200",
            bf16_flops=2250e12,
            fp8_flops=4500e12,
            memory_bytes_per_s=8000e9,
            memory_bytes=int(178.35 * GIB),
            pcie_bytes_per_s=PCIE5_X16,
            link_bytes_per_s=900e9,
            offload_gb=200.0,
            capability=10,
            source="NVIDIA DGX B200 datasheet, an eighth of it (half of the sparse figures)",
            driver_name="B200",
            operator_tables="b200_sxm",
        ),
        Hardware(
            "l40s",
            bf16_flops=362.05e12,
            fp8_flops=733e12,
            memory_bytes_per_s=864e9,
            memory_bytes=int(44.40 * GIB),
            pcie_bytes_per_s=PCIE4_X16,
            source="NVIDIA L40S datasheet, 48 GB, ECC on",
            driver_name="L40S",
            operator_tables="l40s",
        ),
        Hardware(
            "rtx-6000-24g",
            bf16_flops=130.5e12,
            memory_bytes_per_s=672e9,
            memory_bytes=int(23.65 * GIB),
            pcie_bytes_per_s=PCIE3_X16,
            source="NVIDIA Quadro RTX 6000 datasheet (Turing TU102), 24 GB, ECC off",
            note="rtx-6000-24g is the Quadro RTX 6000 (Turing), the only RTX 6000 with 24 GB; it "
            "has no BF16, so models run in FP16 at the same size and speed",
            driver_name="Quadro RTX 6000",
        ),
        Hardware(
            "rtx-5090",
            bf16_flops=209.5e12,
            fp8_flops=419e12,
            memory_bytes_per_s=1792e9,
            memory_bytes=int(31.34 * GIB),
            pcie_bytes_per_s=PCIE5_X16,
            source="NVIDIA RTX Blackwell GPU architecture white paper; memory: execution note §8.3",
            driver_name="RTX 5090",
        ),
        Hardware(
            "rtx-4090",
            bf16_flops=165.2e12,
            fp8_flops=330.3e12,
            memory_bytes_per_s=1008e9,
            memory_bytes=int(23.52 * GIB),
            pcie_bytes_per_s=PCIE4_X16,
            source="NVIDIA Ada GPU architecture white paper, FP32 accumulation",
            driver_name="RTX 4090",
        ),
        Hardware(
            "rtx-pro-6000",
            bf16_flops=503.8e12,
            fp8_flops=1007.6e12,
            memory_bytes_per_s=1792e9,
            memory_bytes=int(94.97 * GIB),
            pcie_bytes_per_s=PCIE5_X16,
            capability=12,
            source="NVIDIA RTX Blackwell PRO GPU architecture white paper, Workstation Edition",
            note="rtx-pro-6000 is the Workstation Edition, 2617 MHz; the Server Edition, 2430 MHz, "
            "has 7% fewer FLOP/s and measured step times: rtx-pro-6000-server",
            driver_name="RTX PRO 6000",
        ),
        Hardware(
            "rtx-pro-6000-server",
            bf16_flops=467.8e12,
            fp8_flops=935.6e12,
            memory_bytes_per_s=1792e9,
            memory_bytes=int(94.97 * GIB),
            pcie_bytes_per_s=PCIE5_X16,
            capability=12,
            source="NVIDIA RTX Blackwell PRO GPU architecture white paper, Workstation Edition at "
            "the Server Edition's 2430 MHz",
            driver_name="RTX PRO 6000 Blackwell Server Edition",
            operator_tables="rtx_pro_6000_server",
        ),
        Hardware(
            "l4",
            bf16_flops=121e12,
            fp8_flops=242.5e12,
            memory_bytes_per_s=300e9,
            memory_bytes=int(22.03 * GIB),
            pcie_bytes_per_s=PCIE4_X16,
            source="NVIDIA L4 datasheet, 24 GB, ECC on (half of the sparse figures)",
            driver_name="L4",
        ),
        Hardware(
            "gh200",
            bf16_flops=989.5e12,
            fp8_flops=1979e12,
            memory_bytes_per_s=4000e9,
            memory_bytes=int(94.50 * GIB),
            pcie_bytes_per_s=450e9,
            link_bytes_per_s=450e9,
            capability=9,
            source="NVIDIA GH200 datasheet, 96 GB HBM3 (half of the sparse figures); host link: "
            "NVLink-C2C",
            driver_name="GH200 480GB",
            note="gh200 with --gpus assumes superchips joined by NVLink, as in GH200 NVL32",
        ),
        Hardware(
            "gb200",
            bf16_flops=2500e12,
            fp8_flops=5000e12,
            memory_bytes_per_s=8000e9,
            memory_bytes=int(184.31 * GIB),
            pcie_bytes_per_s=225e9,
            link_bytes_per_s=900e9,
            capability=10,
            source="NVIDIA GB200 NVL72 datasheet, one GPU (half of the sparse figures); host link: "
            "a quarter of the superchip's 900 GB/s NVLink-C2C, not verified per GPU",
            driver_name="GB200",
            operator_tables="gb200",
        ),
        Hardware(
            "b300",
            bf16_flops=2250e12,
            fp8_flops=4500e12,
            memory_bytes_per_s=7750e9,
            memory_bytes=int(267.69 * GIB),
            pcie_bytes_per_s=PCIE5_X16,
            link_bytes_per_s=900e9,
            capability=10,
            source="NVIDIA DGX B300 datasheet, an eighth of it (half of the sparse figures); host "
            "link: PCIe 5 is assumed, though the GPU itself has PCIe 6",
            driver_name="B300",
            operator_tables="b300_sxm",
        ),
        Hardware(
            "mi300x",
            bf16_flops=1307.4e12,
            fp8_flops=2614.9e12,
            memory_bytes_per_s=5300e9,
            memory_bytes=int(191.98 * GIB),
            pcie_bytes_per_s=PCIE5_X16,
            link_bytes_per_s=448e9,
            source="AMD Instinct MI300X data sheet, OAM 192 GB; links: seven of 64 GB/s each",
        ),
        Hardware(
            "mi325x",
            bf16_flops=1307.4e12,
            fp8_flops=2614.9e12,
            memory_bytes_per_s=6000e9,
            memory_bytes=int(255.98 * GIB),
            pcie_bytes_per_s=PCIE5_X16,
            link_bytes_per_s=448e9,
            source="AMD Instinct MI325X data sheet, OAM 256 GB; links: seven of 64 GB/s each",
        ),
        Hardware(
            "mi355x",
            bf16_flops=2516.6e12,
            fp8_flops=5033.2e12,
            memory_bytes_per_s=8000e9,
            memory_bytes=int(287.98 * GIB),
            pcie_bytes_per_s=PCIE5_X16,
            link_bytes_per_s=537.6e9,
            source="AMD Instinct MI355X data sheet, OAM 288 GB; links: seven of 76.8 GB/s each; "
            "memory: 16 MiB less than 288 GiB, like the MI300X and MI325X (inferred)",
        ),
        Hardware(
            "a10g",
            bf16_flops=70e12,
            memory_bytes_per_s=600e9,
            memory_bytes=int(22.03 * GIB),
            pcie_bytes_per_s=PCIE4_X16,
            source="NVIDIA A10G datasheet, 24 GB (half of the sparse figures); memory: as the L4's "
            "24 GB with ECC on (inferred)",
            driver_name="A10G",
        ),
        Hardware(
            "dgx-spark",
            bf16_flops=125e12,
            fp8_flops=250e12,
            memory_bytes_per_s=273e9,
            memory_bytes=128_000_000_000,
            pcie_bytes_per_s=136.5e9,
            link_bytes_per_s=25e9,
            offload_gb=8.0,
            capability=12,
            source="NVIDIA DGX Spark datasheet, 128 GB LPDDR5X; FLOP/s: a quarter and a half of "
            "500 TFLOP/s in dense FP4 (inferred); GPU link: ConnectX-7, 200 Gbit/s",
            note="dgx-spark has one memory for CPU and GPU, so --gpu-memory-utilization leaves "
            "little for an offload tier: 8 GB unless --offload-gb is given",
            driver_name="GB10",
        ),
    )
}
OPERATOR_TABLES = {
    gpu.name: gpu.operator_tables for gpu in HARDWARE.values() if gpu.operator_tables
}
