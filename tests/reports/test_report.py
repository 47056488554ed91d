import base64
import gzip
import io
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs_version
from rich.console import Console

from reports import write_report
from reports.page.environment import PLOTLY, TERMS, environment
from tests.reports.make_run import seal, turn, workload, write_cell, write_sweep

ROOT = Path(__file__).parents[2]
EVIL = "</script><script>alert(1)</script>"


class Page(HTMLParser):
    """The elements, visible text and scripts of a page, as a browser would parse them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.within = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.within = tag
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.within == "script":
            self.scripts[-1] += data
        elif self.within != "style":
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        self.within = ""


def specs(page: Page) -> dict[str, dict[str, Any]]:
    """Return the drawing that each figure shows first, by id."""
    figures = json.loads(zlib.decompress(base64.b64decode(page.scripts[0])))
    return {name: next(iter(figure["specs"].values())) for name, figure in figures.items()}


def test_the_page_opens_with_the_answer_and_shows_every_cell(contended: Path) -> None:
    report = write_report(contended)
    page = Page(report.path)
    assert page.text.index(report.answer[0]) < page.text.index("Speed-up over fcfs")
    assert sum(attrs.get("class") == "validity" for _, attrs in page.tags) == 12
    assert [attrs["id"] for tag, attrs in page.tags if attrs.get("class") == "plot"] == [
        "jct-mean", "jct-p95", "throughput", "hits",
        "waterfall", "bubbles", "jct-spread", "gantt", "memory",
    ]  # fmt: skip
    assert "bench sweep --policies fcfs,continuum,autellix,clairvoyant" in page.text


def test_the_page_needs_no_network_and_stays_small(contended: Path) -> None:
    path = write_report(contended).path
    page = Page(path)
    assert path.stat().st_size < 6_000_000
    assert not any(attrs.get("src") or tag == "link" for tag, attrs in page.tags)
    policy = next(a["content"] for _, a in page.tags if "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_the_same_folder_gives_the_same_bytes(contended: Path) -> None:
    names = ("report.html", "cells.csv", "cells.json")
    write_report(contended)
    first = [(contended / name).read_bytes() for name in names]
    write_report(contended)
    assert [(contended / name).read_bytes() for name in names] == first
    assert not list(contended.glob(".*"))


def test_names_from_a_trace_or_a_command_line_are_text_and_never_markup(tmp_path: Path) -> None:
    shape = workload([turn(EVIL)], left_out=[{"program_id": EVIL, "reason": "<b>long</b>"}])
    run = write_sweep(
        tmp_path, ["fcfs", EVIL], (0.5, 0.6), workload=shape | {"name": EVIL},
        made_by={"argv": ["bench", "sweep", EVIL]}, left_out=[{"name": EVIL, "reason": EVIL}],
    )  # fmt: skip
    for jps in (0.5, 0.6):
        for name in ("fcfs", EVIL):
            write_cell(run, name, [turn(EVIL), turn("p1")], jps=jps)
    page = Page(write_report(run).path)
    # The figures' data, plotly, and three scripts of the page; a name has added none.
    assert len(page.scripts) == 5
    assert not any(script.strip() == "alert(1)" for script in page.scripts)
    assert page.text.count(EVIL) >= 5
    assert "<b>long</b>" in page.text
    traces = [trace for spec in specs(page).values() for trace in spec["data"]]
    assert EVIL in {trace["meta"].get("variant") for trace in traces}
    # Plotly interprets tags in its texts.
    shown = [str(t.get(field)) for t in traces for field in ("text", "name", "hovertemplate")]
    assert any("alert" in text for text in shown)
    assert not any("<script" in text for text in shown)


def test_saturated_points_are_hollow_and_references_dotted(contended: Path) -> None:
    page = Page(write_report(contended).path)
    lines = {
        trace["meta"]["variant"]: trace
        for trace in specs(page)["jct-mean"]["data"]
        if trace["meta"]["kind"] == "line"
    }
    assert lines["clairvoyant"]["line"]["dash"] == "dot"
    cells = json.loads((contended / "cells.json").read_text())
    hollow = [c["saturated"] for c in cells if c["variant"] == "fcfs"]
    assert True in hollow
    assert False in hollow
    symbols = ["circle-open" if saturated else "circle" for saturated in hollow]
    assert lines["fcfs"]["marker"]["symbol"] == symbols


def test_the_baseline_and_the_winner_have_bands_of_their_intervals(contended: Path) -> None:
    traces = specs(Page(write_report(contended).path))["jct-mean"]["data"]
    bands = [trace["meta"]["variant"] for trace in traces if trace["meta"]["kind"] == "band"]
    assert bands == ["fcfs", "continuum"]


def test_the_plotly_of_a_page_is_the_version_that_figures_are_validated_with() -> None:
    source = gzip.decompress(PLOTLY.read_bytes())
    assert f"plotly.js (basic - minified) v{get_plotlyjs_version()}\n".encode() in source[:200]


def test_plotly_knows_every_property_that_is_drawn(contended: Path) -> None:
    for spec in specs(Page(write_report(contended).path)).values():
        go.Figure({"data": spec["data"], "layout": spec["layout"]})  # raises where it does not


def test_the_gantt_chart_shows_the_cells_of_the_answer_or_those_requested(
    contended: Path,
) -> None:
    def options(page: Page) -> str:
        return page.text[page.text.index("Program by program") : page.text.index("Memory and")]

    offered = options(Page(write_report(contended).path))
    assert "continuum, 0.25 jobs/s, seed 1" in offered
    assert "fcfs, 0.25 jobs/s, seed 1" in offered
    assert "autellix" not in offered
    requested = options(Page(write_report(contended, ["autellix_jps0.9_seed1"]).path))
    assert "autellix, 0.9 jobs/s, seed 1" in requested
    assert "continuum" not in requested


def test_an_unknown_cell_is_refused_with_the_known_ones(contended: Path) -> None:
    with pytest.raises(ValueError, match=r"--gantt fcfs: .* fcfs_jps0\.05_seed1, .* \d+ more"):
        write_report(contended, ["fcfs"])


def test_a_variant_without_a_result_at_one_rate_is_reported_with_no_result(
    new_run: Callable[..., Path],
) -> None:
    run = new_run(("fcfs", "continuum"), jps=(0.1, 0.5), programs=4)
    (run / "continuum_jps0.5_seed1" / "done.json").unlink()
    assert "no result" in write_report(run).path.read_text()


def buttons(path: Path, key: str) -> dict[str, bool]:
    """Return whether each button is pressed, by this attribute."""
    return {
        str(attrs[key]): attrs["aria-pressed"] == "true"
        for _, attrs in Page(path).tags
        if key in attrs and "aria-pressed" in attrs
    }


def many_variants(run: Path, count: int) -> Path:
    """Write and report a run of `fcfs` and variants of which each is faster than the one before."""
    names = ["fcfs", *(f"v{k:02d}" for k in range(count - 1))]
    write_sweep(run, names)
    for index, name in enumerate(names):
        write_cell(run, name, [turn(decode_s=90.0 - index), turn("p1", decode_s=90.0 - index)])
    return write_report(run).path


def test_up_to_six_variants_are_all_highlighted_and_of_more_only_the_best(tmp_path: Path) -> None:
    few = buttons(many_variants(tmp_path / "few", 6), "data-variant")
    assert all(few.values())
    more = buttons(many_variants(tmp_path / "more", 7), "data-variant")
    # The highlighted ones come first, and the others in the order of the sweep.
    assert list(more) == ["fcfs", "v03", "v04", "v05", "v00", "v01", "v02"]
    assert [name for name, pressed in more.items() if pressed] == ["fcfs", "v03", "v04", "v05"]


@pytest.mark.parametrize(("count", "hidden"), [(16, False), (17, True)])
def test_the_others_are_hidden_at_first_if_they_are_very_many(
    tmp_path: Path, count: int, hidden: bool
) -> None:
    path = many_variants(tmp_path, count)
    assert buttons(path, "id")["hide-others"] == hidden


def test_runs_of_one_cell_and_of_no_cell_have_a_page(tmp_path: Path) -> None:
    single = write_sweep(tmp_path / "one", ["fcfs"])
    write_cell(single, "fcfs", [turn()])
    assert "One job cannot distinguish schedulers" in Page(write_report(single).path).text
    empty = write_sweep(tmp_path / "none", ["fcfs"])
    report = write_report(empty)
    text = Page(report.path).text
    assert "No cell has finished" in text
    assert "not run yet" in text


def test_unfinished_and_broken_cells_leave_the_rest_reported(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs", "continuum", "autellix"])
    write_cell(run, "fcfs", [turn("p0"), turn("p1")])
    write_cell(run, "continuum", [turn("p0")], done=False)
    broken = write_cell(run, "autellix", [turn()])
    (broken / "turns.jsonl").write_text("nonsense\n{}\n")
    seal(broken)
    report = write_report(run)
    text = Page(report.path).text
    assert "not finished: 1 turn recorded" in text
    assert "line 1: not a JSON object" in text
    assert len(json.loads((run / "cells.json").read_text())) == 1


def test_csv_and_json_hold_the_same_cells(contended: Path) -> None:
    write_report(contended)
    header, *lines = (contended / "cells.csv").read_text().splitlines()
    cells = json.loads((contended / "cells.json").read_text())
    assert len(lines) == len(cells) == 12
    assert header.split(",") == list(cells[0])


@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
def test_the_table_fits_any_width(contended: Path, width: int) -> None:
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(write_report(contended).table)
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) == 13  # one line per row, whatever the width
    assert re.search(r"clairvoy", lines[4])


@pytest.mark.parametrize("width", [30, 60, 80])
def test_the_matrix_of_a_fixed_set_has_a_line_per_policy_and_the_highest_rates(
    contended: Path, width: int
) -> None:
    console = Console(width=width, record=True, file=None, force_terminal=False)
    report = write_report(contended)
    with console.capture() as captured:
        console.print(report.matrix)
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) == 1 + len({point.variant for point in report.points})
    assert lines[0].split()[-1] == f"{max(point.amount or 0.0 for point in report.points):g}/s"


def test_an_unwritable_folder_is_refused_in_one_line(
    new_run: Callable[..., Path],
) -> None:
    run = new_run(("fcfs",), jps=(0.5,), programs=2)
    (run / "cells.csv").mkdir()
    with pytest.raises(ValueError, match=r"^cannot write .*cells\.csv: is a directory; "):
        write_report(run)


def test_importing_reports_does_not_import_pandas_numpy_or_plotly() -> None:
    code = "import reports, sys; sys.exit(bool({'pandas', 'plotly', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_figure_without_numbers_is_left_out_and_the_page_says_why(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs"], engine="http://127.0.0.1:8000")
    silent = {"queue_s": None, "prefill_s": None, "device_hit_tokens": None}
    write_cell(run, "fcfs", [turn(**silent, first_token_at_s=0.5, finished_at_s=1.5)], engine="u")
    page = write_report(run).path.read_text()
    for id, note in (
        ("hits", "The cache-hit ratio is not drawn: this server does not report it."),
        ("bubbles", "Bubbles are not drawn: this server does not report how long turns queued."),
        ("memory", "Memory over time is not drawn: only virtual time records it."),
    ):
        assert note in page
        assert f'id="{id}"' not in page


def test_the_report_explains_its_terms_as_the_documentation_does(contended: Path) -> None:
    assert len(TERMS) == (ROOT / "docs/glossary.md").read_text().count("\n- **")
    assert TERMS["Prefill"] == "Computing a prompt's tokens."
    assert TERMS["Trace"].endswith(
        "Each tool gap is marked as measured, measured with waits for "
        "permission (of a person), inferred, synthesised or unstated."
    )
    page = Page(write_report(contended).path)
    shown = {term for term, definition in TERMS.items() if definition in page.text}
    assert {"Prefill", "Policy", "Seed"} <= shown


def test_a_page_explains_only_terms_that_it_links_or_names() -> None:
    page = environment().from_string(
        '<p>Two jobs pinned to 2 x h100. <a href="#term-seed">draws</a></p>'
        '<script>let ttl = "TTL";</script>{% include "glossary.html.j2" %}'
    )
    html = page.render()
    assert re.findall("<dt>([^<]+)</dt>", html) == ["Job", "Seed"]
    assert "2\u00a0x\u00a0h100" in html


def test_a_word_of_the_headline_does_not_break_at_its_hyphen_but_links_keep_their_targets() -> None:
    page = '<h1><a href="#scheduler-1" title="x-y">my-policy</a> on a100-80g, t-4.</h1><p>a-b</p>'
    words = "my-policy", "a100-80g,", "t-4."
    kept = [f'<span class="word">{word}</span>' for word in words]
    link = f'<a href="#scheduler-1" title="x-y">{kept[0]}</a>'
    rendered = environment().from_string(page).render()
    assert rendered == f"<h1>{link} on {kept[1]} {kept[2]}</h1><p>a-b</p>"


def test_every_link_within_the_page_has_a_target(contended: Path) -> None:
    tags = Page(write_report(contended).path).tags
    links = {str(attrs["href"])[1:] for _, attrs in tags if str(attrs.get("href")).startswith("#")}
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert {"term-jct", "term-p50-p95-p99", "term-re-queue-bubble", "columns"} <= links <= set(ids)
    assert len(set(ids)) == len(ids)


def test_every_figure_says_what_it_shows_and_links_its_terms(contended: Path) -> None:
    html = write_report(contended).path.read_text()
    cards = re.findall(r'<figure class="card.*?</figure>', html, re.DOTALL)
    assert len(cards) == 9
    for card in cards:
        assert re.search(r'<span id="note-[a-z0-9-]+">\S', card)
        assert "In the glossary: <a " in card


def test_the_columns_of_the_table_of_cells_are_explained(contended: Path) -> None:
    html = write_report(contended).path.read_text()
    headings = re.findall(
        r"<button type=\"button\"( title=\"[^\"]+\")?>([^<]+)</button></th>", html
    )
    explained = html[html.index('id="columns"') :]
    # Variant, load, seed and validity need no explanation.
    assert [title for meaning, title in headings if not meaning] == [
        *("Variant", "Load", "Seed", "Validity")
    ]
    assert all(f"<dt>{title}</dt>" in explained for meaning, title in headings if meaning)


def printed(run: Path, *, full: bool = False) -> list[list[str]]:
    """Return the first word of each row of the tables of a terminal, without the heads."""
    found = []
    for table in write_report(run).tables(full):
        console = Console(file=io.StringIO(), width=160, legacy_windows=False)
        console.print(table)
        rows = console.file.getvalue().splitlines()[1:]  # type: ignore[attr-defined]
        found.append([row.removeprefix("0.5 jobs/s").strip().split("  ")[0] for row in rows])
    return found


def alike_run(run: Path, jps: Sequence[float], *, slower_s: float = 0.1) -> Path:
    """The mean JCT of four variants is 10 s, and that of the fifth longer by `slower_s`."""
    names = ["fcfs", "las", "continuum", "autellix", "program-fcfs"]
    write_sweep(run, names, jps=jps)
    for rate in jps:
        for name in names:
            jct_s = 10.0 + (slower_s if name == names[-1] else 0.0)
            turns = [turn(f"p{k:02d}", 0, 99.0 * k, decode_s=jct_s) for k in range(20)]
            write_cell(run, name, turns, jps=rate)
    return run


def test_numbers_that_are_alike_are_printed_once(tmp_path: Path) -> None:
    run = alike_run(tmp_path / "alike", [0.5])
    assert printed(run) == [["all 5, within 2%"]]
    assert [len(rows) for rows in printed(run, full=True)] == [5]
    several = alike_run(tmp_path / "several", [0.1, 0.5])
    assert [len(rows) for rows in printed(several)] == [5]  # the matrix has them
    differs = alike_run(tmp_path / "differs", [0.1, 0.5], slower_s=0.3)
    assert [len(rows) for rows in printed(differs)] == [5, 5]
