"""Compares virtual time with live runs. In: runs of both. Out: a fidelity card."""
