"""Trace formats, one module each, and their registry.

In: the bytes of a file. Out: its programs, and repairs. `shared` has what several formats have in
common. The modules `openhands_*`, `claude_code_lines` and `codex_rollout` are parts of formats, and
so is `otel_attributes`, of `otel` and `langfuse`.
"""
