"""Child processes that end when their parent does, even if it is killed.

In: a command line and an environment. Out: a `SupervisedProcess`, a reserved `Port`, and responses
of the servers that were started.
"""
