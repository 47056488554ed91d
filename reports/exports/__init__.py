"""Exports cells to the formats of other tools (docs/howto/exports.md).

In: the cells of a run folder. Out: files.
"""
