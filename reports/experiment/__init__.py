"""Judges an experiment. In: its claims and runs. Out: a verdict per claim, and a page."""
