"""What a cache that forgets nothing could hold of the prompts, calculated by hand."""

from __future__ import annotations

from traces import Program, Turn
from traces.program import SharedPrefix
from traces.reuse import Reuse, reuse

SYSTEM = SharedPrefix("system", 40)


def test_a_turn_repeats_what_it_keeps_and_a_later_program_the_shared_system_prompt() -> None:
    a = Program("a", (Turn(100, 10), Turn(150, 10, 110)), SYSTEM)
    b = Program("b", (Turn(90, 5),), SYSTEM)
    # a: 100 new, then 110 kept and 40 new. b: 40 of the system prompt, 50 new.
    assert reuse([a, b]) == Reuse(110, 40, 190)
    assert reuse([a, b]).bound == 150 / 340


def test_a_path_of_prefixes_repeats_the_longest_that_an_earlier_prompt_has() -> None:
    short, long = SharedPrefix("system", 40), SharedPrefix("system/task", 70)
    a = Program("a", (Turn(100, 10, prefixes=(short,)),))
    b = Program("b", (Turn(100, 10, prefixes=(short, long)),))
    c = Program("c", (Turn(100, 10, prefixes=(short, long)),))
    assert reuse([a, b, c]) == Reuse(0, 40 + 70, 100 + 60 + 30)


def test_what_both_the_previous_turn_and_other_prompts_have_counts_once() -> None:
    path = (SYSTEM,)
    rewritten = Turn(100, 10, 15, prefixes=path)
    program = Program("a", (Turn(100, 10, prefixes=path), rewritten))
    assert reuse([program]) == Reuse(15, 25, 100 + 60)


def test_no_programs_have_no_bound() -> None:
    assert reuse([]).bound == 0
