"""A disk that is really full: a small tmpfs in a separate mount namespace."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.crash.small_sweep import ALONE, RUN, sweep_folder
from tests.crash.trials import bytes_of, env
from tests.sentences import mentions

NEW_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
SCRIPT = """
mount -t tmpfs -o size={size} turnstile . && cd "$PWD" && cp {trace} t.jsonl
{bench} 2> complaints; test $? = 2 || exit 3
mount -o remount,size=64m . && {bench} && cp -r run complaints {out}
"""


def may_mount() -> bool:
    try:
        return not subprocess.run(
            [*NEW_NAMESPACE, "mount -t tmpfs t /mnt"], capture_output=True
        ).returncode
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not may_mount(), reason="cannot create a mount namespace here")
@pytest.mark.parametrize("size", ["40k", "200k"], ids=["within a cell", "within the report"])
def test_with_more_space_the_same_command_completes_the_run(
    bench: str, straight: dict[str, bytes], tmp_path: Path, size: str
) -> None:
    out, disk = sweep_folder(tmp_path / "out"), tmp_path / "disk"
    disk.mkdir()
    script = SCRIPT.format(
        size=size, trace=out / "t.jsonl", bench=shlex.join([bench, *ALONE]), out=out
    )
    done = subprocess.run(
        [*NEW_NAMESPACE, script], cwd=disk, env=env(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    complaints = (out / "complaints").read_text()
    assert mentions(complaints.splitlines()[-1], "no space left on device")
    assert "Traceback" not in complaints
    assert bytes_of(out / RUN) == straight
    assert not list((out / RUN).glob("*.aside-*"))
