"""Runs real agents as the load: each program is one process of an unmodified agent.

In: tasks (`tasks`), the agent's name or command line, a gateway's URL. Out: processes that run an
agent on one task each (`processes`), and the result that each leaves (`agent.read_result`).

agent           the interface between the harness and an agent
mini_swe_agent, openhands, command   the agents; their `*_process` runs in their own Python
pythons         the Python environments that agents are installed in
workspace       the folder in which a program's commands run
sandbox         confinement of agents and of the commands that a model runs
"""
