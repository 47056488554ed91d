"""Splits of engines into those that compute prompts and those that decode, as `--disaggregate`
names them.

In: `none,1P1D,2P6D`, a comma list. Out: a `Split` each, or None for engines that do both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from servers.basics.errors import InvalidInput, refuse_twice

OPTION = "--disaggregate"
NONE = "none"
"""Engines that do both, in a list with splits: as many as each split has."""
FORM = re.compile(r"(\d+)P(\d+)D", re.IGNORECASE)
MAX_ENGINES = 100_000


@dataclass(frozen=True, slots=True)
class Split:
    """Numbers of engines."""

    prefill: int
    decode: int

    @property
    def name(self) -> str:
        return f"{self.prefill}P{self.decode}D"

    @property
    def engines(self) -> int:
        return self.prefill + self.decode


def parse_splits(text: str) -> tuple[Split | None, ...]:
    """Return the splits, which all have the same number of engines. Raise InvalidInput."""
    splits = tuple(_split(item.strip()) for item in text.split(","))
    refuse_twice(f"{OPTION} {text}", [NONE if each is None else each.name for each in splits])
    sizes = {split.engines: split.name for split in splits if split is not None}
    if not sizes:
        raise InvalidInput(
            f"{OPTION} {text}: compares no split; add one such as 1P1D, or remove the option"
        )
    if len(sizes) > 1:
        named = " and ".join(f"{name} ({size} engines)" for size, name in sizes.items())
        raise InvalidInput(
            f"{OPTION} {text}: {named} do not use the same hardware; run them in two sweeps and "
            "compare them with bench compare"
        )
    return splits


def engines_of(splits: tuple[Split | None, ...]) -> int:
    """Return the number of engines that each of the splits has."""
    return next(split.engines for split in splits if split is not None)


def _split(item: str) -> Split | None:
    if item.lower() == NONE:
        return None
    form = FORM.fullmatch(item)
    split = None if form is None else Split(int(form[1]), int(form[2]))
    if split is None or not split.prefill or not split.decode or split.engines > MAX_ENGINES:
        raise InvalidInput(
            f"{OPTION} {item or '(empty)'}: write the numbers of prefill and of decode engines, "
            f"both at least 1 and together at most {MAX_ENGINES}, such as 1P1D or 2P6D"
        )
    return split
