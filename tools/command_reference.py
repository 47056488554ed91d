"""Generate the command-line reference of the documentation from the Typer app.

`python -m tools.command_reference` prints the page as Markdown; `make docs` writes it to
`docs/reference/command-line.md`, which is not kept in git.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import typer

from harness.cli.help import panels
from harness.cli.main import app

HEAD = """# Command line

Generated from `bench --help` and `bench COMMAND --help`.
"""
HELP_OPTIONS = {"--help", "--install-completion", "--show-completion"}


def page() -> str:
    root = typer.main.get_command(app)
    return "\n".join([HEAD, *_command(root, typer.Context(root, info_name="bench"), level=2)])


def _command(command: Any, context: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{context.command_path}`\n"
    yield _blocks(command.help)
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
    for panel, records in panels(command, context):
        rows = [record for record in records if HELP_OPTIONS.isdisjoint(record[0].split(", "))]
        if rows:
            yield f"| {panel} | |\n|---|---|"
            yield from (f"| `{_cell(name)}` | {_cell(_inline(text))} |" for name, text in rows)
            yield ""
    if command.epilog:
        yield _blocks(command.epilog)
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        _, inner, _ = command.resolve_command(context, [name])
        yield from _command(inner, typer.Context(inner, parent=context, info_name=name), level + 1)


def _blocks(text: str | None) -> str:
    """Convert a help text to Markdown. Consecutive commands become one code block."""
    paragraphs = [" ".join(part.split()) for part in (text or "").split("\n\n") if part.strip()]
    blocks = []
    for are_commands, group in groupby(paragraphs, key=lambda part: part.startswith("bench ")):
        if are_commands:
            blocks.append("\n".join(["```text", *group, "```"]))
        else:
            blocks.extend(map(_inline, group))
    return "\n\n".join(blocks) + "\n"


def _inline(text: str) -> str:
    """Convert the markup of help texts to Markdown."""
    return re.sub(r"\[/?bold\]", "**", text).replace("<", "&lt;")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page())
