"""What `--help` prints: plain text, since Rich takes longer to import and draw its panels than all
else that `bench sweep --help` does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from textwrap import fill
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

LONGEST = 28
"""Names of options that are longer than this have a line of their own."""


class Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        # Completion needs no values, which Typer would convert with pydantic.
        given, ctx.args, _ = self.make_parser(ctx).parse_args(args=args)
        for parameter in self.get_params(ctx):
            ctx.params[parameter.name], source = parameter.consume_value(ctx, given)
            ctx.set_parameter_source(parameter.name, source)
        return ctx.args

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_help(self, ctx, formatter)


class PanelGroup(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_help(self, ctx, formatter)


def panels(command: Any, context: Any) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Return headings, and the names and help of the options below them. Arguments are first, the
    others in the order in which the command defines them."""

    def heading(parameter: Any) -> str:
        panel = getattr(parameter, "rich_help_panel", None)  # of --help, not in every Typer
        return str(panel or parameter.param_type_name.title() + "s")

    shown = [each for each in command.get_params(context) if not each.hidden]
    order = list(dict.fromkeys(["Arguments", *map(heading, shown)]))
    shown.sort(key=lambda each: order.index(heading(each)))
    for name, parameters in groupby(shown, heading):
        records = [each.get_help_record(context) for each in parameters]
        if name == "Arguments":  # Typer adds the type: FILE <path>
            records = [(argument.partition(" <")[0], text) for argument, text in records]
        yield name, records


def _write_help(command: Any, context: Any, formatter: Any) -> None:
    command.format_usage(context, formatter)
    _write_paragraphs(formatter, command.help)
    for heading, rows in panels(command, context):
        _write_rows(formatter, heading, rows)
    if isinstance(command, TyperGroup):
        summaries = {name: each.help or "" for name, each in command.commands.items()}
        rows = [(name, text.partition("\n\n")[0]) for name, text in summaries.items()]
        _write_rows(formatter, "Commands", rows)
    _write_paragraphs(formatter, command.epilog)


def _write_paragraphs(formatter: Any, text: str | None) -> None:
    for paragraph in filter(None, (text or "").split("\n\n")):
        words = paragraph.strip()
        indent = paragraph[: paragraph.index(words)]
        bold = re.sub(r"\[bold\](.*?)\[/bold\]", lambda m: typer.style(m[1], bold=True), words)
        formatter.write(f"\n{_filled(bold, formatter, indent, indent)}\n")


def _write_rows(formatter: Any, heading: str, rows: list[tuple[str, str]]) -> None:
    formatter.write(f"\n{typer.style(heading, bold=True)}\n")
    width = max(len(name) for name, _ in rows if len(name) <= LONGEST)
    indent = " " * (width + 4)
    for name, text in rows:
        first = f"  {name:<{width}}  "
        if len(name) > LONGEST:
            formatter.write(first.rstrip() + "\n")
            first = indent
        formatter.write(_filled(text, formatter, first, indent) + "\n")


def _filled(text: str, formatter: Any, first: str, later: str) -> str:
    return fill(
        text,
        formatter.width,
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
        break_long_words=False,
    )
