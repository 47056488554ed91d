"""The page on the run folder says of each field what the record types say."""

from __future__ import annotations

import pytest
from msgspec import Struct

from reports.run_folder.reference import PAGE, fields_of, page
from servers.records import EventRecord, TurnRecord


def test_the_tables_of_the_page_are_current() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run python -m reports.run_folder.reference"
    for field in (*fields_of(TurnRecord), *fields_of(EventRecord)):
        assert f"| `{field.name}` |" in text


@pytest.mark.parametrize("record", [TurnRecord, EventRecord])
def test_every_field_has_a_meaning_and_what_names_its_unit_has_one(record: type[Struct]) -> None:
    for field in fields_of(record):
        assert field.meaning, field.name
        units = {"s": field.name.endswith("_s"), "tokens": field.name.endswith("_tokens")}
        assert all(field.unit == unit for unit, named in units.items() if named), field
