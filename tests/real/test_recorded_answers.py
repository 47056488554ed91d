"""`--answers recorded` on a real vLLM: the recorded text comes back, and later prompts find it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lines import read_lines

BENCH = str(Path(sys.executable).parent / "bench")
RECORDED = Path(__file__).parents[2] / "examples/recorded.jsonl"
BLOCK_TOKENS = 32
pytestmark = pytest.mark.usefixtures("forked_vllm")


def recorded_answers() -> dict[str, list[str]]:
    """Return the texts of the answers of each program."""
    programs = map(json.loads, RECORDED.read_text().splitlines())
    return {
        program["id"]: [m["content"] for m in program["messages"] if m["role"] == "assistant"]
        for program in programs
    }


def test_each_prompt_hits_every_whole_block_of_the_prompt_and_the_answer_before_it(
    tmp_path: Path,
) -> None:
    subprocess.run(
        [BENCH, "sweep", "--engine", "vllm", "--model", "tiny", "--kv-blocks", "120",
         "--traces", str(RECORDED), "--programs", "2", "--arrivals", "closed:1",
         "--policies", "fcfs", "--prompts", "text", "--answers", "recorded",
         "--out", str(tmp_path / "run")],
        check=False, timeout=600,
    )  # fmt: skip
    cell = tmp_path / "run/fcfs_closed-1_seed1"
    turns = read_lines(cell / "turns.jsonl")
    done = json.loads((cell / "done.json").read_text())
    assert [turn["error"] for turn in turns] == [None] * len(turns)
    assert done["recorded_answers"] == len(turns) > 10
    before = {(turn["program_id"], turn["turn"]): turn for turn in turns}
    answers = recorded_answers()
    for turn in turns:
        if (last := before.get((turn["program_id"], turn["turn"] - 1))) is not None:
            # The tokenizer has one per byte, and the template ends each message with a newline. The
            # KV of the last token that is generated is never computed.
            answer = len(answers[turn["program_id"]][last["turn"]].encode()) + 1
            assert last["output_tokens"] >= answer
            known = last["prompt_tokens"] + min(answer, last["output_tokens"] - 1)
            assert turn["device_hit_tokens"] == known // BLOCK_TOKENS * BLOCK_TOKENS
    server = json.loads((tmp_path / "run/sweep.json").read_text())["server"]
    assert (server["prompts"], server["answers"]) == ("text", "recorded")
