"""`bench traces synthesize` and `fit`: draw programs, fit a recipe, test its fit."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import refuse_given
from harness.cli.trace_options import (
    Out,
    TraceReading,
    print_json,
    read_files,
    write_trace,
)
from harness.load.option import Option
from servers.basics.errors import InvalidTrace
from servers.basics.phrasing import counted
from servers.basics.text import one_line
from traces import RECIPES, synthesize

COUNT = re.compile(r"\d{1,9}", re.ASCII)


class PromptTokens(StrEnum):
    FINAL_CONTEXT = "final-context"
    SUM = "sum"


SYNTHESIZE_HELP = """Synthesize programs from published statistics, or from the fit to a real set.

Every tool gap is marked as synthesised. The first example creates the pack that ships with
Turnstile, byte for byte.

[bold]Examples[/bold]

  bench traces synthesize swe-bench --programs 100 --seed 0 --out swe-bench.jsonl.gz

  bench traces synthesize mini-swe-agent --programs 1000 --out many.jsonl.gz

  bench traces synthesize bfcl --programs 1000 --scale 1 --out table2.jsonl.gz

  bench traces synthesize swe-bench --turn-scale 5 --out many-turns.jsonl.gz

  bench traces synthesize execution-note --output-tokens 7..150 --out note.jsonl
"""


def synthesize_(
    recipe: Annotated[
        str,
        Option(
            f"One of {', '.join(RECIPES)}; or a file of bench traces fit.",
            "RECIPE",
            positional=True,
        ),
    ],
    out: Out,
    programs: Annotated[int, Option("Number of jobs.", "N", min=1)] = 100,
    seed: Annotated[int, Option("The same seed gives the same file.", "N", min=0)] = 0,
    turn_scale: Annotated[
        int, Option("Multiply turns by this, divide lengths by it.", "N", min=1, max=5)
    ] = 1,
    tokens: Annotated[
        PromptTokens | None,
        Option("Meaning of the recipe's \"tokens per program\". Default: the recipe's."),
    ] = None,
    scale: Annotated[
        float | None, Option("Multiply tokens by this. Default: the recipe's.", "FACTOR")
    ] = None,
    output_tokens: Annotated[
        str | None, Option("Output lengths of execution-note. Default: 7..12.", "MIN..MAX")
    ] = None,
) -> None:
    synthesized = synthesize(
        recipe,
        programs,
        seed,
        turn_scale=turn_scale,
        tokens=tokens.value if tokens else None,
        scale=scale,
        output_tokens=output_range(output_tokens),
    )
    write_trace(out, synthesized)
    turns = sum(len(program.turns) for program in synthesized)
    print(f"{out}: {len(synthesized)} programs, {turns} turns")


def output_range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    low, dots, high = text.partition("..")
    if not (dots and COUNT.fullmatch(low.strip()) and COUNT.fullmatch(high.strip())):
        raise InvalidTrace(f"--output-tokens {one_line(text)!r}: use MIN..MAX, e.g. 7..12")
    return int(low), int(high)


FIT_HELP = """Fit a recipe to programs, so that any number of programs like them can be drawn.

The recipe is a TOML file of about twenty kilobytes. It contains figures only: distributions, how
tools follow each other, and correlations. bench traces synthesize draws programs from it.

With --check nothing is fitted: it prints how far a recipe's programs are from real ones, for each
quantity. For mean, deviation and quantiles the table has the real value and the recipe's relative
error. KS is the largest difference of the two distribution functions. Without PATH the real values
are those stored in the recipe, of the set to which it is fitted.

[bold]Examples[/bold]

  bench traces fit ~/trajectories --out mine.toml

  bench traces fit runs/record/NAME/trace.jsonl --out agent.toml --set "our agent" --licence MIT

  bench traces synthesize mine.toml --programs 1000 --out synthesised.jsonl.gz

  bench traces fit --check mine.toml

  bench traces fit --check mini-swe-agent ~/trajectories --json
"""
OF_NEW_RECIPES = ("out", "set_", "licence", "about")
OF_CHECKS = ("programs", "seed", "json")


def fit(
    context: typer.Context,
    paths: Annotated[
        list[str] | None, Option("Files or folders of programs.", "[PATH...]", positional=True)
    ] = None,
    out: Annotated[Path | None, Option("The recipe, .toml.", "FILE")] = None,
    set_: Annotated[
        str | None, Option("What the programs are and who recorded them. Default: paths.", "TEXT")
    ] = None,
    licence: Annotated[str, Option("The licence of the programs.", "TEXT")] = "not given",
    about: Annotated[
        str | None, Option("One line about the recipe. Default: its set.", "TEXT")
    ] = None,
    check: Annotated[
        str | None,
        Option("Compare this recipe, or a file of bench traces fit, with real programs.", "RECIPE"),
    ] = None,
    programs: Annotated[int, Option("With --check: jobs to draw.", "N", min=1)] = 2000,
    seed: Annotated[int, Option("With --check: seed of the draw.", "N", min=0)] = 0,
    json: Annotated[bool, Option("With --check: print JSON.")] = False,
    *,
    reading: TraceReading,
) -> None:
    if check is not None:
        refuse_given(context, OF_NEW_RECIPES, "not supported with --check")
        _check(check, paths or [], programs, seed, json, reading)
        return
    from harness.load.workload import sessions
    from traces.stats import statistics
    from traces.synthesis.fit import fit as fit_recipe
    from traces.synthesis.fitted import Origin
    from traces.synthesis.recipe_files import write_recipe

    refuse_given(context, OF_CHECKS, "only with --check")
    if not paths or out is None:
        raise InvalidTrace("give files of programs and --out FILE, or --check RECIPE")
    if out.suffix != ".toml":
        raise InvalidTrace(f"--out {one_line(str(out))}: must end in .toml")
    loaded = read_files(paths, reading)
    stats = statistics(loaded.programs)
    names = ", ".join(Path(path).name for path in paths)
    origin = Origin(
        set=set_ or (sessions(loaded.formats.values()) if loaded.is_private else names),
        licence=licence,
        fitted=datetime.now(UTC).date().isoformat(),
        programs=stats.programs,
        sub_agents=stats.sub_agents,
        turns=sum(len(program.turns) for program in loaded.programs),
        gaps=stats.gap_provenance,
        trace_sha256=loaded.sha256,
    )
    description = about or f"fitted to {counted(stats.programs, 'program')} of {origin.set}"
    write_recipe(out, fit_recipe(loaded.programs, _name(out), description, origin))
    print(f"{out}: {description}; {counted(len(loaded.rejections), 'file')} rejected")


def _name(out: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", out.stem)[:60]


def _check(
    recipe: str, paths: list[str], programs: int, seed: int, json: bool, reading: TraceReading
) -> None:
    """Print how far the recipe's programs are from those in `paths`, or from its own set."""
    from harness.cli.trace_tables import show_distances
    from traces.synthesis.figures import distances, figures
    from traces.synthesis.known import fitted_recipe
    from traces.synthesis.recipes import PUBLISHED

    drawn = synthesize(recipe, programs, seed)
    if paths:
        real = figures(read_files(paths, reading).programs)
    elif recipe in PUBLISHED:
        raise InvalidTrace(f"{recipe} is not fitted to a set; give files to compare it with")
    else:
        real = fitted_recipe(recipe).figures
    found = list(distances(real, drawn))
    if json:
        print_json({"recipe": recipe, "distances": [distance.as_json() for distance in found]})
    else:
        show_distances(found)


COMMANDS = (
    ("synthesize", synthesize_, SYNTHESIZE_HELP),
    ("fit", fit, FIT_HELP),
)
"""Names, functions and help of the commands."""
