"""Types of the fields of records, with the limits that readers check.

Imports only msgspec, which vLLM depends on too.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from servers.basics.text import CONTROL, MAX_CHARACTERS

MAX_VALUE = 10**15
"""Upper bound of seconds, tokens and blocks; sums of a million such values stay finite."""

Seconds = Annotated[float, Meta(ge=-MAX_VALUE, le=MAX_VALUE)]
Count = Annotated[int, Meta(ge=0, le=MAX_VALUE)]
Tokens = Annotated[int, Meta(ge=0, le=MAX_VALUE)]
Blocks = Annotated[int, Meta(ge=0, le=MAX_VALUE)]
Scalar = str | int | float | bool | None
Integer = Annotated[int, Meta(ge=-MAX_VALUE, le=MAX_VALUE)]
Number = Annotated[float, Meta(ge=-MAX_VALUE, le=MAX_VALUE)]
Rate = Annotated[float, Meta(gt=0, le=MAX_VALUE)]
Printable = Annotated[str, Meta(pattern=rf"\A[^{CONTROL}]*\Z")]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_CHARACTERS, pattern=rf"\A[^{CONTROL}]*\Z")]


class Record(Struct, frozen=True, omit_defaults=True):
    """A part of the settings. A field that has its default is left out."""
