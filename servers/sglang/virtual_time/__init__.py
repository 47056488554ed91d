"""SGLang's scheduler in virtual time, with the interface of `servers.sim.Engine`.

In: a scheduler of SGLang, a profile, limits, and turns with their submission times. Out: finished
turns and events.
"""
