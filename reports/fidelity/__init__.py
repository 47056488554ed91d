"""Compares virtual time with live runs.

In: live runs, and a run in virtual time. Out: a fidelity card.
"""
