"""Reads trace files, folders and packs in any known format. In: paths. Out: a `TraceSet`.

Invalid files are rejected and reported; it is an error if no file is valid. Programs are in the
order of the given paths, and by file name within a folder.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from servers.basics.errors import InvalidTrace, NoTraceRead, TraceRejected
from servers.basics.text import one_line, text
from traces.anonymize import Names
from traces.assumptions import Assumptions, GapSource
from traces.check import PrefixBegin, check, check_prefixes
from traces.columns import Columns, parse_columns
from traces.compressed import plain_name
from traces.files import TraceFile, find_files, names_in_messages
from traces.formats import look_alikes
from traces.formats.registry import (
    FIRST_BYTES,
    IncompleteFormat,
    folder_formats,
    known_formats,
    load_format,
    recognise,
)
from traces.formats.shared.linked import join
from traces.laws import Laws
from traces.lenient import Repairs, items, line_start, mapping, parse_json, read_bytes
from traces.merge import (
    UniqueIds,
    agree_on_prefixes,
    from_zero,
    with_short_names,
    without_messages,
)
from traces.program import Program
from traces.stored import SUFFIX as STORED_SUFFIX
from traces.stored import read_stored
from traces.table import load_table, parquet_lines
from traces.token_counts import counter_of
from traces.watch import unread_fields

NATIVE_FORMAT = "turnstile"
RECORD_SEPARATOR = re.compile(rb"^===== .* =====\s*$", re.MULTILINE)
MAX_GIVEN = 3
"""Maximum number of paths in a command that a message suggests."""


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
    is_private: bool = False
    """Whether a file is a person's history of an agent, whose folder reveals what they work on."""
    count_basis: str = ""
    """How text without token counts was counted; "" if no text was."""
    inferred_counts: int = 0
    """Number of token counts that are inferred although their file records others."""
    keeps_names: bool = False
    """Whether private histories keep the ids of sessions and the names of tools."""
    laws: Laws = field(default_factory=Laws)
    """How often each conservation law was checked and failed."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """How often each field occurs that no reader uses, if that was asked for."""


def read_traces(
    paths: Path | str | Iterable[Path | str],
    *,
    messages: bool = False,
    format: str | None = None,
    columns: str | None = None,
    tokenizer: Path | None = None,
    synthesise_gaps: str | None = None,
    keep_names: bool = False,
    watch: bool = False,
) -> TraceSet:
    """Read traces. A pack's name takes precedence over a file's (write `./name` for the file).

    `messages`: keep the conversations, which takes memory, and reject files without them. `format`:
    the name or the dotted path of the format of all files; by default, each file's format is
    recognised from its first bytes. `columns`: the column map of all files, which are tables
    (`traces.columns`). `tokenizer`: counts the tokens of files that record only text; by default,
    characters do. `synthesise_gaps`: the recipe from which the tool gaps that a file does not
    record are drawn; by default, such files are rejected. `keep_names`: keep the names of sessions,
    files and tools in private histories, whose folders reveal what a person works on; by default,
    they are numbered (`traces.anonymize.Names`). `watch`: count the fields that no reader uses.
    """
    paths = [paths] if isinstance(paths, Path | str) else list(paths)
    files = find_files(paths, tables=columns is not None)
    counter = counter_of(tokenizer)
    gaps, drawn_from = gap_source_of(synthesise_gaps)
    options = {
        "--format": format, "--columns": columns, "--tokenizer": tokenizer,
        "--synthesise-gaps": synthesise_gaps,
    }  # fmt: skip
    inspect = _inspect(paths, options)
    # The options that affect the programs, for their hash.
    decided_by = "\0".join(filter(None, (columns, counter.sha256, drawn_from)))
    how = messages, format, columns, keep_names, watch, inspect, decided_by
    reader = _SetReader(*how, Assumptions(counter, gaps))
    reader.read_all(files)
    if (fitted := counter.fitted()) is not None:
        reader = _SetReader(*how, Assumptions(fitted, gaps))
        reader.read_all(files)
    return reader.result()


def gap_source_of(recipe: str | None) -> tuple[GapSource | None, str]:
    """Return the source of tool gaps, and the contents of the recipe."""
    if recipe is None:
        return None, ""
    from traces.synthesis.gaps import contents, gap_source

    try:
        return gap_source(recipe), contents(recipe)
    except InvalidTrace as error:
        raise InvalidTrace(f"--synthesise-gaps: {error}") from None


def _inspect(paths: Sequence[Path | str], options: Mapping[str, object]) -> str:
    """Return the command that lists the rejected files."""
    given = [part for name, value in options.items() if value is not None for part in (name, value)]
    if len(paths) > MAX_GIVEN:
        return "bench traces inspect with the same paths"
    command = ["bench", "traces", "inspect", *map(str, paths), *map(str, given)]
    return one_line(shlex.join(command))


class _SetReader:
    def __init__(
        self,
        messages: bool,
        format: str | None,
        columns: str | None,
        keep_names: bool,
        watch: bool,
        inspect: str,
        decided_by: str,
        assumptions: Assumptions,
    ) -> None:
        """`inspect`: the command that lists the rejected files. `decided_by`: the options that
        affect the programs."""
        self.messages = messages
        self.format = format
        self.columns = None if columns is None else parse_columns(columns)
        self.inspect = inspect
        self.assumptions = assumptions
        self.programs: list[Program] = []
        self.keep_names = keep_names
        self.watch = watch
        self.names = Names()
        self.ids = UniqueIds()
        self.repairs: list[Note] = []
        self.rejections: list[Note] = []
        self.paths: dict[str, Path] = {}
        """Paths by label, which is the file's name in messages."""
        self.formats: dict[str, str] = {}
        self.is_private = False
        self.inferred_counts = 0
        self.laws = Laws()
        self.unread: Counter[str] = Counter()
        self.begins: dict[str, PrefixBegin] = {}
        """The place of each prefix of the valid files."""
        self.digest = hashlib.sha256(decided_by.encode())

    def read_all(self, files: Sequence[TraceFile]) -> None:
        labels = names_in_messages(files, keep_names=self.keep_names)
        for file, label in zip(files, labels, strict=True):
            self.read(file, label)

    def read(self, file: TraceFile, label: str) -> None:
        repairs, path = Repairs(), file.path
        is_numbered = file.is_private and not self.keep_names
        self.paths[label] = path
        self.is_private |= file.is_private
        try:
            data = contents(file)
            self.digest.update(hashlib.sha256(data).digest())
            format, programs = load_file(
                data, path, repairs, self.assumptions, self.format, self.columns
            )
            if not programs:
                raise TraceRejected(f"{format}: contains no program")
            if self.messages and not all(program.messages for program in programs):
                raise TraceRejected(
                    f"{format} has no messages, which --prompts text and --guided need"
                )
            if not self.messages:
                programs = without_messages(programs)
            if is_numbered:
                programs = self.names.numbered(programs)
            renamed = self.ids.rename(programs, repairs)
            begins = ChainMap({}, self.begins)
            check_prefixes(renamed, begins)
        except (TraceRejected, InvalidTrace) as error:
            reason = one_line(str(error)).removeprefix(f"{one_line(path.name)}, ")
            if is_numbered:
                reason = _without_names(reason, file)
            self.rejections.append(Note(label, reason))
            return
        except RecursionError:
            self.rejections.append(Note(label, "nested too deeply"))
            return
        self.formats[label] = format
        self.inferred_counts += repairs.inferred_counts
        self.laws.add(repairs.laws)
        if self.watch and format in known_formats().names():
            self.unread += unread_fields(data, load_format(format))
        self.begins.update(begins.maps[0])
        self.programs += renamed
        self.repairs += [Note(label, one_line(reason)) for reason in repairs.reasons()]

    def result(self) -> TraceSet:
        if not self.programs:
            raise self._none_read()
        return TraceSet(
            tuple(agree_on_prefixes(from_zero(self.programs))),
            tuple(self.repairs),
            tuple(self.rejections),
            self.digest.hexdigest(),
            self.formats,
            self.is_private,
            self.assumptions.tokens.basis if self.assumptions.tokens.estimated else "",
            self.inferred_counts,
            self.is_private and self.keep_names,
            self.laws,
            self.unread,
        )

    def _none_read(self) -> NoTraceRead:
        first, *others = self.rejections
        more = ""
        if others:
            files = "1 more file" if len(others) == 1 else f"{len(others)} more files"
            more = f" (and {files}; {self.inspect} shows the reason of each)"
        path = one_line(str(self.paths[first.file]))
        return NoTraceRead(
            f"{path}: {first.reason}{more}", [(note.file, note.reason) for note in self.rejections]
        )


def _without_names(reason: str, file: TraceFile) -> str:
    """Return the reason of a rejection without the names of files and sessions."""
    for part in file.parts or (file.path,):
        reason = reason.replace(one_line(part.name), "a file")
    return re.sub("program '[^']*'", "a program", reason)


def contents(file: TraceFile) -> bytes:
    """Return the decompressed bytes of a trace. Raises TraceRejected."""
    return join(file.parts) if file.parts else _read(file.path)


def load_file(
    data: bytes,
    path: Path,
    repairs: Repairs,
    assumptions: Assumptions,
    format: str | None = None,
    columns: Columns | None = None,
) -> tuple[str, list[Program]]:
    """Return the name of the format of a file with these contents, and its valid programs. Raises
    TraceRejected and InvalidTrace."""
    before = repairs.inferred_counts + assumptions.tokens.estimated
    name, programs = _load_any(data, path, repairs, assumptions, format, columns)
    if (
        repairs.inferred_counts + assumptions.tokens.estimated > before
        or repairs.laws.failed_counts
    ):
        programs = [replace(program, inferred_tokens=True) for program in programs]
    return name, with_short_names(programs, repairs)


def _load_any(
    data: bytes,
    path: Path,
    repairs: Repairs,
    assumptions: Assumptions,
    format: str | None,
    columns: Columns | None,
) -> tuple[str, list[Program]]:
    plain, suffix = _split_name(path)
    if suffix == ".toml":
        raise TraceRejected(look_alikes.describe_toml(data, path.name))
    if suffix == STORED_SUFFIX:
        programs = read_stored(data)
        check(programs)
        return "packed", programs
    if suffix == ".parquet":
        data = parquet_lines(data)
    is_other = columns is None and (
        suffix != ".parquet" or recognise(data) is not None or look_alikes.needs_package(data)
    )
    if is_other and suffix not in (".csv", ".tsv"):
        return _load(data, path, repairs, format, assumptions)
    programs = load_table(data, plain, suffix, columns, repairs)
    programs = [replace(program, source=path.name) for program in programs]
    check(programs)
    return suffix.removeprefix(".") or "table", programs


def _split_name(path: Path) -> tuple[str, str]:
    """Return a file's name without suffixes, and its suffix without its compression's."""
    plain = Path(plain_name(path))
    return plain.stem, plain.suffix


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
    is_ours = chosen is None and (known is None or known[0] in known_formats().built_in)
    if is_ours and (other := look_alikes.of_another_tool(data)) is not None:
        raise TraceRejected(other)
    uncompressed = plain_name(path)
    if known is None:
        first = _first_object(data, uncompressed)
        if not _may_be_native(first, uncompressed):
            raise TraceRejected(look_alikes.describe(first))
        known = NATIVE_FORMAT, load_format(NATIVE_FORMAT)  # the error describes the line
    name, format = known
    name_only = re.sub(r"(\.traj)?(\.jsonl?|\.traj)?$", "", uncompressed)
    if isinstance(format, IncompleteFormat):
        programs = format.load_with(data, name_only, repairs, assumptions)
    else:
        programs = format.load(data, name_only, repairs)
    if name != NATIVE_FORMAT:  # a format that records the source
        programs = [replace(program, source=path.name) for program in programs]
    check(programs)
    return name, programs


def _first_object(data: bytes, plain_name: str) -> object:
    """Return the first object of a file in an unknown format. Raises TraceRejected if it is not
    JSON."""
    if plain_name.endswith(".jsonl"):
        try:
            return parse_json(data.lstrip().split(b"\n", 1)[0])
        except TraceRejected as error:
            raise TraceRejected(f"line 1: {error}; write one JSON object per line") from None
    if RECORD_SEPARATOR.search(data[:FIRST_BYTES]):
        raise TraceRejected("a printout of records between separators, not JSON; give JSON Lines")
    if look_alikes.needs_package(data):
        return line_start(data[:FIRST_BYTES])
    try:
        document = parse_json(data)
    except TraceRejected as error:
        raise TraceRejected(f"{error}; {look_alikes.KINDS}") from None
    return items(document)[0] if items(document) else document


def _may_be_native(first: object, plain_name: str) -> bool:
    """Return whether an object may be a program in our own format that contains a mistake."""
    if text(mapping(first).get("format")).startswith("turnstile"):
        return True
    has_turns = look_alikes.keys_of(first) >= {"id", "turns"}
    return has_turns and plain_name.endswith(".jsonl")
