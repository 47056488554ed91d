"""The picture of a report in README.md is current."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.picture import DIGEST, digest, make_report


@pytest.mark.acceptance
def test_the_picture_of_a_report_is_current(tmp_path: Path) -> None:
    assert digest(make_report(tmp_path)) == DIGEST.read_text().strip(), "run: make picture"
