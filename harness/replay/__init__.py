"""Replays programs. In: programs and their arrivals. Out: a record of each turn."""
