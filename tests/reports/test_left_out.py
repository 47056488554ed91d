"""A cell that failed a validity gate decides no headline, which says what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from test_answer import answer_of, idle, run_of

from reports.answer.left_out import valid_capacities
from reports.capacity.estimate import Capacity, Kind
from reports.capacity.search import Chain
from reports.metrics.cells import collect
from reports.page.write import write
from reports.run_folder.read import load_run
from reports.statistics.best import winners
from reports.statistics.capacities import capacities
from reports.statistics.points import points
from tests.reports.make_run import workload, write_cell, write_sweep
from tests.sentences import mentions

GATE = "1 failed turn in 1 job (first: connection reset)"


def broken(jct_s: float) -> list[dict[str, Any]]:
    turns = idle(jct_s)
    turns[3]["error"] = "connection reset"
    return turns


def test_an_invalid_cell_does_not_win(tmp_path: Path) -> None:
    found = answer_of(run_of(tmp_path, fcfs=idle(20.0), continuum=broken(5.0), autellix=idle(10.0)))
    assert found.winners == ("autellix",)
    gain = "autellix", "10.0 s at 0.5 jobs/s", "2.0x as fast as fcfs"
    assert mentions(found.headline, *gain, "continuum at 0.5 jobs/s is left out", GATE)


def test_nothing_is_faster_or_slower_than_an_invalid_baseline(tmp_path: Path) -> None:
    run = run_of(tmp_path, fcfs=broken(20.0), continuum=idle(5.0), autellix=idle(10.0))
    found = answer_of(run)
    assert found.baseline is None
    lacking = "fcfs has no valid result", "fcfs at 0.5 jobs/s is left out"
    assert mentions(found.headline, "continuum", "5.00 s", *lacking)
    loaded = load_run(run)
    assert [p.against for p in points(collect(loaded), "fcfs")] == [None, None, None]


def test_a_variant_whose_rivals_are_all_invalid_is_not_the_fastest(tmp_path: Path) -> None:
    found = answer_of(run_of(tmp_path, fcfs=broken(20.0), continuum=idle(5.0)))
    alone = "continuum", "5.00 s", "No other variant", "fcfs at 0.5 jobs/s is left out"
    assert mentions(found.headline, *alone, GATE)


def test_without_a_valid_cell_there_is_no_answer(tmp_path: Path) -> None:
    found = answer_of(run_of(tmp_path, fcfs=broken(20.0), continuum=broken(5.0)))
    assert found.winner is None
    left_out = "fcfs at 0.5 jobs/s and continuum at 0.5 jobs/s are left out", "2 cells"
    assert mentions(found.headline, "no answer", *left_out, GATE)


def test_a_variant_with_one_invalid_seed_of_three_is_left_out(tmp_path: Path) -> None:
    # Its other two seeds have other arrivals than the three seeds of the rest.
    run = write_sweep(tmp_path, ["fcfs", "continuum"], seeds=[1, 2, 3])
    for seed in (1, 2, 3):
        write_cell(run, "fcfs", idle(10.0), seed=seed)
        write_cell(run, "continuum", broken(5.0) if seed == 2 else idle(5.0), seed=seed)
    assert answer_of(run).winners == ("fcfs",)


def test_an_invalid_cell_at_a_lower_rate_than_that_of_the_answer_changes_nothing(
    tmp_path: Path,
) -> None:
    run = write_sweep(tmp_path, ["fcfs", "continuum"], jps=[0.1, 0.2])
    for jps in (0.1, 0.2):
        write_cell(run, "fcfs", idle(20.0), jps=jps)
        write_cell(run, "continuum", broken(5.0) if jps == 0.1 else idle(5.0), jps=jps)
    found = answer_of(run)
    assert found.winners == ("continuum",)
    assert "left out" not in found.headline


def test_an_invalid_cell_decides_no_capacity(tmp_path: Path) -> None:
    run = run_of(tmp_path, fcfs=idle(20.0), continuum=broken(5.0), autellix=idle(10.0))
    results = collect(load_run(run))
    by_variant = {"fcfs": 0.1, "continuum": 0.3, "autellix": 0.2}
    found = capacities(
        {
            Chain(name, 1): Capacity(Kind.FOUND, jobs_per_s, jobs_per_s, jobs_per_s)
            for name, jobs_per_s in by_variant.items()
        },
        dict.fromkeys(by_variant, ""),
        "fcfs",
    )
    valid, (sentence,) = valid_capacities(found, results, "fcfs")
    assert [each.variant for each in winners(valid)] == ["autellix"]
    assert mentions(sentence, "continuum is left out", GATE)


def test_programs_that_are_too_long_are_in_the_first_sentence_if_they_are_many(
    tmp_path: Path,
) -> None:
    long = "turn 3: 49990 prompt + 11 output tokens are more than the 40960 that tiny accepts"
    left_out = [
        {"program_id": "a", "reason": "program a: left out with a/1"},
        *({"program_id": f"a/{k}", "reason": f"program a/{k}, {long}"} for k in (1, 2)),
    ]
    first = (
        "3 of 5 programs are left out; the first: 49990 prompt + 11 output tokens are more than the"
        " 40960 that tiny accepts. The 2 "
    )
    for ran, named in ((2, True), (97, False)):
        shape = workload(idle(1.0)) | {"programs": ran, "left_out": left_out}
        run = write_sweep(tmp_path / str(ran), ["fcfs", "las"], workload=shape)
        for name in ("fcfs", "las"):
            write_cell(run, name, idle(1.0))
        assert write(run).result.headline.startswith(first) == named
