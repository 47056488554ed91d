"""Plausible run folders, small and deterministic: agents on a server with a few slots.

A turn takes a slot (first come first served), prefills what its variant's hit ratio leaves, and
decodes. This is no scheduler; it gives reports runs with contention, saturation and offload.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import zstandard

from reports.run_folder.lines import CELL_NUMBERS, CHECKSUMS, checksums

SLOTS = 16
TOOLS = ("grep", "sed", "python")
PREFILL_TOKENS_PER_S = 3000.0
DECODE_S_PER_TOKEN = 0.02

VARIANTS: dict[str, tuple[str, bool, str | None, float]] = {
    "fcfs": ("fcfs", False, None, 0.15),
    "program-fcfs": ("program-fcfs", False, None, 0.25),
    "static-ttl": ("static-ttl", False, None, 0.70),
    "continuum": ("continuum", False, None, 0.78),
    "continuum-v1": ("continuum-v1", False, None, 0.72),
    "continuum-preview": ("continuum-preview", False, None, 0.66),
    "context-serve": ("context-serve", False, None, 0.74),
    "autellix": ("autellix", False, None, 0.10),
    "infercept": ("infercept", False, None, 0.75),
    "lmcache": ("fcfs", True, None, 0.60),
    "autellix+": ("autellix", True, None, 0.58),
    "infercept+": ("infercept", True, None, 0.80),
    "continuum+": ("continuum", True, None, 0.83),
    "clairvoyant": ("clairvoyant", False, "the future", 0.90),
}
"""name: (policy, offloads, what makes it a reference, share of kept tokens that hit)"""


def write_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write a file of a cell, and new checksums if the cell is finished."""
    path.write_bytes(b"".join(orjson.dumps(r, option=orjson.OPT_APPEND_NEWLINE) for r in records))
    if (path.parent / "done.json").exists():
        seal(path.parent)


def turn(program: str = "p0", index: int = 0, at_s: float = 0.0, **fields: Any) -> dict[str, Any]:
    """Return a turn's record; `finished_at_s` is by default the end of its parts."""
    record: dict[str, Any] = {
        "program_id": program, "turn": index, "job_id": program,
        "scheduled_at_s": at_s, "sent_at_s": at_s, "first_token_at_s": None,
        "prompt_tokens": 100, "output_tokens": 10,
        "device_hit_tokens": 0, "dram_hit_tokens": 0, "ssd_hit_tokens": 0,
        "queue_s": 0.0, "load_s": 0.0, "prefill_s": 0.0, "decode_s": 1.0,
        "preempted_s": 0.0, "recompute_s": 0.0, "preemptions": 0, "kept_tokens": 0,
        "tools": ["bash"], "gap_s": 0.0, "gap_provenance": "synthesised", "wait_s": 0.0,
        "pinned_hit": False, "error": None,
    }  # fmt: skip
    record.update(fields)
    parts = ("queue_s", "load_s", "prefill_s", "decode_s", "preempted_s", "recompute_s")
    record.setdefault("finished_at_s", record["sent_at_s"] + sum(record[p] or 0.0 for p in parts))
    return record


def write_cell(
    run: Path,
    variant: str,
    turns: Sequence[Mapping[str, Any]],
    *,
    jps: float | None = 0.5,
    seed: int = 1,
    arrivals: str = "poisson",
    done: bool = True,
    usage: Sequence[Sequence[float]] = (),
    finished: Mapping[str, Any] = {},
    **config: Any,
) -> Path:
    policy, offloads, reference, _ = VARIANTS.get(variant, (variant, False, None, 0.0))
    folder = run / f"{variant.replace('/', '-')}_jps{jps}_seed{seed}"
    folder.mkdir(parents=True)
    cell = {
        "format": "turnstile-cell-1", "variant": variant, "policy": policy, "reference": reference,
        "offload": {"dram_gb": 100.0, "ssd_gb": 0.0} if offloads else None, "engine": "sim",
        "jps": jps, "arrivals": arrivals, "seed": seed, "hardware": "a100-80g",
        "model": "llama-3.1-8b", "profile": {"provenance": "analytic"}, "baseline": "fcfs",
        "workload": workload(turns), "turnstile_version": "0.1.0",
    } | config  # fmt: skip
    (folder / "cell.json").write_bytes(orjson.dumps(recorded(cell)))
    write_lines(folder / "turns.jsonl", turns)
    (folder / "engine.jsonl").write_bytes(b"")
    if done:
        programs = len({t["program_id"] for t in turns})
        (folder / "done.json").write_bytes(
            orjson.dumps(
                {
                    "finished_programs": programs,
                    "failed_turns": 0,
                    "virtual_s": 1.0,
                    "usage": [[*point, 0, 0][:7] for point in usage],
                    **finished,
                }
            )
        )
        seal(folder)
    return folder


def recorded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without those that are null. The engine sim is in virtual time."""
    time = {"virtual_time": "virtual time"} if settings.get("engine") == "sim" else {}
    return time | {name: v for name, v in settings.items() if v is not None or name == "jps"}


def change_numbers(run: Path, **fields: Any) -> None:
    """Replace fields of the stored numbers of each cell of a run."""
    for done in run.glob("*/done.json"):
        path = done.parent / CELL_NUMBERS
        numbers = orjson.loads(zstandard.decompress(path.read_bytes()))
        path.write_bytes(zstandard.compress(orjson.dumps(numbers | fields)))
        seal(done.parent)


def seal(cell: Path) -> None:
    """Write checksums of the files of a finished cell as they are now."""
    (cell / CHECKSUMS).write_bytes(checksums(cell, (cell / "done.json").read_bytes()))


def workload(turns: Sequence[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "name": "swe-bench", "programs": len({t["job_id"] for t in turns}), "turns": len(turns),
        "trace_sha256": "ab" * 32, "gap_provenance": {"synthesised": len(turns)}, "left_out": [],
    } | fields  # fmt: skip


def write_sweep(
    run: Path,
    variants: Sequence[str],
    jps: Sequence[float] = (0.5,),
    seeds: Sequence[int] = (1,),
    **fields: Any,
) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    variant_rows = [
        {"name": n, "policy": VARIANTS.get(n, (n,))[0],
         "reference": VARIANTS.get(n, (None,) * 3)[2],
         "offload": {"dram_gb": 100.0, "ssd_gb": 0.0} if VARIANTS.get(n, ("", False))[1] else None,
         "description": "", **({"router": {"name": n.partition("@")[2]}} if "@" in n else {})}
        for n in variants
    ]  # fmt: skip
    sweep = {
        "format": "turnstile-sweep-2",
        "made_by": {"argv": ["bench", "sweep", "--policies", ",".join(variants)]},
        "workload": workload([]), "hardware": "a100-80g", "model": "llama-3.1-8b",
        "profile": {"provenance": "analytic", "hardware": "a100-80g", "model": "llama-3.1-8b"},
        "engine": "sim", "arrivals": "poisson", "jps": list(jps), "seeds": list(seeds),
        "variants": variant_rows, "baseline": "fcfs", "programs": 0, "left_out": [],
    } | fields  # fmt: skip
    (run / "sweep.json").write_bytes(orjson.dumps(recorded(sweep)))
    return run


def simulate(hit: float, offloads: bool, jps: float, seed: int, programs: int) -> list[Any]:
    """Return the turns of one cell, in the order in which they finish."""
    shape = np.random.default_rng(7)
    lengths = shape.integers(6, 16, size=programs)
    gaps = shape.exponential(1.0, size=(programs, 16))
    outputs = shape.integers(60, 400, size=(programs, 16))
    start = np.cumsum(np.random.default_rng(seed).exponential(1 / jps, size=programs))
    ready = [(float(start[p]), p, 0) for p in range(programs)]
    heapq.heapify(ready)
    free = [0.0] * SLOTS
    turns = []
    while ready:
        at_s, p, index = heapq.heappop(ready)
        begin = max(at_s, heapq.heappop(free))
        prompt, output = 2000 + 1300 * index, int(outputs[p, index])
        kept = 0 if index == 0 else prompt - 900
        hits = int(kept * hit)
        dram = hits // 2 if offloads else 0
        prefill = (prompt - hits) / PREFILL_TOKENS_PER_S
        record = turn(
            f"swe-{p:03d}", index, at_s,
            prompt_tokens=prompt, output_tokens=output, kept_tokens=kept,
            device_hit_tokens=hits - dram, dram_hit_tokens=dram, queue_s=begin - at_s,
            tools=[TOOLS[index % len(TOOLS)]],
            load_s=dram / 400_000, prefill_s=prefill, decode_s=output * DECODE_S_PER_TOKEN,
            gap_s=float(gaps[p, index]) if index else 0.0,
            preemptions=int(begin - at_s > 20 and index % 3 == 0),
        )  # fmt: skip
        turns.append(record)
        heapq.heappush(free, record["finished_at_s"])
        if index + 1 < lengths[p]:
            heapq.heappush(
                ready, (record["finished_at_s"] + float(gaps[p, index + 1]), p, index + 1)
            )
    return sorted(turns, key=lambda t: t["finished_at_s"])


def usage_of(turns: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Return the rows of `usage` in `done.json`, at 400 blocks a turn."""
    at = [(t["sent_at_s"], t["sent_at_s"] + t["queue_s"], t["finished_at_s"]) for t in turns]
    points = []
    for end in sorted(end for _, _, end in at)[:: max(1, len(at) // 25)]:
        waiting = sum(sent <= end < begin for sent, begin, _ in at)
        running = sum(begin <= end < last for _, begin, last in at)
        points.append([end, 400 * running, 100 * (running // 4), waiting, running])
    return points


def make_run(
    run: Path,
    variants: Sequence[str] = tuple(VARIANTS),
    jps: Sequence[float] = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 0.7, 0.9),
    seeds: Sequence[int] = (1,),
    programs: int = 100,
    **fields: Any,
) -> Path:
    shape = workload(simulate(0.0, False, 1.0, 0, programs))
    write_sweep(run, variants, jps, seeds, **({"workload": shape} | fields))
    for rate in jps:
        for seed in seeds:
            for name in variants:
                _, offloads, _, hit = VARIANTS[name]
                turns = simulate(hit, offloads, rate, seed, programs)
                write_cell(run, name, turns, jps=rate, seed=seed, usage=usage_of(turns))
    return run
