"""Writes the page about a trace: what its jobs are like, and which recipe is nearest.

In: a trace that was read. Out: one HTML file. `bench traces inspect` prints the same statistics.
"""
