"""The load of a sweep. In: settings. Out: programs, or tasks of agents, and their arrivals."""
