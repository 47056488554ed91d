"""Lists what each format records, for the documentation and for reports.

`tests/traces/test_format_facts.py` checks it against the registry and the samples.
"""

from __future__ import annotations

from typing import NamedTuple


class Facts(NamedTuple):
    holds: str
    tokens: str
    """Where token counts come from."""
    tool_times: str
    """Where tool times come from; `no` if none is recorded."""
    repeats: str
    """Source of a prompt's repeated part: measured (hashes or texts), inferred, or stated."""
    sessions: bool
    """Whether calls belong to programs of several turns."""
    starts: bool
    """Whether starts are recorded, for `--arrivals recorded`."""
    sub_agents: bool
    accuracy: str
    """What is inferred, and how accurately."""
    without: str = ""
    """How to use files that lack something."""


DRAW = "refused, unless `--synthesise-gaps`"
SINGLE = "single requests: `--arrivals recorded --once`"
BY_TEXT = "counts of text"
COUNT = "without usage: `--tokenizer`"
CALL_END = "calls have assumed durations"
LENGTHS = "repeats follow from lengths"
YES, NO, STATED = "measured", "no", "stated"
PERMISSION = "measured, some with waits for permission"

FACTS = {
    "turnstile": Facts(
        "programs in Turnstile's own format", "recorded", "as the file says", STATED,
        True, True, True, "repeats from lengths if no turn has `kept_tokens`",
    ),
    "turns.jsonl": Facts(
        "turns of a run or of `bench record`", "recorded", "as in the run", STATED,
        True, True, False, "", "sub-agents become programs of their own",
    ),
    "claude-code": Facts(
        "sessions of Claude Code", "recorded", PERMISSION, "inferred",
        True, True, True,
        "outputs whose count was cut off, from their text: median error 8%, at most 30% in nine of"
        " ten",
    ),
    "codex": Facts(
        "sessions of Codex", "recorded", PERMISSION, "inferred", True, True, True,
        "token counts sum to the recorded total in 102 of 102 calls",
        "without token counts (before 0.44): refused",
    ),
    "gemini-cli": Facts(
        "sessions of Gemini CLI", "recorded", PERMISSION, "inferred", True, True, False,
        "known from synthetic samples only",
    ),
    "mini-swe-agent": Facts(
        "trajectories of mini-swe-agent", "recorded", "measured (v2), inferred (v1)", "inferred",
        True, True, False,
        "v1's tool times: the median to about a second, the mean is too high",
        "without usage: refused",
    ),
    "weka": Facts(
        "coding sessions with block hashes", "recorded", "measured, else inferred", "measured",
        True, False, True,
        f"without `api_time` {CALL_END}; tools have no names",
    ),
    "openhands": Facts(
        "conversations and trajectories of OpenHands", "recorded", YES, "inferred",
        True, True, True, LENGTHS, "without token counts: refused",
    ),
    "azure-copilot": Facts(
        "sessions of GitHub Copilot's agents", "recorded", "measured, else inferred", "inferred",
        True, True, False, f"{LENGTHS} and cached tokens; written from the schema",
    ),
    "tracelab": Facts(
        "rounds of Claude Code and Codex", "recorded", PERMISSION, "inferred", True, True, False,
        f"{LENGTHS} and cached tokens",
    ),
    "agentinfer": Facts(
        "requests of AgentInfer's benchmark", "recorded", YES, "inferred", True, True, True,
        f"{LENGTHS}; tools have no names",
    ),
    "dynamo": Facts(
        "Dynamo's request traces", "recorded", YES, "measured", True, True, True, "", SINGLE,
    ),
    "agentic-mooncake": Facts(
        "Dynamo's replay files", "recorded", "unstated", "measured", True, True, True,
        "delays of spawns at dispatch are inferred; tools have no names",
    ),
    "applied-compute": Facts(
        "lengths and tool latencies per session", "recorded", "unstated", "measured",
        True, False, False, "tools have no names",
        "without starts: `--arrivals recorded` is refused",
    ),
    "mooncake": Facts(
        "requests of a service, with block hashes", "recorded", "unstated, else inferred",
        "measured", True, True, False,
        f"without `delay` {CALL_END}; without hashes {LENGTHS}", SINGLE,
    ),
    "bailian": Facts(
        "requests of a service, with block hashes", "recorded", "inferred", "measured",
        True, True, False, f"{CALL_END}; gaps are people's pauses", SINGLE,
    ),
    "llmservingsim": Facts(
        "workloads of LLMServingSim", "recorded", "unstated", "inferred", True, True, False,
        LENGTHS, SINGLE,
    ),
    "lmcache-agent": Facts(
        "texts of prompts and answers", "inferred", "inferred", "measured", True, True, False,
        f"{BY_TEXT}; {CALL_END}", COUNT,
    ),
    "aiperf-dag": Facts(
        "benchmark inputs, not recordings", "inferred", "unstated", "inferred", True, False, True,
        f"{BY_TEXT}; outputs are `max_tokens`", COUNT,
    ),
    "otel": Facts(
        "OpenTelemetry spans of agents", "recorded, else inferred", YES, "inferred",
        True, True, True, BY_TEXT, COUNT,
    ),
    "langfuse": Facts(
        "exports of Langfuse", "recorded, else inferred", YES, "inferred", True, True, True,
        BY_TEXT, COUNT,
    ),
    "atif": Facts(
        "Harbor's trajectories", "recorded, else inferred", "inferred, else no", "inferred",
        True, True, True,
        f"tool times contain the model's, and are not to be quoted; {BY_TEXT}",
        f"without timestamps {DRAW}",
    ),
    "swe-agent": Facts(
        "trajectories of SWE-agent", "inferred", "measured, else no", "inferred",
        True, False, False, f"{BY_TEXT}, before they are scaled to a recorded total",
        f"without `execution_time` {DRAW}",
    ),
    "bfcl": Facts(
        "results of the Berkeley leaderboard", "recorded", NO, "inferred", True, False, False,
        LENGTHS, DRAW,
    ),
    "mlperf-endpoints": Facts(
        "messages of MLPerf's agentic sets", "inferred", "measured, else no", "inferred",
        True, False, False, BY_TEXT, f"{COUNT}; without `delay_seconds` {DRAW}",
    ),
}  # fmt: skip
"""By name in the registry. Formats of installed packages are not listed."""
