"""`bench fidelity` on a real vLLM compares the same cells live and in virtual time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from reports.metrics.cells import failed_gates_of
from tests.profiles.test_measured import measured
from tests.real.test_sweep import BURST_JPS, POOL_BLOCKS, PROGRAMS
from traces.formats.native import write_programs

BENCH = str(Path(sys.executable).parent / "bench")


@pytest.mark.usefixtures("forked_vllm")
def test_fidelity_runs_the_cells_live_and_in_virtual_time_and_writes_a_card(tmp_path: Path) -> None:
    """Two servers are started, one after the other. The size of the errors is not checked, because
    the profile is made up."""
    write_programs(tmp_path / "t.jsonl", PROGRAMS)
    (tmp_path / "here.json").write_text(measured().model_dump_json())
    options = ("--hardware", "here.json", "--kv-blocks", str(POOL_BLOCKS), "--policies")
    command = [BENCH, "fidelity", "--traces", "t.jsonl", "--jps", BURST_JPS, "--out", "card"]
    result = subprocess.run(
        [*command, *options, "fcfs,continuum-preview"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 1, result.stderr  # one rate is too few
    assert "missed\tat least 3 rates, one of them past saturation\t1 load" in result.stdout
    card = json.loads((tmp_path / "card/fidelity.json").read_text())
    assert card["live"]["engine"] == "vllm"
    assert card["virtual"]["profile"]["kv_blocks"] == POOL_BLOCKS - 1
    assert {point["variant"] for point in card["points"]} == {"fcfs", "continuum-preview"}
    for point in card["points"]:
        assert 0 < point["live_s"] < 600
        assert 0 < point["virtual_s"] < 600
        assert point["live_hits"] is not None
    (ranking,) = card["rankings"]
    assert ranking["tau"] in (-1.0, 1.0)

    live = [done.parent for done in (tmp_path / "card/live-1").glob("*/done.json")]
    valid = sum(not failed_gates_of(cell) for cell in live)
    again = subprocess.run(
        [*command, *options, "fcfs,continuum-preview"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    found = ["2", str(valid)] if valid else ["2"]  # A busy machine may fail the gate on lateness.
    assert re.findall(r"(\d) of 2 cells were finished already", again.stderr) == found
    assert valid < 2 or again.stdout == result.stdout
