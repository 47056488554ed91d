"""The facts that the documentation states about each format, compared with samples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.traces.samples import SAMPLES
from traces import Provenance, TraceSet, read_traces
from traces.formats.facts import FACTS, NO, PERMISSION
from traces.formats.registry import FORMATS, IncompleteFormat, load_format

READ = sorted(FACTS)


def sample(name: str, folder: Path) -> TraceSet:
    for file, data in SAMPLES[name].files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(data)
    return read_traces(folder, synthesise_gaps="bfcl")


def test_each_reader_has_an_entry_and_each_entry_a_reader() -> None:
    assert list(FACTS) == sorted(FACTS, key=list(FORMATS.built_in).index)
    assert FACTS.keys() == FORMATS.built_in.keys()


@pytest.mark.parametrize("name", READ)
def test_a_sample_has_the_tool_times_starts_and_sub_agents_that_the_entry_says(
    name: str, tmp_path: Path
) -> None:
    facts, loaded = FACTS[name], sample(name, tmp_path)
    turns = [turn for program in loaded.programs for turn in program.turns[:-1]]
    assert bool(turns) <= facts.sessions
    said = set(re.findall("measured|inferred|unstated", facts.tool_times))
    found = {turn.gap_provenance.value.partition(" with ")[0] for turn in turns}
    with_permission = Provenance.MEASURED_WITH_PERMISSION in {turn.gap_provenance for turn in turns}
    assert with_permission <= (facts.tool_times == PERMISSION)
    if facts.tool_times == NO:
        assert found == {"synthesised"}
    elif not facts.tool_times.startswith("as "):
        assert found <= said
    has_starts = any(program.recorded_start_s is not None for program in loaded.programs)
    assert has_starts <= facts.starts
    assert any(program.fork for program in loaded.programs) <= facts.sub_agents


@pytest.mark.parametrize("name", READ)
def test_lengths_are_inferred_only_where_the_entry_says_so(name: str, tmp_path: Path) -> None:
    assert bool(sample(name, tmp_path).count_basis) <= ("inferred" in FACTS[name].tokens)


@pytest.mark.parametrize("name", sorted(FACTS))
def test_files_without_tool_times_are_completed_where_the_entry_says_so(name: str) -> None:
    facts = FACTS[name]
    says = "--synthesise-gaps" in facts.without or "--tokenizer" in facts.without
    assert isinstance(load_format(name), IncompleteFormat) == says
