"""GPUs by name or by file: a TOML file describes a GPU that `gpus` does not list.

In: a name, or the path of a file with the fields of `FIELDS`, each a text with its unit
(docs/howto/my-gpu.md). Out: `Hardware`. Any error in a file raises `InvalidInput` with the file,
the field, the value and the remedy.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from servers.basics.errors import InvalidInput, UnknownProfile
from servers.basics.json_object import JsonObject
from servers.basics.nearest import did_you_mean, nearest
from servers.profiles.machines.gpus import HARDWARE, Hardware
from servers.profiles.profile import find

BYTES = {
    "B": 1.0,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
}
GIGABYTES = {unit: scale / 1e9 for unit, scale in BYTES.items()}
BYTES_PER_S = {f"{unit}/s": scale for unit, scale in BYTES.items()}
FLOPS = {"TFLOP/s": 1e12, "TFLOPS": 1e12, "PFLOP/s": 1e15, "PFLOPS": 1e15}
USD_PER_HOUR = {"USD/h": 1.0}
MOST_CHARACTERS = 300
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")
"""Names of run folders contain it."""


class Quantity(NamedTuple):
    """A field with a number and a unit."""

    attribute: str
    """Attribute of `Hardware`."""
    units: Mapping[str, float]
    """Size of each unit, in the unit of the attribute."""
    lowest: str
    highest: str
    """Values outside these limits are considered mistakes in the unit."""
    example: str
    required: bool = True


FIELDS: Mapping[str, Quantity] = {
    "memory": Quantity("memory_bytes", BYTES, "1 GiB", "16 TiB", "79.1 GiB"),
    "memory-bandwidth": Quantity(
        "memory_bytes_per_s", BYTES_PER_S, "20 GB/s", "200 TB/s", "3.35 TB/s"
    ),
    "bf16": Quantity("bf16_flops", FLOPS, "1 TFLOP/s", "100 PFLOP/s", "989 TFLOP/s"),
    "fp8": Quantity("fp8_flops", FLOPS, "1 TFLOP/s", "100 PFLOP/s", "1979 TFLOP/s", False),
    "host-link": Quantity("pcie_bytes_per_s", BYTES_PER_S, "0.5 GB/s", "10 TB/s", "63 GB/s"),
    "gpu-link": Quantity("link_bytes_per_s", BYTES_PER_S, "1 GB/s", "100 TB/s", "450 GB/s", False),
    "host-memory": Quantity("offload_gb", GIGABYTES, "1 GB", "100 TB", "200 GB", False),
    "price": Quantity(
        "price_usd_per_hour", USD_PER_HOUR, "0.001 USD/h", "10000 USD/h", "2.5 USD/h", False
    ),
}
TEXTS = ("name", "source", "note")


def is_gpu_file(hardware: str) -> bool:
    """Whether the value of --hardware is the path of a GPU file."""
    return hardware.lower().endswith(".toml")


def hardware(name: str) -> Hardware:
    """Return the GPU of that name or in that file. Raise UnknownProfile or InvalidInput."""
    if is_gpu_file(name):
        return read_gpu(Path(name))
    path = Path(name)
    if name not in HARDWARE and (path.is_file() or (path.suffix and not nearest(name, HARDWARE))):
        others = (path.with_suffix(suffix) for suffix in (".toml", ".json"))
        close = next((other for other in others if other.is_file()), None)
        remedy = "rename it" if path.is_file() else "or give a name of bench list hardware"
        raise UnknownProfile(
            f"--hardware {name}: the name of a profile must end in .json, and the name of a GPU"
            f" file in .toml; {f'did you mean {close}?' if close else remedy}"
        )
    return find("hardware", HARDWARE, name)


def gpu_of_file(name: str | None) -> Hardware | None:
    """Return the GPU if `name` is the path of a GPU file, else None."""
    return read_gpu(Path(name)) if name is not None and is_gpu_file(name) else None


def read_gpu(path: Path) -> Hardware:
    values = _fields(path)
    problem = _Problem(path)
    _refuse_unknown(values, problem)
    found: JsonObject = {"source": "a GPU file"}
    for field, value in values.items():
        if field in FIELDS:
            found[FIELDS[field].attribute] = _number(value, FIELDS[field], field, problem)
        else:
            found[field] = _text(value, field, problem)
    missing = [field for field, each in FIELDS.items() if each.required and field not in values]
    if missing:
        lines = ", ".join(f'{field} = "{FIELDS[field].example}"' for field in missing)
        raise InvalidInput(f"{path}: lacks {', '.join(missing)}; add for example {lines}")
    if found.get("fp8_flops", found["bf16_flops"]) < found["bf16_flops"]:
        raise problem.of(
            "fp8",
            values["fp8"],
            f"is less than bf16, {values['bf16']!r}; exchange them, or remove fp8 if the GPU "
            "multiplies FP8 weights in BF16",
        )
    found["memory_bytes"] = round(found["memory_bytes"])
    found["name"] = _name(path, found.get("name"), problem)
    return Hardware(**found)


def _refuse_unknown(values: Mapping[str, Any], problem: _Problem) -> None:
    known = (*FIELDS, *TEXTS)
    for field, value in values.items():
        if field not in known:
            hint = did_you_mean(field, known, f"the fields are {', '.join(known)}")
            raise problem.of(field, value, f"unknown{hint}")


class _Problem(NamedTuple):
    path: Path

    def of(self, field: str, value: object, reason: str) -> InvalidInput:
        written = "a table" if isinstance(value, dict) else repr(value)[:60]
        if isinstance(value, bool):
            written = written.lower()
        return InvalidInput(f"{self.path}: {_key(field)} is {written}: {reason}")


def _key(field: str) -> str:
    return field if field.isascii() and field.replace("-", "_").isidentifier() else repr(field)[:60]


def _fields(path: Path) -> JsonObject:
    """Return the values by field. A dash and an underscore are the same, as in a settings file."""
    try:
        values = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise InvalidInput(
            f"{path}: {(error.strerror or str(error)).lower()}; give a file that describes a GPU, "
            "or a name of bench list hardware"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: not TOML: {error}; quote numbers with units") from None
    except RecursionError:
        raise InvalidInput(f"{path}: nested too deeply; give one line for each field") from None
    found: JsonObject = {}
    for key, value in values.items():
        field = key.replace("_", "-")
        if field in found:
            raise _Problem(path).of(key, value, "given twice; remove one")
        found[field] = value
    return found


def _number(value: object, quantity: Quantity, field: str, problem: _Problem) -> float:
    """Return the value in the unit of the attribute of `Hardware`."""
    example = f'such as "{quantity.example}"'
    if not isinstance(value, str):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        reason = "has no unit; write it" if is_number else "must be a number with its unit"
        raise problem.of(field, value, f"{reason} as text, {example}")
    written = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*(\S*)\s*", value)
    if written is None:
        raise problem.of(field, value, f"must be a number and its unit, {example}")
    number, unit = written.groups()
    if unit not in quantity.units:
        wrong = f"wrong unit {unit[:20]!r}" if unit else "has no unit"
        units = ", ".join(quantity.units)
        raise problem.of(field, value, f"{wrong}; use {units}, {example}")
    found = float(number) * quantity.units[unit]
    if not _of(quantity, quantity.lowest) <= found <= _of(quantity, quantity.highest):
        raise problem.of(
            field,
            value,
            f"must be {quantity.lowest} to {quantity.highest}; check the unit, {example}",
        )
    return found


def _of(quantity: Quantity, text: str) -> float:
    number, unit = text.split()
    return float(number) * quantity.units[unit]


def _text(value: object, field: str, problem: _Problem) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > MOST_CHARACTERS:
        raise problem.of(field, value, f"must be text in one line of {MOST_CHARACTERS} characters")
    return value


def _name(path: Path, given: str | None, problem: _Problem) -> str:
    """Return the given name or the file's name. It must differ from the names of listed GPUs, so
    that reports do not confuse them."""
    name = path.stem if given is None else given
    remedy = f'write name = "my-{path.stem}"' if NAME.fullmatch(path.stem) else 'name = "my-gpu"'
    if not NAME.fullmatch(name):
        reason = "use up to 64 letters, digits, dots, dashes and underscores"
        raise problem.of("name", name, f"{reason}; {remedy}")
    if name in HARDWARE:
        raise problem.of("name", name, f"is the name of a GPU in bench list hardware; {remedy}")
    return name


def with_name(path: Path) -> bytes:
    """Return the contents of a GPU file, with the name if it would depend on the path."""
    content = path.read_bytes()
    if "name" in _fields(path):
        return content
    return f'name = "{read_gpu(path).name}"\n'.encode() + content
