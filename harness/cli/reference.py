"""The command-line reference of the documentation, generated from the Typer app.

`python -m harness.cli.reference` prints the page as Markdown; `make docs` writes it to
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

Generated from the code: this is what `bench --help` and `bench COMMAND --help` print.
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
    """Panel and parameter, the panels in the order of the help, arguments first."""
    found = [
        (getattr(p, "rich_help_panel", None) or p.param_type_name.title() + "s", p)
        for p in command.params
        if not getattr(p, "hidden", False) and HELP_OPTIONS.isdisjoint(p.opts)
    ]
    panels = list(dict.fromkeys(panel for panel, _ in found))
    panels.sort(key="Arguments".__ne__)
    return sorted(found, key=lambda option: panels.index(option[0]))


def _blocks(text: str | None) -> str:
    """A help text as Markdown; paragraphs that are commands become one code block."""
    paragraphs = [" ".join(part.split()) for part in (text or "").split("\n\n") if part.strip()]
    blocks = []
    for are_commands, group in groupby(paragraphs, key=lambda part: part.startswith("bench ")):
        if are_commands:
            blocks.append("\n".join(["```text", *group, "```"]))
        else:
            blocks.extend(map(_inline, group))
    return "\n\n".join(blocks) + "\n"


def _inline(text: str) -> str:
    """From Rich's markup."""
    return re.sub(r"\[/?bold\]", "**", text).replace("\\[", "[").replace("<", "&lt;")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page())
