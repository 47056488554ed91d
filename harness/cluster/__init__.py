"""Cells as tasks of a Ray cluster. In: cells. Out: their events, and their folders on this disk."""
