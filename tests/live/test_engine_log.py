"""The fields that events of the plug-in add to a turn's record."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from msgspec import UNSET, UnsetType

from harness.replay.engine_events import EngineLog, EngineLogs
from servers.records.turns import TurnRecord
from tests.lines import Line, into, line_of

ORIGIN_S = 1000.0


def event(at_s: float, name: str, turn: int = 1, **fields: object) -> bytes:
    line = {"t": ORIGIN_S + at_s, "event": name, "program_id": "p", "turn": turn, **fields}
    return orjson.dumps(line) + b"\n"


def completed(
    path: Path, *events: bytes, refused_s: float | UnsetType = UNSET
) -> tuple[Line, list[Line]]:
    """Return the fields that the events add to a turn's record, and the events read."""
    path.write_bytes(event(0.0, "arrival", turn=7))  # an event of an earlier cell
    seen: list[Line] = []
    log = EngineLog(path, ORIGIN_S, into(seen))
    with path.open("ab") as file:
        file.writelines(events)
    record = TurnRecord(
        program_id="p", turn=1, job_id="p", scheduled_at_s=5.0, sent_at_s=5.0,
        first_token_at_s=9.0, finished_at_s=20.0, refused_s=refused_s,
    )  # fmt: skip
    before = line_of(record)
    log.complete(record)
    log.close()
    return {k: v for k, v in line_of(record).items() if v != before[k]}, seen


def test_queueing_time_and_cache_hits_come_from_the_engine_log(tmp_path: Path) -> None:
    line, seen = completed(
        tmp_path / "events.jsonl",
        event(5.5, "arrival"),
        event(7.5, "waiting_to_running", prompt_length=100, hit_length=64),
        event(20.0, "finished"),
    )
    assert line == {
        "device_hit_tokens": 64,
        "dram_hit_tokens": 0,
        "queue_s": 2.0,
        "load_s": 0.0,
        "prefill_s": 2.0,  # 4 s to the first token, minus the queueing time
        "decode_s": 11.0,
        "preempted_s": 0.0,
        "preemptions": 0,
        "pinned_hit": False,
    }
    assert [(e["t"], e["event"]) for e in seen] == [
        (5.5, "arrival"),
        (7.5, "waiting_to_running"),
        (20.0, "finished"),
    ]


def test_the_time_for_which_a_full_queue_refused_the_turn_is_queueing(tmp_path: Path) -> None:
    """Sent at 5 s and again at 7 s, when it arrived. It was admitted at 8 s."""
    line, _ = completed(
        tmp_path / "events.jsonl",
        event(7.0, "arrival"),
        event(8.0, "waiting_to_running", prompt_length=100, hit_length=64),
        event(20.0, "finished"),
        refused_s=2.0,
    )
    assert (line["queue_s"], line["prefill_s"]) == (3.0, 1.0)


def test_reloads_from_a_tier_are_counted_separately_with_their_time(tmp_path: Path) -> None:
    line, _ = completed(
        tmp_path / "events.jsonl",
        event(5.0, "arrival"),
        event(6.0, "waiting_to_running", prompt_length=900, hit_length=832, external_length=768),
        event(6.0, "loading", tokens=768),
        event(7.5, "loaded"),
    )
    assert (line["device_hit_tokens"], line["dram_hit_tokens"]) == (64, 768)
    assert (line["queue_s"], line["load_s"], line["prefill_s"]) == (1.0, 1.5, 1.5)


def test_a_load_after_the_first_token_is_subtracted_from_decode(tmp_path: Path) -> None:
    line, _ = completed(
        tmp_path / "events.jsonl",
        event(5.0, "arrival"),
        event(6.0, "waiting_to_running", prompt_length=900, hit_length=0),
        event(10.0, "preempted"),
        event(12.0, "evicted_to_running", prompt_length=900, hit_length=768, external_length=768),
        event(12.0, "loading", tokens=768),
        event(15.0, "loaded"),
    )
    # Sent at 5, first token at 9, end at 20.
    assert (line["queue_s"], line["prefill_s"]) == (1.0, 3.0)
    assert (line["preempted_s"], line["load_s"], line["decode_s"]) == (2.0, 3.0, 6.0)


def test_preemptions_are_subtracted_from_the_phase_in_which_they_occur(tmp_path: Path) -> None:
    line, _ = completed(
        tmp_path / "events.jsonl",
        event(5.0, "arrival"),
        event(6.0, "waiting_to_running", prompt_length=100, hit_length=0),
        event(6.5, "preempted"),
        event(7.0, "evicted_to_running", prompt_length=100, hit_length=0),
        event(12.0, "preempted"),
        event(15.0, "evicted_to_running", prompt_length=100, hit_length=0),
    )
    assert (line["preemptions"], line["preempted_s"]) == (2, 3.5)
    assert (line["queue_s"], line["prefill_s"], line["decode_s"]) == (1.0, 2.5, 8.0)
    parts = ("queue_s", "prefill_s", "decode_s", "preempted_s")
    assert sum(line[part] for part in parts) == pytest.approx(20.0 - 5.0)


def test_a_turn_that_arrives_before_its_pin_ends_has_a_pinned_hit(tmp_path: Path) -> None:
    pinned = event(1.0, "pinned", turn=0, ttl_s=None, blocks=3, why={})
    reused = event(6.0, "unpinned", turn=0, reason="reused")
    assert completed(tmp_path / "a", pinned, event(5.0, "arrival"), reused)[0]["pinned_hit"] is True
    expired = event(4.0, "unpinned", turn=0, reason="expired")
    assert (
        completed(tmp_path / "b", pinned, expired, event(5.0, "arrival"))[0]["pinned_hit"] is False
    )


def test_the_record_of_a_turn_without_events_is_unchanged(tmp_path: Path) -> None:
    assert completed(tmp_path / "events.jsonl")[0] == {}


def test_a_partially_written_line_is_read_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.touch()
    seen: list[Line] = []
    log = EngineLog(path, ORIGIN_S, into(seen))
    line = event(5.0, "arrival")
    with path.open("ab", buffering=0) as file:
        file.write(line[:20])
        log.read()
        assert seen == []
        file.write(line[20:])
        log.read()
    log.close()
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("arrivals_s", "replica", "held_s"),
    [
        ((5.5, None), 0, 0.5),
        ((None, 7.0), 1, 2.0),
        ((5.5, 7.0), 1, 2.0),  # the router sent it again
        ((4.9, None), 0, 0.0),  # the clocks of two processes differ by less than a turn lasts
        ((None, None), UNSET, UNSET),
    ],
)
def test_the_replica_behind_a_router_of_others_is_the_last_one_that_got_the_turn(
    tmp_path: Path,
    arrivals_s: tuple[float | None, ...],
    replica: int | UnsetType,
    held_s: float | UnsetType,
) -> None:
    paths = [tmp_path / f"{k}.jsonl" for k in range(2)]
    for path in paths:
        path.touch()
    logs = EngineLogs(paths, ORIGIN_S, None)
    for path, at_s in zip(paths, arrivals_s, strict=True):
        path.write_bytes(event(at_s, "arrival") if at_s is not None else b"")
    record = TurnRecord(program_id="p", turn=1, job_id="p", scheduled_at_s=5.0, sent_at_s=5.0)
    logs.find(record)
    logs.close()
    assert (record.replica, record.held_s) == (replica, held_s)
