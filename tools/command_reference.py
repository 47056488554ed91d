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
    for panel, options in groupby(_options(command), key=lambda option: option[0]):
        rows = [option[1].get_help_record(context) for option in options]
        yield f"| {panel} | |\n|---|---|"
        yield from (f"| `{_cell(name)}` | {_cell(_inline(text))} |" for name, text in rows)
        yield ""
    if command.epilog:
        yield _blocks(command.epilog)
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        _, inner, _ = command.resolve_command(context, [name])
        yield from _command(inner, typer.Context(inner, parent=context, info_name=name), level + 1)


def _options(command: Any) -> list[tuple[str, Any]]:
    """Return panel and parameter of each option: arguments first, then in the order of the help."""
    options = [
        (getattr(p, "rich_help_panel", None) or p.param_type_name.title() + "s", p)
        for p in command.params
        if not getattr(p, "hidden", False) and HELP_OPTIONS.isdisjoint(p.opts)
    ]
    panels = list(dict.fromkeys(panel for panel, _ in options))
    panels.sort(key="Arguments".__ne__)
    return sorted(options, key=lambda option: panels.index(option[0]))


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
    """Convert Rich's markup to Markdown."""
    return re.sub(r"\[/?bold\]", "**", text).replace("\\[", "[").replace("<", "&lt;")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page())
