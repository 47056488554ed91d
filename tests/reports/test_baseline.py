"""Files of `bench compare --save` that are truncated, corrupt or of another format are refused."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from reports.compare.baseline import FORMAT, read_side
from servers.basics.errors import InvalidInput
from traces import lenient

GOOD: dict[str, Any] = {
    "format": FORMAT,
    "cells": [{"variant": "fcfs", "load": "0.1 jobs/s", "seed": 1, "jct_s": {"a": 2.5}}],
    "invalid": {},
}


def packed(content: object) -> bytes:
    return gzip.compress(json.dumps(content).encode(), mtime=0)


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        packed(GOOD)[:-9],
        flipped(packed(GOOD)),
        packed([GOOD]),
        packed({"format": "another"}),
        packed({"format": FORMAT}),
        packed(GOOD | {"cells": 3}),
        packed(GOOD | {"cells": [[]]}),
        packed(GOOD | {"cells": [GOOD["cells"][0] | {"jct_s": {"a": "soon"}}]}),
        packed(GOOD | {"cells": [GOOD["cells"][0] | {"jct_s": {"a": None}}]}),
        packed(GOOD | {"invalid": 3}),
    ],
)
def test_an_invalid_baseline_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kept.json.gz"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"kept\.json\.gz: ") as refused:
        read_side(path)
    assert "\n" not in str(refused.value)


def test_a_valid_baseline_is_read(tmp_path: Path) -> None:
    (tmp_path / "kept.json.gz").write_bytes(packed(GOOD))
    assert read_side(tmp_path / "kept.json.gz").jobs["jct_s"].tolist() == [2.5]


def test_a_baseline_without_a_rule_of_admission_had_whole_prompts(tmp_path: Path) -> None:
    limits: list[dict[str, object]] = [{"max_num_seqs": 8, "step_tokens": 16}]
    limits.append({**limits[0], "admission": "whole-prompt"})
    limits.append({**limits[0], "admission": "first-chunk"})
    settings = []
    for number, one in enumerate(limits):
        path = tmp_path / f"{number}.json.gz"
        path.write_bytes(packed({**GOOD, "limits": one}))
        settings.append(read_side(path).settings)
    assert settings[0] == settings[1] != settings[2]


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lenient, "MAX_BYTES", 1 << 20)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * (1 << 21)))
    with pytest.raises(InvalidInput, match="larger than 1 MiB decompressed"):
        read_side(tmp_path / "bomb.json.gz")
