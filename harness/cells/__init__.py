"""Execution of cells in worker processes. In: a `Job` for each cell. Out: files in its folder."""
