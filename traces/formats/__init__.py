"""Trace formats, one module each, and their registry.

In: the bytes of a file. Out: its programs, and repairs. `calls`, `chat_messages` and `moments` have
helpers of several formats; the modules `openhands_*` are parts of `openhands`, and `span*` and
`otel_attributes` of `otel` and `langfuse`.
"""
