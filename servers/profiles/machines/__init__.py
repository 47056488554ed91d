"""GPUs: published peaks, memory and links, listed by name or described in a file of the user.

In: a name, or the path of a TOML file. Out: `gpus.Hardware`.
"""
