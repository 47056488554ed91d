"""Exports cells to the formats of other tools (docs/reference/report.md).

In: the cells of a run folder. Out: files.
"""
