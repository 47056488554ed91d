"""vLLM as an engine: the scheduler plug-in, its launch, its models, and vLLM in virtual time.

In: a server's configuration, or turns for virtual time. Out: a running server, or finished turns.
"""
