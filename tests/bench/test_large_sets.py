"""`bench traces convert --to packed` on SESSIONS=3000 sessions of GitHub Copilot and TraceLab.

The files are synthetic, made to the published schemas, with as many calls per session as the
published sets have (9.3 million in 301,000 sessions of GitHub Copilot). With SESSIONS=300000 they
take 5 GB of disk. `cpu_s` and `peak_mb` are of the whole command, and of loading its file.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

SESSIONS = int(os.environ.get("SESSIONS", "3000"))
CALLS = 31
"""Mean number of calls of a session, which has from 2 to twice as many."""
LOAD = """
import sys
from traces import read_traces
print(len(read_traces(sys.argv[1]).programs))
"""
Row = dict[str, Any]


def at(time_s: float) -> str:
    return datetime.fromtimestamp(1_780_000_000 + time_s, UTC).isoformat(timespec="milliseconds")


def steps(draw: random.Random) -> Iterator[tuple[int, float, int, int, float]]:
    """Yield the number, start, prompt, output and tool time of each call of a session."""
    start_s, prompt = draw.uniform(0, 1e6), draw.randint(5_000, 20_000)
    for number in range(draw.randint(2, 2 * CALLS)):
        output, tool_s = draw.randint(20, 600), round(draw.expovariate(0.3), 3)
        yield number, start_s, prompt, output, tool_s
        start_s += 3.0 + tool_s
        prompt += output + draw.randint(50, 2_000)


def copilot(session: int, draw: random.Random) -> Iterator[Row]:
    calls, batches = list[Row](), list[Row]()
    for number, start_s, prompt, output, tool_s in steps(draw):
        id = f"{session}-{number}"
        calls.append({
            "message_id": id, "timestamp": at(start_s), "duration_ms": 3000.0, "model": "Model A",
            "result": "Success", "status_code": "OK",
            "tokens": {"total": prompt + output, "prompt": prompt, "completion": output,
                       "cached": prompt // 128 * 64},
            "message_metadata": [{"type": "System", "role": "system", "sequenceId": 0,
                                  "token_len": 4096}],
        })  # fmt: skip
        call = {"name": "read_file", "status": 1, "duration_ms": 1e3 * tool_s}
        batches.append({"timestamp": at(start_s + 3), "duration_ms": 1e3 * tool_s,
                        "request_id": id, "function_calls": [call]})  # fmt: skip
    turn = {"turn_id": f"{session}", "llm_calls": calls, "tool_batches": batches[:-1]}
    yield {"session_id": f"s{session}", "date": "2026-06-01", "turns": [turn]}


def tracelab(session: int, draw: random.Random) -> Iterator[Row]:
    for number, start_s, prompt, output, tool_s in steps(draw):
        tool = {
            "tool_name": "Bash",
            "emitted_at": at(start_s + 3),
            "result_at": at(start_s + 3 + tool_s),
            "tool_wall_latency_ms": 1e3 * tool_s,
        }
        yield {
            "provider": "claude", "project": "p", "session_id": f"s{session}",
            "round_index": number, "round_id": f"s{session}-{number}", "model": "m",
            "input_tokens_total": prompt, "prefix_tokens": prompt // 2,
            "newly_append_tokens": prompt - prompt // 2, "output_tokens": output,
            "timing_events": [{"event_type": "user_message", "timestamp": at(start_s)},
                              {"event_type": "text", "timestamp": at(start_s + 3)}],
            "tools": [tool],
        }  # fmt: skip


@pytest.mark.parametrize("lines_of", [copilot, tracelab])
def test_a_set_that_is_larger_than_memory_is_packed_and_loaded(
    lines_of: Callable[[int, random.Random], Iterator[Row]],
    benchmark: Any,
    tmp_path: Path,
    bench: str,
) -> None:
    sessions = SESSIONS if benchmark.enabled else 20
    draw, calls, recorded = random.Random(1), 0, tmp_path / "sessions.jsonl"
    with recorded.open("wb") as file:
        for session in range(sessions):
            for row in lines_of(session, draw):
                file.write(orjson.dumps(row) + b"\n")
                calls += len(row["turns"][0]["llm_calls"]) if "turns" in row else 1
    packed = tmp_path / "sessions.packed"

    def pack() -> Row:
        return measured(
            tmp_path, bench, "traces", "convert", "--to", "packed", recorded, "--out", packed
        )

    packing = benchmark.pedantic(pack, rounds=1, iterations=1)
    assert f"{sessions:,} programs, {calls:,} turns, " in packing.pop("printed")
    loading = measured(tmp_path, sys.executable, "-c", LOAD, packed)
    assert loading.pop("printed") == f"{sessions}\n"
    sizes = {"sessions": sessions, "calls": calls, "mb": round(recorded.stat().st_size / 1e6),
             "packed_mb": round(packed.stat().st_size / 1e6)}  # fmt: skip
    print(f"\n{lines_of.__name__}: {sizes}; pack {packing}; load {loading}")
    benchmark.extra_info.update(sizes, pack=packing, load=loading)


def measured(folder: Path, *command: object) -> Row:
    """Run a command, which has to succeed. Return what it printed, and its CPU time and memory."""
    printed = folder / "printed"
    arguments = [str(part) for part in command]
    with printed.open("wb") as out:
        actions = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1)]
        pid = os.posix_spawn(arguments[0], arguments, os.environ, file_actions=actions)
        _, status, used = os.wait4(pid, 0)
    assert status == 0
    return {
        "printed": printed.read_text(),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_mb": round(used.ru_maxrss / 1024),
    }
