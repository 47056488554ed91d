"""`bench export`: the exported files of small cells with known values, and of real cells."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert, to_builtins
from pyarrow import parquet

from reports.exports.phases import stretches
from reports.exports.write import export
from reports.metrics.jct import job_columns
from reports.run_folder.lines import json_lines, read_records
from reports.run_folder.read import load_run
from reports.run_folder.turns import read_columns
from servers.basics.errors import InvalidInput
from servers.records.turns import EventRecord, TurnRecord
from tests.reports.make_run import seal, turn, write_cell, write_lines, write_sweep
from tests.sentences import mentions


def events_of(*named: tuple[float, str], **lengths: Any) -> list[EventRecord]:
    return [EventRecord(t=t, event=e, program_id="p0", turn=0, **lengths) for t, e in named]


def turn_record(**fields: Any) -> TurnRecord:
    return convert(turn(**fields), TurnRecord)


# One turn, in seconds: sent 10, in the engine 10.1, scheduled 10.15, admitted 12, first token 13,
# preempted 14, resumed 16, rebuilt by 16.5, done 18.
PREEMPTED = turn_record(
    at_s=10.0, first_token_at_s=13.0, finished_at_s=18.0, queue_s=1.9, prefill_s=1.1,
    decode_s=2.5, preempted_s=2.0, recompute_s=0.5, preemptions=1,
)  # fmt: skip
ITS_EVENTS = events_of(
    (10.15, "arrival"), (12.0, "waiting_to_running"), (14.0, "preempted"),
    (16.0, "evicted_to_running"), (18.0, "finished"), (18.0, "pinned"),
    prompt_length=100, hit_length=60,
)  # fmt: skip


def test_stretches_begin_and_end_at_the_events() -> None:
    assert stretches(PREEMPTED, ITS_EVENTS) == [
        ("request", 10.0, 10.1),
        ("queue", 10.1, 12.0),
        ("prefill", 12.0, 13.0),
        ("decode", 13.0, 14.0),
        ("preempted", 14.0, 16.0),
        ("recompute", 16.0, 16.5),
        ("decode", 16.5, 18.0),
    ]


def test_recompute_time_is_split_by_the_tokens_lost_at_each_resumption() -> None:
    """The second resumption recomputes 300 of 400 tokens: 2.25 s of 3 s."""
    record = turn_record(first_token_at_s=1.0, finished_at_s=12.0, recompute_s=3.0)
    events = [
        *events_of((0.0, "arrival"), (0.0, "waiting_to_running"), (2.0, "preempted")),
        *events_of((3.0, "evicted_to_running"), prompt_length=150, hit_length=50),
        *events_of((6.0, "preempted")),
        *events_of((8.0, "evicted_to_running"), prompt_length=300, hit_length=0),
    ]
    found = [s for s in stretches(record, events) if s.name == "recompute"]
    assert found == [("recompute", 3.0, 3.75), ("recompute", 8.0, 10.25)]


def test_a_resumption_that_adds_no_token_only_recomputes() -> None:
    """Between its resumptions the turn stays at 150 tokens; 1 s of recomputation is left."""
    record = turn_record(first_token_at_s=1.0, finished_at_s=12.0, recompute_s=2.5)
    events = [
        *events_of((0.0, "arrival"), (0.0, "waiting_to_running"), (2.0, "preempted")),
        *events_of((3.0, "evicted_to_running"), prompt_length=150, hit_length=140),
        *events_of((4.5, "preempted")),
        *events_of((8.0, "evicted_to_running"), prompt_length=150, hit_length=0),
    ]
    found = [s for s in stretches(record, events) if s.name == "recompute"]
    assert found == [("recompute", 3.0, 4.5), ("recompute", 8.0, 9.0)]


def test_a_resumption_recomputes_no_longer_than_it_runs_after_its_reload() -> None:
    """By tokens the first resumption has 3 s of 4 s, but it runs for 1 s."""
    record = turn_record(first_token_at_s=1.0, finished_at_s=12.0, recompute_s=4.0)
    events = [
        *events_of((0.0, "arrival"), (0.0, "waiting_to_running"), (2.0, "preempted")),
        *events_of((3.0, "evicted_to_running"), prompt_length=400, hit_length=100),
        *events_of((3.0, "loading"), (4.0, "loaded"), (5.0, "preempted")),
        *events_of((6.0, "evicted_to_running"), prompt_length=401, hit_length=301),
    ]
    found = [s for s in stretches(record, events) if s.name == "recompute"]
    assert found == [("recompute", 4.0, 5.0), ("recompute", 6.0, 9.0)]


def test_a_load_lasts_from_its_loading_event_to_its_loaded_event() -> None:
    events = events_of(
        (0.0, "arrival"), (1.0, "waiting_to_running"), (1.0, "loading"), (1.5, "loaded")
    )
    record = turn_record(first_token_at_s=2.0, finished_at_s=3.0, queue_s=1.0)
    assert [tuple(s) for s in stretches(record, events)] == [
        ("queue", 0.0, 1.0), ("load", 1.0, 1.5), ("prefill", 1.5, 2.0), ("decode", 2.0, 3.0),
    ]  # fmt: skip


def test_without_engine_timings_one_stretch_precedes_the_first_token() -> None:
    record = turn_record(first_token_at_s=2.0, finished_at_s=3.0, queue_s=None, load_s=None)
    assert stretches(record, []) == [("server", 0.0, 2.0), ("decode", 2.0, 3.0)]


def test_without_events_the_parts_follow_one_another_in_a_fixed_order() -> None:
    record = turn_record(queue_s=1.0, load_s=0.5, prefill_s=0.5, decode_s=1.0, first_token_at_s=2.0)
    assert [s.name for s in stretches(record, [])] == ["queue", "load", "prefill", "decode"]


def test_a_turn_of_two_engines_waits_for_its_transfer_after_the_prefill() -> None:
    fields = {"sent_at_s": 1.0, "scheduled_at_s": 1.0, "queue_s": 1.0, "prefill_s": 2.0}
    record = TurnRecord(
        program_id="p", turn=0, job_id="p", load_s=0.0, decode_queue_s=4.0, transfer_s=0.5,
        first_token_at_s=8.5, decode_s=1.0, finished_at_s=9.5, **fields,
    )  # fmt: skip
    events = [EventRecord(t=1.0, event="arrival", program_id="p", turn=0)]
    expected = [
        ("queue", 1.0, 2.0),
        ("prefill", 2.0, 4.0),
        ("decode_queue", 4.0, 8.0),
        ("transfer", 8.0, 8.5),
        ("decode", 8.5, 9.5),
    ]
    assert stretches(record, events) == expected


def test_a_turn_that_never_ended_has_no_stretch() -> None:
    assert stretches(turn_record(finished_at_s=None, error="refused"), []) == []


times_s = st.floats(0.0, 100.0)
names = st.sampled_from(
    ("arrival", "waiting_to_running", "loading", "loaded", "preempted", "evicted_to_running")
)


@given(
    times=st.lists(st.tuples(times_s, names), max_size=12),
    first_s=st.none() | times_s,
    end_s=times_s,
    recompute_s=times_s,
)
def test_stretches_fill_a_turn_without_gap_or_overlap_whatever_is_recorded(
    times: list[tuple[float, str]], first_s: float | None, end_s: float, recompute_s: float
) -> None:
    record = turn_record(
        at_s=0.0, finished_at_s=end_s, first_token_at_s=first_s, recompute_s=recompute_s
    )
    events = events_of(*sorted(times), prompt_length=10, hit_length=4)
    found = stretches(record, events)
    if end_s > 0:
        assert (found[0].begin_s, found[-1].end_s) == (0.0, end_s)
    assert all(before.end_s == after.begin_s for before, after in pairwise(found))


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run real cells in virtual time with little memory: preemptions, reloads, pins."""
    from harness.load.settings import Load, Machine, SweepSettings
    from harness.sweep.resolve import resolve
    from tests.harness.small import run_sweep

    folder = tmp_path_factory.mktemp("simulated") / "run"
    settings = SweepSettings(
        jps="0.4",
        policies="fcfs,continuum,infercept+",
        load=Load(programs=15, once=True),
        machine=Machine(kv_blocks=2500, max_model_len=39_000, offload_gb=6.0),
    )
    assert not run_sweep(resolve(settings), folder, workers=2).failed
    return folder


PARTS = {"queue": "queue_s", "decode": "decode_s", "preempted": "preempted_s", "load": "load_s"}


def test_in_virtual_time_stretches_sum_to_the_parts_of_each_line(simulated: Path) -> None:
    """The engine's accounted times agree with the timestamps of its events."""
    seen: dict[str, float] = defaultdict(float)
    for cell in load_run(simulated).cells:
        events = defaultdict(list)
        for event in read_records(cell.folder / "engine.jsonl", EventRecord):
            events[event.program_id, event.turn].append(event)
        for line in read_records(cell.folder / "turns.jsonl", TurnRecord):
            sums: dict[str, float] = defaultdict(float)
            for name, begin_s, end_s in stretches(line, events[line.program_id, line.turn]):
                sums[name] += end_s - begin_s
                seen[name] += end_s - begin_s
            for name, part in PARTS.items():
                assert sums[name] == pytest.approx(getattr(line, part), abs=1e-6), (name, line)
            computed = (line.prefill_s or 0.0) + (line.recompute_s or 0.0)
            together = sums["prefill"] + sums["request"] + sums["recompute"]
            assert together == pytest.approx(computed, abs=1e-6)
    assert all(seen[name] > 0 for name in (*PARTS, "prefill", "recompute"))


def test_tables_hold_every_turn_and_job_of_all_cells(simulated: Path, tmp_path: Path) -> None:
    run = load_run(simulated)
    for form in ("csv", "parquet"):
        found = export(simulated, form, tmp_path)
        assert found.missing == ()
        assert [path.name for path in found.paths] == [f"turns.{form}", f"jobs.{form}"]
    turns = parquet.read_table(tmp_path / "turns.parquet").to_pylist()
    jobs = parquet.read_table(tmp_path / "jobs.parquet").to_pylist()
    lines = [line for cell in run.cells for line in json_lines(cell.folder / "turns.jsonl")]
    for line in lines:
        line.pop("system", None)  # of the workload, not of the run
    assert [{name: row[name] for name in line} for row, line in zip(turns, lines, strict=True)] == (
        lines
    )
    expected = [j for cell in run.cells for j in job_columns(read_columns(cell), None)["jct_s"]]
    assert [job["jct_s"] for job in jobs] == expected
    assert {(row["cell"], row["variant"], row["jps"], row["seed"]) for row in turns} == {
        (cell.folder.name, *cell.key) for cell in run.cells
    }
    with (tmp_path / "turns.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["finished_at_s"]) for row in rows] == [t["finished_at_s"] for t in turns]
    assert [row["tools"].split(",") for row in rows if row["tools"]] == [
        t["tools"] for t in turns if t["tools"]
    ]


def test_values_that_an_engine_does_not_report_are_empty(tmp_path: Path) -> None:
    run = write_sweep(tmp_path / "run", ["fcfs"])
    unreported = dict.fromkeys(("queue_s", "prefill_s", "device_hit_tokens", "preemptions"))
    sparse = turn(first_token_at_s=0.5) | unreported
    write_cell(run, "fcfs", [sparse], engine="http://127.0.0.1:1")
    export(run, "csv", tmp_path)
    export(run, "parquet", tmp_path)
    with (tmp_path / "turns.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["queue_s"], row["device_hit_tokens"], row["replica"]) == ("", "", "")
    assert row["pinned_hit"] == "false"
    (same,) = parquet.read_table(tmp_path / "turns.parquet").to_pylist()
    assert (same["queue_s"], same["replica"], same["tools"]) == (None, None, ["bash"])


def traces_of(run: Path, out: Path) -> list[list[dict[str, Any]]]:
    paths = export(run, "chrome", out).paths
    return [json.loads(path.read_bytes())["traceEvents"] for path in paths]


def test_a_chrome_trace_follows_the_trace_event_format(simulated: Path, tmp_path: Path) -> None:
    """Phases have their fields, times are integers, slices of a thread nest or are disjoint."""
    for events in traces_of(simulated, tmp_path):
        threads = defaultdict(list)
        for event in events:
            assert event["ph"] in "MXiC"
            assert isinstance(event["name"], str)
            assert isinstance(event["pid"], int)
            if event["ph"] == "M":
                assert set(event["args"]) <= {"name", "sort_index"}
                continue
            assert isinstance(event["ts"], int)
            assert event["ts"] >= 0
            if event["ph"] == "C":
                assert all(isinstance(v, int | float) for v in event["args"].values())
            if event["ph"] == "i":
                assert event["s"] == "t"
            if event["ph"] == "X":
                assert event["dur"] > 0
                threads[event["pid"], event["tid"]].append(event)
        for slices in threads.values():
            open_until: list[int] = []
            for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
                while open_until and open_until[-1] <= event["ts"]:
                    open_until.pop()
                end = event["ts"] + event["dur"]
                assert not open_until or end <= open_until[-1], event
                open_until.append(end)
        kinds = {event["cat"] for event in events if event["ph"] == "X"}
        assert {"turn", "tool", "queue", "prefill", "decode"} <= kinds
        assert {e["name"] for e in events if e["ph"] == "C"} == {
            "KV blocks in use", "KV blocks pinned", "turns waiting", "turns running",
            "KV blocks in DRAM", "KV blocks on SSD",
        }  # fmt: skip


def test_a_chrome_trace_shows_tools_turns_and_pins_of_a_program(tmp_path: Path) -> None:
    """Times are microseconds; the second turn is due 2 s after the first one ended, at 18 s."""
    run = write_sweep(tmp_path / "run", ["continuum"])
    second = turn("p0", 1, 20.0, gap_s=2.0, first_token_at_s=20.5, prefill_s=0.5, decode_s=0.5)
    cell = write_cell(run, "continuum", [to_builtins(PREEMPTED), second | {"sent_at_s": 20.1}])
    write_lines(cell / "engine.jsonl", to_builtins(ITS_EVENTS))
    (events,) = traces_of(run, tmp_path)
    slices = {e["name"]: (e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert slices["turn 0"] == (10_000_000, 8_000_000)
    assert slices["preempted"] == (14_000_000, 2_000_000)
    assert slices["tool: bash"] == (18_000_000, 2_000_000)
    assert slices["client late"] == (20_000_000, 100_000)
    (pin,) = [e for e in events if e["ph"] == "i"]
    assert (pin["name"], pin["ts"]) == ("pinned", 18_000_000)


def test_markup_in_names_stays_a_string(tmp_path: Path) -> None:
    run = write_sweep(tmp_path / "run", ["fcfs"])
    write_cell(run, "fcfs", [turn("<script>alert(1)</script>", first_token_at_s=0.5)])
    (events,) = traces_of(run, tmp_path)
    names = [e["args"].get("name") for e in events if e["ph"] == "M"]
    assert "<script>alert(1)</script>" in names


def test_cells_that_cannot_be_exported_are_named_and_the_others_exported(tmp_path: Path) -> None:
    run = write_sweep(tmp_path / "run", ["fcfs", "continuum", "autellix"])
    write_cell(run, "fcfs", [turn()])
    write_cell(run, "continuum", [turn()], done=False)
    broken = write_cell(run, "autellix", [turn(), turn("p1")])
    (broken / "turns.jsonl").write_text("nonsense\n{}\n")
    seal(broken)
    for form in ("csv", "parquet", "chrome"):
        found = export(run, form, tmp_path / form)
        assert found.cells == 1
        why = dict(found.missing)
        assert why["continuum_jps0.5_seed1"] == "not finished: 1 turn recorded"
        assert mentions(why["autellix_jps0.5_seed1"], "turns.jsonl, line 1", "JSON")


def test_only_the_cells_named_are_exported(simulated: Path, tmp_path: Path) -> None:
    name = "continuum_jps0.4_seed1"
    found = export(simulated, "chrome", tmp_path, [name])
    assert [path.parent.name for path in found.paths] == [name]
    with pytest.raises(
        InvalidInput, match=r"--cell contin.*; did you mean continuum_jps0.4_seed1\?"
    ):
        export(simulated, "chrome", tmp_path, ["continum_jps0.4_seed1"])
