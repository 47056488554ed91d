"""What a format's module declares about its files, in `ABOUT`.

Detection, messages, reports and the tables of docs/reference/trace-formats.md use it.
`tests/traces/test_format_facts.py` compares it with the samples.
"""

from __future__ import annotations

from dataclasses import dataclass

DRAW = "refused, unless `--synthesise-gaps`"
SINGLE = "single requests: `--arrivals recorded --once`"
BY_TEXT = "counts of text"
COUNT = "without usage: `--tokenizer`"
CALL_END = "calls have assumed durations"
LENGTHS = "repeats follow from lengths"
MEASURED, UNRECORDED, STATED = "measured", "no", "stated"
PERMISSION = "measured, some with waits for permission"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    name: str
    order: int = 100
    """Built-in formats of a lower order are tried first. A format that recognises
    files by a single field follows those whose files may have that field too."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of its files other than `.json` and `.jsonl`, without `.gz`."""
    session_key: str | None = None
    """For files that can be read in parts: the key that consecutive lines of a session share, or ""
    if each line is a session."""
    keys: tuple[tuple[str, ...], ...] = ()
    """Keys by which a file that is not recognised resembles the format, for each kind of its files
    (`traces.formats.look_alikes`)."""
    holds: str
    tokens: str = "recorded"
    """Where token counts come from."""
    tool_times: str
    """Where tool times come from; `UNRECORDED` if nowhere."""
    repeats: str = "inferred"
    """Source of a prompt's repeated part: measured (hashes or texts), inferred, or stated."""
    starts: bool = True
    """Whether starts are recorded, for `--arrivals recorded`."""
    sub_agents: bool = False
    accuracy: str = ""
    """What is inferred, and how accurately."""
    without: str = ""
    """How to use files that lack something."""
    title: str = ""
    """The format's name in the table of rules."""
    rules: str = ""
    """Which field comes from where, in Markdown; empty for a format with a section of its own."""
