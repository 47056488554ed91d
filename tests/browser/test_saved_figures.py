"""Figures as files for papers: the buttons of a report, and `bench export`."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from browsing import Open, wait_until_drawn
from playwright.sync_api import Page

from reports.exports.pictures import pictures

TEXT = "{http://www.w3.org/2000/svg}text"


def texts(svg: Path) -> set[str]:
    tree = ElementTree.parse(svg)  # noqa: S314 (our own file)
    return {"".join(element.itertext()) for element in tree.iter(TEXT)}


def saved(page: Page, button: str, folder: Path) -> Path:
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_a_button_saves_a_figure_as_it_is_selected(
    report: Path, opened: Open, tmp_path: Path
) -> None:
    page = opened(report, color_scheme="dark").page
    page.get_by_role("button", name="autellix").click()
    page.get_by_role("button", name="hide the others").click()
    wait_until_drawn(page)
    svg = saved(page, "Save as SVG: Mean JCT against rate", tmp_path)
    assert svg.name == "jct-mean.svg"
    assert {"fcfs", "continuum", "clairvoyant", "jobs per second"} <= texts(svg)
    assert "autellix" not in texts(svg)
    assert "#191d22" in svg.read_text() or "rgb(25, 29, 34)" in svg.read_text()  # the light ink
    page.get_by_label("Rate", exact=True).select_option("0.05 jobs/s")
    wait_until_drawn(page)
    svg = saved(page, "Save as SVG: Where the time of a job goes", tmp_path)
    assert svg.name == "waterfall-0.05-jobs-s.svg"
    assert {"decode", "tool time", "mean seconds per job"} <= texts(svg)
    png = saved(page, "Save as PNG: Throughput against rate", tmp_path)
    assert png.read_bytes()[1:4] == b"PNG"


def test_the_pdf_button_prints_a_sheet_with_only_the_figure(report: Path, opened: Open) -> None:
    page = opened(report, before="window.print = () => { window.printed = true; }").page
    page.get_by_role("button", name="Save as PDF: Mean JCT against rate").click()
    page.wait_for_function("window.printed")
    assert page.locator("#sheet svg").first.is_visible()
    assert not page.locator("main").is_visible()
    assert page.title() == "jct-mean"
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("#sheet").count() == 0
    assert page.locator("main").is_visible()
    assert page.title().startswith("Turnstile")


@pytest.mark.usefixtures("browser")
@pytest.mark.parametrize("form", ["svg", "pdf"])
def test_all_figures_of_a_report_are_exported(report: Path, tmp_path: Path, form: str) -> None:
    short = tmp_path / "report.html"
    page = report.read_text()
    for figure in ("jct-p95", "hits", "bubbles", "jct-spread", "gantt", "memory", "tool-gaps"):
        page = page.replace(f'class="plot" id="{figure}"', f'id="{figure}"')  # to save time
    short.write_text(page)
    paths = pictures(tmp_path, form, tmp_path / "figures")
    assert [path.name for path in paths] == [
        *(f"jct-mean.{form}", f"throughput.{form}", f"waterfall.{form}")
    ]
    if form == "svg":
        assert {"fcfs", "continuum", "jobs per second"} <= texts(paths[0])
        return
    content = paths[0].read_bytes()
    assert re.findall(rb"/Type /Pages\s+/Count (\d+)", content) == [b"1"]
    # 480 by 360 pixels of 1/96 inch are 360 by 270 points of 1/72 inch.
    assert re.findall(rb"/MediaBox \[0 0 (\d+)\S* (\d+)", content) == [(b"360", b"270")]
