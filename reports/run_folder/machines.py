"""Reads the folder of a sweep on several machines, which contains a run folder for each machine.

In: a folder with `machines.json`. Out: the run folders. Raises InvalidRunFolder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reports.run_folder.documents import Count, MadeBy, Name
from servers.basics.errors import InvalidRunFolder
from servers.basics.phrasing import gpus_in_words, listed
from servers.basics.text import first_error, one_line

MACHINES = "machines.json"
FORMAT = "turnstile-machines-1"


class Member(NamedTuple):
    """The run on one machine."""

    folder: Path
    hardware: str
    model: str
    gpus: int | None
    """None if unknown from a measured profile."""

    @property
    def label(self) -> str:
        return f"{self.model} on {gpus_in_words(self.hardware, self.gpus)}"


class Machines(NamedTuple):
    members: tuple[Member, ...]
    argv: tuple[str, ...]
    """The command that made the runs."""


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True)

    folder: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=255)]
    hardware: Name
    model: Name
    gpus: Count | None = None


class _Document(BaseModel):
    model_config = ConfigDict(strict=True)

    format: Literal["turnstile-machines-1"]
    machines: Annotated[list[_Entry], Field(min_length=1, max_length=1000)]
    made_by: MadeBy | None = None


def has_members(folder: Path) -> bool:
    return (folder / MACHINES).is_file()


def read_members(folder: Path) -> tuple[Member, ...]:
    return read_machines(folder).members


def read_machines(folder: Path) -> Machines:
    path = folder / MACHINES
    try:
        found = _Document.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidRunFolder(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        field, first = first_error(error)
        what = f"{field}: {first['msg']}" if field else first["msg"]
        raise InvalidRunFolder(one_line(f"{path}: {what}; run the sweep again")) from None
    members = (
        Member(folder / each.folder, each.hardware, each.model, each.gpus)
        for each in found.machines
    )
    return Machines(tuple(members), tuple(found.made_by.argv) if found.made_by else ())


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
            f"{folder}: contains runs on several machines; give one of them: "
            f"{listed(names, last='or')}"
        )
