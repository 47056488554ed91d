"""Titles as parts of a URL."""

import re


def slugify(title):
    """'Hello,  World!' is 'hello-world'."""
    return re.sub(r"[^a-z0-9]", "-", title.lower()).strip("-")
