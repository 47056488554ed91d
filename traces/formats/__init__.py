"""Trace formats, one module each, and their registry.

In: the bytes of a file. Out: its programs, and repairs. `shared` has code that several formats use.
The modules `openhands_*`, `claude_code_lines`, `codex_rollout` and `otel_attributes` (for `otel`
and `langfuse`) are parts of formats.
"""
