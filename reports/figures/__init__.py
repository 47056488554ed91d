"""Draws the figures of a report.

In: points or the turns of a cell. Out: Plotly specifications.
"""
