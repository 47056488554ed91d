"""Compresses data for a page, as base64 that is safe inside a `script` element.

plotly is 4.8 MB of text and 1.9 MB like this. The page unpacks it with the browser's own
DecompressionStream, which needs no network.
"""

from __future__ import annotations

import base64
import zlib
from functools import lru_cache
from typing import Any

import orjson
from plotly.offline import get_plotlyjs


def packed(value: Any) -> str:
    """Any value that `orjson` can write, as JSON; NaN becomes null."""
    return _packed(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))


@lru_cache(maxsize=1)
def packed_plotly() -> str:
    return _packed(get_plotlyjs().encode())


def _packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 9)).decode()
