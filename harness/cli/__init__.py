"""The command line. In: the words after `bench`. Out: run folders, tables on stdout, an exit code.

`main` holds the application; `commands` has one file per command.
"""
