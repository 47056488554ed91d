"""`bench compare`: test whether a run is slower than another run of the same settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import AllBut, CommandApp, refuse_given
from harness.console import print_message
from harness.load.option import Option
from servers.basics.atomic import write_file
from servers.basics.errors import InvalidInput, NotComparable, Unavailable
from servers.basics.phrasing import counted

app = CommandApp()

HELP = """Test whether a run is slower than another run of the same settings.

Pairs the results of each job under the same arrivals, and capacities by seed, for the policies,
rates and seeds that both runs have. A policy that lost its steady state is a regression. Exit
code 0: no regression; 1: a regression, or a cell of NEW without a valid result, or a damaged one
of BASE; 2: the runs cannot be compared.

[bold]Examples[/bold]

  bench compare runs/before runs/after

  bench compare runs/main --save baseline.json.gz          # small enough for a repository

  bench compare baseline.json.gz runs/now --max-regression 2% --markdown comment.md

  bench compare baseline.json.gz runs/now --identical      # virtual time: any change fails

  bench compare --across hardware runs/a100 runs/h100 --price a100-80g=1.5 --price h100=2.5

  bench compare --prometheus http://stock:8000/metrics http://turnstile:8000/metrics
"""
MAX_PAGE_BYTES = 1 << 26
PAGE_TIMEOUT_S = 10.0


@app.command(help=HELP)
def compare(
    *,
    context: typer.Context,
    sides: Annotated[
        list[str],
        Option(
            "Run folders, or files written by --save; see --across and --prometheus.",
            "BASE [NEW]",
            positional=True,
        ),
    ],
    across: Annotated[
        str | None,
        Option(
            "Compare capacities of runs that differ in hardware, model, or both "
            "(hardware,model): per GPU and per dollar, on a separate page.",
            "AXES",
        ),
    ] = None,
    prometheus: Annotated[
        bool,
        Option(
            "Compare two servers: BASE and NEW are URLs or files of their Prometheus pages, "
            "or folders with such files, one per moment."
        ),
    ] = False,
    price: Annotated[
        list[str] | None,
        Option(
            "With --across: USD per GPU and hour, as for bench sweep; repeatable.", "USD|NAME=USD,…"
        ),
    ] = None,
    metric: Annotated[
        str, Option("Comma-separated: jct.mean, jct.p50, jct.p90, jct.p95 and jct.p99.", "NAMES")
    ] = "jct.mean,jct.p95",
    max_regression: Annotated[
        str, Option("Largest slowdown that passes: 3% or 0.03.", "SHARE")
    ] = "3%",
    confidence: Annotated[
        float, Option("Confidence level of the intervals.", "SHARE", min=0.5, max=0.999)
    ] = 0.95,
    markdown: Annotated[Path | None, Option("Write the verdict as Markdown.", "FILE")] = None,
    identical: Annotated[bool, Option("Fail on any change, even an improvement.")] = False,
    allow_different: Annotated[
        str | None,
        Option(
            "Compare runs that differ in these settings, such as profile.kv_blocks or "
            "limits,arrivals.",
            "SETTINGS",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        Option("Write a page. Default: compare.html in NEW, if NEW is a folder.", "FILE"),
    ] = None,
    save: Annotated[Path | None, Option("Save BASE as a small baseline file.", "FILE")] = None,
) -> None:
    from harness.cli.tables import show_rows
    from reports.compare import baseline
    from reports.compare.page import COMPARISON, draw
    from reports.compare.regression import compare_paths, compare_sides
    from reports.compare.settings import parse_allowed
    from reports.compare.verdict import HEAD, Verdict, headline, notes, row, shown
    from reports.compare.verdict import markdown as markdown_of

    runs = [Path(side) for side in sides]
    if prometheus:
        refuse_given(context, AllBut("sides", "prometheus"), "has no effect with --prometheus")
        _compare_servers(sides)
        return
    if across is not None:
        _compare_machines(runs, across, price or [], html)
        return
    if price or len(runs) > 2:
        raise InvalidInput("more than two runs, and --price, are for --across hardware,model")
    base, new = runs[0], runs[1] if len(runs) > 1 else None
    if (new is None) == (save is None):
        raise InvalidInput("give NEW, the run to compare with BASE, or --save FILE, not both")
    if new is None and save is not None:
        old = baseline.read_side(base)
        old.refuse_invalid("a baseline")
        baseline.save(old, save)
        unstable = counted(len(old.unstable), "unstable cell") if old.unstable else ""
        parts = [f"{save.stat().st_size:,} bytes", f"{len(old.jobs):,} jobs", unstable]
        print(f"baseline: {save}, {', '.join(part for part in parts if part)}")
        if old.jobs.empty:
            print_message(
                f"{save}: has no job times, because no cell of {base} has a steady state; a "
                "comparison with it finds no slower job. Run lower rates"
            )
        return
    metrics, limit = _metrics(metric), _share(max_regression)
    allowed = () if allow_different is None else parse_allowed(allow_different)

    def compared(old: baseline.Side, now: baseline.Side) -> Verdict:
        return compare_sides(old, now, metrics, limit, confidence, allowed)

    try:
        verdict = compare_paths(base, new or base, compared)
    except InvalidInput as error:
        verdict = Verdict(refused=str(error))
    verdict = replace(verdict, must_be_identical=identical)
    # CI shows this file, so it also says why nothing was compared.
    if markdown is not None:
        write_file(markdown, markdown_of(verdict, limit).encode())
    if verdict.refused:
        raise NotComparable(verdict.refused)
    if html is None and new is not None and new.is_dir():
        html = new / COMPARISON
    if html is not None:
        draw(verdict, str(base), str(new), limit, html)
    if changes := shown(verdict.changes):
        show_rows([HEAD, *map(row, changes)])
    for line in notes(verdict):
        print_message(line)
    print(headline(verdict, limit))
    if html is not None:
        print_message(f"page: {html}")
    if not verdict.good:
        raise typer.Exit(1)


def _compare_servers(sides: list[str]) -> None:
    from harness.cli.tables import show_rows
    from reports.compare.servers import HEADS, MIN_PERIODS, compare_servers, counters

    if len(sides) != 2:
        raise InvalidInput("--prometheus: give the pages of two servers, BASE and NEW")
    base, new = ([counters(page, source) for source, page in _pages(side)] for side in sides)
    found = compare_servers(base, new)
    show_rows(found.rows, heads=HEADS)
    if found.restarts:
        restarts = counted(found.restarts, "period")
        print_message(f"left out {restarts} in which a server was restarted")
    if found.periods < MIN_PERIODS:
        print_message(
            f"no intervals from {counted(found.periods, 'period')}: save the pages of both servers "
            f"at {MIN_PERIODS + 1} or more times"
        )


def _pages(side: str) -> list[tuple[str, str]]:
    """Return the pages of a server with where each is from, in order of their names."""
    if side.startswith(("http://", "https://")):
        from harness.replay.http import RequestFailed
        from harness.replay.openai_client import fetch

        try:
            page = fetch(side, PAGE_TIMEOUT_S, MAX_PAGE_BYTES)
        except RequestFailed as error:
            raise Unavailable(f"{side}: {error}") from None
        return [(side, page.decode(errors="replace"))]
    path = Path(side)
    if not path.exists():
        raise InvalidInput(
            f"--prometheus {side}: no such file or folder; give a URL that begins with http://, a "
            "saved page, or a folder of saved pages"
        )
    files = [path]
    if path.is_dir():  # in order of the numbers in their names, such as times
        pages = (file for file in path.iterdir() if file.is_file() and file.name[0] != ".")
        files = sorted(pages, key=lambda file: (len(file.name), file.name))
    if not files:
        raise InvalidInput(f"{side}: the folder has no pages")
    return [(str(file), file.read_text(errors="replace")) for file in files]


def _compare_machines(
    folders: list[Path], axes_text: str, prices: list[str], html: Path | None
) -> None:
    from harness.cli.print_report import print_members
    from harness.load.prices import EVERY, parse_prices
    from reports.compare.across import ACROSS, AXES, hardware_of, read_across
    from reports.page.members import draw

    axes = [name.strip() for name in axes_text.split(",")]
    for name in axes:
        if name not in AXES:
            raise InvalidInput(f"--across {name}: unknown; use hardware, model or hardware,model")
    hardware = hardware_of(folders)
    given = parse_prices(",".join(prices) or None, hardware)
    every = given.get(EVERY)
    found = read_across(folders, axes, {name: given.get(name, every) for name in hardware})
    html = html or folders[0] / ACROSS
    draw(found, html)
    print_members(found)
    print_message(f"page: {html}")


def _metrics(text: str) -> list[str]:
    from reports.compare.regression import METRICS

    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in METRICS:
            raise InvalidInput(f"--metric {name}: unknown; use {', '.join(METRICS)}")
    return list(dict.fromkeys(names))


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise InvalidInput(f"--max-regression {text}: use a share, e.g. 3% or 0.03")
    return share
