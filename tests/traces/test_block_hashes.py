"""Prefixes derived from block hashes describe exactly which blocks prompts share."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given

from harness.load.arrivals import choose_programs
from harness.replay.contents import Contents
from harness.replay.prompts import TokenPrompts
from servers.basics.errors import InvalidTrace
from tests.live.server import common_prefix
from tests.replay.test_contents import blocks
from tests.sentences import mentions
from tests.sim.worlds import BLOCK
from tests.traces.hashed_worlds import HashedWorld, hashed_worlds
from tests.traces.test_formats import prefix_hits
from traces import Program, SharedPrefix, Turn, read_traces
from traces.block_hashes import share_blocks
from traces.check import check
from traces.cut import cut
from traces.formats.native import parse_programs, program_line, write_programs
from traces.stored import PackedTurns, packed


def single_turns(*hashes: list[int], block: int = 16) -> list[Program]:
    """Return a program of one turn for each list of block hashes, as from single requests."""
    programs = [Program(f"p{n}", (Turn(len(own) * block + 1, 1),)) for n, own in enumerate(hashes)]
    by_program = {p.id: [own] for p, own in zip(programs, hashes, strict=True)}
    return share_blocks(programs, by_program, block)


def path(program: Program, turn: int = 0) -> list[tuple[str, int]]:
    return [(prefix.id, prefix.tokens) for prefix in program.turns[turn].prefixes]


def test_two_prompts_share_a_prefix_of_their_common_first_blocks() -> None:
    a, b = single_turns([1, 2, 3], [1, 2, 4, 5])
    assert path(a) == path(b) == [("p0:0", 32)]


def test_a_prefix_can_branch_off_another() -> None:
    a, b, c = single_turns([1, 2, 3], [1, 2, 4, 5], [1, 2, 4, 6])
    assert path(a) == [("p0:0", 32)]
    assert path(b) == path(c) == [("p0:0", 32), ("p0:1", 48)]


def test_blocks_that_no_other_prompt_has_get_no_prefix() -> None:
    a, b = single_turns([1, 2, 3], [9, 2, 3])
    assert path(a) == path(b) == []


def test_tokens_kept_from_the_previous_turn_need_no_prefix() -> None:
    program = Program("p", (Turn(40, 8), Turn(70, 8), Turn(100, 8)))
    hashes = [[1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]
    (result,) = share_blocks([program], {"p": hashes}, 16)
    assert [turn.kept_tokens for turn in result.turns] == [0, 48, 78]
    assert [turn.prefixes for turn in result.turns] == [(), (), ()]


def test_a_prompt_that_returns_to_an_earlier_state_shares_a_prefix_with_it() -> None:
    program = Program("p", (Turn(64, 8), Turn(32, 8), Turn(80, 8)))
    hashes = [[1, 2, 3, 4], [1, 9], [1, 2, 3, 4, 5]]
    (result,) = share_blocks([program], {"p": hashes}, 16)
    assert [turn.kept_tokens for turn in result.turns] == [0, 16, 16]
    assert path(result, 0) == path(result, 2) == [("p:0", 64)]
    assert path(result, 1) == [("p:0", 16)]
    assert prefix_hits([result]) == {("p", 0): 0, ("p", 1): 16, ("p", 2): 64}


def test_requests_hit_the_prefix_cache_as_far_as_they_share_blocks() -> None:
    result = single_turns([1, 2, 3], [1, 2, 4, 5], [1, 2, 4, 6], [7])
    hits = prefix_hits(result)
    assert [hits[program.id, 0] for program in result] == [0, 32, 48, 0]


def test_a_sub_agent_that_continues_its_parents_context_also_hits_the_parents_answer() -> None:
    parent = Program("p", (Turn(40, 30), Turn(90, 8)))
    child = Program("q", (Turn(100, 8),))
    hashes = {"p": [[1, 2], [1, 2, 3, 4, 5]], "q": [[1, 2, 3, 4, 5, 6]]}
    result = share_blocks([parent, child], hashes, 16)
    # p's second turn keeps 40 + 30 tokens of the previous turn, of which 64 are full blocks.
    assert prefix_hits(result) == {("p", 0): 0, ("p", 1): 64, ("q", 0): 80}


@given(hashed_worlds())
def test_a_virtual_replay_shares_at_least_the_hashed_and_at_most_the_true_prefixes(
    world: HashedWorld,
) -> None:
    contents = Contents(BLOCK)
    shared = {}
    for program in world.programs:
        for number, turn_path in enumerate(contents.paths(program)):
            full = len(world.prompts[program.id, number]) // BLOCK
            shared[program.id, number] = blocks(turn_path)[:full]
    for a, b in combinations(shared, 2):
        hashed = common_prefix(world.hashes(*a), world.hashes(*b)) * world.hash_block
        true = common_prefix(world.prompts[a], world.prompts[b])
        found = common_prefix(shared[a], shared[b])
        assert hashed // BLOCK <= found <= true // BLOCK
        assert found == len(set(shared[a]) & set(shared[b]))


@given(hashed_worlds())
def test_live_prompts_share_at_least_the_hashed_and_at_most_the_true_prefixes(
    world: HashedWorld,
) -> None:
    answers = iter(range(2**31, 2**32))
    sent = {}
    for program in world.programs:
        conversation = TokenPrompts(range(2**31), 0).conversation(program)
        for number, turn in enumerate(program.turns):
            sent[program.id, number] = conversation.prompt(turn).tolist()
            assert len(sent[program.id, number]) == turn.prompt_tokens
            conversation.answered([next(answers) for _ in range(turn.output_tokens)])
    for a, b in combinations(sent, 2):
        hashed = common_prefix(world.hashes(*a), world.hashes(*b)) * world.hash_block
        assert hashed <= common_prefix(sent[a], sent[b])
        assert common_prefix(sent[a], sent[b]) <= common_prefix(world.prompts[a], world.prompts[b])


@given(hashed_worlds())
def test_prefixes_survive_packing_writing_and_cutting(world: HashedWorld) -> None:
    result = world.programs
    assert parse_programs(b"".join(map(program_line, result)), "t.jsonl") == result
    assert list(packed(result)) == result
    for scale in (0.1, 0.37, 1.0, 2.0):
        check(cut(result, max_turns=3, token_scale=scale))
    assert cut(result) == result


def test_prefixes_take_little_memory_in_packed_turns() -> None:
    turns = tuple(Turn(1000 + i, 1, 0, prefixes=(SharedPrefix("p:0", 900),)) for i in range(1000))
    assert len(PackedTurns(turns)._bytes) < 15 * len(turns)


def test_a_copy_of_a_job_shares_only_prefixes_that_several_jobs_share() -> None:
    returning = Program("p", (Turn(64, 8), Turn(32, 8), Turn(80, 8)))
    other = Program("q", (Turn(33, 1),))
    hashes = {"p": [[1, 2, 3, 4], [1, 9], [1, 2, 3, 4, 5]], "q": [[1, 7]]}
    result = share_blocks([returning, other], hashes, 16)
    assert path(result[0], 2) == [("p:0", 64)]
    assert path(result[1]) == [("p:0", 16)]
    chosen = choose_programs(result, 4)
    check(chosen)
    assert path(chosen[2], 2) == [("p:0", 16), ("p:0#2", 64)]
    assert path(chosen[3]) == [("p:0", 16)]


def test_prefixes_of_files_with_the_same_program_ids_are_renamed(tmp_path: Path) -> None:
    result = single_turns([1, 2, 3], [1, 2, 4, 5])
    for name in ("a.jsonl", "b.jsonl"):
        write_programs(tmp_path / name, result)
    loaded = read_traces(tmp_path)
    assert [path(p) for p in loaded.programs] == [[("p0:0", 32)]] * 2 + [[("p0#2:0", 32)]] * 2


def test_a_file_whose_prefixes_contradict_another_file_is_rejected(tmp_path: Path) -> None:
    write_programs(
        tmp_path / "a.jsonl", [single_turn("a", SharedPrefix("x", 20), SharedPrefix("y", 50))]
    )
    write_programs(tmp_path / "b.jsonl", [single_turn("b", SharedPrefix("y", 50))])
    (rejection,) = read_traces(tmp_path).rejections
    assert rejection.file == "b.jsonl"
    assert mentions(rejection.reason, "prefix 'y'", "token 0 after prefix None")


def refusal(*programs: Program) -> str:
    with pytest.raises(InvalidTrace) as error:
        check(programs)
    return str(error.value)


def single_turn(id: str, *prefixes: SharedPrefix, **fields: object) -> Program:
    return Program(id, (Turn(100, 10, prefixes=prefixes),), **fields)  # type: ignore[arg-type]


def test_a_prefix_begins_at_the_same_token_in_all_programs() -> None:
    a = single_turn("a", SharedPrefix("x", 20), SharedPrefix("y", 50))
    b = single_turn("b", SharedPrefix("x", 30), SharedPrefix("y", 50))
    assert mentions(refusal(a, b), "prefix 'y'", "token 30 after prefix 'x'", "token 20")


@pytest.mark.parametrize("ends", [[20, 20], [20, 10], [0], [101]])
def test_a_prefix_ends_after_its_beginning_and_within_the_prompt(ends: list[int]) -> None:
    prefixes = [SharedPrefix(f"x{n}", tokens) for n, tokens in enumerate(ends)]
    assert f"ends at token {ends[-1]}, must end after" in refusal(single_turn("a", *prefixes))


def test_a_program_cannot_have_both_a_prefix_and_turns_with_prefixes() -> None:
    program = single_turn("a", SharedPrefix("x", 20), prefix=SharedPrefix("y", 10))
    assert mentions(refusal(program), "prefixes", "remove one")


def test_kept_tokens_must_have_the_same_prefixes_in_both_turns() -> None:
    turns = (
        Turn(100, 10, prefixes=(SharedPrefix("x", 60),)),
        Turn(150, 10, 110, prefixes=(SharedPrefix("z", 80),)),
    )
    assert mentions(refusal(Program("a", turns)), "same prefixes", "80 tokens")
