"""Real agents as the load: each program one process of an unmodified agent
(docs/howto/my-agent.md).

tasks           what programs have to do
agent           what the harness knows of an agent
mini_swe_agent, openhands, command   the agents; `*_process` runs in their own Python
processes       one program's process: booted ahead, let go at its arrival, ended
sandbox, container   what commands from a model can reach
"""
