"""The two ways in which vLLM generates a recorded answer, with vLLM's own types."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

from servers.vllm.plugin.recorded_answers import RecordedAnswers
from servers.vllm.plugin.scheduler import TurnstileScheduler

VOCABULARY = 10


def config(**fields: Any) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(get_vocab_size=lambda: VOCABULARY, **fields)
    )


def processor() -> RecordedAnswers:
    return RecordedAnswers(config(), torch.device("cpu"), False)


def params(answer: object) -> SamplingParams:
    return SamplingParams(extra_args={"answer": answer})


def update(made: RecordedAnswers, **changes: Any) -> None:
    made.update_state(BatchUpdate(4, **{"removed": (), "added": (), "moved": ()} | changes))


def chosen(made: RecordedAnswers) -> list[int | None]:
    """Return the only possible token of each of four rows; None if all are possible."""
    logits = made.apply(torch.zeros(4, VOCABULARY))
    possible = [torch.isfinite(row).nonzero().flatten().tolist() for row in logits]
    return [ids[0] if len(ids) == 1 else None for ids in possible]


def test_the_next_token_of_the_answer_is_the_only_one_until_its_end() -> None:
    made, output = processor(), list[int]()
    update(made, added=[(1, params([7, 3]), None, output), (2, params(None), None, [])])
    assert chosen(made) == [None, 7, None, None]
    output.append(7)
    made.update_state(None)
    assert chosen(made) == [None, 3, None, None]
    output.append(3)
    assert chosen(made) == [None] * 4


def test_a_preempted_request_continues_after_the_tokens_that_it_has() -> None:
    made = processor()
    update(made, added=[(0, params([7, 3, 5]), None, [7, 3])])
    assert chosen(made)[0] == 5


def test_answers_follow_their_requests_to_other_rows() -> None:
    made = processor()
    update(made, added=[(row, params([row + 1]), None, []) for row in range(3)])
    update(made, moved=[(0, 1, MoveDirectionality.SWAP)])
    assert chosen(made) == [2, 1, 3, None]
    update(made, removed=[0], moved=[(2, 0, MoveDirectionality.UNIDIRECTIONAL)])
    assert chosen(made) == [3, 1, None, None]
    update(made, added=[(1, params(None), None, [])])  # replaces the request of the row
    assert chosen(made) == [3, None, None, None]


@pytest.mark.parametrize("answer", [[VOCABULARY], [-1], ["7"], [7.0], [True], "77", {"7": 7}, []])
def test_tokens_that_the_vocabulary_lacks_are_ignored(answer: object) -> None:
    made = processor()
    update(made, added=[(0, params(answer), None, [])])
    assert chosen(made) == [None] * 4


@pytest.mark.parametrize(
    ("enabled", "answer", "expected"),
    [(True, [7, 3], [7, 3]), (True, [VOCABULARY], None), (True, None, None), (False, [7], None)],
)
def test_model_runner_v2_gets_the_answer_as_a_trace_if_vllm_replays_traces(
    enabled: bool, answer: object, expected: list[int] | None
) -> None:
    if not hasattr(SamplingParams(), "trace_decode_token_ids"):
        pytest.skip("this vLLM has no trace replay")
    request: Any = SimpleNamespace(sampling_params=params(answer))
    scheduler: Any = SimpleNamespace(vllm_config=config(enable_trace_replay=enabled))
    TurnstileScheduler._replay_answer(scheduler, request)
    assert request.sampling_params.trace_decode_token_ids == expected
