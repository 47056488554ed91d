"""Reads trace files, folders and packs in any known format. In: paths. Out: a `TraceSet`.

Invalid files are rejected and reported; it is an error if no file is valid. Programs are in the
order of the given paths, and by file name within a folder.
"""

from __future__ import annotations

import hashlib
import re
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from servers.errors import InvalidTrace, TraceRejected
from traces.assumptions import Assumptions, GapSource
from traces.block_hashes import with_prefix_ids
from traces.check import PrefixBegin, check, check_prefixes
from traces.formats.registry import (
    FORMATS,
    IncompleteFormat,
    folder_formats,
    load_format,
    recognise,
)
from traces.lenient import Repairs, mapping, one_line, parse_json, read_bytes
from traces.program import Program, SharedPrefix
from traces.token_counts import by_tokenizer, default_counter

PACKS = Path(__file__).parent / "packs"
SUFFIXES = (".json", ".jsonl", ".traj", ".json.gz", ".jsonl.gz", ".traj.gz")
NATIVE_FORMAT = "turnstile"
MIN_UNIX_S = 1e8
"""A recorded start from this value on is a Unix time, otherwise relative to the first start."""


@dataclass(frozen=True, slots=True)
class Note:
    """A repair in a file, or the reason of its rejection."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class TraceSet:
    programs: tuple[Program, ...]
    repairs: tuple[Note, ...]
    rejections: tuple[Note, ...]
    sha256: str
    """Hash of the bytes of all files, in order."""
    formats: dict[str, str]
    """The format of each file that was read."""


def packs() -> list[str]:
    """Return the names of the packs that ship with Turnstile."""
    return sorted(path.name.removesuffix(".jsonl.gz") for path in PACKS.glob("*.jsonl.gz"))


def read_traces(
    paths: Path | str | Iterable[Path | str],
    *,
    messages: bool = False,
    format: str | None = None,
    tokenizer: Path | None = None,
    gaps: GapSource | None = None,
) -> TraceSet:
    """Read traces. A pack's name takes precedence over a file's (write `./name` for the file).

    `messages`: keep the conversations, which takes memory, and reject files without them.
    `format`: the name or the dotted path of the format of all files; by default, each file's format
    is recognised from its first bytes.
    `tokenizer`: counts the tokens of files that record only text; by default, characters do.
    `gaps`: gives the tool gaps that a file does not record; by default, such files are rejected.
    """
    files = list(_files([paths] if isinstance(paths, Path | str) else list(paths)))
    counter = default_counter() if tokenizer is None else by_tokenizer(tokenizer)
    reader = _read_all(files, _Reader(messages, format, Assumptions(counter, gaps)))
    if (fitted := counter.fitted()) is not None:
        reader = _read_all(files, _Reader(messages, format, Assumptions(fitted, gaps)))
    return reader.result()


def _read_all(files: Sequence[tuple[Path, str]], reader: _Reader) -> _Reader:
    labels = Counter(label for _, label in files)
    for file, label in files:
        reader.read(file, str(file) if labels[label] > 1 else label)
    return reader


class _Reader:
    def __init__(self, messages: bool, format: str | None, assumptions: Assumptions) -> None:
        self.messages = messages
        self.format = format
        self.assumptions = assumptions
        self.programs: list[Program] = []
        self.ids: set[str] = set()
        self.copies: Counter[str] = Counter()
        self.repairs: list[Note] = []
        self.rejections: list[Note] = []
        self.paths: dict[str, Path] = {}
        """Paths by label, which is the file's name in messages."""
        self.formats: dict[str, str] = {}
        self.begins: dict[str, PrefixBegin] = {}
        """The place of each prefix of the valid files."""
        self.digest = hashlib.sha256()

    def read(self, path: Path, label: str) -> None:
        repairs, label = Repairs(), one_line(label)
        self.paths[label] = path
        try:
            data = _read(path)
            self.digest.update(hashlib.sha256(data).digest())
            format, programs = _load(data, path, repairs, self.format, self.assumptions)
            if not programs:
                raise TraceRejected(f"{format}: contains no program")
            if self.messages and not all(program.messages for program in programs):
                raise TraceRejected(
                    f"{format} has no messages, which --prompts text and --guided need"
                )
            renamed = self._with_unique_ids(programs, repairs)
            begins = ChainMap({}, self.begins)
            check_prefixes(renamed, begins)
        except (TraceRejected, InvalidTrace) as error:
            reason = one_line(str(error)).removeprefix(f"{one_line(path.name)}, ")
            self.rejections.append(Note(label, reason))
            return
        except RecursionError:
            self.rejections.append(Note(label, "nested too deeply"))
            return
        self.formats[label] = format
        self.begins.update(begins.maps[0])
        self.programs += renamed
        self.repairs += [Note(label, one_line(reason)) for reason in repairs.reasons()]

    def _with_unique_ids(self, programs: list[Program], repairs: Repairs) -> list[Program]:
        names: dict[str, str] = {}
        for program in programs:
            name = program.id
            while name in self.ids:
                self.copies[program.id] += 1
                name = f"{program.id}#{self.copies[program.id] + 1}"
            if name != program.id:
                repairs.add(
                    f"program id {program.id} is used by an earlier file: renamed to {name}"
                )
            names[program.id] = name
            self.ids.add(name)
        return [
            replace(
                p,
                id=names[p.id],
                prefix=p.prefix and replace(p.prefix, id=_renamed(p.prefix.id, names)),
                turns=with_prefix_ids(p.turns, lambda id: _renamed(id, names)),
                fork=p.fork and replace(p.fork, program_id=names[p.fork.program_id]),
                messages=p.messages if self.messages else (),
                prompt_messages=p.prompt_messages if self.messages else (),
            )
            for p in programs
        ]

    def result(self) -> TraceSet:
        if not self.programs:
            first = self.rejections[0]
            others = len(self.rejections) - 1
            more = f" (and {others} more files; bench traces inspect shows the reason of each)"
            path = one_line(str(self.paths[first.file]))
            raise InvalidTrace(f"{path}: {first.reason}{more if others else ''}")
        return TraceSet(
            tuple(_agree_on_prefixes(_from_zero(self.programs))),
            tuple(self.repairs),
            tuple(self.rejections),
            self.digest.hexdigest(),
            self.formats,
        )


def _renamed(prefix_id: str, names: dict[str, str]) -> str:
    """Rename a prefix whose id begins with a program's id, since only its file shares it."""
    for colon in reversed([match.start() for match in re.finditer(":", prefix_id)]):
        if prefix_id[:colon] in names:
            return names[prefix_id[:colon]] + prefix_id[colon:]
    return prefix_id


def _files(paths: Sequence[Path | str]) -> Iterator[tuple[Path, str]]:
    """Yield each file with its name for messages, relative to the given folder."""
    if not paths:
        raise InvalidTrace(
            f"no trace given; give a file, a folder, or a pack ({', '.join(packs())})"
        )
    folders = folder_formats()
    for path in paths:
        if isinstance(path, str) and path in packs():
            yield PACKS / f"{path}.jsonl.gz", path
            continue
        path = Path(path)
        printed = one_line(str(path))
        if _safely(path.is_dir):
            inside = sorted(p for p in path.rglob("*") if p.name.endswith(SUFFIXES) and p.is_file())
            inside = [f for f in inside if not any(format.is_part(f) for format in folders)]
            if not inside:
                raise InvalidTrace(
                    f"{printed}: contains no trace file; use a suffix of {', '.join(SUFFIXES)}"
                )
            for file in inside:
                yield file, file.relative_to(path).as_posix()
        elif _safely(path.exists):
            yield path, path.name
        else:
            raise InvalidTrace(
                f"{printed}: no such file, folder or pack; packs are {', '.join(packs())}"
            )


def _safely(test: Callable[[], bool]) -> bool:
    """Return the result of a file test, or False for text that cannot be a file name."""
    try:
        return test()
    except OSError:
        return False


def _read(path: Path) -> bytes:
    for format in folder_formats():
        if path.name == format.HEAD_FILE:
            return format.read_folder(path)
    return read_bytes(path)


def _load(
    data: bytes, path: Path, repairs: Repairs, chosen: str | None, assumptions: Assumptions
) -> tuple[str, list[Program]]:
    """Return the name of the format, and the programs."""
    known = recognise(data) if chosen is None else (chosen, load_format(chosen))
    plain_name = path.name.removesuffix(".gz")
    if known is None and plain_name.endswith(".jsonl"):
        known = NATIVE_FORMAT, load_format(NATIVE_FORMAT)  # it describes the error in the line
    if known is None:
        raise _unknown_format(parse_json(data))
    name, format = known
    name_only = re.sub(r"(\.traj)?(\.jsonl?|\.traj)?$", "", plain_name)
    if isinstance(format, IncompleteFormat):
        programs = format.load_with(data, name_only, repairs, assumptions)
    else:
        programs = format.load(data, name_only, repairs)
    if name != NATIVE_FORMAT:  # which records the source
        programs = [replace(program, source=path.name) for program in programs]
    check(programs)
    return name, programs


def _unknown_format(document: object) -> TraceRejected:
    keys = ", ".join(sorted(mapping(document))[:5])
    what = f"an object with {keys or 'no fields'}" if isinstance(document, dict) else "no object"
    return TraceRejected(f"unknown format ({what}); known are {', '.join(FORMATS.names())}")


def _from_zero(programs: Sequence[Program]) -> list[Program]:
    """Convert recorded starts in Unix seconds to seconds after the first of them."""
    starts = [s for p in programs if (s := p.recorded_start_s) is not None and s >= MIN_UNIX_S]
    first_s = min(starts, default=0.0)
    return [
        replace(p, recorded_start_s=round(p.recorded_start_s - first_s, 3))
        if p.recorded_start_s is not None and p.recorded_start_s >= MIN_UNIX_S
        else p
        for p in programs
    ]


def _agree_on_prefixes(programs: Sequence[Program]) -> Iterator[Program]:
    """Use the shortest of a prefix's lengths, so that no program hits more than it shares."""
    shortest: dict[str, int] = {}
    for program in programs:
        if prefix := program.prefix:
            shortest[prefix.id] = min(prefix.tokens, shortest.get(prefix.id, prefix.tokens))
    for program in programs:
        prefix = program.prefix
        if prefix and prefix.tokens != shortest[prefix.id]:
            program = replace(program, prefix=SharedPrefix(prefix.id, shortest[prefix.id]))
        yield program
