"""Many cells in processes: the same findings in the same order, and none left behind."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path

from reports.side_by_side import WORTH, each


def test_findings_come_in_the_order_of_the_things_however_many_there_are() -> None:
    for count in (0, 1, WORTH - 1, WORTH + 50):
        assert list(each(math.factorial, range(count))) == list(map(math.factorial, range(count)))


def children(process: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_parent_that_is_killed_leaves_no_process() -> None:
    code = "import time; from reports.side_by_side import each; list(each(time.sleep, [1] * 999))"
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stderr=subprocess.DEVNULL
    ) as parent:
        deadline_s = time.monotonic() + 30
        while len(workers := children(parent.pid)) < 3:  # two, and multiprocessing's own
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        parent.kill()
    while any(map(runs, workers)):
        assert time.monotonic() < deadline_s + 30
        time.sleep(0.05)
