"""vLLM's scheduler in virtual time, with the interface of `servers.sim.Engine`.

In: a policy, a profile, limits, and turns with their submission times. Out: finished and aborted
turns, and events.
"""
