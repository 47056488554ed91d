"""The sample of every format of ours: `SAMPLE` in its file in `tests/traces/formats`."""

from __future__ import annotations

from importlib import import_module

from tests.traces.sample import Sample
from traces.formats.registry import PACKAGED, known_formats, load_format


def _sample(format: str) -> Sample:
    _, _, module = load_format(format).__name__.rpartition(".")
    sample: Sample = import_module(f"tests.traces.formats.test_{module}").SAMPLE
    return sample


SAMPLES = {name: _sample(name) for name in (*known_formats().built_in, *PACKAGED)}
"""By the format's name."""
