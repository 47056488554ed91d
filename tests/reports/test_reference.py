"""The page on the run folder describes each field as the record types do."""

from __future__ import annotations

import pytest
from msgspec import Struct

from reports.run_folder.document import fields_of
from servers.records.turns import EventRecord, TurnRecord
from tools.run_folder_page import PAGE, page


def test_the_tables_of_the_page_are_current() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run make run-folder"
    for field in (*fields_of(TurnRecord), *fields_of(EventRecord)):
        assert f"| `{field.name}` |" in text


@pytest.mark.parametrize("record", [TurnRecord, EventRecord])
def test_every_field_has_a_meaning_and_the_unit_that_its_name_gives(record: type[Struct]) -> None:
    for field in fields_of(record):
        assert field.meaning, field.name
        units = {"s": field.name.endswith("_s"), "tokens": field.name.endswith("_tokens")}
        assert all(field.unit == unit for unit, expected in units.items() if expected), field
