"""Speculative decoding in virtual time: tokens per step, its time, its blocks and its settings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from servers.basics.errors import InvalidInput
from servers.policies.fcfs import Fcfs
from servers.profiles import MODELS, analytic_profile, costs
from servers.profiles.drafts import check_model, step_ps, with_draft_memory, with_draft_share
from servers.sim import Engine, Limits, Segment, Sequence, Submission
from servers.speculation import parse_speculation, turn_key
from tests.sim.worlds import profile

MACHINE = profile(kv_blocks=8, max_model_len=128)


def run(speculate: str, *turns: tuple[int, int], limits: Limits | None = None) -> list[Sequence]:
    """Run turns of (prompt, output) tokens without common blocks, which arrive together."""
    limits = replace(limits or Limits(8, 64), speculate=speculate)
    policy = Fcfs(costs(MACHINE, step_tokens=limits.step_tokens, offload=False))
    ended: list[Sequence] = []
    engine = Engine(policy, MACHINE, limits, on_end=ended.append)
    for number, (prompt, output) in enumerate(turns):
        path = ((Segment(0), -(-(prompt + output) // 16)),)
        engine.submit(Submission(f"p{number}", path, prompt, output, is_last=True), 0)
    engine.run()
    assert engine.usage().used_blocks == 0
    return ended


def seconds_of(sequence: Sequence) -> float:
    assert sequence.finished_ps is not None
    return sequence.finished_ps / 1e12


def test_a_step_generates_one_token_more_than_it_accepts() -> None:
    # After the prompt's step, steps of 3 tokens at contexts of 19, 22 and 25, then the last token.
    (turn,) = run("ngram:2,accept=1", (16, 11))
    assert turn.view.output_tokens == 11
    prompt_s = 0.001 + 0.009 + 136 * 3e-9  # 16 tokens have 16 * 17 / 2 pairs
    decodes_s = [0.010 + context * 80e-9 for context in (19, 22, 25, 28)]
    assert seconds_of(turn) == pytest.approx(prompt_s + sum(decodes_s), abs=1e-12)


def test_without_accepted_drafts_each_step_generates_one_token() -> None:
    (turn,) = run("ngram:2,accept=0", (16, 4))
    decodes_s = [0.010 + context * 80e-9 for context in (19, 20, 21)]
    assert seconds_of(turn) == pytest.approx(0.010 + 136 * 3e-9 + sum(decodes_s), abs=1e-12)


def test_the_last_step_generates_no_tokens_beyond_the_output() -> None:
    # 1 of the prompt's step, 5 of the next one, and 1 of the 5 that the last one could generate.
    (turn,) = run("ngram:4,accept=1", (16, 7))
    assert (turn.view.output_tokens, turn.computed) == (7, 22)


def test_a_turn_is_preempted_if_there_are_no_slots_for_drafts() -> None:
    # Each of two turns of 62 tokens needs 4 of 8 blocks. Slots of drafts up to token 65 need five.
    assert [turn.preemptions for turn in run("ngram:3,accept=0", (60, 2), (60, 2))] == [0, 0]
    assert sorted(turn.preemptions for turn in run("eagle:3,accept=0", (60, 2), (60, 2))) == [0, 1]


def test_the_tokens_of_a_step_are_drafts_of_the_turns_admitted_first() -> None:
    # Step 1 computes the prompts. Of 5 tokens, steps 2 and 3 compute 4 of the first turn, 1 of the
    # second and none of the third. Steps 4 and 5 compute 4 and 1 of the others, then 4 and 4.
    turns = run("ngram:3,accept=1", (1, 9), (1, 9), (1, 9), limits=Limits(3, 5))
    assert [round(seconds_of(turn) / 0.010) for turn in turns] == [3, 5, 7]


def test_one_share_is_that_of_drafts_accepted_after_those_before_them() -> None:
    assert parse_speculation("mtp:3,accept=0.5").accept == (0.5, 0.25, 0.125)
    assert parse_speculation("eagle3:3,accept=0.9,0.7,0.5").accept == (0.9, 0.7, 0.5)
    text = "eagle3:2,accept=0.9,0.7,draft=0.05"
    assert str(parse_speculation(text)) == text


def test_accepted_drafts_are_drawn_by_program_turn_and_position() -> None:
    speculation = parse_speculation("ngram:3,accept=0.9,0.6,0.3")
    key = turn_key("p0", 1)
    drawn = [speculation.accepted(key, position) for position in range(20_000)]
    assert drawn == [speculation.accepted(key, position) for position in range(20_000)]
    assert drawn != [speculation.accepted(turn_key("p0", 2), p) for p in range(20_000)]
    counts = Counter(drawn)
    shares = [sum(counts[n] for n in range(least, 4)) / 20_000 for least in (1, 2, 3)]
    assert shares == pytest.approx([0.9, 0.6, 0.3], abs=0.015)  # four standard deviations


def test_draft_layers_compute_the_step_and_one_token_of_each_decode_per_further_draft() -> None:
    speculation = parse_speculation("eagle:3,accept=0.8,draft=0.1")
    model_ps = MACHINE.step_ps(8, 2, 40, 0)
    later_ps = MACHINE.step_ps(2, 2, 40, 0)
    found_ps = step_ps(MACHINE, speculation, [], [(4, 20), (4, 20)])
    assert found_ps == model_ps + round(0.1 * (model_ps + 2 * later_ps))


def test_policies_expect_the_mean_time_of_a_token() -> None:
    speculation = parse_speculation("ngram:2,accept=0.5")  # 1 + 0.5 + 0.25 tokens per step
    given = costs(MACHINE, step_tokens=64, offload=False, speculation=speculation)
    step_s = MACHINE.step_ps(6, 2, 44, 0) / 1e12
    assert given.decode_s(2, 40) == pytest.approx(step_s / 1.75)
    assert given.decode_s(0, 0) == pytest.approx(MACHINE.step_ps(0, 0, 0, 0) / 1e12 / 1.75)


def test_a_draft_takes_the_time_of_a_layer_and_the_head_and_memory_of_a_layer() -> None:
    # Llama-3.1-8B has 32 layers of 218.1M parameters and a head of 525.3M, of 7,504.9M per step.
    llm = MODELS["llama-3.1-8b"]
    speculation = with_draft_share(parse_speculation("eagle3:3,accept=0.8"), llm)
    assert speculation.draft_share == pytest.approx((218.1 + 525.3) / 7504.9, rel=1e-3)
    plain = analytic_profile("a100-80g", "llama-3.1-8b")
    blocks = with_draft_memory(plain, llm, 131072 * 16).kv_blocks
    left = plain.kv_blocks * 131072 * 16 - 218.1e6 * 2
    assert blocks == pytest.approx(left / (131072 * 16 / 32 * 33), rel=1e-4)


def test_mtp_is_refused_for_a_model_without_mtp_layers() -> None:
    speculation = parse_speculation("mtp:1,accept=0.8")
    check_model(speculation, MODELS["deepseek-v3"])
    with pytest.raises(InvalidInput, match=r"llama-3.1-8b has no MTP layers .* eagle3 or ngram"):
        check_model(speculation, MODELS["llama-3.1-8b"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ngram:3", "accept is missing"),
        ("ngrm:3,accept=0.8", "unknown method 'ngrm'; did you mean ngram?"),
        ("draft_model:3,accept=0.8", "draft_model is not modelled: it has the time and the KV"),
        ("ngram:0,accept=0.8", "the number of drafts must be 1 to 16"),
        ("ngram:-1,accept=0.8", "the number of drafts must be 1 to 16"),
        ("ngram,accept=0.8", "the number of drafts must be 1 to 16"),
        ("ngram:3,accept=1.2", "accept=1.2: must be a share from 0 to 1"),
        ("ngram:3,accept=nan", "accept=nan: must be a share from 0 to 1"),
        ("ngram:3,accept=0.9,0.8", "accept has 2 shares for 3 drafts"),
        ("ngram:3,accept=0.5,0.8,0.9", "accept must not rise"),
        ("ngram:3,share=0.5", "'share=0.5' is neither accept=SHARES nor draft=SHARE"),
        ("ngram:3,accept=0.5,draft=0.1", "ngram takes none"),
    ],
)
def test_a_mistake_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Limits(speculate=text)
    assert str(refused.value).startswith(f"--speculate {text}: ")
    assert reason in str(refused.value)


def test_a_step_needs_room_for_a_turn_with_all_its_drafts() -> None:
    with pytest.raises(InvalidInput, match=r"--long-prefill 3: .* use at least 4"):
        Limits(long_prefill=3, speculate="ngram:3,accept=0.8")
    with pytest.raises(InvalidInput, match=r"--step-tokens 3: .* use at least 4"):
        Limits(max_num_seqs=1, step_tokens=3, speculate="ngram:3,accept=0.8")
