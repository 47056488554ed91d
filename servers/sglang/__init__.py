"""Starts SGLang servers, with their own schedulers and radix cache, or schedules as they do.

In: a scheduler of SGLang with arguments (`schedulers`), and the settings of a server. Out: a
`SglangServer` on loopback. `find_sglang` finds its Python, `command_line` has its flags, and
`server` starts, watches and stops it. What is assumed of SGLang was read in its code (0.5.23) and
is tested against a server that answers like it; it has not been run on a GPU. `virtual_time` runs
SGLang's own scheduler under a virtual clock, and `sim` a model of it.
"""
