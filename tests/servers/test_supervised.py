"""A supervised process leaves nothing behind when its parent is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.processes import wait_until_none
from tests.servers.substitute_vllm import living

PARENT = """
import sys, time
from pathlib import Path
from servers.processes import supervised
supervised.GRACE_S = 0.3
folder = Path(sys.argv[1])
supervised.SupervisedProcess(["sleep", "600.5"], {}, folder / "log", folder / "disk")
print("started", flush=True)
time.sleep(600)
"""


def test_the_folder_of_a_supervised_process_is_removed_when_its_parent_is_killed(
    tmp_path: Path,
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/blocks").write_text("ten gigabytes")
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        assert (tmp_path / "disk/blocks").exists()
        parent.kill()
    wait_until_none(lambda: (tmp_path / "disk").exists() or living(tmp_path))
    assert (tmp_path / "log").exists()
