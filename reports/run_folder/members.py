"""Reads the folder of a sweep on several machines, or after several bursts: a run folder for each.

In: a folder with `members.json`. Out: the run folders. Raises InvalidRunFolder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from reports.run_folder.document import read_document
from servers.basics.errors import InvalidRunFolder
from servers.basics.phrasing import counted, gpus_in_words, listed
from servers.records.sweep import MembersRecord

MEMBERS = "members.json"


class Member(NamedTuple):
    """The run on one machine, or after one burst."""

    folder: Path
    hardware: str
    model: str
    gpus: int | None
    """None if unknown from a measured profile."""
    burst: int | None = None
    """Jobs that arrive together at the beginning; None unless the runs differ in it."""


def labels(members: Sequence[Member]) -> list[str]:
    """Return what distinguishes each of the runs from the others: burst, machine or model."""
    names = [gpus_in_words(each.hardware, each.gpus) for each in members]
    if len({each.model for each in members}) > 1:
        several = len(set(names)) > 1
        pairs = zip(members, names, strict=True)
        names = [f"{each.model} on {name}" if several else each.model for each, name in pairs]
    pairs = zip(members, names, strict=True)
    return [name if each.burst is None else _after(each.burst) for each, name in pairs]


def _after(burst: int) -> str:
    return f"after a burst of {counted(burst, 'job')}" if burst else "no burst"


def has_members(folder: Path) -> bool:
    return (folder / MEMBERS).is_file()


def read_members(folder: Path) -> tuple[Member, ...]:
    return tuple(
        Member(folder / each.folder, each.hardware, each.model, each.gpus, each.burst)
        for each in members_record(folder).members
    )


def members_record(folder: Path) -> MembersRecord:
    return read_document(folder / MEMBERS, MembersRecord, "run the sweep again")


def siblings(run: Path) -> tuple[Member, ...]:
    """Return the runs of the sweep that a run folder belongs to; none if it is not part of one."""
    parent = run.resolve().parent
    if not has_members(parent):
        return ()
    members = read_members(parent)
    return members if run.resolve() in [member.folder for member in members] else ()


def refuse_members(folder: Path) -> None:
    """Raise InvalidRunFolder, which names the run folders, for a sweep on several machines."""
    if has_members(folder):
        names = [str(member.folder) for member in read_members(folder)]
        raise InvalidRunFolder(
            f"{folder}: contains several runs; give one of them: {listed(names, last='or')}"
        )
