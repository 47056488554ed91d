"""Confinement of agents and of the commands that a model runs: bubblewrap, seccomp, containers."""
