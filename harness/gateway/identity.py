"""Who a request says that it is from.

In: its path, headers and body. Out: the program's id and its job's, where it names them. In this
order: `/programs/<id>/v1/…`, a header, a field of the body or of its `vllm_xargs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from servers.errors import InvalidProgramId

HEADERS = ("X-Program-Id", "X-Job-Id", "X-Session-Id")
FIELDS = ("program_id", "job_id", "session_id", "prompt_cache_key")
OURS = ("program_id", "job_id", "session_id")
"""Not for the server, which may refuse a field that it does not know."""
LONGEST = 200


class Said(NamedTuple):
    program_id: str | None
    job_id: str | None
    """The program's own where none is named."""


def said(in_path: str | None, headers: Mapping[str, str], body: Mapping[str, Any]) -> Said:
    """Raises InvalidProgramId."""
    xargs = body.get("vllm_xargs")
    xargs = xargs if isinstance(xargs, Mapping) else {}
    places: list[tuple[str, Any]] = [("the path", in_path)]
    places += [(header, headers.get(header)) for header in HEADERS]
    places += [(field, body.get(field)) for field in FIELDS]
    places += [(f"vllm_xargs.{field}", xargs.get(field)) for field in FIELDS]
    given = [(place, _id(place, value)) for place, value in places if value not in (None, "")]
    if not given:
        return Said(None, None)
    jobs = [id for place, id in given if "job" in place.lower()]
    return Said(given[0][1], jobs[0] if jobs else None)


def _id(place: str, value: object) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise InvalidProgramId(f"{place}: a program's id is text, not {type(value).__name__}")
    id = str(value)
    if len(id) > LONGEST or not id.isprintable():
        raise InvalidProgramId(
            f"{place}: a program's id has at most {LONGEST} printable characters"
        )
    return id
