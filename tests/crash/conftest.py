"""The files of an uninterrupted run."""

from __future__ import annotations

import pytest

from tests.crash.small_sweep import ALONE, RUN, output_of, sweep_folder
from tests.crash.trials import Warm, bytes_of


@pytest.fixture(scope="session")
def straight(warm_of_session: Warm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = sweep_folder(tmp_path_factory.mktemp("straight"))
    assert warm_of_session.run(folder, ALONE) == 0, output_of(folder)
    return bytes_of(folder / RUN)
