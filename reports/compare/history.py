"""Histories: the results of the same cells over commits, in a file of JSON lines.

The first line contains the settings of the cells, under the key `question`. Each other line
contains the results of one variant under one load at one commit. `add` appends the lines of a
commit. If a process was killed while it wrote a line, readers ignore the incomplete line and the
next `add` replaces it. docs/howto/nightly.md defines the fields.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Self

import orjson
import pandas as pd
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from reports.compare.baseline import DECIMALS, Side
from reports.compare.settings import comparable_settings, differences
from reports.compare.verdict import NOT_STEADY
from reports.metrics.cells import jct_percentiles
from reports.run_folder.documents import Name
from reports.statistics.points import mean_jct
from servers.basics.atomic import make_folder, sync, write_all
from servers.basics.errors import CannotWrite, InvalidInput
from servers.basics.phrasing import counted
from servers.basics.text import first_error, one_line

FORMAT = "turnstile-history-1"
NUMBERS = (
    *("jct_mean_s", "jct_mean_low_s", "jct_mean_high_s"),
    *("jct_p50_s", "jct_p90_s", "jct_p95_s", "jct_p99_s"),
)


class Entry(BaseModel):
    """The results of one variant under one load at one commit. Times are in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    label: Name
    when: AwareDatetime
    question: str
    """Digest of the settings that must be equal for results to be comparable."""
    turnstile_version: str | None
    code_sha256: str | None
    variant: Name
    load: Name
    jobs: int
    unstable_seeds: int = 0
    """Seeds without a steady state. With any, the JCT is above every number, and null."""
    jct_mean_s: Annotated[float, Field(gt=0)] | None
    jct_mean_low_s: float | None
    jct_mean_high_s: float | None
    """The bounds of the 95% interval of the mean."""
    jct_p50_s: float | None
    jct_p90_s: float | None
    jct_p95_s: float | None
    jct_p99_s: float | None

    @model_validator(mode="after")
    def _has_jct(self) -> Self:
        jct_s = (self.jct_mean_s, self.jct_mean_low_s, self.jct_mean_high_s, self.jct_p50_s)
        if any((value is None) != bool(self.unstable_seeds) for value in jct_s):
            raise ValueError("has a JCT if and only if it has no unstable seeds")
        return self

    @property
    def mean_s(self) -> float:
        """Infinite without a steady state."""
        return math.inf if self.jct_mean_s is None else self.jct_mean_s

    @property
    def mean_in_words(self) -> str:
        return NOT_STEADY if self.jct_mean_s is None else f"{self.jct_mean_s:.3f} s"

    def is_outside(self, before: Entry) -> bool:
        """Return whether the mean is outside the interval of an entry before. With no steady state,
        only another number of such seeds is."""
        if before.jct_mean_low_s is None or before.jct_mean_high_s is None:
            return self.unstable_seeds != before.unstable_seeds
        return not before.jct_mean_low_s <= self.mean_s <= before.jct_mean_high_s

    @property
    def key(self) -> tuple[str, str, str]:
        return self.label, self.variant, self.load


@dataclass(frozen=True, slots=True)
class Series:
    """Entries of one variant under one load, in order of time."""

    variant: str
    load: str
    entries: tuple[Entry, ...]

    @property
    def steps(self) -> tuple[tuple[Entry, Entry], ...]:
        """Pairs of an entry and the entry that follows it."""
        return tuple(pairwise(self.entries))

    @property
    def jumps(self) -> tuple[Entry, ...]:
        """Entries whose mean is outside the 95% interval of the previous entry, or that lost or
        gained a steady state."""
        return tuple(new for old, new in self.steps if new.is_outside(old))


@dataclass(frozen=True, slots=True)
class History:
    settings: dict[str, Any]
    entries: tuple[Entry, ...]

    def series(self) -> list[Series]:
        """The series in order of load, then of variant, as they first appear in the file."""
        loads = dict.fromkeys(entry.load for entry in self.entries)
        found: dict[tuple[str, str], list[Entry]] = {}
        for entry in sorted(self.entries, key=lambda e: e.when):
            found.setdefault((entry.variant, entry.load), []).append(entry)
        return [
            Series(variant, load, tuple(mine))
            for shown in loads
            for (variant, load), mine in found.items()
            if load == shown
        ]


def read_history(path: Path) -> History:
    """Read and check a history. Raises InvalidInput."""
    try:
        return _parse(path, path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{path}: {(error.strerror or str(error)).lower()}") from None


def add(path: Path, side: Side, label: str, when: datetime) -> int:
    """Append the entries of a commit, and return their number: 0 if the file has them already.

    Raises InvalidInput, also if a cell of `side` is not valid, and CannotWrite.
    """
    side.refuse_invalid("a run in a history")
    if not label or one_line(label) != label:
        raise InvalidInput(
            f"--label {one_line(label)!r}: give a name on one line, such as the commit"
        )
    settings = comparable_settings(side)
    make_folder(path.parent)
    with _locked(path) as file:
        file.seek(0)
        content = file.read()
        kept = content[: content.rfind(b"\n") + 1]
        head = _line({"format": FORMAT, "question": settings})
        # A file without a complete line is overwritten only if it begins like a history.
        fresh = not kept and head.startswith(content)
        known = History(settings, ()) if fresh else _parse(path, kept)
        if found := list(differences(known.settings, settings)):
            raise InvalidInput(
                f"{path} and {side.name} have different settings: {'; '.join(found)}; "
                "give another --file"
            )
        new = _missing(path, known, _entries(side, _digest(settings), label, when))
        file.truncate(len(kept))
        lines = [_line(entry.model_dump(mode="json")) for entry in new]
        _append(file, [head, *lines] if fresh else lines)
    return len(new)


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
    except OSError as error:
        raise CannotWrite.of(path, error) from None


def _append(file: BinaryIO, lines: Iterable[bytes]) -> None:
    """Write the lines and sync them to the disk."""
    write_all(file.fileno(), b"".join(lines))
    os.fsync(file.fileno())
    sync(Path(file.name).parent)


def _digest(settings: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS)).hexdigest()[:12]


def _entries(side: Side, digest: str, label: str, when: datetime) -> list[Entry]:
    found = []
    groups = side.jobs.groupby(["variant", "load"], sort=False)
    jobs_of = {(str(variant), str(load)): jobs for (variant, load), jobs in groups}
    unstable = Counter((place.variant, place.load) for place in sorted(side.unstable))
    for variant, load in dict.fromkeys([*jobs_of, *unstable]):
        jobs = jobs_of.get((variant, load), side.jobs[:0])
        seeds = unstable[variant, load]
        entry = {
            "label": label,
            "when": when,
            "question": digest,
            **{f: side.settings.get(f) for f in ("turnstile_version", "code_sha256")},
            "variant": variant,
            "load": load,
            "jobs": len(jobs),
            "unstable_seeds": seeds,
            **(dict.fromkeys(NUMBERS) if seeds else _numbers(jobs)),
        }
        found.append(Entry.model_validate(entry))
    return found


def _numbers(jobs: pd.DataFrame) -> dict[str, float]:
    mean = mean_jct(jobs)
    percentiles = jct_percentiles(jobs["jct_s"].to_numpy()).values()
    numbers = zip(NUMBERS, (mean.value, mean.low, mean.high, *percentiles), strict=True)
    return {name: round(seconds, DECIMALS) for name, seconds in numbers}


def _missing(path: Path, known: History, entries: Sequence[Entry]) -> list[Entry]:
    present = {entry.key: entry for entry in known.entries}
    for entry in entries:
        old = present.get(entry.key)
        if old is not None and old.model_copy(update={"when": entry.when}) != entry:
            raise InvalidInput(
                f"{path}: --label {entry.label} exists with other results ({entry.variant} at "
                f"{entry.load}: {old.mean_in_words}, now {entry.mean_in_words}); give another"
            )
    return [entry for entry in entries if entry.key not in present]


def _parse(path: Path, content: bytes) -> History:
    first, *lines = content[: content.rfind(b"\n") + 1].splitlines() or [b""]
    try:
        head = orjson.loads(first)
        good = head["format"] == FORMAT and isinstance(head["question"], dict)
        digest = _digest(head["question"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        good = False
    if not good:
        raise InvalidInput(f"{path}: not a history; make one with bench history add")
    entries = []
    for number, line in enumerate(lines, 2):
        try:
            entry = Entry.model_validate_json(line)
        except ValidationError as error:
            field, first_message = first_error(error)
            what = field or "the line"
            raise InvalidInput(f"{path}, line {number}: {what}: {first_message['msg']}") from None
        if entry.question != digest:
            raise InvalidInput(f"{path}, line {number}: has other settings than the first line")
        entries.append(entry)
    return History(head["question"], tuple(entries))


def changed(before: Entry, after: Entry) -> str:
    """Format the relative change of the mean JCT, such as `+1.00%`."""
    if after.jct_mean_s is None:
        return NOT_STEADY
    if before.jct_mean_s is None:
        return "stable again"
    return f"{after.jct_mean_s / before.jct_mean_s - 1:+z.2%}"


def row(series: Series) -> tuple[str, ...]:
    """Return a row of `bench history show`, with the change since the previous commit."""
    last = series.entries[-1]
    change = "–"
    if len(series.entries) > 1:
        change = changed(series.entries[-2], last)
    jumps = ", ".join(entry.label for entry in series.jumps) or "–"
    count = counted(len(series.entries), "commit")
    return series.load, series.variant, count, last.mean_in_words, change, jumps


HEAD = ("load", "policy", "commits", "mean JCT", "change", "jumps at")
