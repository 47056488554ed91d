"""The command line. In: command-line arguments. Out: run folders, tables on stdout, an exit code.

`main` holds the application; `commands` has one file per command.
"""
