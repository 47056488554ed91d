"""docs/reference/job-times.md: what it says of job completion times at a low and a high load."""

from __future__ import annotations

from pathlib import Path

import msgspec
import orjson

from tests.docs.pages import DOCS
from tools.job_times_page import page
from tools.measured_capacities import write_sweeps
from tools.measured_job_times import (
    JobTimes,
    Load,
    LoadedSweep,
    loaded_sweep,
    merged_loads,
    read_loaded,
)

REFERENCE = DOCS / "reference"
CELLS = """\
variant,jps,seed,jct_mean_s,jct_p95_s,jct_p99_s,slowdown_max,steady,unstable
fcfs,0.01,1,80,160,200,1.5,True,
fcfs,0.02,1,,,,,False,"61 jobs in the system, more than 60"
turnstile,0.01,1,80,160,200,1.5,True,
turnstile,0.02,1,100.123456,200,250,2,True,
turnstile,0.015,1,90,180,220,1.7,True,
"""


def load(jobs_per_s: float, **means_s: tuple[float | None, ...]) -> Load:
    """P95 is twice the mean, P99 three times, and the largest slowdown is 4."""
    return Load(
        jobs_per_s,
        {
            name: {
                str(seed): None if mean is None else JobTimes(mean, 2 * mean, 3 * mean, 4.0)
                for seed, mean in enumerate(values, start=1)
            }
            for name, values in means_s.items()
        },
    )


def sweep(code: str = "0123", **high_s: tuple[float | None, ...]) -> LoadedSweep:
    return LoadedSweep(
        workload="weka",
        recorded=True,
        hardware="h100",
        code_sha256=dict.fromkeys(high_s, code),
        references=["clairvoyant"],
        low=load(0.1, **dict.fromkeys(high_s, (10.0, 10.0))),
        high=load(0.2, **high_s),
    )


def rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the table's rows below a heading."""
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def test_the_committed_page_is_that_of_the_committed_job_times() -> None:
    written = (REFERENCE / "job-times.md").read_text()
    assert written == page(read_loaded(REFERENCE / "job-times.json"))


def test_turnstile_is_compared_with_continuum_and_with_what_the_reference_gains() -> None:
    """With continuum 200 s, turnstile 120 s and the reference 100 s, turnstile has 80 of 100 s."""
    text = page(
        [sweep(continuum=(200.0, 200.0), turnstile=(120.0, 120.0), clairvoyant=(100.0, 100.0))]
    )
    (row,) = rows(text, "turnstile against continuum")
    ratio = "0.60 (0.60–0.60)"
    assert row == ["recorded weka", "H100", "0.2", ratio, ratio, "80%", "1.00 (1.00–1.00)"]


def test_a_policy_without_a_steady_state_has_no_mean_and_no_ratio() -> None:
    text = page([sweep(continuum=(200.0, None), turnstile=(120.0, 120.0))])
    (row,) = rows(text, "turnstile against continuum")
    assert row[3:6] == ["continuum unstable 1/2", "continuum unstable 1/2", "–"]
    turnstile, continuum = rows(text, "recorded weka on H100")
    assert turnstile == ["turnstile", "120 (120–120)", "", "240", "360", "4", "10"]
    assert continuum == ["continuum", "unstable 1/2", "", "", "", "", "10"]


def test_a_sweep_of_fewer_than_five_seeds_says_so() -> None:
    for seeds in (2, 5):
        text = page([sweep(continuum=(200.0,) * seeds)])
        assert ("with an offload tier to continuum+. 2 seeds only.\n" in text) == (seeds == 2)
        assert ("seeds only" in text) == (seeds == 2)


def test_policies_over_a_tier_are_relative_to_continuum_over_a_tier() -> None:
    both = {"continuum+": (100.0, 100.0), "turnstile+": (50.0, 50.0), "lmcache": (200.0, 200.0)}
    text = page([sweep(**both)])
    found = {row[0]: row[2] for row in rows(text, "recorded weka on H100")}
    assert found == {
        "turnstile+": "0.50 (0.50–0.50)",
        "continuum+": "",
        "lmcache": "2.00 (2.00–2.00)",
    }
    assert rows(text, "turnstile+ over an offload tier") == [
        ["recorded weka", "H100", "0.50 (0.50–0.50)", "–"]
    ]


def write_run(folder: Path, jps: str) -> None:
    provenance = {"hardware": "h100"}
    answer = {"references": [], "provenance": provenance}
    (folder / "answer.json").write_bytes(orjson.dumps(answer))
    variants = [{"name": name, "policy_sha256": "4567"} for name in ("fcfs", "turnstile")]
    run = {"workload": {"recipe": "bfcl"}, "code_sha256": "0123", "variants": variants}
    (folder / "sweep.json").write_bytes(orjson.dumps(run))
    (folder / "sweep.toml").write_text(f'jps = "{jps}"\n')
    (folder / "cells.csv").write_text(CELLS)


def test_a_run_folder_gives_the_cells_at_its_two_rates(tmp_path: Path) -> None:
    write_run(tmp_path, "0.01,0.02")
    found = loaded_sweep(tmp_path)
    assert found.key == ("bfcl", False, "h100")
    assert found.code_sha256 == {"fcfs": "0123/4567", "turnstile": "0123/4567"}
    assert found.low.unstable("fcfs") == 0
    assert found.high.by_seed == {
        "fcfs": {"1": None},
        "turnstile": {"1": JobTimes(100.1, 200.0, 250.0, 2.0)},
    }
    write_sweeps(tmp_path / "file.json", merged_loads([sweep()], [found]))
    assert read_loaded(tmp_path / "file.json") == [found, sweep()]


def test_a_new_sweep_with_the_same_loads_replaces_the_variants_that_it_has() -> None:
    old = sweep(continuum=(200.0,), turnstile=(150.0,))
    new = sweep("4567", turnstile=(120.0,))
    [both] = merged_loads([old], [new])
    assert both.code_sha256 == {"continuum": "0123", "turnstile": "4567"}
    assert both.high.stable("continuum", "mean_s") == {1: 200.0}
    assert both.high.stable("turnstile", "mean_s") == {1: 120.0}


def test_a_new_sweep_with_the_same_loads_and_code_adds_seeds() -> None:
    old = sweep(continuum=(200.0,), turnstile=(150.0,))
    new = sweep(turnstile=(None,))
    for each in (new.low, new.high):
        each.by_seed["turnstile"] = {"2": each.by_seed["turnstile"]["1"]}
    [both] = merged_loads([old], [new])
    assert both.high.stable("turnstile", "mean_s") == {1: 150.0}
    assert both.high.unstable("turnstile") == 1
    assert both.high.stable("continuum", "mean_s") == {1: 200.0}


def test_policies_without_a_tier_are_compared_at_a_load_of_their_own(tmp_path: Path) -> None:
    """At 0.2 jobs/s only those with a tier have a steady state; at 0.15 turnstile is twice as fast
    as continuum."""
    high = {"continuum": (None, None), "turnstile": (None, None), "continuum+": (60.0, 60.0)}
    middle = load(0.15, continuum=(90.0, 90.0), turnstile=(45.0, 45.0))
    both = msgspec.structs.replace(sweep(**high), middle=middle)
    (row,) = rows(page([both]), "turnstile against continuum")
    assert row[2:4] == ["0.15", "0.50 (0.50–0.50)"]
    text = page([both]).split("## recorded weka on H100")[1]
    assert text.index("At 0.15 jobs/s") < text.index("At 0.2 jobs/s")
    path = tmp_path / "job-times.json"
    write_sweeps(path, merged_loads([sweep(**high)], [both]))
    assert read_loaded(path) == [both]


def test_a_sweep_of_three_rates_has_a_load_in_the_middle(tmp_path: Path) -> None:
    write_run(tmp_path, "0.01,0.015,0.02")
    found = loaded_sweep(tmp_path)
    assert found.rates == [0.01, 0.015, 0.02]
    assert found.middle is not None
    assert found.middle.by_seed == {"turnstile": {"1": JobTimes(90.0, 180.0, 220.0, 1.7)}}
