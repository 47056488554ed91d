"""A JSON object whose fields another program chooses."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
