"""Mutated trace files of every format give an error in one line or valid programs."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache, partial
from pathlib import Path
from random import Random

from servers.basics.errors import InvalidTrace
from servers.basics.text import has_control
from tests.fuzz.mutations import mutated, mutated_gzip
from tests.fuzz.samples import TRACES
from tests.fuzz.target import Target
from traces import read_traces
from traces.formats.native import parse_programs, program_line


def read(name: str, data: bytes) -> bool:
    path = folder() / name
    path.write_bytes(data)
    try:
        recipe = "swe-bench" if len(data) % 3 else None
        loaded = read_traces(path, messages=len(data) % 2 == 0, synthesise_gaps=recipe)
    except InvalidTrace as error:
        _check_error(name, str(error))
        return False
    for note in (*loaded.repairs, *loaded.rejections):
        assert_one_line(note.reason)
    lines = b"".join(map(program_line, loaded.programs))
    assert parse_programs(lines, name) == list(loaded.programs), "does not survive our own format"
    return True


def _check_error(name: str, error: str) -> None:
    assert f"/{name}: " in error, error
    assert_one_line(error)


def assert_one_line(text: str) -> None:
    assert not has_control(text), f"not fit for a terminal: {text!r:.200}"
    assert len(text) < 2_000, f"{len(text)} characters: {text[:200]}"


@cache
def folder() -> Path:
    """Return a folder for inputs, in memory if possible, since a million files are written."""
    memory = Path("/dev/shm")  # noqa: S108
    return Path(tempfile.mkdtemp(prefix="turnstile-fuzz-", dir=memory if memory.is_dir() else None))


def remove_folder() -> None:
    shutil.rmtree(folder(), ignore_errors=True)
    folder.cache_clear()


def _make(name: str, random: Random) -> bytes:
    data = mutated(random.choice(TRACES[name]), random)
    return mutated_gzip(data, random) if name.endswith(".gz") else data


TARGETS = [
    Target(f"read {name}", partial(_make, name), partial(read, name), share)
    for name, share in (
        ("a.jsonl", 4),
        ("turns.jsonl", 2),
        ("a.json", 8),
        ("a.jsonl.gz", 0.2),
        ("a.packed", 0.2),
        ("a.csv", 0.5),
    )
]
