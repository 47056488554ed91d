"""Pages of experiments, comparisons and workloads, and tables of all pages on a phone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from browsing import Open, names, problems_on

from reports.compare.baseline import read_side
from reports.compare.page import draw as draw_comparison
from reports.compare.regression import compare_sides
from reports.experiment.arms import ArmRun
from reports.experiment.claims import Check
from reports.experiment.page import ExperimentText, write_experiment
from reports.page.members import MembersReport
from reports.page.members import draw as draw_members
from reports.workload.page import draw as draw_workload
from tests.reports.test_across import machine
from traces import read_traces, synthesize
from traces.formats.native import write_programs

BROKEN_WORDS = """
[...document.querySelectorAll('th, td')].flatMap(cell => {
  const range = document.createRange(), broken = [];
  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    for (const word of texts.currentNode.data.matchAll(/[A-Za-z0-9]+/g)) {
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      if (range.getClientRects().length > 1) broken.push(word[0]);
    }
  }
  return broken;
})
"""


@pytest.fixture(scope="module")
def path_of(report: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes a page of a kind once; returns its path."""
    folder = tmp_path_factory.mktemp("pages")
    written = {
        "experiment": an_experiment,
        "comparison": a_comparison,
        "across": several_machines,
        "workload": a_workload,
    }
    return cache(lambda kind: written[kind](report.parent, folder))


@pytest.mark.parametrize("kind", ["report", "experiment", "comparison", "across", "workload"])
def test_on_a_phone_tables_break_no_word_and_scroll_beside_their_first_column(
    report: Path, path_of: Callable[[str], Path], opened: Open, kind: str
) -> None:
    path = report if kind == "report" else path_of(kind)
    page = opened(path, viewport={"width": 360, "height": 800}).page
    assert page.evaluate(BROKEN_WORDS) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    boxes = page.locator(".scroll").all()
    assert len(boxes) == page.locator("table").count() > 0
    for box in boxes:
        first = box.locator("tbody tr > :first-child").first
        before = first.bounding_box()
        box.evaluate("box => { box.scrollLeft = 200; }")
        assert first.bounding_box() == before


def test_on_a_phone_the_claims_of_an_experiment_are_as_wide_as_the_page(
    path_of: Callable[[str], Path], opened: Open
) -> None:
    page = opened(path_of("experiment"), viewport={"width": 360, "height": 800}).page
    for cell in page.locator(".stacked tbody :is(th, td)").all():
        box = cell.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 360 - 16
        assert cell.evaluate("cell => cell.scrollWidth <= cell.clientWidth")


def an_experiment(run: Path, folder: Path) -> Path:
    about = ExperimentText("small", "A small one", "no source", "", "fast is fast", "", "", "")
    says = "continuum is faster than infercept(queue_order=turn)+"
    check = Check(says=says, of="continuum", to="fcfs", least=1.0)
    return write_experiment(about, [ArmRun("all", None, (run,))], [check], folder).path


def a_comparison(run: Path, folder: Path) -> Path:
    """Return the page of a comparison in which the jobs of each policy take 10% longer."""
    side = read_side(run)
    slower = replace(side, jobs=side.jobs.assign(jct_s=side.jobs["jct_s"] * 1.1))
    verdict = compare_sides(side, slower, ["jct.mean", "jct.p95"], 0.03)
    draw_comparison(verdict, "before", "after", 0.03, folder / "compare.html")
    return folder / "compare.html"


def several_machines(_: Path, folder: Path) -> Path:
    """Return the page of two machines, of which one has a price."""
    cheap = machine("h100", 2.0, fcfs=(1.0, 1.1), continuum=(1.5, 1.4))
    fast = machine("b200", fcfs=(2.0, 2.2), continuum=(3.0, 2.8))
    draw_members(MembersReport((), [cheap, fast]), folder / "across.html")
    return folder / "across.html"


def a_workload(_: Path, folder: Path) -> Path:
    """Return the page of a recorded set, so that there are starts."""
    jobs = synthesize("claude-code", 20, 0)
    starting = [replace(job, recorded_start_s=None if job.fork else 9.0 * n * n)
                for n, job in enumerate(jobs)]  # fmt: skip
    write_programs(folder / "t.jsonl", starting)
    draw_workload(read_traces(folder / "t.jsonl"), "t.jsonl", folder / "workload.html")
    return folder / "workload.html"


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_page_of_a_workload_draws_its_figures_and_the_first_screen_is_its_summary(
    path_of: Callable[[str], Path], opened: Open, axe: str, colours: str
) -> None:
    report_page = opened(
        path_of("workload"),
        viewport={"width": 1400, "height": 900},
        color_scheme=colours,
    )
    assert report_page.complaints == []
    assert [url for url in report_page.requests if not url.startswith(("file:", "blob:"))] == []
    page = report_page.page
    assert page.locator(".plot .main-svg").count() > 0
    assert set(names(page, "prompts")) == {
        *("bfcl", "claude-code", "execution-note", "mini-swe-agent", "openhands", "swe-bench"),
        *("swe-bench-sum", "this trace"),
    }
    assert page.locator("#tools .scatterlayer .trace").count() == 1
    summary = page.locator(".answer").bounding_box()
    assert summary is not None
    assert summary["y"] + summary["height"] < 900
    page.locator("#choose-tokens").select_option("output")
    page.wait_for_selector("html[data-figures=drawn]", state="attached")
    assert page.locator("#turn-tokens .scatterlayer .trace").count() == 8
    assert page.evaluate("document.documentElement.scrollWidth") <= 1400
    assert problems_on(page, axe) == []


def test_the_page_of_several_machines_draws_a_dot_per_policy_and_machine(
    path_of: Callable[[str], Path], opened: Open
) -> None:
    report_page = opened(path_of("across"))
    assert report_page.complaints == []
    page = report_page.page
    assert page.locator("#per-gpu .scatterlayer .point").count() == 4
    assert page.locator("#per-dollar .scatterlayer .point").count() == 2
    assert page.locator("#ratio .scatterlayer .point").count() == 2


def test_the_page_of_a_comparison_has_a_row_per_change(
    path_of: Callable[[str], Path], opened: Open
) -> None:
    report_page = opened(path_of("comparison"))
    assert report_page.complaints == []
    page = report_page.page
    assert "regression" in page.locator("h1").inner_text()
    assert page.locator("tbody tr").count() > 1


def test_the_page_of_an_experiment_draws_its_figures(
    path_of: Callable[[str], Path], opened: Open
) -> None:
    report_page = opened(path_of("experiment"))
    assert report_page.complaints == []
    assert report_page.page.locator(".plot .main-svg").count() > 0
