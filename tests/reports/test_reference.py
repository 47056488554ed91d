"""The page on the run folder describes each field as the record types do."""

from __future__ import annotations

import pytest
from msgspec import Struct

from servers.records.turns import EventRecord, TurnRecord
from tools.run_folder_page import PAGE, page


def test_the_tables_of_the_page_are_current() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run make run-folder"


@pytest.mark.parametrize("record", [TurnRecord, EventRecord])
def test_every_field_has_a_meaning_and_the_unit_that_its_name_gives(record: type[Struct]) -> None:
    text = PAGE.read_text()
    for name, kind in record.__annotations__.items():
        assert f"| `{name}` | " in text
        assert kind.startswith("Seconds") or not name.endswith("_s"), name
        assert kind.startswith("Tokens") or not name.endswith("_tokens"), name
