"""State per program that stays bounded even if the end of programs is never reported."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Values by program id; only the `max_programs` most recently set ones are kept."""

    def __init__(self, max_programs: int = 100_000) -> None:
        self._max_programs = max_programs
        self._values: OrderedDict[str, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, program_id: str) -> bool:
        return program_id in self._values

    def __setitem__(self, program_id: str, value: Value) -> None:
        self._values[program_id] = value
        self._values.move_to_end(program_id)
        if len(self._values) > self._max_programs:
            self._values.popitem(last=False)

    def get(self, program_id: str) -> Value | None:
        return self._values.get(program_id)

    def pop(self, program_id: str) -> Value | None:
        return self._values.pop(program_id, None)
