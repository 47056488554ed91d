"""`fcfs-tuned`: which settings are searched, what is found, and what a run with it says."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from in_process import bench

from harness.cli.tuned import SEARCHED, scores_of, with_tuned
from harness.load.settings import Execution, SweepSettings
from servers.basics.errors import InvalidInput, InvalidVariant
from servers.policies.fcfs import Fcfs
from servers.variants import split, variant
from tests.reports.make_run import turn, write_cell, write_sweep
from tests.sentences import mentions

FIXED = ("--once", "--programs", "3", "--jps", "0.3", "--traces", "execution-note", "--seeds", "7")


def tuned(folder: Path, *options: str) -> tuple[str, str]:
    """Return the name of the tuned variant in the run folder, and what the command printed."""
    policies = ("--policies", "fcfs,fcfs-tuned", "--workers", "1")
    code, out, err = bench("sweep", *FIXED, *policies, "--out", str(folder), *options)
    assert code == 0, err
    variants = json.loads((folder / "sweep.json").read_text())["variants"]
    return variants[1]["name"], out + err


def test_a_machine_with_small_steps_is_tuned_to_larger_ones(tmp_path: Path) -> None:
    """Steps of 64 tokens compute each prompt in many steps, whose fixed cost larger ones save."""
    small = ("--step-tokens", "64", "--max-num-seqs", "64")
    name, printed = tuned(tmp_path / "run", *small)
    assert name.startswith("fcfs-tuned(")
    found = dict(variant(name).limits)
    assert found["step_tokens"] in (1024, 8192)
    tried = sum(map(len, SEARCHED))  # 64 turns is the machine's own setting
    assert f"fcfs-tuned: of {tried} settings, fcfs(" in printed
    assert f"The mean JCT of {name} is" in printed
    assert "finished already" not in printed
    cell = json.loads(next((tmp_path / "run").glob("fcfs-tuned*/cell.json")).read_text())
    assert cell["limits"]["step_tokens"] == found["step_tokens"]
    again, printed = tuned(tmp_path / "run", *small)
    assert (again, f"{tried} of {tried} cells were finished already" in printed) == (name, True)


def test_if_no_setting_is_better_fcfs_tuned_is_fcfs(tmp_path: Path) -> None:
    condition = "mean_jct(fcfs-tuned, at=0.3) <= mean_jct(fcfs, at=0.3)"
    name, printed = tuned(tmp_path / "run", "--fail-unless", condition)
    assert name == "fcfs-tuned(long_prefill=0)"
    assert mentions(printed, "none is 3% better")
    means = [json.loads(path.read_text()) for path in (tmp_path / "run").glob("*/done.json")]
    assert means[0]["virtual_s"] == means[1]["virtual_s"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--engine http://127.0.0.1:9", "fcfs-tuned: is searched in virtual time; run the sweep"),
        ("--hardware h100,b200", "fcfs-tuned: is searched for one machine at a time; give one"),
        ("--shard 1/2 --out x", "fcfs-tuned: shards do not search; run the sweep without --shard"),
        ("--seeds 1000..1003", "--seeds 1000..1003: fcfs-tuned is searched with the seeds 1001"),
        ("--out /", "--out /: fcfs-tuned needs a folder beside it; use another"),
        ("--one --jps 0.3", "and not with --one, --show or an offload tier; give those that it"),
        ("--show x", "such as fcfs-tuned(long_prefill=512), or bench sweep RUN/sweep.toml --out"),
    ],
)
def test_sweeps_that_cannot_search_are_refused(options: str, line: str) -> None:
    code, out, err = bench("sweep", "--policies", "fcfs-tuned,turnstile", *options.split())
    assert (code, out) == (2, "")
    assert line in err


def test_other_commands_take_the_settings_that_were_found() -> None:
    found = variant("fcfs-tuned(watermark=0.05, step_tokens=8192)")
    assert (found.name, found.policy) == ("fcfs-tuned(step_tokens=8192,watermark=0.05)", Fcfs)
    assert found.policy_spec == "fcfs"
    with pytest.raises(InvalidVariant, match="only bench sweep"):
        variant("fcfs-tuned")


def steady_run(folder: Path, jct_s: dict[str, dict[float, float | None]]) -> Path:
    """Write a run in which all jobs of a variant take this time at each load; None: no steady
    state with seed 2."""
    loads = next(iter(jct_s.values()))
    write_sweep(folder, list(jct_s), list(loads), (1, 2), steady_state=True)
    window = {"first_job": 2, "jobs": 4, "from_s": 2.0, "to_s": 6.0, "finished_jobs": 3}
    done = {
        "window": window | {"shared_prefix_tokens": 0},
        "idle_times_s": {"jct": {"mean": 1.0, "percentiles": [1.0] * 99}},
        "jobs_in_system": {"growth": 0.05},
    }
    for name, jps, seed in product(jct_s, loads, (1, 2)):
        taken_s = jct_s[name][jps]
        grew = taken_s is None and seed == 2
        jobs = [turn(f"p{j}", 0, j, decode_s=taken_s or 9.0, job_index=j) for j in range(8)]
        finished = done | {"steady": not grew, "unstable": "it grew" if grew else None}
        write_cell(folder, name, jobs, jps=jps, seed=seed, steady_state=True, finished=finished)
    return folder


def test_mean_jcts_are_compared_at_the_loads_that_fcfs_sustains_with_every_seed(
    tmp_path: Path,
) -> None:
    """1 ÷ √(2 s · 8 s) and 1 ÷ 2 s; the third setting loses a load that fcfs sustains."""
    run = steady_run(
        tmp_path,
        {
            "fcfs": {0.1: 2.0, 0.2: 8.0, 0.3: None},
            "fcfs(watermark=0.05)": {0.1: 2.0, 0.2: 2.0, 0.3: 2.0},
            "fcfs(watermark=0.1)": {0.1: 1.0, 0.2: None, 0.3: None},
        },
    )
    assert scores_of(run) == pytest.approx(
        {"fcfs": 0.25, "fcfs(watermark=0.05)": 0.5, "fcfs(watermark=0.1)": 0.0}
    )


def test_a_search_at_loads_that_fcfs_does_not_sustain_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(
        tried: SweepSettings, execution: Execution, *, continues: bool
    ) -> tuple[Path, dict[str, str]]:
        assert not continues
        assert execution.out is not None
        return steady_run(execution.out, {n: {9.0: None} for n in split(tried.policies)}), {}

    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    settings = SweepSettings(policies="fcfs-tuned", jps="9", no_capacity=True)
    with pytest.raises(InvalidInput, match="fcfs sustains no load"):
        with_tuned(settings, Execution(out=Path()), run)
    assert (tmp_path / "run-tuning" / "sweep.json").is_file()
