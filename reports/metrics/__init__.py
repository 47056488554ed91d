"""Computes the metrics of cells, which docs/reference/metrics.md defines.

In: the turns and events of cells. Out: frames with a row per cell and per job.
"""
