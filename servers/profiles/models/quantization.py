"""Sizes of quantised weights, from the `quantization_config` of a config.json.

In: the section, as written by the checkpoint's producer. Out: `Quantization`, with the bytes of a
matrix including its scales, and the matrices that keep 16 bits. Embeddings and the routers of
experts keep 16 bits in all supported methods, and so does the output head unless formats are mixed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from servers.basics.errors import InvalidInput
from servers.profiles.models.fields import written

SIXTEEN_BITS = 16
FLOAT32_BYTES = 4
MOST_REPEATS = 5
"""Regular expressions with more repetitions are refused, since they could take minutes."""
TEXT_MODEL = re.compile(r"^(?:(?:model\.)?language_model\.(?:model\.)?|backbone\.)")
"""Prefixes of the text model's modules, in multimodal checkpoints and those of Nemotron-H, for
which vLLM has `model.`."""

EXPERT = re.compile(r"\.experts\.\d+\..*")
"""What follows the name of a layer's experts, which vLLM keeps in one format."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The modules that keep 16 bits."""

    names: frozenset[str] = frozenset()
    """Names of modules, or a part of their path; modules within them keep 16 bits too."""
    pattern: re.Pattern[str] | None = None

    @property
    def by_layer(self) -> bool:
        """Whether the kept modules may differ between layers."""
        pattern = self.pattern.pattern if self.pattern else ""
        return any(map(str.isdigit, pattern)) or any(re.search(r"\d", each) for each in self.names)

    def __contains__(self, module: str) -> bool:
        parts = module.split(".")
        ends = range(1, len(parts) + 1)
        if any(".".join(parts[i:j]) in self.names for j in ends for i in range(j)):
            return True
        return self.pattern is not None and self.pattern.match(module) is not None


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the matrices of a checkpoint are stored."""

    words: str
    bits: float
    """Bits per weight, including scales and zero points of groups."""
    matmul: Literal["bf16", "fp8"]
    block: tuple[int, int] | None = None
    """Rows and columns of a block that shares a 32-bit scale."""
    per_row: bool = False
    """Whether each output has a 32-bit scale."""
    experts_only: bool = False
    kept: Kept = field(default_factory=lambda: Kept())
    fp8_kv: bool = False
    """Whether the checkpoint requests KV entries of 8 bits."""
    modules: Mapping[str, Quantization] | None = None
    """The format of each module, where formats are mixed; all others keep 16 bits."""

    @property
    def by_layer(self) -> bool:
        """Whether formats may differ between layers."""
        return self.modules is not None or self.kept.by_layer

    def of(self, module: str) -> Quantization:
        """Return the format of a module, which may be part of a listed one."""
        if self.modules is None:
            return FULL if module in self.kept else self
        parts = module.split(".")
        within = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        return next((self.modules[name] for name in within if name in self.modules), FULL)

    def matrix_bytes(self, inputs: int, outputs: int) -> int:
        size = math.ceil(inputs * outputs * self.bits / 8)
        if self.block is not None:
            rows, columns = self.block
            size += FLOAT32_BYTES * math.ceil(outputs / rows) * math.ceil(inputs / columns)
        return size + (FLOAT32_BYTES * outputs if self.per_row else 0)


FULL = Quantization("BF16", SIXTEEN_BITS, "bf16")


def quantization_of(config: Mapping[str, Any], where: str) -> Quantization:
    """Read the section of a config. Raises InvalidInput if it is not supported."""
    section = config.get("quantization_config") or config.get("compression_config")
    if section is None:
        return FULL
    if not isinstance(section, Mapping):
        raise InvalidInput(
            f"{where}: quantization_config: not an object; remove it for BF16 weights"
        )
    method = section.get("quant_method", "modelopt" if "quant_algo" in section else None)
    if not isinstance(method, str) or method not in METHODS:
        raise InvalidInput(
            f"{where}: quantization_config.quant_method is {str(method)[:40]!r}, which is not "
            f"supported; use weights in 16 bits or in one of {', '.join(METHODS)}"
        )
    return METHODS[method](_Section(section, where))


class _Section:
    """Reads fields of a quantization_config."""

    def __init__(self, values: Mapping[str, Any], where: str, path: str = "") -> None:
        self.values, self.where = values, where
        self.path = path or "quantization_config"

    def problem(self, name: str, remedy: str) -> InvalidInput:
        value = written(self.values.get(name))
        return InvalidInput(f"{self.where}: {self.path}.{name} is {value}; {remedy}")

    def number(self, *names: str, default: int | None = None, least: int = 1) -> int:
        name = next((each for each in names if each in self.values), names[0])
        value = self.values.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 2**20:
            raise self.problem(name, f"it must be a whole number of at least {least}")
        return value

    def inner(self, name: str) -> _Section | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.problem(name, "it must be an object")
        return _Section(value, self.where, f"{self.path}.{name}")

    def kept(self, *names: str) -> Kept:
        found: list[str] = []
        for name in names:
            value = self.values.get(name) or []
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise self.problem(name, "it must be a list of names of modules")
            found += (TEXT_MODEL.sub("model.", each) for each in value)
        patterns = [self._pattern(each) for each in found if each.startswith("re:") or "*" in each]
        plain = (each for each in found if not each.startswith("re:") and "*" not in each)
        pattern = re.compile("|".join(patterns)) if patterns else None
        return Kept(frozenset(plain), pattern)

    def _pattern(self, listed: str) -> str:
        """Return the regular expression of a pattern: `re:` and an expression, or a name with
        asterisks, which includes the modules within it."""
        if listed.startswith("re:"):
            pattern = listed[3:]
        else:
            pattern = ".*".join(map(re.escape, listed.split("*"))) + r"(\..*)?$"
        simple = len(re.findall(r"[*+{]", pattern)) <= MOST_REPEATS
        simple = simple and not re.search(r"\)\s*[*+{]|\\\d|\(\?", pattern) and len(pattern) <= 200
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError):
            simple = False
        if not simple:
            raise InvalidInput(
                f"{self.where}: {self.path} has the pattern {listed[:40]!r}, which is invalid or "
                f"too complex; use at most {MOST_REPEATS} repetitions, or names of modules"
            )
        return f"(?:{pattern})"


def _fp8(section: _Section) -> Quantization:
    block = section.values.get("weight_block_size")
    whole = isinstance(block, Sequence) and len(block) == 2
    if block is not None and not (
        whole and all(type(each) is int and 1 <= each <= 2**20 for each in block)
    ):
        raise section.problem("weight_block_size", "it must be two numbers such as [128, 128]")
    return Quantization(
        "FP8",
        8,
        "fp8",
        block=None if block is None else (block[0], block[1]),
        kept=section.kept("modules_to_not_convert", "ignored_layers"),
    )


def _mxfp4(section: _Section) -> Quantization:
    """Groups of 32 weights of 4 bits share a scale of 8 bits. Only experts have this format."""
    kept = section.kept("modules_to_not_convert")
    return Quantization("MXFP4 experts", 4 + 8 / 32, "bf16", experts_only=True, kept=kept)


def _grouped(section: _Section, name: str, *, zero_points: bool) -> Quantization:
    """Each group of weights shares a scale of 16 bits and perhaps a zero point."""
    bits = section.number("bits", "w_bit", default=4)
    if bits not in (4, 8):
        raise section.problem("bits", "use 4 or 8 bits per weight")
    group = section.number("group_size", "q_group_size", default=128, least=-1)
    shared = SIXTEEN_BITS + (bits if zero_points else 0)
    kept = section.kept("modules_to_not_convert")
    per_weight = bits + (shared / group if group > 0 else 0)
    return Quantization(f"{name} {bits}-bit", per_weight, "bf16", kept=kept)


def _compressed(section: _Section) -> Quantization:
    """The format of llm-compressor, whose groups of modules must share one scheme for weights."""
    groups = section.inner("config_groups")
    schemes = [groups.inner(name) for name in groups.values] if groups else []
    weights = [found for scheme in schemes if scheme and (found := scheme.inner("weights"))]
    if not weights or len(weights) < len(schemes):
        raise section.problem("config_groups", "each group must have weights")
    first, activations = weights[0], schemes[0] and schemes[0].inner("input_activations")
    if any(each.values != first.values for each in weights):
        raise section.problem("config_groups", "one format for all weights is supported")
    bits = first.number("num_bits")
    if bits not in (4, 8):
        raise first.problem("num_bits", "use 4 or 8 bits per weight")
    return _schemed(section, first, bits, eight_bits=activations is not None)


def _schemed(section: _Section, weights: _Section, bits: int, *, eight_bits: bool) -> Quantization:
    floating = weights.values.get("type") == "float"
    group = weights.values.get("group_size")
    per_weight = float(bits)
    if group is not None and weights.values.get("strategy") != "channel":
        group = weights.number("group_size", least=-1)
        scale = 8 if bits == 4 and floating else SIXTEEN_BITS
        zero_point = 0 if weights.values.get("symmetric", True) else bits
        per_weight += (scale + zero_point) / group if group > 0 else 0
    block = weights.values.get("block_structure")
    sizes = block if isinstance(block, list) and all(type(n) is int for n in block) else None
    kv = section.values.get("kv_cache_scheme")
    return Quantization(
        ("NVFP4" if bits == 4 else "FP8") if floating else f"INT{bits}",
        per_weight,
        "fp8" if eight_bits and floating else "bf16",
        block=(sizes[0], sizes[1]) if sizes and len(sizes) == 2 and min(sizes) > 0 else None,
        per_row=weights.values.get("strategy") == "channel",
        kept=section.kept("ignore"),
        fp8_kv=kv is not None,
    )


def _modelopt(section: _Section) -> Quantization:
    section = section.inner("quantization") or section
    kv = section.values.get("kv_cache_quant_algo") or section.values.get("kv_cache_scheme")
    fp8_kv = kv.get("num_bits") == 8 if isinstance(kv, Mapping) else str(kv).lower() == "fp8"
    kept = section.kept("exclude_modules", "ignore", "modules_to_not_convert")
    if str(section.values.get("quant_algo")).upper() == "MIXED_PRECISION":
        return _mixed(section, fp8_kv)
    return replace(_modelopt_format(section), kept=kept, fp8_kv=fp8_kv)


def _modelopt_format(section: _Section) -> Quantization:
    algorithm = str(section.values.get("quant_algo")).upper()
    if algorithm == "FP8":
        return Quantization("FP8", 8, "fp8")
    if algorithm == "MXFP8":
        return Quantization("MXFP8", 8 + 8 / 32, "fp8")
    if algorithm in ("NVFP4", "W4A16_NVFP4"):
        group = section.number("group_size", default=16)
        return Quantization("NVFP4", 4 + 8 / group, "fp8" if algorithm == "NVFP4" else "bf16")
    raise section.problem("quant_algo", "use FP8, MXFP8, NVFP4 or W4A16_NVFP4")


def _mixed(section: _Section, fp8_kv: bool) -> Quantization:
    """Each module has a format of its own. Products are counted at the lowest rate of them."""
    listed = section.inner("quantized_layers")
    names = listed.values if listed else {}
    modules = {
        EXPERT.sub(".experts", TEXT_MODEL.sub("model.", str(name))): _modelopt_format(found)
        for name in names
        if listed and (found := listed.inner(name))
    }
    if not modules:
        raise section.problem("quantized_layers", "it must be an object with formats of modules")
    words = " and ".join(sorted({each.words for each in modules.values()}))
    wide = any(each.matmul == "bf16" for each in modules.values())
    matmul: Literal["bf16", "fp8"] = "bf16" if wide else "fp8"
    return Quantization(words, SIXTEEN_BITS, matmul, fp8_kv=fp8_kv, modules=modules)


METHODS: Mapping[str, Callable[[_Section], Quantization]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp4": _mxfp4,
    "awq": lambda section: _grouped(section, "AWQ", zero_points=True),
    "gptq": lambda section: _grouped(section, "GPTQ", zero_points=True),
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
}
