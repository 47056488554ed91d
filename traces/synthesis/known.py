"""The recipes that `synthesize` knows by name, or by the path of a file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from servers.errors import InvalidTrace
from traces.synthesis.draw import ProgramDraws
from traces.synthesis.fitted import FittedRecipe
from traces.synthesis.recipe_files import FOLDER, SUFFIX, read_recipe, shipped
from traces.synthesis.recipes import PUBLISHED

RECIPES = (*PUBLISHED, *shipped())
"""The names of all recipes that ship with Turnstile."""


def description(recipe: str) -> str:
    """Return one line about a recipe of RECIPES."""
    published = PUBLISHED.get(recipe)
    return published.description if published else fitted_recipe(recipe).description


@lru_cache(maxsize=8)
def fitted_recipe(recipe: str) -> FittedRecipe:
    """Return a fitted recipe by its name, or by the path of its file. Raises InvalidTrace."""
    if recipe.endswith(SUFFIX):
        return read_recipe(Path(recipe))
    if recipe not in shipped():
        raise InvalidTrace(
            f"no recipe {recipe!r}; known are {', '.join(RECIPES)}, and files of bench traces fit "
            f"({SUFFIX})"
        )
    return read_recipe(FOLDER / f"{recipe}{SUFFIX}")


@lru_cache(maxsize=8)
def program_draws(recipe: str) -> ProgramDraws:
    return ProgramDraws(fitted_recipe(recipe))
