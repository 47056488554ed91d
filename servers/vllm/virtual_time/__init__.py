"""vLLM's own scheduler in virtual time, behind the same interface as `servers.sim.Engine`.

In: a policy, a profile, limits, and turns submitted with a time. Out: ended turns and events.
"""
