"""Finds the recipes that `synthesize` accepts, by name or by the path of a file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from servers.basics.errors import InvalidTrace
from traces.synthesis.recipes import PUBLISHED

if TYPE_CHECKING:
    from traces.synthesis.draw import ProgramDraws
    from traces.synthesis.fitted import FittedRecipe

FOLDER = Path(__file__).parent / "fitted_recipes"
SUFFIX = ".toml"


def shipped() -> list[str]:
    """Return the names of the fitted recipes that ship with Turnstile."""
    return sorted(path.name.removesuffix(SUFFIX) for path in FOLDER.glob(f"*{SUFFIX}"))


RECIPES = (*PUBLISHED, *shipped())
"""The names of all recipes that ship with Turnstile."""


def description(recipe: str) -> str:
    """Return a one-line description of a recipe in RECIPES."""
    published = PUBLISHED.get(recipe)
    return published.description if published else fitted_recipe(recipe).description


@lru_cache(maxsize=8)
def fitted_recipe(recipe: str) -> FittedRecipe:
    """Return a fitted recipe by its name, or by the path of its file. Raises InvalidTrace."""
    from traces.synthesis.recipe_files import read_recipe  # defers pydantic's models

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
    from traces.synthesis.draw import ProgramDraws

    return ProgramDraws(fitted_recipe(recipe))
