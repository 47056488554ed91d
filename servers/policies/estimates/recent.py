"""State per program or tool that stays bounded even if the end of programs is never reported, and
whatever names of tools clients send."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")

MAX_TOOLS = 1000


class Recent(Generic[Value]):
    """Values by program id or tool; only the `limit` most recently set ones are kept."""

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._values: OrderedDict[str, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, program_id: str) -> bool:
        return program_id in self._values

    def __setitem__(self, program_id: str, value: Value) -> None:
        self._values[program_id] = value
        self._values.move_to_end(program_id)
        if len(self._values) > self._limit:
            self._values.popitem(last=False)

    def get(self, program_id: str) -> Value | None:
        return self._values.get(program_id)

    def get_or_add(self, key: str, make: Callable[[], Value]) -> Value:
        """Return the value, which is `make()` if there was none, and count it as set."""
        value = self._values.get(key)
        if value is None:
            value = make()
        self[key] = value
        return value

    def pop(self, program_id: str) -> Value | None:
        return self._values.pop(program_id, None)
