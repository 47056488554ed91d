"""Runs real agents as the load: each program is one process of an unmodified agent.

In: tasks (`tasks`), an agent's name or command line, a gateway's URL. Out: one process per task
(`processes`), and its result (`agent.read_result`). `agent` is the interface of all agents; the
`*_process` modules run in an agent's own Python.
"""
