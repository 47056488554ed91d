"""Scheduling policies, one file each: pure decisions on plain values (`base.Policy`).

In: events of an engine, and the costs of rebuilding a context. Out: the order of waiting turns, who
is preempted, and how long a finished turn's KV is kept. `runner` executes a policy in an engine,
with the queue and the pins, `arguments` reads a policy's arguments from text, and `contract` checks
a policy from outside. vLLM imports this folder, so it uses the standard library only.
"""
