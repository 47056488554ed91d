"""What our own readers make of the formats that `bench traces convert --to` writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given

from tests.traces.exported_worlds import jobs
from tests.traces.sample import load_bytes
from traces import Fork, Program, Provenance, Turn
from traces.check import check
from traces.exports.registry import EXPORTS, Losses, load_export
from traces.formats import agentic_mooncake, mooncake, native, otel, weka
from traces.lenient import Repairs
from turnstile_formats import aiperf_dag

MEASURED = Provenance.MEASURED


def read_back(name: str, programs: Sequence[Program]) -> dict[str, Program]:
    """Return the programs that our reader makes of what was written, by id."""
    items = list(load_export(name).write(programs, Losses()))
    readers = {"mooncake": mooncake, "agentic-mooncake": agentic_mooncake, "weka": weka,
               "aiperf-dag": aiperf_dag, "otel": otel, "native": native}  # fmt: skip
    files = items if name == "weka" else [b"".join(items)]
    read = [p for data in files for p in load_bytes(readers[name], data, Repairs())]
    check(read)
    assert all(readers[name].sniff(data) for data in files)
    return {program.id: program for program in read}


def lengths(program: Program) -> list[tuple[int, int]]:
    return [(turn.prompt_tokens, turn.output_tokens) for turn in program.turns]


def gaps_s(program: Program) -> list[float]:
    return [turn.tool_gap_s for turn in program.turns[:-1]]


def origins(program: Program) -> list[Provenance]:
    return [turn.gap_provenance for turn in program.turns[:-1]]


@given(jobs())
def test_agentic_mooncake_keeps_lengths_gaps_starts_and_forks(programs: list[Program]) -> None:
    read = read_back("agentic-mooncake", programs)
    for program in programs:
        back = read[program.id]
        assert lengths(back) == lengths(program)
        assert gaps_s(back) == gaps_s(program)
        if program.fork is None:
            assert back.recorded_start_s == (program.recorded_start_s or 0.0)
        else:
            expected = replace(
                program.fork,
                delay_provenance=Provenance.UNSTATED,
            )
            assert back.fork == expected


@given(jobs())
def test_agentic_mooncake_keeps_what_prompts_repeat_up_to_a_block(
    programs: list[Program],
) -> None:
    losses = Losses()
    list(load_export("agentic-mooncake").write(programs, losses))
    exact = not any("how much a prompt repeats" in reason for reason in losses.reasons())
    read = read_back("agentic-mooncake", programs)
    same = all(
        [turn.kept_tokens for turn in read[program.id].turns]
        == [turn.kept_tokens for turn in program.turns]
        for program in programs
    )
    assert same == exact


@given(jobs(append_only=True))
def test_aiperf_dag_keeps_lengths_gaps_and_sub_agents(programs: list[Program]) -> None:
    read = read_back("aiperf-dag", programs)
    assert set(read) == {program.id for program in programs}
    for program in programs:
        back = read[program.id]
        assert lengths(back) == lengths(program)
        assert gaps_s(back) == gaps_s(program)
        assert [turn.kept_tokens for turn in back.turns] == [t.kept_tokens for t in program.turns]
        if (fork := program.fork) is not None:
            last = len(read[fork.program_id].turns) - 1
            at_end = last if fork.after_turn < last else None
            joined = at_end if fork.joined_before_turn is None else fork.joined_before_turn
            assert back.fork == Fork(fork.program_id, fork.after_turn, fork.delay_s, joined)


@given(jobs())
def test_aiperf_dag_keeps_the_tokens_of_all_jobs(programs: list[Program]) -> None:
    read = read_back("aiperf-dag", programs).values()
    assert sorted(pair for p in read for pair in lengths(p)) == sorted(
        pair for p in programs for pair in lengths(p)
    )


@given(jobs())
def test_weka_keeps_lengths_gaps_and_which_were_measured(programs: list[Program]) -> None:
    read = read_back("weka", programs)
    for program in programs:
        back = read[program.id]
        assert lengths(back) == lengths(program)
        assert [bool(t.tools) for t in back.turns] == [bool(t.tools) for t in program.turns]
        assert [each == MEASURED for each in origins(back)] == [
            each == MEASURED for each in origins(program)
        ]
        parents = {other.fork.program_id for other in programs if other.fork is not None}
        if program.id not in parents:  # whose sub-agents are placed by time
            assert gaps_s(back) == pytest.approx(gaps_s(program), abs=0.0011)


@given(jobs())
def test_otel_keeps_lengths_kept_tokens_tools_and_origins(programs: list[Program]) -> None:
    read = read_back("otel", programs)
    for program in programs:
        back = read[program.id]
        assert lengths(back) == lengths(program)
        assert [turn.kept_tokens for turn in back.turns] == [t.kept_tokens for t in program.turns]
        assert origins(back) == origins(program)
        if program.fork is None:
            assert [turn.tools for turn in back.turns] == [turn.tools for turn in program.turns]
        else:
            assert back.fork is not None
            assert back.fork.delay_provenance == program.fork.delay_provenance
        parents = {other.fork.program_id for other in programs if other.fork is not None}
        if program.id not in parents:  # whose sub-agents are placed by time
            assert gaps_s(back) == pytest.approx(gaps_s(program), abs=0.0011)


@given(jobs())
def test_mooncake_keeps_the_tokens_of_all_requests(programs: list[Program]) -> None:
    read = read_back("mooncake", programs).values()
    assert sorted(pair for p in read for pair in lengths(p)) == sorted(
        pair for p in programs for pair in lengths(p)
    )


@given(jobs())
def test_native_keeps_everything(programs: list[Program]) -> None:
    assert list(read_back("native", programs).values()) == programs


@pytest.mark.parametrize("name", EXPORTS)
def test_deeply_nested_sub_agents_are_written(name: str) -> None:
    chain = [Program("0", (Turn(10, 1),))]
    chain += [Program(str(n), (Turn(10, 1),), fork=Fork(str(n - 1), 0)) for n in range(1, 15)]
    assert len(read_back(name, chain)) == 15
