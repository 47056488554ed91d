"""Counts how often each conservation law holds on real trace files, by format.

`python -m tools.laws FOLDER...` reads the files and writes docs/data/laws.json, of which
`tools.reference_tables` makes the table of docs/reference/trace-formats.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from servers.basics.atomic import write_file
from tools.results_tables import DATA
from traces import InvalidTrace, read_traces
from traces.laws import Law, Laws

FILE = DATA / "laws.json"


def main(folders: list[str]) -> None:
    laws: dict[str, Laws] = {}
    files: dict[str, int] = {}
    for path in (each for folder in folders for each in sorted(Path(folder).rglob("*"))):
        if not path.is_file():
            continue
        try:
            read = read_traces(path)
        except InvalidTrace:
            continue
        name = next(iter(read.formats.values()))
        laws.setdefault(name, Laws()).add(read.laws)
        files[name] = files.get(name, 0) + 1
    counts = {n: {"files": files[n], "laws": laws[n].as_json()} for n in sorted(laws)}
    write_file(FILE, (json.dumps(counts, indent=1) + "\n").encode())


def rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for each law: how often it held, of the times it was checked, and in which
    formats it did not always hold."""
    counts = {name: each["laws"] for name, each in json.loads(FILE.read_bytes()).items()}
    for law in Law:
        by_format = {f"`{name}`": laws[law] for name, laws in counts.items() if laws.get(law)}
        failing = {name: each for name, each in by_format.items() if each["failed"]}
        held = _held(*by_format.values())
        yield law, held, ", ".join(f"{name} {_held(each)}" for name, each in failing.items()) or "–"


def _held(*counts: dict[str, int]) -> str:
    checked = sum(each["checked"] for each in counts)
    return f"{checked - sum(each['failed'] for each in counts):,} of {checked:,}"


if __name__ == "__main__":
    main(sys.argv[1:])
