"""Pools seeds and compares variants. In: metrics of cells. Out: points, ratios, intervals."""
