"""Trace formats, one module each, and their registry.

In: the bytes of a file. Out: its programs, and repairs. `calls`, `sessions` and `linked` have
helpers of several formats; the modules `openhands_*`, `claude_code_lines` and `codex_rollout` are
parts of formats.
"""
