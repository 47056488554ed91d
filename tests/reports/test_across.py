"""`bench compare --across`: capacities of several machines per GPU and per dollar."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec import convert

from reports.answer.capacity_context import MachinePrice
from reports.answer.members import MemberRun
from reports.answer.per_gpu import capacities_by_run, caveats, most_per_gpu
from reports.answer.verdict import Answer
from reports.capacity.estimate import Capacity, Kind
from reports.capacity.search import Chain
from reports.compare.across import read_across
from reports.figures.styles import styles
from reports.page.member_figures import capacity_figures
from reports.page.members import draw
from reports.run_folder.members import Member
from reports.statistics.best import winners
from reports.statistics.capacities import capacities
from servers.basics.errors import NotComparable
from servers.records.sweep import SweepRecord, VariantRecord
from tests.harness.in_process import bench
from tests.reports.make_run import seal, write_cell, write_sweep
from tests.reports.test_steady import stream_turn
from tests.sentences import mentions

PROFILE = {"provenance": "operator-table"}


def machine(
    hardware: str,
    usd_per_h: float = math.nan,
    gpus: int = 1,
    slo: str = "mean<=60s",
    **per_seed: Sequence[float],
) -> MemberRun:
    found = {
        Chain(name, seed): Capacity(Kind.FOUND, value, value, value)
        for name, values in per_seed.items()
        for seed, value in enumerate(values, start=1)
    }
    sweep = {
        "hardware": hardware,
        "model": "llama-3.1-8b",
        "gpus": gpus,
        "baseline": "fcfs",
        "profile": PROFILE,
        "variants": [{"name": name} for name in per_seed],
        "jps": [],
        "seeds": [1],
    }
    shown = capacities(found, dict.fromkeys(per_seed, ""), "fcfs")
    names = tuple(each.variant for each in winners(shown))
    answer = Answer("", (), (), "", capacities=tuple(shown), winners=names)
    label = f"{gpus} x {hardware}" if gpus > 1 else hardware
    return MemberRun(
        Member(Path(hardware), hardware, "llama-3.1-8b", gpus),
        *(label, convert(sweep, SweepRecord), answer, (), MachinePrice(gpus, usd_per_h), slo, 40.0),
    )


def test_the_first_sentence_names_the_machine_with_most_jobs_per_gpu() -> None:
    """Two GPUs that sustain 3 jobs/s together sustain 1.5 each: less than one that sustains 2."""
    pair = machine("h100", gpus=2, fcfs=(3.0, 3.0, 3.0))
    one = machine("b200", fcfs=(2.0, 2.0, 2.0))
    (sentence, *_) = most_per_gpu([pair, one])
    assert mentions(sentence, "b200", "2 jobs/s", "each GPU", "1.3x", "2 x h100", "1.3–1.3")


def test_the_cheaper_machine_can_win_per_dollar() -> None:
    """At 3.6 USD per hour a thousand jobs at 1 job/s take 1000 s, so they cost 1 USD."""
    slow = machine("h100", 3.6, fcfs=(1.0, 1.0, 1.0))
    fast = machine("b200", 14.4, fcfs=(2.0, 2.0, 2.0))
    per_gpu, per_dollar = most_per_gpu([slow, fast])
    assert mentions(per_gpu, "b200", "2 jobs/s", "fcfs", "each GPU")
    assert mentions(per_dollar, "h100", "1 USD", "fcfs", "2.0x", "per dollar", "b200", "2.0–2.0")
    table = capacities_by_run([slow, fast])
    assert [(row.group, row.cells[6].text) for row in table.rows] == [("h100", "1"), ("b200", "2")]


def test_machines_whose_interval_reaches_the_best_tie_with_it() -> None:
    """0.9 times as many with one seed and 1.2 times with another is no difference. The geometric
    mean of 0.9, 1.2 and 1.1 is 1.06."""
    one = machine("h100", fcfs=(1.0, 1.0, 1.0))
    other = machine("h200", fcfs=(0.9, 1.2, 1.1))
    (sentence, *_) = most_per_gpu([one, other])
    tie = "not distinguished", "3 seeds", "h200 sustains 1.06 jobs/s", "h100 1 jobs/s"
    assert mentions(sentence, *tie)


def test_machines_with_almost_equal_numbers_keep_their_policies() -> None:
    one = machine("h100", fcfs=(1.0, 1.0, 1.0))
    other = machine("h200", lmcache=(1.01, 1.01, 1.01))
    (sentence, *_) = most_per_gpu([one, other])
    assert mentions(sentence, "h200 sustains 1.01 jobs/s with lmcache", "h100 1 jobs/s with fcfs")


def test_a_cost_has_its_interval_the_other_way_round() -> None:
    found = machine("h100", 3.6, fcfs=(1.0, 2.0))
    cost = found.usd(found.capacities[0])
    assert cost is not None
    assert cost.low < cost.value < cost.high
    assert cost.value == pytest.approx(1 / math.sqrt(2))


def test_the_table_has_all_values_of_the_figures_also_those_of_references() -> None:
    """Two GPUs sustain 2 and 3 jobs/s, each half of that. At 3.6 USD per hour and GPU a thousand
    jobs at 2 jobs/s cost 1 USD."""
    pair = machine("h100", 3.6, gpus=2, fcfs=(2.0, 2.0, 2.0), best=(3.0, 3.0, 3.0))
    fcfs, best = pair.capacities
    answer = replace(pair.answer, capacities=(fcfs, replace(best, reference="clairvoyant")))
    table = capacities_by_run([replace(pair, answer=answer)])
    assert table.heads[1:] == [
        "Jobs/s", "95% CI", "Ratio", "95% CI",
        "Jobs/s per GPU", "95% CI", "USD per 1,000 jobs", "95% CI",
    ]  # fmt: skip
    reference, own = table.rows
    assert reference.is_reference
    assert [cell.text for cell in reference.cells[4:]] == ["1.5", "1.5–1.5", "0.667", "0.667–0.667"]
    assert [cell.text for cell in own.cells[4:]] == ["1", "1–1", "1", "1–1"]


def test_a_relative_slo_and_a_missing_price_are_caveats() -> None:
    found = (
        machine("h100", 2.0, slo="mean<=2x", fcfs=(1.0, 1.0)),
        machine("b200", slo="mean<=2x", fcfs=(2.0, 2.0)),
    )
    relative, price = caveats(found)
    assert mentions(relative, "mean<=2x", "relative to each idle machine")
    assert mentions(price, "b200", "--price NAME=USD")
    same = (machine("h100", 2.0, fcfs=(1.0, 1.0)), machine("b200", 2.0, fcfs=(2.0, 2.0)))
    assert caveats(same) == []


def test_figures_have_a_group_of_dots_per_machine_in_the_styles_of_all_pages() -> None:
    found = (
        machine("h100", fcfs=(1.0, 1.1), continuum=(1.5, 1.4)),
        machine("b200", fcfs=(2.0, 2.2), continuum=(3.0, 2.8)),
    )
    style = styles([VariantRecord(name="fcfs"), VariantRecord(name="continuum")])
    per_gpu, ratio = capacity_figures(found, style)  # no price, so no figure of the cost
    assert (per_gpu.id, ratio.id) == ("per-gpu", "ratio")
    traces = {trace["meta"]["variant"]: trace for trace in per_gpu.spec["data"]}
    assert traces["continuum"]["y"] == ["h100", "b200"]
    assert traces["continuum"]["marker"]["symbol"] == style["continuum"].marker
    assert traces["continuum"]["x"] == pytest.approx([math.sqrt(2.1), math.sqrt(8.4)])
    assert [trace["meta"]["variant"] for trace in ratio.spec["data"]] == ["continuum"]


IDLE = {"mean": 10.0, "percentiles": [9.0] * 99}


def run(folder: Path, hardware: str, seeds: Sequence[int] = (1, 2), **fields: Any) -> Path:
    """Write a run whose capacity is between 1 and 1.05 jobs/s with each seed."""
    search: Mapping[str, Any] = {"slo": "mean<=2x"}
    merged = {"hardware": hardware, "search": search, "steady_state": True, "jps": []} | fields
    write_sweep(folder, ["fcfs"], seeds=seeds, **merged)
    for seed in seeds:
        for jps, mean_s in ((1.0, 19.0), (1.05, 21.0)):
            cell = write_cell(folder, "fcfs", [stream_turn(0, 0.0, 1.0)], jps=jps, seed=seed)
            done = orjson.loads((cell / "done.json").read_bytes())
            jct = IDLE | {"mean": mean_s}
            window = {"first_job": 0, "jobs": 1, "from_s": 0.0, "to_s": 1.0}
            steady = {"steady": True, "unstable": None, "times_s": {"jct": jct}, "window": window}
            (cell / "done.json").write_bytes(
                orjson.dumps({**done, "idle_times_s": {"jct": IDLE}, **steady})
            )
            seal(cell)
    return folder


def test_runs_are_read_with_the_seeds_that_all_have(tmp_path: Path) -> None:
    one, other = run(tmp_path / "one", "h100", (1, 2)), run(tmp_path / "two", "b200", (2, 3))
    found = read_across([one, other], ["hardware"], {"h100": 3.6, "b200": None})
    assert [run.dropped_seeds for run in found.runs] == [[1], [3]]
    _, seeds, one_seed, _ = found.caveats
    assert mentions(seeds, "all runs", "2. Left out: 1 on h100; 3 on b200")
    assert mentions(one_seed, "no interval")
    assert found.runs[0].price.usd_per_h == 3.6
    (capacity,) = found.runs[0].capacities
    assert list(capacity.by_seed) == [2]
    assert 1.0 <= capacity.loads[2] < 1.05
    draw(found, tmp_path / "across.html")
    page = (tmp_path / "across.html").read_text()
    assert page.count('scope="rowgroup"') == 2
    assert page.count("</tbody><tbody>") == 1
    alone = "no other scheduler"
    assert alone in found.runs[0].answer.headline
    assert alone not in page  # those are of other seeds


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"search": {"slo": "mean<=3x"}}, "SLO mean<=2x and mean<=3x"),
        ({"arrivals": "constant"}, "arrivals poisson and constant"),
        ({"model": "qwen3-8b"}, "model llama-3.1-8b and qwen3-8b"),
        ({"workload": {"programs": 3, "trace_sha256": "x", "turns": 1}}, "workload.trace_sha256"),
        ({"seeds": [8, 9]}, "no seed in common"),
        ({"hardware": "h100"}, "both runs of llama-3.1-8b on h100"),
        ({"search": None, "jps": [1.0, 1.05]}, "has no capacities; run the sweep without --once"),
    ],
)
def test_differences_besides_the_machine_are_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    other = {"hardware": "b200"} | fields
    one = run(tmp_path / "one", "h100")
    two = run(tmp_path / "two", **other)
    with pytest.raises(NotComparable, match=message):
        read_across([one, two], ["hardware"], {})


@pytest.mark.parametrize(
    ("price", "message"),
    [
        ("h200=1", "--price h200=1: no run is on this hardware; did you mean h100?"),
        ("h100=2EUR", "--price h100=2EUR: must be USD per GPU and hour"),
    ],
)
def test_a_price_of_other_hardware_or_currency_is_refused(
    tmp_path: Path, price: str, message: str
) -> None:
    folders = [str(run(tmp_path / name, name)) for name in ("h100", "b200")]
    code, _, err = bench("compare", "--across", "hardware", *folders, "--price", price)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


def test_the_command_prints_a_table_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("h100", "b200"):
        run(Path(name), name)
    code, out, err = bench("compare", "--across", "hardware", "h100", "b200", "--price", "h100=2")
    assert (code, err) == (0, "bench: page: h100/across.html\n")
    assert out.startswith("h100\tfcfs\t1.0")
    assert " on each GPU" in Path("h100/across.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--across", "gpus", "a", "b"], "--across gpus: unknown; use hardware, model or"),
        (["--across", "hardware", "h100"], "h100: give at least two runs for --across"),
        (["h100", "h100", "h100"], "more than two runs, and --price, are for --across"),
        (["h100", "h100", "--price", "h100=2"], "more than two runs, and --price, are for"),
    ],
)
def test_invalid_arguments_of_across_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run(Path("h100"), "h100")
    code, out, err = bench("compare", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
