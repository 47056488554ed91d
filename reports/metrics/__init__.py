"""Computes the metrics of cells, as docs/reference/metrics.md defines them.

In: the turns and events of cells. Out: frames with a row per cell and per job.
"""
