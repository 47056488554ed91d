"""Admission by the whole prompt or by the first chunk, worked by hand. A block holds 16 tokens."""

from __future__ import annotations

import pytest

from servers.admission import Admission
from servers.sim import Limits, Offload, Segment
from tests.sim.test_engine import NewestFirst, S, engine, turn

EACH = pytest.mark.parametrize("admission", Admission)
FIRST_CHUNK = Admission.FIRST_CHUNK


def test_with_first_chunk_a_prompt_that_outgrows_the_memory_is_admitted_and_preempted() -> None:
    made, ended, _ = engine(kv_blocks=10, limits=Limits(4, 16, FIRST_CHUNK))
    made.submit(turn("a", 96, 16), 0)
    made.submit(turn("b", 80, 1), 0)
    made.run()
    a, b = ended
    # Steps 1 to 6 compute the prompt of a, steps 7 to 21 decode it with 7 of the 10 blocks. So 3
    # are free for b, whose prompt needs 5. Its chunks are the 15 tokens that a leaves of each step:
    # 15, 30 and 45 tokens in steps 7 to 9 are 3 blocks, and step 10 lacks the fourth. Then step 11
    # hits the 2 full blocks and computes 32 + 15 = 47 tokens, step 12 lacks the fourth block again,
    # and so on: preemptions in steps 10, 12, 14, 16, 18 and 20. Step 21 is the last of a, and then
    # chunks of 16 take b from 47 over 63 and 79 to 80 tokens.
    assert (a.preemptions, b.preemptions) == (0, 6)
    assert b.hits == [("device", 0)]
    assert made.steps == 24
    assert b.finished_ps is not None
    assert b.finished_ps > (a.finished_ps or 0)


@EACH
def test_both_rules_are_the_same_where_the_whole_prompt_fits(admission: Admission) -> None:
    made, ended, _ = engine(kv_blocks=12, limits=Limits(4, 16, admission))
    made.submit(turn("a", 96, 16), 0)
    made.submit(turn("b", 80, 1), 0)
    made.run()
    # As above, but in steps 7 to 12 the prompt of b takes 15 tokens each: 75, and 5 in step 12.
    assert [s.view.program_id for s in ended] == ["b", "a"]
    assert ended[0].preemptions == 0
    assert made.steps == 21


@pytest.mark.parametrize(("kv_blocks", "beside_b"), [(8, True), (7, False)])
def test_with_first_chunk_the_hit_and_the_chunk_after_it_must_fit(
    kv_blocks: int, beside_b: bool
) -> None:
    made, ended, events = engine(kv_blocks=kv_blocks, limits=Limits(4, 17, FIRST_CHUNK))
    segment = Segment(0)
    made.submit(turn("a", 33, 1, segment=segment, is_last=False), 0)  # leaves 2 full blocks
    made.submit(turn("b", 65, 10), S)  # 5 blocks, for 4 chunks and 9 decode steps of 10 ms
    made.submit(turn("a", 100, 1, segment=segment), S + S // 16)  # 7 blocks
    made.run()
    # Beside b, a step computes 16 tokens of a: with the hit 48 tokens, 3 blocks that must be free.
    _, b_s, again_s = [float(str(e["t"])) for e in events if e["event"] == "waiting_to_running"]
    b = next(s for s in ended if s.view.program_id == "b")
    assert b_s < again_s
    assert (again_s < (b.finished_ps or 0) / S) == beside_b


@EACH
def test_with_first_chunk_a_load_needs_memory_for_what_it_loads(admission: Admission) -> None:
    made, ended, events = engine(
        kv_blocks=8, limits=Limits(4, 64, admission), offload=Offload(1.0, chunk_tokens=32)
    )
    segment = Segment(0)
    made.submit(turn("a", 70, 3, segment=segment, is_last=False), 0)  # 64 tokens go to the tier
    made.submit(turn("b", 120, 1), S)  # evicts all of them
    made.submit(turn("c", 50, 10), 2 * S)  # 4 of 8 blocks
    made.submit(turn("a", 120, 3, segment=segment), 2 * S + S // 100)  # loads 4, needs 8
    made.run()
    c = next(s for s in ended if s.view.program_id == "c")
    (loading,) = [float(str(e["t"])) for e in events if e["event"] == "loading"]
    begins_during_c = loading < (c.finished_ps or 0) / S
    assert begins_during_c == (admission == FIRST_CHUNK)
    assert all(s.preemptions == 0 for s in ended)


@EACH
def test_with_first_chunk_no_turn_is_displaced_for_what_follows_the_chunk(
    admission: Admission,
) -> None:
    made, _, events = engine(NewestFirst, kv_blocks=8, limits=Limits(2, 16, admission))
    made.submit(turn("a", 97, 10), 0)  # 7 blocks
    made.submit(turn("b", 30, 1), S // 10)  # 2 blocks, its first chunk of 15 tokens 1
    made.run()
    displaced = [e["program_id"] for e in events if e["event"] == "preempted"]
    assert displaced[0] == ("b" if admission == FIRST_CHUNK else "a")
