"""Metrics of cells (docs/reference/metrics.md). In: frames of turns. Out: frames of numbers."""
