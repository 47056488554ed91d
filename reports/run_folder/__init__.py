"""Reads and checks run folders. In: a folder. Out: the sweep, its cells, their turns as frames."""
