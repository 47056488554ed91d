"""Figures as files for papers: the buttons of a report."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from browsing import Open, wait_until_drawn
from playwright.sync_api import Page

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
