"""The names in the picture of a report in README.md can be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.picture import first_screen, make_report

pytestmark = pytest.mark.acceptance
END_OF_THE_SLO = """() => {
    const figure = document.getElementById("jct-mean"), {xaxis, yaxis} = figure._fullLayout;
    const limit = figure._fullData.find((trace) => trace.meta.kind === "limit");
    const {left, top} = figure.getBoundingClientRect();
    const x = left + xaxis._offset + xaxis.l2p(xaxis.d2l(limit.x.at(-1)));
    return [x, top + yaxis._offset + yaxis.l2p(yaxis.d2l(limit.y[0]))];
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_report(tmp_path_factory.mktemp("picture"), "--seeds", "1", "--horizon", "8h")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_no_name_is_struck_through_by_the_line_of_the_slo(report: Path) -> None:
    """The line of fcfs ends on it, far from its right end."""
    with first_screen(report) as page:
        end, slo = page.evaluate(END_OF_THE_SLO)
        names = page.locator("#jct-mean .annotation-text")
        boxes = {name.text_content(): name.bounding_box() for name in names.all()}
    for name in ("fcfs", "continuum", "lmcache"):
        box = boxes[name]
        assert box is not None
        assert not (box["x"] < end and box["y"] < slo < box["y"] + box["height"]), name
