"""Compares runs over time.

In: two runs, or a history of runs. Out: a verdict, and a page with the trend.
"""
