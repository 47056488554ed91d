"""Trace formats, one module each, and their registry.

In: the bytes of a file. Out: its programs, and repairs. `calls` has helpers of several formats; the
modules `openhands_*` are parts of `openhands`.
"""
