"""Compresses the data of a page to base64 text that is safe inside a `script` element.

The page decompresses it with `templates/inflate.js`, which needs no network, and does so before the
page has loaded.
plotly.js is part of the package. `make plotly` downloads its basic bundle, which has the traces
that figures use (`scatter` and `bar`) and is a quarter of the full bundle.
"""

from __future__ import annotations

import base64
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import orjson

PLOTLY = Path(__file__).with_name("plotly-basic.min.js.gz")


def packed(value: Any) -> str:
    """Compress `value` as JSON with zlib. NaN becomes null; NumPy arrays are allowed."""
    content = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return base64.b64encode(zlib.compress(content, 9)).decode()


@cache
def packed_plotly() -> str:
    """Return the source of plotly.js, compressed with gzip. Its header has no optional fields."""
    return base64.b64encode(PLOTLY.read_bytes()).decode()
