"""Trace formats, one file each. In: the bytes of a file. Out: programs, and the repairs made."""
