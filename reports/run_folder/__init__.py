"""Reads, checks and writes run folders (docs/reference/run-folder.md).

In: a folder. Out: the sweep, its cells, and their turns as arrays or frames.
"""
