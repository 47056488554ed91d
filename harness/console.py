"""Messages for the user on stderr."""

from __future__ import annotations

import sys


def print_message(message: str) -> None:
    """Print one line, prefixed with "bench: "."""
    from servers.basics.text import printable

    print(f"bench: {printable(message)}", file=sys.stderr)
