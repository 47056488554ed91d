"""Trace formats, one module each, and their registry.

In: the bytes of a file. Out: its programs, and repairs. `calls`, `chat_messages`, `linked`,
`moments`, `rows`, `sessions` and `timed_calls` have helpers of several formats. The modules
`openhands_*`, `claude_code_lines` and `codex_rollout` are parts of formats, and so are `span*` and
`otel_attributes`, of `otel` and `langfuse`.
"""
