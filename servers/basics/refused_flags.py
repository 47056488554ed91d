"""Refuses flags of a user for a server whose values Turnstile sets or depends on.

In: the arguments after `--`, and the refused flags with what to do instead. A flag may be
abbreviated, have underscores, and be followed by `=value` or the `.key` of a JSON value, as the
servers' parsers allow.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from servers.basics.errors import InvalidInput


def check_flags(flags: Sequence[str], refused: Mapping[str, str]) -> None:
    """Raise InvalidInput for a flag of `refused`, whose values are the reasons."""
    for flag in flags:
        given = re.split(r"[=.]", flag, maxsplit=1)[0]
        name = given.replace("_", "-")
        if name.strip("-") and (full := _in_full(name, refused)) is not None:
            raise InvalidInput(f"{given if name == full else f'{given} ({full})'}: {refused[full]}")


def _in_full(name: str, flags: Collection[str]) -> str | None:
    """Return the flag that `name` is or abbreviates; argparse expands abbreviations."""
    if name in flags:
        return name
    return next((full for full in flags if name[0] == "-" and full.startswith(name)), None)
