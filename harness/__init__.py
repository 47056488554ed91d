"""The `bench` command, which runs sweeps into run folders and prints their results.

Rooms, from the top down; each imports only those below it:

    cli           the command line: one file per command
    experiments   the published experiments, by name
    calibrate     measurements of a live engine, and checks of virtual time against it
    cluster       runs cells on the nodes of a Ray cluster
    sweep         the plan of a sweep and the execution of its cells
    engines       backends that run a cell: virtual time, vLLM, a server at a URL
    live_agents   real agents that send the requests
    gateway       an OpenAI-compatible proxy that identifies programs
    replay        sends the turns of recorded programs at their times
    cells         the folder and the job of a cell, and the worker processes
    load          the settings, the programs, and their arrival times
"""
