"""A report as its reader uses it: opening, reading, highlighting variants, choosing a rate."""

from __future__ import annotations

import base64
import re
import zlib
from itertools import pairwise
from pathlib import Path

import pytest
from browsing import Open, Opened, names, problems_on, wait_until_drawn
from playwright.sync_api import Page

from reports import write_report
from reports.page.environment import PLOTLY
from tests.reports.make_run import VARIANTS, make_run, turn, write_cell, write_sweep

FIGURES = (
    *("jct-mean", "jct-p95", "throughput", "hits", "waterfall", "bubbles", "jct-spread"),
    *("gantt", "memory"),
)
EVIL = "<script>alert(1)</script>"


def shown(page: Page, figure: str) -> set[str]:
    """Return the variants that plotly draws."""
    names: list[str] = page.evaluate(
        "id => document.getElementById(id).data.filter(t => t.visible).map(t => t.meta.variant)",
        figure,
    )
    return set(names)


def rows(page: Page, figure: str = "waterfall") -> list[str]:
    return page.locator(f"#{figure} .ytick").all_text_contents()


def totals(page: Page) -> list[str]:
    """Return the totals at the ends of the waterfall's bars."""
    return page.locator("#waterfall .scatterlayer .textpoint").all_text_contents()


def hover(page: Page, mark: str) -> str:
    """Return the label that appears when the pointer is over the first such mark."""
    first = page.locator(mark).first
    first.scroll_into_view_if_needed()
    box = first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2 - 3, box["y"] + box["height"] / 2)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    label = page.locator(f"{mark.split()[0]} .hoverlayer .hovertext").first
    label.wait_for()
    return label.text_content() or ""


def test_a_report_opens_from_a_file_without_a_network(report: Path, wide: Opened) -> None:
    assert wide.requests == [report.as_uri()]
    assert wide.complaints == []
    for figure in FIGURES:
        assert wide.page.locator(f"#{figure} .main-svg").count() > 0, figure


def line(page: Page, figure: str, variant: str) -> tuple[str, int]:
    """Return the colour and the width of a variant's line."""
    colour, width = page.evaluate(
        "([id, name]) => document.getElementById(id).data.filter(t => t.meta.variant === name"
        " && t.meta.kind === 'line').map(t => [t.line.color, t.line.width])[0]",
        [figure, variant],
    )
    return colour, width


LINES = ("jct-mean", "jct-p95", "throughput", "hits", "bubbles", "jct-spread")


def test_a_variant_that_is_not_highlighted_is_thin_and_grey_and_keeps_its_name(
    wide: Opened,
) -> None:
    page = wide.page
    colour, width = line(page, "jct-mean", "autellix")
    assert "autellix" in names(page, "jct-mean")
    page.get_by_role("button", name="autellix").click()
    wait_until_drawn(page)
    for figure in LINES:
        assert line(page, figure, "autellix") == ("#c6ccd2", 1), figure
    assert "autellix" in names(page, "jct-mean")
    assert "autellix" in rows(page)
    page.get_by_role("button", name="all", exact=True).click()
    wait_until_drawn(page)
    assert line(page, "jct-mean", "autellix") == (colour, width)


def test_the_others_can_be_hidden_in_all_figures(wide: Opened) -> None:
    page = wide.page
    page.get_by_role("button", name="autellix").click()
    page.get_by_role("button", name="hide the others").click()
    wait_until_drawn(page)
    for figure in LINES:
        assert "autellix" not in shown(page, figure), figure
    assert "autellix" not in rows(page)
    assert len(rows(page)) == len(totals(page)) == 3
    page.get_by_role("button", name="hide the others").click()
    wait_until_drawn(page)
    assert "autellix" in shown(page, "jct-mean")
    page.get_by_role("button", name="all", exact=True).click()
    wait_until_drawn(page)


def test_names_at_the_ends_of_lines_do_not_overlap(wide: Opened) -> None:
    for figure in ("jct-mean", "jct-p95", "throughput", "hits"):
        boxes = [b.bounding_box() for b in wide.page.locator(f"#{figure} .annotation-text").all()]
        middles = sorted(box["y"] + box["height"] / 2 for box in boxes if box)
        assert len(middles) == 4
        assert min(b - a for a, b in pairwise(middles)) > 12, figure


def test_lines_that_lie_on_each_other_have_one_name_and_all_lines_have_one_on_a_narrow_screen(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two variants behave as `fcfs` does."""
    for name in ("las", "mori"):
        monkeypatch.setitem(VARIANTS, name, (name, *VARIANTS["fcfs"][1:]))
    make_run(tmp_path, ("fcfs", "autellix", "las", "mori"), jps=(0.05, 0.25, 0.9), programs=20)
    page = opened(write_report(tmp_path).path, viewport={"width": 390, "height": 900}).page
    assert sorted(names(page, "jct-mean")) == ["autellix", "equal:■ fcfs■ las■ mori"]


def test_a_variant_can_be_highlighted_with_the_keyboard(wide: Opened) -> None:
    page = wide.page
    page.get_by_role("button", name="autellix").focus()
    page.keyboard.press("Space")
    wait_until_drawn(page)
    assert line(page, "jct-mean", "autellix")[1] == 1
    page.keyboard.press("Space")
    wait_until_drawn(page)
    assert line(page, "jct-mean", "autellix")[1] > 1


def test_marks_have_labels_with_details_under_the_pointer(wide: Opened) -> None:
    page = wide.page
    assert re.search(r"mean \d", hover(page, "#jct-mean .scatterlayer .point"))
    assert re.search(r"clairvoyant.*\d s, \d+%", hover(page, "#waterfall .barlayer .point path"))
    assert re.search(r"swe-\d+, turn \d+", hover(page, "#gantt .barlayer .point path"))


def test_choosing_a_rate_changes_the_waterfall(wide: Opened) -> None:
    page = wide.page
    initial = page.get_by_label("Rate", exact=True).input_value(), totals(page)
    page.get_by_label("Rate", exact=True).select_option("0.05 jobs/s")
    wait_until_drawn(page)
    assert initial[0] != "0.05 jobs/s"
    assert totals(page) != initial[1]
    assert "0.05 jobs/s" in str(page.locator("#bubbles").get_attribute("aria-label"))
    page.get_by_label("Rate", exact=True).select_option(initial[0])
    wait_until_drawn(page)
    assert totals(page) == initial[1]


def test_choosing_a_cell_changes_the_gantt_chart(wide: Opened) -> None:
    page = wide.page
    choice = page.locator("#choose-gantt")
    assert len(choice.locator("option").all()) == 2  # the baseline and the best
    before = page.locator("#gantt").get_attribute("aria-label")
    choice.select_option(index=1)
    wait_until_drawn(page)
    assert page.locator("#gantt").get_attribute("aria-label") != before
    choice.select_option(index=0)
    wait_until_drawn(page)


def test_an_axis_can_be_logarithmic(wide: Opened) -> None:
    page = wide.page
    kind = "id => document.getElementById(id)._fullLayout.yaxis.type"
    button = page.locator(".scale[data-figure=jct-mean]")
    before = page.evaluate(kind, "jct-mean")
    button.click()
    wait_until_drawn(page)
    assert {before, page.evaluate(kind, "jct-mean")} == {"log", "linear"}
    button.click()
    wait_until_drawn(page)
    assert page.evaluate(kind, "jct-mean") == before


def test_a_heading_sorts_the_table(wide: Opened) -> None:
    page = wide.page
    page.locator(".cells").get_by_role("button", name="Mean JCT").click()
    column = page.locator(".cells tbody tr td:nth-child(5)")
    values = [float(cell.get_attribute("data-sort") or "nan") for cell in column.all()]
    assert len(values) == 24
    assert values == sorted(values)


def test_figures_follow_the_width_of_the_window_and_keep_their_height(
    report: Path, opened: Open
) -> None:
    size = "[...document.querySelectorAll('.plot')].map(d => d._fullLayout.%s)"
    page = opened(report, viewport={"width": 1280, "height": 900}).page
    width, height = page.evaluate(size % "width"), page.evaluate(size % "height")
    page.set_viewport_size({"width": 1000, "height": 900})
    while not all(
        now < then for now, then in zip(page.evaluate(size % "width"), width, strict=True)
    ):
        page.wait_for_timeout(50)
    assert page.evaluate(size % "height") == height


def test_axe_finds_no_accessibility_problem(wide: Opened, axe: str) -> None:
    assert problems_on(wide.page, axe) == []


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 360)])
def test_axe_finds_no_accessibility_problem_in_dark_or_on_a_phone(
    report: Path, opened: Open, axe: str, scheme: str, width: int
) -> None:
    page = opened(report, color_scheme=scheme, viewport={"width": width, "height": 800}).page
    assert problems_on(page, axe) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_problem_in_the_pages_of_several_machines(
    several: Path, opened: Open, axe: str, scheme: str
) -> None:
    size = {"width": 360, "height": 800}
    overview = opened(several, drawn=False, color_scheme=scheme, viewport=size)
    assert problems_on(overview.page, axe) == []
    assert overview.complaints == []
    assert overview.page.evaluate("document.documentElement.scrollWidth") <= 360
    overview.page.click("section.machine a")
    wait_until_drawn(overview.page)
    assert overview.page.locator("nav.machines [aria-current]").count() == 1
    assert problems_on(overview.page, axe) == []
    overview.page.click("nav.machines a:first-child")
    assert "machine" in overview.page.inner_text("h1")


def test_names_from_a_trace_are_text_and_never_markup(tmp_path: Path, opened: Open) -> None:
    run = write_sweep(tmp_path, ["fcfs", EVIL], (0.5, 0.6))
    for jps in (0.5, 0.6):
        for name in ("fcfs", EVIL):
            turns = [turn(EVIL, tools=[EVIL]), turn(EVIL, 1, 3.0, gap_s=2.0), turn("p1", 0, 5.0)]
            write_cell(run, name, turns, jps=jps)
    report_page = opened(write_report(run).path)
    assert report_page.complaints == []
    assert report_page.page.get_by_role("button", name=EVIL).is_visible()
    end = EVIL[5:]  # Long names lose their beginning if there is little space.
    assert any(row.endswith(end) for row in rows(report_page.page))
    assert f"{end}, turn 0" in hover(report_page.page, "#gantt .barlayer .point path")
    assert report_page.page.locator("body script script, svg script").count() == 0


def test_a_printed_report_is_light_and_shows_the_figures(report: Path, opened: Open) -> None:
    page = opened(report, color_scheme="dark").page
    page.emulate_media(media="print", color_scheme="dark")
    page.wait_for_selector("html.paper", state="attached")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.get_by_role("button", name="only baseline and best").is_visible()
    for figure in FIGURES:
        drawing = page.locator(f"#{figure} .main-svg").first
        assert drawing.is_visible(), figure
        assert drawing.get_attribute("width") == "680"
    page.emulate_media(media="screen", color_scheme="dark")
    page.wait_for_selector("html:not(.paper)", state="attached")


def test_the_figures_of_the_first_screen_are_drawn_before_the_page_has_loaded(
    report: Path, opened: Open
) -> None:
    """A headless browser takes a picture as soon as the page has loaded."""
    note = "addEventListener('load', () => { window.drawn = document.querySelectorAll("
    note += "'.answer .plot .main-svg').length; })"
    page = opened(report, before=note).page
    assert page.evaluate("window.drawn") > 0
    assert page.evaluate("window.drawn") == page.locator(".answer .plot .main-svg").count()


@pytest.mark.parametrize("level", [0, 1, 9])
def test_the_page_decompresses_what_zlib_compresses(wide: Opened, level: int) -> None:
    texts = ["", "a", "é" * 3, "abc" * 50_000, *(str(n * n) for n in (7, 10**40))]
    texts.append("".join(chr(33 + n * n % 1_000) for n in range(20_000)))
    for text in texts:
        data = base64.b64encode(zlib.compress(text.encode(), level)).decode()
        decompress = "inflate(Uint8Array.from(atob(data), (c) => c.charCodeAt(0)), 2)"
        assert wide.page.evaluate(f"(data) => {decompress}", data) == text


def test_the_header_of_plotly_has_no_optional_fields() -> None:
    assert PLOTLY.read_bytes()[:4] == b"\x1f\x8b\x08\x00"


def test_a_run_of_one_cell_has_a_page(tmp_path: Path, opened: Open) -> None:
    run = write_sweep(tmp_path, ["fcfs"])
    write_cell(run, "fcfs", [turn(), turn(index=1, at_s=2.0, gap_s=1.0)])
    report_page = opened(write_report(run).path)
    assert report_page.complaints == []
    assert rows(report_page.page) == ["fcfs"]
