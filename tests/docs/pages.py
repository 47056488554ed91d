"""Reads README.md, SECURITY.md and docs/: commands in code blocks and in text, and links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = DOCS / "reference/command-line.md"
"""Written by `make docs`, and not kept in git."""
AT_THE_TOP = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")]
PAGES = [*AT_THE_TOP, *sorted({*DOCS.rglob("*.md")} - {GENERATED})]
REST = "…"
"""Follows the beginning of a command whose rest a page does not show."""


@dataclass(frozen=True, slots=True)
class Command:
    page: str
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def _blocks(page: Path) -> Iterator[tuple[int, str, str]]:
    """The number of the first line, the language and the text of each code block."""
    text = page.read_text()
    for block in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield text.count("\n", 0, block.start(2)) + 1, block[1], block[2]


def commands(page: Path, program: str) -> list[Command]:
    """The commands in the code blocks of a page that begin with `program`."""
    found = []
    for first, language, block in _blocks(page):
        if language not in ("", "sh", "bash"):
            continue
        joined = re.sub(r"\\\n *", "\0", block)
        line = first
        for text in joined.splitlines():
            if text.startswith(f"{program} "):
                words = shlex.split(text.replace("\0", " "), comments=True)
                shown = takewhile(lambda word: word != REST, words)
                found.append(Command(str(page.relative_to(ROOT)), line, tuple(shown)))
            line += 1 + text.count("\0")
    return found


def code(page: Path, beginning: str) -> str | None:
    """The code block that begins with `beginning`."""
    return next((text for _, _, text in _blocks(page) if text.startswith(beginning)), None)


def mentioned(text: str, program: str) -> set[str]:
    """The code spans of a text that begin with `program`."""
    return set(re.findall(rf"`({program} [^`\n]+)`", text))


def links(page: Path) -> list[str]:
    """The links to files of this repository and to headings in them."""
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    return [link for link in found if "://" not in link]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
