"""A supervised process leaves nothing behind when its parent is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.servers.stand_in import living

OURS = """
import sys, time
from pathlib import Path
from servers.processes import supervised
supervised.GRACE_S = 0.3
folder = Path(sys.argv[1])
supervised.SupervisedProcess(["sleep", "600.5"], {}, folder / "log", folder / "disk")
print("started", flush=True)
time.sleep(600)
"""


def test_its_folder_is_removed_when_the_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/blocks").write_text("ten gigabytes")
    with subprocess.Popen(
        [sys.executable, "-c", OURS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline() == "started\n"
        assert (tmp_path / "disk/blocks").exists()
        ours.kill()
    deadline_s = time.monotonic() + 20
    while (tmp_path / "disk").exists() or living(tmp_path):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert (tmp_path / "log").exists()
