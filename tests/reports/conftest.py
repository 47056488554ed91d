from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reports.make_run import make_run


@pytest.fixture(scope="session")
def contended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four variants, one a reference, at loads from an idle server to past saturation."""
    return make_run(
        tmp_path_factory.mktemp("contended"),
        ("fcfs", "continuum", "autellix", "clairvoyant"),
        jps=(0.05, 0.25, 0.9),
        programs=60,
    )


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a new run of the toy server: `new_run(variants, jps=…)`."""

    def build(*args: object, **fields: object) -> Path:
        return make_run(tmp_path / "run", *args, **fields)  # type: ignore[arg-type]

    return build
