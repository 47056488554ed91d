"""The execution note's table of pins (§4.2), through the real engine: CPU blocks hold 32 tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = str(Path(sys.executable).parent / "bench")


@pytest.mark.parametrize(
    ("policy", "blocks"),
    [("continuum-preview", [3, 5, 10, 13, 0]), ("static-ttl", [2, 4, 9, 12, 0])],
)
def test_the_notes_table(policy: str, blocks: list[int]) -> None:
    result = subprocess.run(
        [BENCH, "verify", "pins", "--policy", policy], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [line.split("\t") for line in result.stdout.splitlines() if "\t" in line][1:]
    # Turn, tokens with KV, blocks expected, least and most in the gauge, the next turn's hits.
    assert [row[:5] for row in rows] == [
        [str(turn), str(tokens), *[str(held)] * 3]
        for turn, (tokens, held) in enumerate(zip([72, 139, 290, 404, 509], blocks, strict=True))
    ]
    assert [row[5] for row in rows] == ["64", "128", "288", "384", "–"]  # whole blocks of 32
