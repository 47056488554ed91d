"""Refuses a second `--background`, since a sweep has one and the first would be ignored."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from harness.cli.errors import one_line_errors
from servers.basics.errors import InvalidInput

OPTION = "background"


class OneBackground(TyperCommand):
    """A command with the option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # completion, of a line that may not be valid yet
            *_, given = self.make_parser(ctx).parse_args(args=list(args))
            with one_line_errors():
                if sum(parameter.name == OPTION for parameter in given) > 1:
                    raise InvalidInput("--background is given twice; a sweep has one: remove one")
        return super().parse_args(ctx, args)
