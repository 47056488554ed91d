"""`bench compare --prometheus`: two servers by the counters of their pages."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from reports.compare.servers import compare_servers, counters
from servers.basics.errors import InvalidInput
from tests.harness.in_process import bench
from tests.sentences import mentions

E2E = "vllm:e2e_request_latency_seconds"
PAGES = Path(__file__).parent / "pages"
"""Pages of two vLLM 0.32 on a CPU, `fcfs` and `turnstile`, before and after four runs of 12
programs of five turns each. Only the metrics that are compared are left."""


def page(requests: int, seconds: float, engines: int = 1) -> str:
    """A page on which the requests and their seconds are spread over engines."""
    return "".join(
        f'{E2E}_count{{engine="{i}"}} {requests / engines}\n'
        f'{E2E}_sum{{engine="{i}"}} {seconds / engines}\n'
        for i in range(engines)
    )


def pages(*totals: tuple[int, float]) -> list[dict[str, float]]:
    return [counters(page(*total), "a page") for total in totals]


def row(title: str, rows: list[tuple[str, ...]]) -> tuple[str, ...]:
    (found,) = [values for name, *values in rows if name == title]
    return tuple(found)


def test_one_page_of_each_server_compares_means_since_their_starts_without_an_interval() -> None:
    found = compare_servers(pages((10, 20.0)), [counters(page(30, 45.0, engines=2), "new")])
    assert row("requests", found.rows) == ("10", "30")
    assert row("request, s", found.rows) == ("2.000", "1.500", "0.750", "")
    assert found.periods == 1


def test_pages_of_vllm_give_what_its_clients_measured() -> None:
    """The `usage` of their 240 answers: 438,550 and 438,423 prompt tokens, of which 70,656 and
    313,760 were cached, and 5,614 and 5,538 tokens generated. They waited 39.7 and 18.8 s for a
    request, and those of the first three runs 181.9 s for a program of `fcfs`: the fourth run's
    had not been idle for long enough to have ended."""
    sides = [
        [counters((PAGES / side / name).read_text(), name) for name in ("0.txt", "1.txt")]
        for side in ("stock", "turnstile")
    ]
    rows = compare_servers(*sides).rows
    assert row("requests", rows) == ("240", "240")
    assert row("prompt tokens", rows)[:2] == ("1,827.3", "1,826.8")
    assert row("prefix-cache hits", rows)[:2] == ("0.161", "0.716")
    assert row("output tokens", rows)[:2] == ("23.4", "23.1")
    request_s = [float(value) for value in row("request, s", rows)[:2]]
    assert request_s == pytest.approx([39.7, 18.8], rel=0.03)
    assert row("programs", rows)[0] == "36"
    assert float(row("program, s", rows)[0]) == pytest.approx(181.9, rel=0.01)


def test_an_interval_is_that_of_the_ratios_of_paired_periods() -> None:
    """The ratio is 1/2 in each of five periods, however much the load varies between them."""
    base, new, at, half = [(0, 0.0)], [(0, 0.0)], 0.0, 0.0
    for number, mean_s in enumerate((1.0, 8.0, 3.0, 2.0, 5.0), 1):
        at, half = at + 10 * mean_s, half + 10 * mean_s / 2
        base.append((10 * number, at))
        new.append((10 * number, half))
    found = compare_servers(pages(*base), pages(*new))
    assert row("request, s", found.rows) == ("3.800", "1.900", "0.500", "0.500 to 0.500")
    # Ratios of e and 1/e in turn: their logarithms are 1, -1, 1, -1, 1, with mean 0.2 and deviation
    # 1.095, so Student's interval (2.776 for 4 degrees) is exp(0.2 ± 1.36).
    total, new = 0.0, [(0, 0.0)]
    for number in range(1, 6):
        total += 10 * math.exp(1 if number % 2 else -1)
        new.append((10 * number, total))
    even = pages(*((10 * number, 10.0 * number) for number in range(6)))
    ratio, interval = row("request, s", compare_servers(even, pages(*new)).rows)[2:]
    assert (ratio, interval) == ("1.221", "0.313 to 4.760")


def test_a_period_in_which_a_server_was_restarted_is_left_out() -> None:
    steady = pages((0, 0.0), (10, 10.0), (20, 20.0), (30, 30.0))
    restarted = pages((0, 0.0), (10, 20.0), (5, 40.0), (15, 60.0))
    found = compare_servers(steady, restarted)
    assert (found.periods, found.restarts) == (2, 1)
    assert row("requests", found.rows) == ("20", "20")
    assert row("request, s", found.rows) == ("1.000", "2.000", "2.000", "")


def test_what_is_no_page_of_a_server_that_serves_requests_is_refused() -> None:
    with pytest.raises(InvalidInput, match=f"no {E2E}_count; give the page /metrics"):
        counters("# HELP up\nup 1\n", "http://a")
    with pytest.raises(InvalidInput, match="not a page of Prometheus metrics"):
        counters(f"{E2E}_count{{engine= 1\n", "b.txt")
    with pytest.raises(InvalidInput, match="BASE has 2 pages and NEW has 1"):
        compare_servers(pages((0, 0.0), (1, 1.0)), pages((1, 1.0)))


def test_the_command_takes_files_folders_and_urls(tmp_path: Path) -> None:
    for side, mean_s in (("base", 2.0), ("new", 1.0)):
        (tmp_path / side).mkdir()
        for number in range(2):
            (tmp_path / side / f"{number}.txt").write_text(page(10 * number, mean_s * 10 * number))
    sides = str(tmp_path / "base"), str(tmp_path / "new")
    code, out, err = bench("compare", "--prometheus", *sides)
    assert (code, out) == (0, "requests\t10\t10\nrequest, s\t2.000\t1.000\t0.500\t\n")
    assert mentions(err, "no intervals", "1 period", "6 or more")
    file = str(tmp_path / "new/1.txt")
    assert bench("compare", "--prometheus", file, file)[0] == 0
    for arguments, message in (
        (["http://127.0.0.1:9/metrics", file], "http://127.0.0.1:9/metrics: "),
        ([file], "give the pages of two servers"),
        (["stock:8000/metrics", file], "--prometheus stock:8000/metrics: no such file or folder"),
        ([*sides, "--markdown", "c.md"], "--markdown: has no effect with --prometheus; remove it"),
    ):
        code, out, err = bench("compare", "--prometheus", *arguments)
        assert (code, out) == (2, "")
        assert message in err
