"""Writes the HTML report of a run.

In: a run folder. Out: one page that needs no network, with its tables as CSV and JSON.
"""
