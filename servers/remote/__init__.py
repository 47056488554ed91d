"""Virtual time in a process of another interpreter, which has the scheduler of a serving engine.

In: a cell's policy, profile, limits and turns. Out: finished turns and events. `client` has the
interface of `servers.sim.Engine`, and `cell` answers it in the other process.
"""
