"""Time to load the profile of a GPU and a model, which each command does once."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from servers.profiles import shipped
from servers.profiles.files import profile_for

GPUS = [path.stem for path in sorted(shipped.FOLDER.glob("*.json"))]


def forget() -> None:
    shipped.shipped_file.cache_clear()
    shipped.shipped_steps.cache_clear()


@pytest.mark.parametrize("gpu", GPUS)
def test_a_shipped_profile_is_loaded(gpu: str, benchmark: BenchmarkFixture) -> None:
    profile = benchmark.pedantic(
        profile_for, (gpu, "llama-3.1-8b"), setup=forget, rounds=100, warmup_rounds=1
    )
    assert profile.provenance == "operator-table"
