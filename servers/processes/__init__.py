"""Child processes that end when their parent does, however it ends.

In: a command line and an environment. Out: a `SupervisedProcess`, a reserved `Port`, and requests
to the servers that were started.
"""
