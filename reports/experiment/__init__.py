"""Compares the claims of an experiment with its runs.

In: claims and runs. Out: a finding per claim, a verdict, and a page.
"""
