"""Properties of every trace format of ours, and of a format from another package."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from harness.replay.virtual import replay
from servers.basics.errors import InvalidPlugin, InvalidTrace, TraceRejected, UnknownName
from servers.policies.base import Costs
from servers.records.turns import TurnRecord
from servers.sim import Engine, Limits
from servers.variants import make_policy, variants
from tests.sentences import mentions
from tests.sim.worlds import BLOCK, profile
from tests.traces.sample import json_lines, load_bytes
from tests.traces.samples import SAMPLES
from traces import Program, TraceSet, read_traces
from traces.check import check
from traces.formats.registry import FIRST_BYTES, PACKAGED, load_format
from traces.lenient import Repairs

NAMES = list(SAMPLES)


def read_sample(format: str, folder: Path) -> tuple[Program, ...]:
    for name, data in SAMPLES[format].files.items():
        (folder / name).write_bytes(data)
    loaded = read(format, folder)
    assert loaded.rejections == ()
    return loaded.programs


def read(format: str, path: Path) -> TraceSet:
    gaps = SAMPLES[format].gaps or None
    return read_traces(path, synthesise_gaps=gaps, keep_names=True)


def prefix_hits(programs: Sequence[Program]) -> dict[tuple[str, int], int]:
    """Return the prefix-cache hits in tokens by program and turn, if jobs run one after the other
    on a machine that never evicts."""
    lines: list[TurnRecord] = []
    policy = make_policy(variants("fcfs")[0], Costs(prefill_s=float))
    engine = partial(Engine, policy, profile(kv_blocks=10_000), Limits())
    replay(programs, None, 1, engine, lines.append)
    return {(line.program_id, line.turn): line.device_hit_tokens or 0 for line in lines}


@pytest.mark.parametrize("format", NAMES)
def test_each_format_recognises_only_its_own_sample(format: str) -> None:
    sniff = load_format(format).sniff
    for name, sample in SAMPLES.items():
        for data in sample.files.values():
            assert sniff(data) == (name == format), name
            assert sniff(data[: len(data) * 2 // 3]) == (name == format), f"{name}, cut"


@pytest.mark.parametrize("format", NAMES)
def test_a_sample_loads_as_valid_programs_that_name_their_file(format: str, tmp_path: Path) -> None:
    programs = read_sample(format, tmp_path)
    check(programs)
    assert len(programs) > 1
    if format != "turnstile":  # its files contain the source themselves
        assert {program.source for program in programs} <= set(SAMPLES[format].files)


@pytest.mark.parametrize("format", NAMES)
def test_each_tool_gap_has_its_provenance(format: str, tmp_path: Path) -> None:
    programs = read_sample(format, tmp_path)
    provenances = tuple(turn.gap_provenance for p in programs for turn in p.turns[:-1])
    assert provenances == SAMPLES[format].gap_provenance


@pytest.mark.parametrize("format", NAMES)
def test_prompts_with_a_common_prefix_hit_the_prefix_cache(format: str, tmp_path: Path) -> None:
    programs = read_sample(format, tmp_path)
    hits = prefix_hits(programs)
    assert [key for key, tokens in hits.items() if key[1] > 0 and not tokens] == []
    if SAMPLES[format].shares_prefix:
        # The first turn of at least one program shares a prefix with an earlier program.
        assert max(tokens for (_, turn), tokens in hits.items() if turn == 0) >= BLOCK


@pytest.mark.parametrize("format", NAMES)
def test_a_gzipped_sample_gives_the_same_programs(format: str, tmp_path: Path) -> None:
    programs = read_sample(format, tmp_path)
    packed = tmp_path / "packed"
    packed.mkdir()
    for name, data in SAMPLES[format].files.items():
        (packed / f"{name}.gz").write_bytes(gzip.compress(data))
    assert [(p.id, p.turns, p.prefix) for p in read(format, packed).programs] == [
        (p.id, p.turns, p.prefix) for p in programs
    ]


@pytest.mark.parametrize("format", NAMES)
def test_a_truncated_file_gives_valid_programs_or_is_refused(format: str, tmp_path: Path) -> None:
    read_as, step = load_format(format), 400 // settings().max_examples
    for name, data in SAMPLES[format].files.items():
        for end in range(0, len(data), step):
            with suppress(InvalidTrace, TraceRejected):
                check(load_bytes(read_as, data[:end], Repairs()))
        for end in range(0, len(data), 12 * step):
            (tmp_path / name).write_bytes(data[:end])
            with suppress(InvalidTrace):
                check(read(format, tmp_path / name).programs)


@pytest.mark.parametrize(
    "format",
    [
        *("mooncake", "agentic-mooncake", "dynamo"),
        *(format for format in PACKAGED if format not in ("bfcl", "mlperf-endpoints")),
    ],
)
def test_a_file_without_a_usable_request_is_refused(format: str) -> None:
    row = json_lines({"session_id": "s", "turns": []})
    with pytest.raises(TraceRejected, match="no "):
        load_bytes(load_format(format), row, Repairs())


def test_a_format_is_recognised_by_a_field_far_into_a_file(tmp_path: Path) -> None:
    session = json.loads(SAMPLES["weka"].files["s.json"])
    padded = {"note": "x" * 2 * FIRST_BYTES, **session}
    (tmp_path / "s.json").write_text(json.dumps(padded))
    assert read_traces(tmp_path).formats == {"s.json": "weka"}


def test_json_lines_can_be_of_every_format(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(SAMPLES["weka"].files["s.json"])
    assert read_traces(tmp_path).formats == {"a.jsonl": "weka"}


CUSTOM_FORMAT = """
import json
from traces import Program, Turn

def sniff(first_bytes):
    return first_bytes.startswith(b'{"input_length"')

def load(data, name, repairs):
    lines = [json.loads(line) for line in data.splitlines()]
    turns = [Turn(line["input_length"], line["output_length"]) for line in lines]
    return [Program(f"{name}-{i}", (turn,)) for i, turn in enumerate(turns)]
"""


@pytest.fixture
def custom_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a trace in a format that only another package defines; return its path."""
    package = tmp_path / "site" / "lengths_package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "lengths.py").write_text(CUSTOM_FORMAT)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    path = tmp_path / "mine.jsonl"
    path.write_bytes(json_lines({"input_length": 90, "output_length": 5}))
    return path


def install(site: Path) -> None:
    """Declare the format of `custom_trace` as that of an installed package."""
    folder = site / "lengths_package-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: lengths\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[turnstile.trace_formats]\nlengths = lengths_package.lengths\n"
    )


def test_a_format_can_be_given_as_the_path_of_a_module(custom_trace: Path) -> None:
    loaded = read_traces(custom_trace, format="lengths_package.lengths")
    assert [program.id for program in loaded.programs] == ["mine-0"]
    with pytest.raises(InvalidTrace, match=r"looks like mooncake .*but lacks timestamp"):
        read_traces(custom_trace)


def test_an_installed_package_can_add_a_format(custom_trace: Path) -> None:
    install(custom_trace.parent / "site")
    loaded = read_traces(custom_trace)
    assert loaded.formats == {"mine.jsonl": "lengths"}
    assert [program.turns[0].prompt_tokens for program in loaded.programs] == [90]


def test_an_installed_format_may_read_the_files_of_a_tool_that_ours_do_not(
    custom_trace: Path,
) -> None:
    record = {"input_length": 90, "output_length": 5, "span_name": "x", "otel_scope_name": "y"}
    path = custom_trace.parent / "records.jsonl"
    path.write_bytes(json_lines(record))  # records of Logfire, by their keys
    install(custom_trace.parent / "site")
    assert read_traces(path).formats == {"records.jsonl": "lengths"}


@pytest.mark.parametrize("others", [{"timestamp": 1, "payload": {}}, {"text": "hi"}])
def test_records_with_a_type_and_a_thread_are_not_taken_for_the_output_of_codex(
    others: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines({"type": "message", "thread_id": "t", **others}))
    with pytest.raises(InvalidTrace) as error:
        read_traces(path)
    assert "codex exec" not in str(error.value)


@pytest.fixture
def without_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No package is installed that adds formats."""
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    monkeypatch.syspath_prepend(str(tmp_path))  # entry points are found once for each path


@pytest.mark.usefixtures("without_package")
@pytest.mark.parametrize("format", PACKAGED)
def test_without_the_package_a_file_of_its_formats_names_the_format_and_the_remedy(
    format: str, tmp_path: Path
) -> None:
    remedy = "which needs a package: pip install turnstile-formats"
    for name, data in SAMPLES[format].files.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InvalidTrace) as error:
            read_traces(tmp_path / name)
        assert re.search(rf"looks like {format} \(has .*\), {remedy}$", str(error.value))


@pytest.mark.usefixtures("without_package")
def test_without_the_package_choosing_one_of_its_formats_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}")
    with pytest.raises(UnknownName) as error:
        read_traces(tmp_path / "a.jsonl", format="bfcl")
    assert mentions(str(error.value), "--format bfcl", "pip install turnstile-formats")


def test_an_unknown_format_is_refused_with_the_known_ones(custom_trace: Path) -> None:
    with pytest.raises(UnknownName, match=r"'wekka'; did you mean weka"):
        read_traces(custom_trace, format="wekka")


def test_a_module_without_sniff_and_load_is_refused(custom_trace: Path) -> None:
    with pytest.raises(InvalidPlugin, match=r"json\.decoder is not a trace format"):
        read_traces(custom_trace, format="json.decoder")
