"""Names the two sources of step times of a named machine."""

from __future__ import annotations

from enum import StrEnum


class StepTimes(StrEnum):
    TABLES = "tables"
    """Operator tables measured on the GPU, and the analytic formula where none cover it."""
    ANALYTIC = "analytic"
    """Published peaks × assumed efficiencies."""
