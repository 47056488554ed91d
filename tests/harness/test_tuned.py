"""`fcfs-tuned`: which settings are searched, what is found, and what a run with it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_process import bench

from harness.cli.tuned import SEARCHED
from servers.basics.errors import InvalidVariant
from servers.policies.fcfs import Fcfs
from servers.variants import variant

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
    tried = 1 + sum(map(len, SEARCHED))
    assert f"fcfs-tuned: of {tried} settings, fcfs(" in printed
    assert f"The mean JCT of {name} is" in printed
    cell = json.loads(next((tmp_path / "run").glob("fcfs-tuned*/cell.json")).read_text())
    assert cell["limits"]["step_tokens"] == found["step_tokens"]
    again, printed = tuned(tmp_path / "run", *small)
    assert (again, f"{tried} of {tried} cells were finished already" in printed) == (name, True)


def test_if_no_setting_is_better_fcfs_tuned_is_fcfs(tmp_path: Path) -> None:
    name, printed = tuned(tmp_path / "run")
    assert name == "fcfs-tuned(long_prefill=0)"
    assert "none is 3% better than the machine's own" in printed
    means = [json.loads(path.read_text()) for path in (tmp_path / "run").glob("*/done.json")]
    assert means[0]["virtual_s"] == means[1]["virtual_s"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--engine http://127.0.0.1:9", "fcfs-tuned: is searched in virtual time; run the sweep"),
        ("--hardware h100,b200", "fcfs-tuned: is searched for one machine at a time; give one"),
        ("--shard 1/2 --out x", "fcfs-tuned: shards do not search; run the sweep without --shard"),
        ("--seeds 1000..1003", "--seeds 1000..1003: fcfs-tuned is searched with the seeds 1001"),
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
    with pytest.raises(InvalidVariant, match=r"only bench sweep searches its settings; give those"):
        variant("fcfs-tuned")
