"""Judges the claims of an experiment.

In: its claims and runs. Out: a finding per claim, a verdict, and a page.
"""
