"""The virtual-time engine, compared with manual calculations."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from servers.policies.base import FREE, Costs, Pin, Policy, Rank, Request, Retention, pin
from servers.sim import Engine, Limits, Offload, Segment, Sequence, Submission
from servers.sim.sequence import Phase
from tests.lines import into
from tests.sim.worlds import profile

COSTS = Costs(prefill_s=float)
S = 1_000_000_000_000
"""Picoseconds per second."""


class Fcfs(Policy):
    name = "fcfs"


class PinsForever(Policy):
    """Pins every turn; releases pins, latest program first, only when the engine is stuck."""

    name = "pins"
    whole = False

    def finished(self, request: Request, now_s: float) -> Retention:
        return pin(float("inf"), whole_request=self.whole)

    def reclaim(self, pins: object, request: object, now_s: float) -> list[Pin]:
        return sorted(pins, key=lambda p: -p.request.program_arrival_s)  # type: ignore[call-overload, no-any-return]


def engine(
    policy: type[Policy] = Fcfs,
    kv_blocks: int = 100,
    limits: Limits | None = None,
    offload: Offload | None = None,
    **numbers: int,
) -> tuple[Engine, list[Sequence], list[dict[str, object]]]:
    ended: list[Sequence] = []
    events: list[dict[str, object]] = []
    simulator = Engine(
        policy(COSTS),
        profile(kv_blocks, **numbers),
        limits or Limits(),
        offload,
        on_end=ended.append,
        on_event=into(events),
    )
    return simulator, ended, events


def turn(
    program: str | None,
    prompt: int,
    output: int,
    *,
    segment: Segment | None = None,
    is_last: bool | None = True,
) -> Submission:
    path = ((segment or Segment(0), (prompt + output) // 16),)
    return Submission(program, path, prompt, output, is_last, ("ls",))


def test_a_single_turn_takes_its_chunks_and_one_step_per_further_token() -> None:
    simulator, ended, _ = engine(
        limits=Limits(4, 100),
        base_ps=1,
        weights_ps=1000,
        token_ps=20,
        sequence_ps=5,
        context_ps=3,
        pair_ps=7,
    )
    simulator.submit(turn("a", 150, 3), 0)
    simulator.run()
    # 100 tokens: max(1000, 2000); pairs 100·101/2 = 5050. Then 50 after 100: 5000 + 50·51/2 = 6275.
    chunks = (1 + 2000 + 5 + 5050 * 7) + (1 + 1000 + 5 + 6275 * 7)
    decodes = (1 + 1000 + 5 + 151 * 3) + (1 + 1000 + 5 + 152 * 3)
    assert ended[0].first_token_ps == chunks
    assert ended[0].finished_ps == chunks + decodes
    assert simulator.steps == 4


@pytest.mark.parametrize("kv_blocks", [4, 100])
def test_steps_between_which_nothing_can_happen_are_one_stride(kv_blocks: int) -> None:
    # 16 tokens of prompt and 48 of output fill 4 blocks: a step for the prompt and the first token,
    # and one stride of 47 steps, which needs every block. Then the engine finds that it is idle.
    simulator, _, _ = engine(kv_blocks=kv_blocks)
    simulator.submit(turn("a", 16, 48), 0)
    simulator.run()
    assert (simulator.steps, simulator.strides) == (48, 3)


def test_a_stopped_engine_returns_after_the_current_step() -> None:
    simulator, ended, _ = engine()
    simulator._on_end = lambda sequence: (ended.append(sequence), simulator.stop())  # type: ignore[assignment, func-returns-value]
    for program, output in (("a", 1), ("b", 1), ("c", 2)):
        simulator.submit(turn(program, 16, output), 0)
    simulator.run()
    # Both turns of one token end in the first step; the third would end in the second.
    assert [sequence.view.program_id for sequence in ended] == ["a", "b"]
    assert simulator.steps == 1


SECOND_PER_STEP = {"base_ps": S, "weights_ps": 0, "token_ps": 0, "context_ps": 0, "pair_ps": 0}


@pytest.mark.parametrize(
    ("ahead", "sent_s", "first_token_s"),
    # The steps of a end at 1 to 5. Step 3 is scheduled ahead at 1, when step 2 begins, and so does
    # not have b, which arrives at 1.5. In the last step no further one is scheduled: an engine that
    # has become idle takes b at once.
    [(False, 1.5, 3), (True, 1.5, 4), (True, 1.0, 3), (True, 4.5, 6), (True, 7.5, 8.5)],
)
def test_a_turn_joins_the_step_after_the_one_that_was_scheduled_ahead(
    ahead: bool, sent_s: float, first_token_s: float
) -> None:
    simulator, ended, _ = engine(**SECOND_PER_STEP, schedules_ahead=ahead)
    simulator.submit(turn("a", 16, 5), 0)
    simulator.submit(turn("b", 16, 1), round(sent_s * S))
    simulator.run()
    first_tokens_s = {s.view.program_id: (s.first_token_ps or 0) / S for s in ended}
    assert first_tokens_s == {"a": 1.0, "b": first_token_s}


class ProgramsInOrder(Policy):
    name = "programs in order"

    def rank(self, request: Request, now_s: float) -> Rank:
        return (request.program_id,)


def test_what_a_turn_frees_goes_to_the_first_of_those_that_wait_and_have_arrived() -> None:
    simulator, ended, _ = engine(
        ProgramsInOrder, limits=Limits(max_num_seqs=1), **SECOND_PER_STEP, schedules_ahead=True
    )
    simulator.submit(turn("b", 16, 5), 0)
    simulator.submit(turn("c", 16, 1), 1 * S)
    simulator.submit(turn("a", 16, 1), round(4.5 * S))
    simulator.run()
    assert [s.view.program_id for s in ended] == ["b", "a", "c"]


def test_the_last_prompt_token_is_always_computed_even_if_all_blocks_hit() -> None:
    simulator, ended, _ = engine()
    segment = Segment(0)
    simulator.submit(turn("a", 64, 1, segment=segment), 0)
    simulator.submit(turn("b", 64, 1, segment=segment), 5 * S)
    simulator.run()
    assert ended[0].hits == [("device", 0)]
    assert ended[1].hits == [("device", 48)]


def test_turns_in_the_same_step_share_a_prefix() -> None:
    simulator, ended, _ = engine()
    segment = Segment(0)
    simulator.submit(turn("a", 64, 2, segment=segment), 0)
    simulator.submit(turn("b", 70, 2, segment=segment), 0)
    simulator.run()
    assert [s.hits for s in ended] == [[("device", 0)], [("device", 64)]]


def test_admission_waits_until_the_whole_prompt_fits() -> None:
    simulator, ended, _ = engine(kv_blocks=10, limits=Limits(4, 16))
    simulator.submit(turn("a", 96, 16), 0)  # 7 blocks in the end, 6 for its prompt
    simulator.submit(turn("b", 80, 1), 0)  # 5 blocks; 4 are free at first chunk's end
    simulator.run()
    a, b = ended
    assert a.preemptions == b.preemptions == 0
    assert b.spent_ps[0] >= (a.finished_ps or 0)


def test_a_decode_without_a_free_block_preempts_the_latest_admitted_turn() -> None:
    simulator, ended, events = engine(kv_blocks=4)
    simulator.submit(turn("a", 16, 20), 0)
    simulator.submit(turn("b", 16, 20), 0)
    simulator.run()
    assert [e["program_id"] for e in events if e["event"] == "preempted"] == ["b"]
    assert [s.view.program_id for s in ended] == ["a", "b"]
    assert [s.view.output_tokens for s in ended] == [20, 20]


def test_with_all_memory_pinned_the_fewest_pins_are_evicted_latest_program_first() -> None:
    simulator, ended, events = engine(PinsForever, kv_blocks=12)
    for i, program in enumerate("abc"):
        simulator.submit(turn(program, 63, 2, is_last=False), i * S)  # 4 blocks stay pinned
    simulator.submit(turn("d", 60, 2), 10 * S)
    simulator.run()
    assert len(ended) == 4
    released = [(e["program_id"], e["reason"]) for e in events if e["event"] == "unpinned"]
    assert released == [("c", "pressure")]


def test_a_side_request_leaves_the_pin_of_its_program_to_the_turn_that_continues_it() -> None:
    # 63 + 2 tokens leave 4 full blocks. The title shares none of them; the next turn has all 4.
    simulator, ended, events = engine(PinsForever, kv_blocks=100)
    context = Segment(0)
    simulator.submit(turn("a", 63, 2, segment=context, is_last=None), 0)
    simulator.submit(turn("a", 40, 1, is_last=None), S)
    simulator.submit(turn("a", 100, 1, segment=context, is_last=None), 2 * S)
    simulator.run()
    assert [(t.view.program_id, t.pinned_hit, t.hits) for t in ended] == [
        ("a", False, [("device", 0)]),
        ("a#2", False, [("device", 0)]),
        ("a", True, [("device", 64)]),
    ]
    released = [(e["program_id"], e["reason"]) for e in events if e["event"] == "unpinned"]
    assert released == [("a", "reused")]


def releases_and_preemptions(kv_blocks: int, *decoding: str) -> list[tuple[object, object, object]]:
    """Pin 4 blocks of a, then start turns that grow from 2 to 4 blocks. Return each release of a
    pin and each preemption."""
    simulator, ended, events = engine(PinsForever, kv_blocks=kv_blocks)
    simulator.submit(turn("a", 63, 2, is_last=False), 0)
    for program in decoding:
        simulator.submit(turn(program, 32, 30), S)
    simulator.run()
    assert len(ended) == 1 + len(decoding)
    return [
        (e["event"], e["program_id"], e.get("reason"))
        for e in events
        if e["event"] in ("unpinned", "preempted")
    ]


def test_pins_give_way_to_the_only_running_turn_instead_of_preempting_it() -> None:
    assert releases_and_preemptions(7, "b") == [("unpinned", "a", "pressure")]


def test_pins_stay_while_another_running_turn_can_free_blocks() -> None:
    assert releases_and_preemptions(10, "b", "c") == [("preempted", "c", None)]


def test_a_pin_does_not_expire_while_a_turn_of_its_program_waits() -> None:
    class PinsASecond(Policy):
        name = "second"

        def finished(self, request: Request, now_s: float) -> Retention:
            return pin(1.0)

    simulator, _, events = engine(PinsASecond, kv_blocks=20, limits=Limits(1, 16))
    segment = Segment(0)
    simulator.submit(turn("a", 32, 2, segment=segment, is_last=False), 0)
    simulator.submit(turn("b", 32, 200), S // 10)  # occupies the only slot far beyond the TTL
    simulator.submit(turn("a", 48, 2, segment=segment), S)
    simulator.run()
    assert [(e["program_id"], e["reason"]) for e in events if e["event"] == "unpinned"] == [
        ("a", "reused")
    ]


def test_an_expired_pin_is_released_and_its_blocks_can_still_hit() -> None:
    class PinsBriefly(Policy):
        name = "brief"

        def finished(self, request: Request, now_s: float) -> Retention:
            return pin(0.5) if request.program_id == "a" else FREE

    simulator, ended, events = engine(PinsBriefly)
    segment = Segment(0)
    simulator.submit(turn("a", 63, 2, segment=segment, is_last=False), 0)
    simulator.submit(turn("b", 16, 300), S // 10)
    simulator.submit(turn("a", 80, 2, segment=segment), 2 * S)
    simulator.run()
    assert [(e["program_id"], e["reason"]) for e in events if e["event"] == "unpinned"] == [
        ("a", "expired")
    ]
    assert {s.view.index: s.hits for s in ended if s.view.program_id == "a"}[1] == [("device", 64)]


def test_missing_duplicate_and_concurrent_program_ids_leak_no_pin() -> None:
    simulator, ended, _ = engine(PinsForever, kv_blocks=40)
    for at in range(3):
        simulator.submit(turn(None, 40, 5, is_last=None), at)
        simulator.submit(turn("same", 40, 5, is_last=False), at)
    simulator.run()
    assert len(ended) == 6
    assert [active.pin.program_id for active in simulator.scheduler.runner.pins] == ["same"]
    simulator.end_program("same")
    assert simulator.scheduler.kv.used == 0


@pytest.mark.parametrize("at_s", [0.001, 0.05, 0.2, 0.35, 30])
def test_an_aborted_turn_releases_all_blocks_in_any_state(at_s: float) -> None:
    simulator, ended, _ = engine(PinsForever, kv_blocks=16, limits=Limits(2, 16))
    simulator.submit(turn("a", 64, 40), 0)
    aborted = simulator.submit(turn("b", 64, 40), 0)
    simulator.submit(turn("c", 64, 40), 0)
    simulator.abort(aborted, round(at_s * S))
    simulator.run()
    assert len(ended) == 3
    assert aborted.error == ("aborted" if at_s < 30 else None)
    assert simulator.scheduler.kv.used == 0


def test_evicted_kv_is_loaded_from_dram_while_other_turns_run() -> None:
    # 1 kB per token at 1 MB/s: 64 tokens take 64 ms.
    simulator, ended, events = engine(kv_blocks=8, offload=Offload(1.0, chunk_tokens=32))
    segment = Segment(0)
    simulator.submit(turn("a", 70, 3, segment=segment, is_last=False), 0)
    simulator.submit(turn("b", 90, 30), S)
    simulator.submit(turn("a", 90, 3, segment=segment), 10 * S)
    simulator.run()
    again = next(s for s in ended if s.view.index == 1)
    assert again.hits is not None
    assert sum(tokens for _, tokens in again.hits) == 64
    loads = [e for e in events if e["event"] == "loading"]
    assert [e["tier"] for e in loads] == ["dram"]
    loaded_tokens = int(str(loads[0]["tokens"]))
    assert again.spent_ps[1] == pytest.approx(loaded_tokens * 1e-3 * S, rel=1e-6)


@pytest.mark.parametrize("busy", [False, True])
def test_a_load_costs_cpu_time_before_its_read_and_in_the_step_that_admits_it(busy: bool) -> None:
    simulator, ended, _ = engine(
        kv_blocks=12,
        offload=Offload(1.0, chunk_tokens=32),
        base_ps=S // 100,
        weights_ps=0,
        token_ps=0,
        context_ps=0,
        pair_ps=0,
        load_ps=3_000_000_000,
        load_token_ps=10_000_000,
    )
    segment = Segment(0)
    simulator.submit(turn("a", 70, 3, segment=segment, is_last=False), 0)
    simulator.submit(turn("b", 180, 1), S)  # evicts the first turn of a
    if busy:
        simulator.submit(turn("c", 20, 50), 2 * S)
    simulator.submit(turn("a", 90, 3, segment=segment), 2 * S + S // 5)
    simulator.run()
    again = next(s for s in ended if s.view.index == 1)
    cpu_ps = 3_640_000_000  # 3 ms + 64 × 10 µs
    read_ps = 64_000_000_000  # 64 kB at 1 MB/s
    if not busy:
        assert again.spent_ps[1] == cpu_ps + read_ps
        return
    # The read ends in the seventh step after its start, which all take 10 ms.
    assert again.spent_ps[1] == cpu_ps + 7 * S // 100
    other = next(s for s in ended if s.view.program_id == "c")
    assert other.finished_ps == 2 * S + 50 * S // 100 + cpu_ps


def test_a_load_lasts_until_its_turn_runs() -> None:
    """The read takes 64 ms. Meanwhile another prompt gets the whole step for ten steps of 10 ms."""
    simulator, ended, events = engine(
        kv_blocks=20,
        limits=Limits(4, 16),
        offload=Offload(1.0, chunk_tokens=32),
        base_ps=S // 100,
        weights_ps=0,
        token_ps=0,
        context_ps=0,
        pair_ps=0,
    )
    segment = Segment(0)
    simulator.submit(turn("a", 70, 3, segment=segment, is_last=False), 0)
    simulator.submit(turn("b", 310, 1), S)  # evicts the first turn of a
    simulator.submit(turn("a", 90, 3, segment=segment), 2 * S)
    simulator.submit(turn("c", 160, 1), 2 * S + S // 1000)
    simulator.run()
    again = next(s for s in ended if s.view.index == 1)
    assert again.spent_ps[Phase.LOAD] == 101 * S // 1000
    times = {e["event"]: e["t"] for e in events if (e["program_id"], e["turn"]) == ("a", 1)}
    assert (times["loading"], times["loaded"]) == (2.0, 2.101)


class NewestFirst(Policy):
    name = "newest-first"

    def rank(self, request: Request, now_s: float) -> tuple[float, ...]:
        return (-request.id,)

    def displaced(self, head: Request, running: Seq[Request], now_s: float) -> Request | None:
        return running[0] if head.id > running[0].id else None


def test_a_turn_that_arrives_during_a_load_displaces_the_loading_turn_after_one_chunk() -> None:
    """The step that admits the loaded turn does not ask the policy; the next step does."""
    simulator, _, events = engine(
        NewestFirst, kv_blocks=8, limits=Limits(1, 16), offload=Offload(1.0, chunk_tokens=32)
    )
    segment = Segment(0)
    simulator.submit(turn("a", 70, 3, segment=segment, is_last=False), 0)
    simulator.submit(turn("b", 90, 30), S)
    simulator.submit(turn("a", 120, 3, segment=segment), 10 * S)
    simulator.submit(turn("c", 90, 3), 10 * S + S // 100)
    simulator.run()
    loaded = next(e for e in events if e["event"] == "loaded")
    (displaced,) = [e for e in events if e["event"] == "preempted"]
    assert (displaced["program_id"], displaced["turn"]) == ("a", 1)
    # Base 1 ms, weights 9 ms, a few microseconds per token: one step of one chunk.
    assert float(str(displaced["t"])) - float(str(loaded["t"])) == pytest.approx(0.01, rel=0.2)


def test_a_turn_that_could_never_run_is_refused() -> None:
    simulator, _, _ = engine(kv_blocks=4)
    with pytest.raises(ValueError, match=r"65 tokens .* the 64 tokens"):
        simulator.submit(turn("a", 60, 5), 0)
    with pytest.raises(ValueError, match="both must be at least 1"):
        simulator.submit(turn("a", 60, 0), 0)


def test_more_sequences_than_step_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="less than --max-num-seqs 32: each"):
        Limits(32, 16)
