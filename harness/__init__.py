"""The `bench` command: from options to run folders, and from run folders to printed results.

Rooms, from the top down; each imports only those below it:

    cli           the command line: one file per command
    experiments   the figures of the sources, by name
    calibrate     measurements of a live engine, and checks of virtual time against it
    sweep         the plan of a sweep, its cells, and how they are run
    engines       what cells run on: virtual time, vLLM, a server at a URL
    live_agents   real agents as the load
    gateway       an OpenAI-compatible proxy that knows programs
    replay        the turns of a program, sent when they are due
    cells         the folder of a cell, the job in it, and the worker processes
    load          which programs arrive when
"""
