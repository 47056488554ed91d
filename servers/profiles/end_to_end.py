"""Errors of virtual time against end-to-end measurements, by GPU and model.

They are in `end-to-end.json`, which `make silicon` renews. Half of the measurements calibrate the
CPU time of a turn (`servers.profiles.cpu_time`). Errors are ratios.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import Field

from servers.profiles.fit import StrictModel

FILE = Path(__file__).with_name("end-to-end.json")


class EndToEnd(StrictModel):
    """Errors over the measurements of one GPU and model: medians of the absolute values."""

    rows: int = Field(ge=1)
    """Number of measurements."""
    ttft: float = Field(ge=0)
    tpot: float = Field(ge=0)

    def __str__(self) -> str:
        return (
            f"end-to-end error of this GPU and model: TTFT {self.ttft:.0%} and TPOT "
            f"{self.tpot:.0%} at the median of {self.rows} measurement{'s' * (self.rows > 1)}"
        )


class Pair(StrictModel):
    all: EndToEnd
    by_gpus: dict[int, EndToEnd]
    """By number of GPUs."""


class EndToEndFile(StrictModel):
    measurements: str
    """Name and version of the package that contains the measurements."""
    step_times: str
    """Origin of the step times that were compared with them."""
    errors: dict[str, dict[str, Pair]]
    """By GPU and model."""


@cache
def end_to_end_file() -> EndToEndFile:
    return EndToEndFile.model_validate_json(FILE.read_bytes())


def end_to_end_error(hardware: str, model: str, gpus: int | None = None) -> EndToEnd | None:
    """Return the error with this number of GPUs, or over all numbers if this one was not measured;
    None if the GPU and the model were not measured together."""
    pair = end_to_end_file().errors.get(hardware, {}).get(model)
    if pair is None:
        return None
    return pair.all if gpus is None else pair.by_gpus.get(gpus, pair.all)
