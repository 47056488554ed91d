"""Makes vLLM answer with recorded tokens: a logits processor of model runner V1.

In: `answer` of a request's `vllm_xargs`, the token ids of the recorded answer. Out: logits in which
only the next of these tokens is possible. After the last one, the model continues freely. The model
computes every step as usual; only the choice of the token changes.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from servers.vllm.plugin.request_tags import answer_of


class RecordedAnswers(LogitsProcessor):  # type: ignore[misc]  # vLLM is not installed here
    def __init__(self, config: Any, _device: torch.device, _is_pin_memory: bool) -> None:
        self._vocabulary = config.model_config.get_vocab_size()
        self._answers: dict[int, tuple[list[int], list[int]]] = {}
        """By row of the batch: the recorded answer, and the tokens so far, which vLLM extends."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        answers = self._answers
        for row in batch_update.removed:
            answers.pop(row, None)
        for row, params, _, output in batch_update.added:
            answers.pop(row, None)
            if answer := answer_of(params.extra_args, self._vocabulary):
                answers[row] = answer, output
        for one, other, direction in batch_update.moved:
            from_one, from_other = answers.pop(one, None), answers.pop(other, None)
            if from_one is not None:
                answers[other] = from_one
            if from_other is not None and direction == MoveDirectionality.SWAP:
                answers[one] = from_other

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        next_ids = {
            row: answer[len(output)]
            for row, (answer, output) in self._answers.items()
            if len(output) < len(answer)
        }
        if next_ids:
            rows, ids = list(next_ids), list(next_ids.values())
            logits[rows] = -float("inf")
            logits[rows, ids] = 0.0
        return logits
