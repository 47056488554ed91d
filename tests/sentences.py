"""The values in sentences for people, so that tests do not depend on the wording."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def without_tags(page: str) -> str:
    """Return the text of an HTML page."""
    return re.sub("<[^>]*>", "", page)


def mentions(text: str | Iterable[str], *values: str) -> bool:
    """Return whether `text`, or one of several texts, has the names, numbers and options `values`
    in this order, each as whole words: 0.2 is in neither 0.25 nor -0.2, fcfs not in fcfs-tuned."""
    pattern = re.compile(".*".join(map(_whole, values)), re.DOTALL)
    return any(pattern.search(each) for each in ([text] if isinstance(text, str) else text))


def each_mentions(texts: Sequence[str], *values: str) -> bool:
    """Return whether `texts` are as many as `values`, and each has its own."""
    return len(texts) == len(values) and all(map(mentions, texts, values))


def _whole(value: str) -> str:
    sign = "(?<![-\N{MINUS SIGN}+])" if value[0].isdigit() else ""
    end = r"(?![\w+@(]|-\w|[.,]\d)" if value[-1].isalnum() else ""
    return rf"(?<!\w)(?<!\d[.,]){sign}{re.escape(value)}{end}"
