"""Finds the recipes nearest to a set of programs. In: programs. Out: the distance of each recipe.

A fitted recipe is represented by the figures of the recorded set that it is fitted to, a published
one by the figures of jobs drawn from it. The distance is the mean, over common quantities, of the
largest difference between the two distribution functions (Kolmogorov and Smirnov): 0 if they are
equal, 1 if no values overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from traces.program import Program
from traces.synthesis.figures import distances, figures
from traces.synthesis.fitted import FittedQuantity
from traces.synthesis.known import RECIPES, fitted_recipe
from traces.synthesis.recipes import PUBLISHED
from traces.synthesis.synthesize import synthesize

DRAWN_JOBS = 200
LIKE = 0.2
"""Maximum distance of a recipe that counts as similar."""
QUANTITIES = (
    "turns",
    "first prompt",
    "new tokens per later turn",
    "output tokens",
    "final context",
    "kept share of prompts",
    "gap after a tool",
)
"""The properties of jobs that a scheduler sees. Sums over turns follow from these."""


@dataclass(frozen=True, slots=True)
class Likeness:
    recipe: str
    distance: float
    means: Mapping[str, float]
    """The mean of each quantity of the recipe."""


def nearest(programs: Sequence[Program]) -> list[Likeness]:
    """Return all recipes, the nearest first. Empty if no job has two turns, since recipes differ in
    how jobs continue."""
    if all(len(program.turns) < 2 for program in programs if program.fork is None):
        return []
    found = [_likeness(recipe, programs) for recipe in RECIPES]
    return sorted(found, key=lambda likeness: likeness.distance)


def means(all_figures: Mapping[str, FittedQuantity]) -> dict[str, float]:
    return {name: all_figures[name].mean for name in QUANTITIES if name in all_figures}


def _likeness(recipe: str, programs: Sequence[Program]) -> Likeness:
    known = reference(recipe)
    each = [d.ks for d in distances(known, programs) if d.quantity in QUANTITIES]
    return Likeness(recipe, sum(each) / len(each), means(known))


@cache
def reference(recipe: str) -> Mapping[str, FittedQuantity]:
    """Return the figures that represent a recipe."""
    if recipe in PUBLISHED:
        return figures(synthesize(recipe, DRAWN_JOBS, 0))
    return fitted_recipe(recipe).figures
