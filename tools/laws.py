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
    """Yield a row for each format: how often each law held, of the times it was checked."""
    for name, counts in json.loads(FILE.read_bytes()).items():
        checked = [counts["laws"].get(law) for law in Law]
        cells = (
            f"{c['checked'] - c['failed']:,} / {c['checked']:,}" if c else "–" for c in checked
        )
        yield f"`{name}`", str(counts["files"]), *cells


if __name__ == "__main__":
    main(sys.argv[1:])
