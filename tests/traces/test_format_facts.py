"""The facts that the documentation states about each format, compared with samples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.traces.samples import SAMPLES
from traces import Provenance, TraceSet, read_traces
from traces.formats.about import PERMISSION, UNRECORDED
from traces.formats.registry import (
    PACKAGED,
    IncompleteFormat,
    abouts,
    known_formats,
    load_format,
)

ABOUTS = {name: about for name, about in abouts().items() if name in SAMPLES}


def sample(name: str, folder: Path) -> TraceSet:
    for file, data in SAMPLES[name].files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(data)
    return read_traces(folder, synthesise_gaps="bfcl")


def test_every_format_is_declared_under_its_name() -> None:
    assert ABOUTS.keys() == {*known_formats().built_in, *PACKAGED}
    assert [name for name, about in ABOUTS.items() if about.name != name] == []


@pytest.mark.parametrize("name", sorted(ABOUTS))
def test_a_sample_has_the_tool_times_starts_and_sub_agents_that_the_entry_says(
    name: str, tmp_path: Path
) -> None:
    about, loaded = ABOUTS[name], sample(name, tmp_path)
    turns = [turn for program in loaded.programs for turn in program.turns[:-1]]
    said = set(re.findall("measured|inferred|unstated", about.tool_times))
    found = {turn.gap_provenance.value.partition(" with ")[0] for turn in turns}
    with_permission = Provenance.MEASURED_WITH_PERMISSION in {turn.gap_provenance for turn in turns}
    assert with_permission <= (about.tool_times == PERMISSION)
    if about.tool_times == UNRECORDED:
        assert found == {"synthesised"}
    elif not about.tool_times.startswith("as "):
        assert found <= said
    has_starts = any(program.recorded_start_s is not None for program in loaded.programs)
    assert has_starts <= about.starts
    assert any(program.fork for program in loaded.programs) <= about.sub_agents


@pytest.mark.parametrize("name", sorted(ABOUTS))
def test_lengths_are_inferred_only_where_the_entry_says_so(name: str, tmp_path: Path) -> None:
    assert bool(sample(name, tmp_path).count_basis) <= ("inferred" in ABOUTS[name].tokens)


@pytest.mark.parametrize("name", sorted(ABOUTS))
def test_files_without_tool_times_are_completed_where_the_entry_says_so(name: str) -> None:
    about = ABOUTS[name]
    says = "--synthesise-gaps" in about.without or "--tokenizer" in about.without
    assert isinstance(load_format(name), IncompleteFormat) == says
