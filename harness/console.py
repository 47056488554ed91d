"""Messages for the user on stderr."""

from __future__ import annotations

import sys


def complain(message: str) -> None:
    from traces.lenient import printable

    print(f"bench: {printable(message)}", file=sys.stderr)
