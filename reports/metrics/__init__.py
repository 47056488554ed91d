"""Metrics of cells (docs/metrics.md). In: frames of turns. Out: frames of numbers."""
