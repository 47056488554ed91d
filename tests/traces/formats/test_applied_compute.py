"""Sessions of Applied Compute."""

from __future__ import annotations

from tests.traces.sample import Sample, json_lines, load
from traces import Provenance
from turnstile_formats import applied_compute


def sample() -> Sample:
    session = {"num_turns": 1, "input_prompt_length": 100, "assistant_response_length": [20],
               "tool_call_output_length": [30], "tool_call_latency": [1.5],
               "final_assistant_response_length": 20}  # fmt: skip
    single = {**session, "assistant_response_length": [], "tool_call_output_length": [],
              "tool_call_latency": []}  # fmt: skip
    lines = json_lines(session, single)
    return Sample({"sessions.jsonl": lines}, (Provenance.UNSTATED,), shares_prefix=False)


SAMPLE = sample()


def test_a_session_of_applied_compute_has_a_turn_per_tool_call_and_a_final_one() -> None:
    (program,), _ = load(
        applied_compute,
        {"num_turns": 2, "input_prompt_length": 16, "assistant_response_length": [4, 5],
         "tool_call_output_length": [8, 9], "tool_call_latency": [0.01, 2],
         "final_assistant_response_length": 6},
    )  # fmt: skip
    # 16; 16 + 4 + 8 = 28; 28 + 5 + 9 = 42.
    assert [(t.prompt_tokens, t.output_tokens, t.kept_tokens) for t in program.turns] == [
        (16, 4, 0), (28, 5, 20), (42, 6, 33),
    ]  # fmt: skip
    assert [t.tool_gap_s for t in program.turns] == [0.01, 2.0, 0.0]
