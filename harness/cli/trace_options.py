"""Options and output that the commands of `bench traces` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from servers.errors import InvalidTrace
from traces import RECIPES, Program
from traces.assumptions import GapSource
from traces.formats.native import write_programs

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH|PACK...", help="Files, folders, or packs (bench list packs)."),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", metavar="NAME|MODULE", help="Format of all files. Default: detected by content."
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="FILE",
        help="Counts the tokens of files that record only text: a model's tokenizer.json. Default: "
        "by the number of characters.",
    ),
]
SynthesiseGaps = Annotated[
    str | None,
    typer.Option(
        "--synthesise-gaps",
        metavar="RECIPE",
        help="Draw the tool times that a file does not record, by tool: "
        f"{', '.join(RECIPES)}, or a file of bench traces fit. Default: such files are rejected.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Rows = Annotated[int, typer.Option("--rows", metavar="N", min=1, help="Rows of each table.")]
Out = Annotated[
    Path, typer.Option("--out", metavar="FILE", help="File to write, .jsonl or .jsonl.gz.")
]


def gaps_of(recipe: str | None) -> GapSource | None:
    """Return the source of synthesised gaps, None for no recipe."""
    from traces.synthesis.gaps import gap_source

    return None if recipe is None else gap_source(recipe)


def write_trace(out: Path, programs: Sequence[Program]) -> None:
    if not out.name.endswith((".jsonl", ".jsonl.gz")):
        raise InvalidTrace(f"--out {out}: must end in .jsonl or .jsonl.gz")
    write_programs(out, programs)


def print_json(value: dict[str, Any]) -> None:
    import orjson

    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
