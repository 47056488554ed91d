"""An agent of two turns that handles no failure: at the first one it exits with code 1.

Usage: python agent.py BASE_URL TASK. It uses only the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request

BODY = {
    "model": "tiny",
    "prompt": [1, 2, 3],
    "max_tokens": 6,
    "min_tokens": 6,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_token_ids": True,
}


def main(base_url: str) -> None:
    key = os.environ["OPENAI_API_KEY"]
    for _ in range(2):
        request = urllib.request.Request(  # noqa: S310
            f"{base_url}/completions",
            json.dumps(BODY).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
        )
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            answer.read()


if __name__ == "__main__":
    main(sys.argv[1])
