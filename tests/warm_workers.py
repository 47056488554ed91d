"""Imported once by the process from which the workers of tests are forked: what they need."""

import pytest

import harness.engines.sim
import harness.sweep.cell
from reports.metrics.cell_numbers import code_sha256

__all__ = ["harness", "pytest"]

code_sha256()  # cached: a quarter of a second for each worker
