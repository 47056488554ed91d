"""Online estimates for policies: tool times, queueing delays, turn counts and TTLs.

In: events of turns. Out: seconds, counts and shares.
"""
