"""`bench profile` refuses invalid input with one line and exit code 2."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("profile --tier disk", "--tier disk: use lmcache or native"),
        (
            "profile --tier native --url http://127.0.0.1:9",
            "--tier native: not supported with --url",
        ),
        ("profile --url http://127.0.0.1:9", "--url http://127.0.0.1:9: not a vLLM server"),
        ("profile --model nowhere", "--model nowhere is not a folder and not a known name"),
        ("profile --out /proc/self/p.json", "cannot write /proc/self/p.json: "),
        ("profile --within-s 5", "--within-s '5': must be greater"),
    ],
)
def test_invalid_input_is_refused_in_one_line(
    bench: str, options: str, message: str, tmp_path: Path
) -> None:
    result = subprocess.run(
        [bench, *options.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"bench: {message}")
    assert not list(tmp_path.iterdir())
