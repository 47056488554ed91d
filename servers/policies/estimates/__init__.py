"""Estimates that policies make while they run: tool times, queueing delays, turn counts and TTLs.

In: events of turns. Out: seconds, counts and shares.
"""
