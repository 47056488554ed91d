"""The folder and the job of a cell, and the worker processes that run cells."""
