"""Suggestions appear only where names are close."""

from __future__ import annotations

import pytest

from harness.load.option import settings_of
from harness.load.settings import Execution, SweepSettings
from servers.basics.nearest import nearest
from servers.profiles import HARDWARE, MODELS
from servers.variants import ALL

KEYS = [*settings_of(SweepSettings), *settings_of(Execution)]


@pytest.mark.parametrize(
    ("name", "known", "close"),
    [
        ("A100-80GB", HARDWARE, "a100-80g"),
        ("a100", HARDWARE, "a100-40g or a100-80g"),  # both begin with it
        ("rtx4090", HARDWARE, "rtx-4090"),
        ("mi300", HARDWARE, "mi300x"),
        ("llama-3-8b", MODELS, "llama-3.1-8b"),
        ("glm-4.6", MODELS, "glm-4.7"),
        ("contineum", ALL, "continuum"),
        ("fcsf", ALL, "fcfs"),
        ("static", ALL, "static-ttl"),
        ("LMCACHE", ALL, "lmcache"),
        ("polices", KEYS, "policies"),
        ("num_programs", KEYS, "programs"),
    ],
)
def test_a_close_name_is_suggested(name: str, known: list[str], close: str) -> None:
    assert nearest(name, known) == close


@pytest.mark.parametrize(
    ("name", "known"),
    [
        *((name, HARDWARE) for name in ("gaudi2", "t4", "a6000", "jetson", "tpu", "rtx")),
        *((name, MODELS) for name in ("falcon-7b", "opt-125m", "starcoder", "phi-4", "xyz")),
        *((name, ALL) for name in ("fifo", "srpt", "round-robin", "priority", "vllm", "lru")),
        *((name, KEYS) for name in ("rate", "threads", "batch_size", "temperature", "qqq", "")),
    ],
)
def test_a_far_name_is_not(name: str, known: list[str]) -> None:
    assert nearest(name, known) == ""
