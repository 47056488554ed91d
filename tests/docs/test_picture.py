"""The names in the picture of a report in README.md can be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.picture import first_screen, make_report

pytestmark = pytest.mark.acceptance
HEIGHT_OF_THE_SLO = """() => {
    const figure = document.getElementById("jct-mean"), axis = figure._fullLayout.yaxis;
    const limit = figure._fullData.find((trace) => trace.meta.kind === "limit");
    return figure.getBoundingClientRect().top + axis._offset + axis.l2p(axis.d2l(limit.y[0]));
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_report(tmp_path_factory.mktemp("picture"), "--seeds", "1", "--horizon", "8h")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_no_name_is_struck_through_by_the_line_of_the_slo(report: Path) -> None:
    """The lines of fcfs and lmcache end on it, far from its right end."""
    with first_screen(report) as page:
        slo = page.evaluate(HEIGHT_OF_THE_SLO)
        names = page.locator("#jct-mean .annotation-text")
        boxes = {name.text_content(): name.bounding_box() for name in names.all()}
    for name in ("fcfs", "lmcache"):
        box = boxes[name]
        assert box is not None
        assert not box["y"] < slo < box["y"] + box["height"], name
