"""Confines agents, and the commands that a model runs: bubblewrap, seccomp, containers.

In: a command, its workspace and limits. Out: a command line that runs it confined, and the memory
and disk space that its processes use.
"""
