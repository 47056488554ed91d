"""SGLang's scheduling in virtual time: `--engine sglang-sim`, and SGLang's own scheduler, all cells
of which run in one process.

A step of `MACHINE` takes 10 ms. SGLang runs chunks of prompts first, and decodes in other steps.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.engines.base import resolve_engine
from harness.load.settings import Machine, SweepSettings
from harness.sweep.cell import Work, run_cell
from servers.profiles import Profile
from servers.records.turns import EventRecord
from servers.remote.client import EngineProcess, RemoteEngine
from servers.sglang.find_sglang import find_scheduler
from servers.sglang.schedulers import scheduler_of, sglang_variants
from servers.sglang.sim import SglangSim
from servers.sglang.virtual_time.client import sglang_process
from servers.sim import Limits, Phase, Segment, Sequence, Submission
from tests.harness.small import small_plan
from tests.lines import read_lines
from tests.real.outcomes import first_difference
from tests.real.sglang_differential import play, sglang_world
from tests.sim.worlds import profile
from traces import Program, Turn
from traces.formats.native import write_programs

needs_sglang = pytest.mark.skipif(
    "TURNSTILE_SGLANG_PYTHON" not in os.environ, reason="make test-sglang runs it"
)
MS = 10**9
"""Picoseconds."""
MACHINE = profile(25, 400, token_ps=0, context_ps=0, pair_ps=0)
"""Memory for 400 tokens."""
Start = Callable[[str, Profile, Limits], Callable[..., Any]]
"""Returns the class of an engine, with all arguments but `on_end` and `on_event`."""


@pytest.fixture(scope="module")
def process() -> Iterator[EngineProcess]:
    """SGLang would reuse no KV if the process kept the variable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_RADIX_FORCE_MISS", "1")
        process = sglang_process(find_scheduler().python)
    yield process
    process.close()


def in_sglang(process: EngineProcess) -> Start:
    return lambda *given: partial(RemoteEngine, process, *given)


def in_model(policy: str, machine: Profile, limits: Limits) -> Callable[..., Any]:
    return partial(SglangSim, scheduler_of(sglang_variants(policy)[0]), machine, limits)


ENGINES = ["sglang-sim", pytest.param("sglang-virtual", marks=needs_sglang)]


@pytest.fixture(scope="module", params=ENGINES)
def start(request: pytest.FixtureRequest) -> Start:
    return (
        in_model if request.param == "sglang-sim" else in_sglang(request.getfixturevalue("process"))
    )


class Cell:
    """Turns of programs, each with contents of its own, under a scheduler of SGLang."""

    def __init__(
        self, start: Start, policy: str, machine: Profile = MACHINE, **limits: int
    ) -> None:
        self.events: list[EventRecord] = []
        self.ended: dict[str, Sequence] = {}
        engine = start(policy, machine, Limits(**limits))
        self.engine = engine(on_end=self._ended, on_event=self.events.append)
        self.segments: dict[str, Segment] = {}
        self.then: dict[str, Callable[[], object]] = {}
        """What a client does when the last turn of a program has ended."""

    def _ended(self, turn: Sequence) -> None:
        name = turn.submission.program_id or ""
        self.ended[name] = turn
        self.then.pop(name, lambda: None)()

    def submit(
        self, program: str, at_ms: int, prompt: int, output: int, is_last: bool | None = None
    ) -> None:
        segment = self.segments.setdefault(program, Segment(0))
        path = ((segment, (prompt + output) // 16),)
        self.engine.submit(Submission(program, path, prompt, output, is_last), at_ms * MS)

    def finished_ms(self) -> dict[str, float]:
        return {name: (turn.finished_ps or 0) / MS for name, turn in self.ended.items()}


def test_decodes_that_outgrow_the_memory_are_retracted_and_their_prompts_remain_as_hits(
    start: Start,
) -> None:
    """At 50 ms the turns occupy 17, 16, 16 and 16 tokens, so 83 decode steps fit into the other
    335. At 880 ms `d` is retracted: of the three with the fewest answered tokens it came last. It
    waits for 15 more steps, since SGLang now reserves all of the others' answers. At 1,030 ms `a`
    has its 100 tokens; `d` hits its prompt of 16 tokens and computes its 84 answered ones again,
    which delays the last token of `b` and `c` by a step."""
    cell = Cell(start, "fcfs")
    for name, at_ms in zip("abcd", (0, 15, 25, 35), strict=True):
        cell.submit(name, at_ms, 16, 100)
    cell.engine.run()
    assert cell.finished_ms() == {"a": 1030, "b": 1050, "c": 1050, "d": 1190}
    assert [cell.ended[name].preemptions for name in "abcd"] == [0, 0, 0, 1]
    spent_ms = {phase: cell.ended["d"].spent_ps[phase] / MS for phase in Phase}
    assert (spent_ms[Phase.QUEUE], spent_ms[Phase.PREFILL], spent_ms[Phase.DECODE]) == (5, 10, 980)
    assert (spent_ms[Phase.PREEMPTED], spent_ms[Phase.RECOMPUTE]) == (150, 10)
    resumed = [event for event in cell.events if event.event == "evicted_to_running"]
    assert [(each.program_id, each.t, each.prompt_length, each.hit_length) for each in resumed] == [
        ("d", 1.03, 100, 16)
    ]


def test_the_step_of_a_retraction_does_not_lower_the_reserved_share(start: Start) -> None:
    """The turns of the test above, and `e`, which needs 16 + 38 + 1 = 55 tokens. It waits from
    600 ms on, and is tried again after the step of the retraction, when 99 tokens are free or
    evictable and `a`, `b` and `c` lack 14, 15 and 15 tokens of their answers. All 44 are reserved,
    so that 55 are left, which must be more than it needs. With 0.1% less it would be admitted."""
    cell = Cell(start, "fcfs")
    for name, at_ms in zip("abcd", (0, 15, 25, 35), strict=True):
        cell.submit(name, at_ms, 16, 100)
    cell.submit("e", 600, 16, 38)
    cell.engine.run()
    assert cell.finished_ms() == {"a": 1030, "b": 1050, "c": 1050, "d": 1210, "e": 1420}


def test_the_whole_answer_of_a_readmitted_turn_is_reserved_in_its_batch(start: Start) -> None:
    """`c` is retracted at 890 ms with 86 tokens of its answer, and readmitted at 1,020 ms when `a`
    has ended. 254 tokens are free or evictable then. `c` hits 48 of its 134 tokens, which are
    locked: 206 are left. Its batch reserves 86 + 1 + 100 for it and about 1 for `b`, so that
    `d`, which needs 64 + 20 + 1, does not fit, as it would beside the 14 that `c` lacks."""
    cell = Cell(start, "fcfs")
    for name, at_ms in zip("abc", (0, 15, 25), strict=True):
        cell.submit(name, at_ms, 48, 100)
    cell.submit("d", 900, 64, 20)
    cell.engine.run()
    assert [cell.ended[name].preemptions for name in "abcd"] == [0, 0, 1, 0]
    assert cell.finished_ms() == {"a": 1020, "b": 1040, "c": 1170, "d": 1240}


def test_the_next_turn_hits_what_the_radix_cache_kept(start: Start) -> None:
    """`a` leaves 63 tokens with KV, since that of its last token is never computed. SGLang's cache
    has pages of one token, so the next prompt hits all of them; vLLM would find three blocks."""
    cell = Cell(start, "fcfs")
    cell.submit("a", 0, 32, 32)
    cell.then["a"] = lambda: cell.submit("a", 1000, 80, 1)
    cell.engine.run()
    assert dict(cell.ended["a"].hits or ()) == {"device": 63}
    assert cell.finished_ms() == {"a": 1010}


def test_a_long_prompt_is_computed_in_chunks_while_decodes_wait(start: Start) -> None:
    """A step takes 1 ms, and then 0.2 ms per token or at least 9 ms. `b` takes steps of 64, 64, 64
    and 8 tokens from 20 ms on: 3 * 13.8 + 10 ms. `a`, which had two of its ten tokens by then,
    decodes the others afterwards."""
    machine = profile(25, 400, token_ps=MS // 5, context_ps=0, pair_ps=0)
    cell = Cell(start, "fcfs", machine, max_num_seqs=8, step_tokens=64)
    cell.submit("a", 0, 16, 10)
    cell.submit("b", 15, 200, 2)
    cell.engine.run()
    assert cell.ended["b"].first_token_ps == 71.4 * MS
    assert cell.finished_ms() == {"a": 151.4, "b": 81.4}


@pytest.mark.parametrize(("scheduler", "order"), [("fcfs", ["new", "a"]), ("lpm", ["a", "new"])])
def test_the_longest_prefix_match_runs_first_under_lpm(
    start: Start, scheduler: str, order: list[str]
) -> None:
    """Two turns wait for the only slot: one of a new program, and then one with a hit."""
    cell = Cell(start, scheduler, max_num_seqs=1)
    cell.submit("a", 0, 32, 32)

    def contend() -> None:
        cell.ended.clear()
        cell.submit("slot", 1000, 16, 4)
        cell.submit("new", 1005, 64, 4)
        cell.submit("a", 1006, 80, 4)

    cell.then["a"] = contend
    cell.engine.run()
    assert list(cell.ended) == ["slot", *order]


@pytest.mark.parametrize(("waiting", "before"), [(128, 0), (129, 1)])
def test_lpm_does_not_sort_more_than_128_waiting_turns(
    start: Start, waiting: int, before: int
) -> None:
    """The last waiting turn has a hit. Of 129, the first runs before the queue is sorted."""
    cell = Cell(start, "lpm", max_num_seqs=1)
    cell.submit("a", 0, 32, 32)

    def contend() -> None:
        cell.ended.clear()
        cell.submit("slot", 1000, 16, 4)
        for number in range(waiting - 1):
            cell.submit(f"new {number}", 1005, 16, 1)
        cell.submit("a", 1006, 80, 1)

    cell.then["a"] = contend
    cell.engine.run()
    assert list(cell.ended).index("a") == 1 + before


@pytest.mark.parametrize(
    ("scheduler", "order"), [("fcfs", ["one", "same", "other"]), ("lpm", ["one", "other", "same"])]
)
def test_a_turn_that_shares_an_uncached_beginning_with_another_comes_last_under_lpm(
    start: Start, scheduler: str, order: list[str]
) -> None:
    """Three turns wait when both slots become free, two of them with the same 64 tokens."""
    cell = Cell(start, scheduler, max_num_seqs=2)
    cell.segments["one"] = cell.segments["same"] = Segment(0)
    for name in ("slot", "second slot"):
        cell.submit(name, 0, 16, 4)
    for name in ("one", "same", "other"):
        cell.submit(name, 5, 64, 4)
    cell.engine.run()
    assert list(cell.ended) == ["slot", "second slot", *order]


def test_an_answer_is_evicted_whole_and_before_its_prompt(start: Start) -> None:
    """`a` leaves 192 tokens, 96 of its prompt and 96 of its answer. `large` needs 250 tokens, of
    which 208 are free."""
    cell = Cell(start, "fcfs")
    cell.submit("a", 0, 96, 97)
    cell.submit("large", 2000, 250, 1)
    cell.then["large"] = lambda: cell.submit("a", 3000, 200, 1)
    cell.engine.run()
    assert dict(cell.ended["a"].hits or ()) == {"device": 96}


@pytest.mark.parametrize("scheduler", ["fcfs", "lpm"])
@pytest.mark.parametrize("seed", [24, 119, 125])
def test_strides_have_the_results_of_single_steps_also_if_turns_are_retracted(
    scheduler: str, seed: int
) -> None:
    played = sglang_world(seed)
    strided, single = (
        play(played, scheduler, partial(SglangSim, strides=strides)) for strides in (True, False)
    )
    assert first_difference(strided, single) == ""
    assert strided.engine.strides < single.engine.strides
    assert sum("'preempted'" in event for event in single.events) >= 3


@needs_sglang
@pytest.mark.parametrize(("scheduler", "hit"), [("fcfs", 0), ("fcfs(sessions=true)", 96)])
def test_with_sessions_the_kv_of_a_finished_program_is_evicted_before_that_of_an_open_one(
    process: EngineProcess, scheduler: str, hit: int
) -> None:
    """The prompt of `large` needs 250 tokens, of which 400 - 2 * 96 = 208 are free. Without
    sessions the KV of `open` goes, which was used least recently."""
    cell = Cell(in_sglang(process), scheduler)
    cell.submit("open", 0, 96, 1)
    cell.submit("finished", 100, 96, 1, is_last=True)
    cell.submit("large", 200, 250, 1)
    cell.then["large"] = lambda: cell.submit("open", 300, 112, 1)
    cell.engine.run()
    assert cell.ended["open"].hits == [["device", hit]]


@needs_sglang
def test_a_cell_listens_on_loopback_only(process: EngineProcess) -> None:
    cell = Cell(in_sglang(process), "fcfs")
    addresses: list[str] = []

    def look() -> None:
        for child in psutil.Process().children(recursive=True):
            connections = child.net_connections()
            addresses.extend(
                each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN
            )

    cell.then["a"] = look
    cell.submit("a", 0, 16, 1)
    cell.engine.run()
    assert set(addresses) == {"127.0.0.1"}


@needs_sglang
def test_it_takes_the_machines_of_sim_and_the_schedulers_of_sglang() -> None:
    machine = Machine(engine="sglang-virtual", hardware="h100", kv_blocks=100)
    variants, engine, _ = resolve_engine(SweepSettings(policies="all", machine=machine))
    assert [variant.name for variant in variants] == ["fcfs", "lpm", "fcfs(sessions=true)"]
    settings = engine.settings()
    assert settings.server is not None
    assert (settings.hardware, settings.server.sglang) == ("h100", find_scheduler().version)
    assert engine.longest.tokens == 16 * 100 - 7


def test_the_model_leaves_out_what_it_does_not_do() -> None:
    machine = Machine(engine="sglang-sim", hardware="h100", kv_blocks=100)
    variants, engine, left_out = resolve_engine(SweepSettings(policies="all", machine=machine))
    assert [variant.name for variant in variants] == ["fcfs", "lpm"]
    assert [each.name for each in left_out] == ["fcfs(sessions=true)"]
    assert engine.longest.tokens == 16 * 100 - 7
    limits = engine.settings().limits
    assert limits is not None
    assert (limits.step_tokens, limits.admission) == (2048, None)


def test_cells_of_the_model_reuse_kv_unless_without_radix_cache(
    tmp_path: Path,
) -> None:
    """The second and third turn of each of the three jobs hit 34 and 65 blocks: the tokens of a
    block that an answer fills partly are not known."""
    machine = Machine(engine="sglang-sim", kv_blocks=2000)
    settings = SweepSettings(policies="fcfs,fcfs(radix_cache=false)", machine=machine)
    variants, engine, _ = resolve_engine(settings)
    plan = replace(small_plan(), variants=variants, engine=engine)
    for cell in plan.cells():
        run_cell(Work(plan, tmp_path), cell, lambda *_: None)
    cells = [read_lines(done.parent / "turns.jsonl") for done in tmp_path.glob("*/done.json")]
    hits = [sum(turn["device_hit_tokens"] for turn in turns) for turns in cells]
    assert sorted(hits) == [0, 3 * 16 * (34 + 65)]


@needs_sglang
def test_a_sweep_compares_schedulers_and_a_cell_without_radix_cache(
    bench: str, tmp_path: Path
) -> None:
    """A first turn leaves 32 + 16 - 1 tokens with KV, which the second hits."""
    turns = (Turn(32, 16, 0, ("ls",), None, 1.0), Turn(64, 16, 48))
    write_programs(tmp_path / "t.jsonl", [Program("a", turns), Program("b", turns)])
    options = ["--traces", "t.jsonl", "--once", "--jps", "1", "--seeds", "1", "--out", "o"]
    options += ["--policies", "fcfs,fcfs(radix_cache=false)"]
    options += ["--workers", "1"]  # each worker imports SGLang
    done = subprocess.run(
        [bench, "sweep", "--engine", "sglang-virtual", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    out = tmp_path / "o"
    assert json.loads((out / "sweep.json").read_text())["engine"] == "sglang-virtual"
    rows = json.loads((out / "cells.json").read_text())
    assert [
        (row["variant"], row["jobs"], row["failed_turns"], row["hit_ratio"]) for row in rows
    ] == [
        ("fcfs", 2, 0, pytest.approx(47 / (32 + 64))),
        ("fcfs(radix_cache=false)", 2, 0, 0),
    ]
