"""A small trace of every format of ours, on which `test_formats.py` runs its contract tests.

Each has two programs whose prompts share a prefix, and one of them has a second turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.traces import span_samples
from traces import Provenance


@dataclass(frozen=True)
class Sample:
    files: Mapping[str, bytes]
    """Contents by file name."""
    gap_provenance: tuple[Provenance, ...]
    """The provenance of each tool gap, in order of the programs and their turns."""
    gaps: str | None = None
    """The recipe of the gaps that the format does not record."""
    shares_prefix: bool = True
    """Whether the format records what the prompts of several programs have in common."""


def json_lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def native() -> Sample:
    prefix = {"id": "system:1", "tokens": 64}
    a = {
        "format": "turnstile-trace-1", "id": "a", "prefix": prefix,
        "turns": [{"prompt_tokens": 100, "output_tokens": 20, "tool_gap_s": 1.5,
                   "gap_provenance": "measured"},
                  {"prompt_tokens": 150, "output_tokens": 20, "kept_tokens": 120}],
    }  # fmt: skip
    b = {**a, "id": "b", "turns": [{"prompt_tokens": 100, "output_tokens": 20}]}
    return Sample({"a.jsonl": json_lines(a, b)}, (Provenance.MEASURED,))


def turns_of_a_run() -> Sample:
    def turn(program: str, number: int, at_s: float, **fields: Any) -> dict[str, Any]:
        return {
            "program_id": program, "turn": number, "job_id": program,
            "scheduled_at_s": at_s, "sent_at_s": at_s,
            "prompt_tokens": 100 + 50 * number, "output_tokens": 20,
            "kept_tokens": 120 * (number > 0), "tools": ["ls"], "error": None, **fields,
        }  # fmt: skip

    system = {"id": "system:1", "tokens": 64}
    lines = json_lines(
        turn("a", 0, 0.0, system=system),
        turn("b", 0, 1.0, system=system),
        turn("a", 1, 3.0, gap_s=1.5, gap_provenance="measured"),
    )
    return Sample({"turns.jsonl": lines}, (Provenance.MEASURED,))


def mini_swe_agent() -> Sample:
    def document(id: str, task: str, *calls: dict[str, Any]) -> bytes:
        opening = [
            {"role": "system", "content": "be brief " * 20},
            {"role": "user", "content": task},
        ]
        return json.dumps(
            {"trajectory_format": "mini-swe-agent-1.1", "instance_id": id,
             "messages": [*opening, *calls]}
        ).encode()  # fmt: skip

    def call(prompt: int, at_s: float) -> dict[str, Any]:
        usage = {"prompt_tokens": prompt, "completion_tokens": 20}
        return {"role": "assistant", "content": "on", "extra": {
            "actions": [{"command": "ls"}], "timestamp": 1.7e9 + at_s,
            "response": {"usage": usage}}}  # fmt: skip

    observed = {"role": "tool", "content": "x", "extra": {"timestamp": 1.7e9 + 1.5}}
    return Sample(
        {
            "a.traj.json": document("a", "fix it", call(100, 0), observed, call(150, 4)),
            "b.traj.json": document("b", "test it", call(100, 1)),
        },
        (Provenance.MEASURED,),
    )


def weka() -> Sample:
    def request(t: float, prompt: int, hash_ids: list[int], **fields: Any) -> dict[str, Any]:
        return {"t": t, "type": "n", "in": prompt, "out": 20, "hash_ids": hash_ids,
                "stop": "tool_use", **fields}  # fmt: skip

    def sub_agent(name: str, last_block: int) -> dict[str, Any]:
        return {"t": 9, "type": "subagent", "agent_id": name, "duration_ms": 5000,
                "requests": [request(0, 200, [7, 8, last_block], api_time=2.0)]}  # fmt: skip

    document = {
        "id": "s", "block_size": 64, "hash_id_scope": "local",
        "requests": [
            request(0, 150, [1, 2], api_time=2.0),
            sub_agent("a", 10),
            sub_agent("b", 11),
            request(20, 300, [1, 2, 3, 4]),
            request(60, 400, [1, 2, 3, 4, 5]),
        ],
    }  # fmt: skip
    return Sample(
        {"s.json": json.dumps(document).encode()}, (Provenance.MEASURED, Provenance.INFERRED)
    )


def openhands() -> Sample:
    def event(kind: str, second: int, **fields: Any) -> dict[str, Any]:
        return {"kind": kind, "timestamp": f"2026-01-01T00:00:{second:02}", **fields}

    def action(second: int, response: str) -> dict[str, Any]:
        return event("ActionEvent", second, source="agent", llm_response_id=response,
                     tool_name="terminal", action={"command": "ls"})  # fmt: skip

    def document(id: str, task: str, *events: dict[str, Any]) -> bytes:
        usages = [{"response_id": "x", "prompt_tokens": 100, "completion_tokens": 20},
                  {"response_id": "y", "prompt_tokens": 150, "completion_tokens": 20}]  # fmt: skip
        state = {"id": id, "stats": {"usage_to_metrics": {"agent": {"token_usages": usages}}}}
        opening = [
            event("SystemPromptEvent", 0, source="agent", system_prompt={"text": "be brief " * 20}),
            event("MessageEvent", 1, source="user", llm_message={"content": [{"text": task}]}),
        ]
        return json.dumps({"base_state": state, "events": [*opening, *events]}).encode()

    observed = event("ObservationEvent", 4, observation={"content": [{"text": "x"}]})
    return Sample(
        {
            "a.json": document("a", "fix it", action(2, "x"), observed, action(9, "y")),
            "b.json": document("b", "test it", action(3, "x")),
        },
        (Provenance.MEASURED,),
    )


def azure_copilot() -> Sample:
    def call(id: str, second: int, prompt: int) -> dict[str, Any]:
        return {
            "message_id": id, "timestamp": f"2026-06-01T00:00:{second:02}Z", "duration_ms": 1000.0,
            "model": "Model A", "result": "Success", "status_code": "OK",
            "tokens": {"total": prompt + 20, "prompt": prompt, "completion": 20, "cached": 64},
            "message_metadata": [{"type": "System", "role": "system", "sequenceId": 0,
                                  "token_len": 64}],
        }  # fmt: skip

    batch = {"timestamp": "2026-06-01T00:00:01Z", "duration_ms": 1500.0, "request_id": "m1",
             "function_calls": [{"name": "read_file", "status": 1, "duration_ms": 1400.0}],
             }  # fmt: skip
    a = {"session_id": "a", "date": "2026-06-01", "turns": [
        {"turn_id": "t", "llm_calls": [call("m1", 0, 100), call("m2", 3, 150)],
         "tool_batches": [batch]}]}  # fmt: skip
    b = {"session_id": "b", "date": "2026-06-01", "turns": [
        {"turn_id": "t", "llm_calls": [call("m3", 9, 100)], "tool_batches": []}]}  # fmt: skip
    return Sample({"copilot.jsonl": json_lines(a, b)}, (Provenance.MEASURED,))


def tracelab() -> Sample:
    def round_(session: str, index: int, second: int, prompt: int, **fields: Any) -> dict[str, Any]:
        def event(kind: str, at: int) -> dict[str, Any]:
            return {"event_type": kind, "timestamp": f"2026-06-01T00:00:{at:02}.000Z"}

        return {
            "provider": "claude", "project": "p", "session_id": session, "round_index": index,
            "round_id": f"{session}-{index}", "model": "m", "input_tokens_total": prompt,
            "prefix_tokens": 64, "newly_append_tokens": prompt - 64, "output_tokens": 20,
            "timing_events": [event("user_message", second), event("text", second + 2)],
            "tools": [], **fields,
        }  # fmt: skip

    tool = {"tool_name": "Bash", "emitted_at": "2026-06-01T00:00:02.000Z",
            "result_at": "2026-06-01T00:00:03.500Z", "tool_wall_latency_ms": 1500}  # fmt: skip
    lines = json_lines(
        round_("a", 0, 0, 100, tools=[tool]), round_("b", 0, 1, 100), round_("a", 1, 4, 150)
    )
    return Sample({"round_trace.jsonl": lines}, (Provenance.MEASURED_WITH_PERMISSION,))


def agentinfer() -> Sample:
    def request(session: str, actor: str, second: int, prompt: int) -> dict[str, Any]:
        return {
            "schema_version": "1", "request_id": f"{session}{second}", "session_id": session,
            "actor_id": actor, "actor_role": actor,
            "started_at": f"2026-06-01T00:00:{second:02}+00:00",
            "finished_at": f"2026-06-01T00:00:{second + 1:02}+00:00", "status": "success",
            "input_tokens": prompt, "output_tokens": 20, "cached_tokens": None,
        }  # fmt: skip

    lines = json_lines(
        request("s", "lead", 0, 100), request("s", "x1", 2, 80), request("s", "lead", 5, 150)
    )
    return Sample({"requests.jsonl": lines}, (Provenance.MEASURED,), shares_prefix=False)


def dynamo() -> Sample:
    def ended(session: str, at_ms: int, prompt: int, hashes: list[int]) -> dict[str, Any]:
        replay = {"trace_block_size": 32, "input_length": prompt, "input_sequence_hashes": hashes}
        return {
            "schema": "dynamo.request.trace.v1", "event_type": "request_end",
            "event_time_unix_ms": at_ms + 1000, "agent_context": {"session_id": session},
            "request": {"request_id": f"{session}{at_ms}", "output_tokens": 20,
                        "request_received_ms": at_ms, "total_time_ms": 1000, "replay": replay},
        }  # fmt: skip

    big = 2**63 + 5
    lines = json_lines(
        ended("a", 0, 100, [big, 2, 3, 4]),
        ended("b", 500, 100, [big, 2, 9, 9]),
        ended("a", 2500, 150, [big, 2, 3, 5, 6]),
    )
    return Sample({"dynamo.jsonl": lines}, (Provenance.MEASURED,))


def agentic_mooncake() -> Sample:
    def request(id: str, session: str, prompt: int, hashes: list[int], *on: Any) -> dict[str, Any]:
        return {"request_id": id, "play_id": "p", "session_id": session, "input_length": prompt,
                "output_length": 20, "hash_ids": hashes, "not_before_ms": 0,
                "dependencies": list(on)}  # fmt: skip

    def after(id: str, relation: str, delay_ms: int) -> dict[str, Any]:
        return {"request_id": id, "trigger": "completion", "relation": relation,
                "delay_ms": delay_ms}  # fmt: skip

    header = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 32}
    lines = json_lines(
        header,
        request("r1", "a", 100, [1, 2, 3, 4]),
        request("c1", "b", 100, [1, 2, 9, 9], after("r1", "spawn", 500)),
        request("r2", "a", 150, [1, 2, 3, 5, 6], after("r1", "sequence", 1500)),
    )
    return Sample({"agentic.jsonl": lines}, (Provenance.UNSTATED,))


def applied_compute() -> Sample:
    session = {"num_turns": 1, "input_prompt_length": 100, "assistant_response_length": [20],
               "tool_call_output_length": [30], "tool_call_latency": [1.5],
               "final_assistant_response_length": 20}  # fmt: skip
    single = {**session, "assistant_response_length": [], "tool_call_output_length": [],
              "tool_call_latency": []}  # fmt: skip
    lines = json_lines(session, single)
    return Sample({"sessions.jsonl": lines}, (Provenance.UNSTATED,), shares_prefix=False)


def mooncake() -> Sample:
    def request(session: str, prompt: int, hashes: list[int], **fields: Any) -> dict[str, Any]:
        return {"session_id": session, "input_length": prompt, "output_length": 20,
                "hash_ids": hashes, **fields}  # fmt: skip

    lines = json_lines(
        request("a", 1100, [1, 2, 3], timestamp=0),
        request("b", 1030, [1, 2, 9], timestamp=500),
        request("a", 1600, [1, 2, 4, 5], delay=1500),
    )
    return Sample({"mooncake.jsonl": lines}, (Provenance.UNSTATED,))


def bailian() -> Sample:
    def request(id: int, parent: int, at_s: float, prompt: int, last: int) -> dict[str, Any]:
        return {"chat_id": id, "parent_chat_id": parent, "timestamp": at_s, "turn": 1,
                "input_length": prompt, "output_length": 20, "type": "text",
                "hash_ids": [1, 2, 3, 4, last]}  # fmt: skip

    lines = json_lines(request(1, -1, 0.0, 80, 5), request(2, -1, 1.0, 80, 6),
                       request(3, 1, 30.0, 90, 5))  # fmt: skip
    return Sample({"bailian.jsonl": lines}, (Provenance.INFERRED,))


def llmservingsim() -> Sample:
    def request(prompt: list[int], **fields: Any) -> dict[str, Any]:
        return {"input_toks": len(prompt), "output_toks": 20, "input_tok_ids": prompt, **fields}

    first, second = list(range(40)), [*range(32), *range(90, 98)]
    agentic = {"session_id": "a", "arrival_time_ns": 0, "sub_requests": [
        request(first, tool_duration_ns=1_500_000_000),
        request([*first, *range(200, 230)], tool_duration_ns=0)]}  # fmt: skip
    lines = json_lines(agentic, request(second, arrival_time_ns=1_000_000_000))
    return Sample({"workload.jsonl": lines}, (Provenance.UNSTATED,))


def lmcache_agent() -> Sample:
    def call(session: str, at_us: int, prompt: str) -> dict[str, Any]:
        return {"timestamp": 1_760_000_000_000_000 + at_us, "input": prompt,
                "output": "Let me look at the file.", "session_id": session}  # fmt: skip

    opening = "You are an agent with tools. " * 10
    lines = json_lines(
        call("a", 9_000_000, f"{opening} Fix it. Let me look at the file. It has an error."),
        call("a", 0, f"{opening} Fix it."),
        call("b", 1_000_000, f"{opening} Test it."),
    )
    return Sample({"calls.jsonl": lines}, (Provenance.INFERRED,))


def aiperf_dag() -> Sample:
    def turn(content: str, role: str = "user", **fields: Any) -> dict[str, Any]:
        return {"messages": [{"role": role, "content": content}], "max_tokens": 20, **fields}

    root = {"session_id": "root", "turns": [
        turn("You plan. " * 20, "system", forks=["child"]), turn("Go on.", delay=1500),
    ]}  # fmt: skip
    lines = json_lines(root, {"session_id": "child", "turns": [turn("Summarise.")]})
    return Sample({"a.dag.jsonl": lines}, (Provenance.UNSTATED,))


def claude_code() -> Sample:
    def session(id: str, *lines: dict[str, Any]) -> bytes:
        chain = {"isSidechain": False, "sessionId": id, "version": "2.1.0"}
        parents = [None, *(line["uuid"] for line in lines)]
        records = zip(parents, lines, strict=False)
        return json_lines(*({"parentUuid": parent, **line, **chain} for parent, line in records))

    def prompt(id: str, at: str) -> dict[str, Any]:
        message = {"role": "user", "content": "fix it"}
        return {"type": "user", "uuid": f"{id}-1", "timestamp": at, "message": message}

    def answer(id: str, n: int, at: str, block: dict[str, Any], cached: int) -> dict[str, Any]:
        usage = {"input_tokens": 4, "cache_creation_input_tokens": 100 + 50 * n - 4 - cached,
                 "cache_read_input_tokens": cached, "output_tokens": 20}  # fmt: skip
        message = {"id": f"msg_{id}{n}", "model": "claude-x", "content": [block], "usage": usage,
                   "stop_reason": "end_turn"}  # fmt: skip
        return {"type": "assistant", "uuid": f"{id}-a{n}", "timestamp": at, "message": message}

    called = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
    done = {"type": "text", "text": "done"}
    observed = {"type": "user", "uuid": "a-2", "timestamp": "2026-01-01T00:00:05.500Z",
                "message": {"role": "user", "content": [result]}}  # fmt: skip
    return Sample(
        {
            "a.jsonl": session(
                "a",
                prompt("a", "2026-01-01T00:00:00Z"),
                answer("a", 0, "2026-01-01T00:00:04Z", called, 64),
                observed,
                answer("a", 1, "2026-01-01T00:00:09Z", done, 100),
            ),
            "b.jsonl": session(
                "b",
                prompt("b", "2026-01-01T00:01:00Z"),
                answer("b", 0, "2026-01-01T00:01:04Z", done, 64),
            ),
        },
        (Provenance.MEASURED_WITH_PERMISSION,),
    )


def codex() -> Sample:
    def line(kind: str, second: float, **payload: Any) -> dict[str, Any]:
        return {"timestamp": f"2026-01-01T00:00:{second:06.3f}Z", "type": kind, "payload": payload}

    def counted(second: float, calls: int) -> dict[str, Any]:
        last = {"input_tokens": 50 + 50 * calls, "cached_input_tokens": 64, "output_tokens": 20}
        info = {"total_token_usage": {"input_tokens": 125 * calls}, "last_token_usage": last}
        return line("event_msg", second, type="token_count", info=info)

    def rollout(id: str, *lines: dict[str, Any]) -> bytes:
        opening = [
            line("session_meta", 0, id=id, cli_version="0.100.0"),
            line("turn_context", 0, model="gpt-x"),
            line("response_item", 1, type="message", role="user", content=[{"text": "fix it"}]),
        ]
        return json_lines(*opening, *lines)

    call = line("response_item", 4, type="function_call", name="exec_command", call_id="c",
                arguments=json.dumps({"cmd": "ls"}))  # fmt: skip
    output = line("response_item", 5.5, type="function_call_output", call_id="c", output="x")
    done = line("response_item", 9, type="message", role="assistant", content=[{"text": "done"}])
    return Sample(
        {
            "rollout-a.jsonl": rollout("a", call, counted(4, 1), output, done, counted(9, 2)),
            "rollout-b.jsonl": rollout("b", done, counted(9, 1)),
        },
        (Provenance.MEASURED_WITH_PERMISSION,),
    )


def gemini_cli() -> Sample:
    def session(id: str, *messages: dict[str, Any]) -> bytes:
        head = {"sessionId": id, "projectHash": "0" * 8, "startTime": "2026-01-01T00:00:00Z"}
        user = {"id": "u", "timestamp": "2026-01-01T00:00:01Z", "type": "user", "content": "fix it"}
        patch = {"$set": {"lastUpdated": "2026-01-01T00:00:01Z"}}
        return json_lines(head, user, patch, *messages)

    def answer(n: int, second: int, *calls: dict[str, Any]) -> dict[str, Any]:
        counts = {"input": 100 + 50 * n, "output": 20, "cached": 64, "thoughts": 0, "tool": 0}
        return {"id": f"g{n}", "timestamp": f"2026-01-01T00:00:0{second}Z", "type": "gemini",
                "content": "on", "model": "gemini-x", "tokens": counts,
                "toolCalls": list(calls)}  # fmt: skip

    call = {"name": "run_shell_command", "args": {"command": "ls"},
            "timestamp": "2026-01-01T00:00:05.500Z"}  # fmt: skip
    return Sample(
        {
            "session-a.jsonl": session("a", answer(0, 4, call), answer(1, 9)),
            "session-b.jsonl": session("b", answer(0, 4)),
        },
        (Provenance.MEASURED_WITH_PERMISSION,),
    )


SAMPLES = {
    "turnstile": native(),
    "turns.jsonl": turns_of_a_run(),
    "claude-code": claude_code(),
    "codex": codex(),
    "gemini-cli": gemini_cli(),
    "mini-swe-agent": mini_swe_agent(),
    "weka": weka(),
    "openhands": openhands(),
    "azure-copilot": azure_copilot(),
    "tracelab": tracelab(),
    "agentinfer": agentinfer(),
    "dynamo": dynamo(),
    "agentic-mooncake": agentic_mooncake(),
    "applied-compute": applied_compute(),
    "mooncake": mooncake(),
    "bailian": bailian(),
    "llmservingsim": llmservingsim(),
    "lmcache-agent": lmcache_agent(),
    "aiperf-dag": aiperf_dag(),
    "otel": Sample({"a.json": span_samples.otlp()}, (Provenance.MEASURED,)),
    "langfuse": Sample({"a.json": span_samples.langfuse()}, (Provenance.MEASURED,)),
    "atif": Sample(
        {"a.json": span_samples.atif("a", 2, 9), "b.json": span_samples.atif("b", 3)},
        (Provenance.INFERRED,),
    ),
    "swe-agent": Sample(
        {
            "a.traj": span_samples.swe_agent("fix it", 1.5, 1),
            "b.traj": span_samples.swe_agent("x", 1),
        },
        (Provenance.MEASURED,),
    ),
    "bfcl": Sample(
        {"a.json": span_samples.bfcl()},
        (Provenance.SYNTHESISED,),
        gaps="bfcl",
        shares_prefix=False,
    ),
    "mlperf-endpoints": Sample(
        {"a.jsonl": span_samples.mlperf_endpoints()}, (Provenance.MEASURED,)
    ),
}
"""Samples by the name in `traces.formats.registry.known_formats`."""
