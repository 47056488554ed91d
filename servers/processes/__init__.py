"""Child processes that end when their parent does, even if it is killed.

In: a command line and an environment. Out: a `SupervisedProcess`, or a `ServerProcess`, which also
has ports and is healthy or not.
"""
